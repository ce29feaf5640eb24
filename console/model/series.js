// Figures over the last hour or day, as the engines keep them. Pure.

export const [HOUR, DAY] = [3600, 24 * 3600];
/** Most points of one series. */
const MOST = 400;

/** Values at moments, `[[Unix time, value]]`, oldest first. */
export class Series {
  /** @param {number} span seconds that are kept */
  constructor(span = HOUR) {
    this.span = span;
    this.points = [];
  }

  add(at, value) {
    if (!Number.isFinite(at) || !Number.isFinite(value)) return;
    const last = this.points.at(-1);
    if (last && at <= last[0]) return;
    this.points.push([at, value]);
    while (this.points.length > MOST || this.points[0][0] < at - this.span) this.points.shift();
  }

  /** The increase of a counter each minute. A step down is a restart, and gives no point. */
  rates() {
    const found = [];
    for (let index = 1; index < this.points.length; index += 1) {
      const [[before, low], [at, high]] = [this.points[index - 1], this.points[index]];
      if (high >= low) found.push([at, (60 * (high - low)) / (at - before)]);
    }
    return found;
  }
}

/** Return figures flat: `{name: number}`, with `name{label}` for a figure with one value for each label. */
export function flat(figures) {
  const found = {};
  for (const [name, value] of Object.entries(figures || {})) {
    if (typeof value === "number") found[name] = value;
    else if (value && typeof value === "object") {
      for (const [label, one] of Object.entries(value)) if (typeof one === "number") found[`${name}{${label}}`] = one;
    }
  }
  return found;
}
