// One figure over the last hour or day, as a small line.

import { el, say, set, svg } from "./dom.js";
import { duration } from "./format.js";
import { HOUR } from "./model/series.js";

const [WIDTH, HEIGHT] = [240, 48];

export class Chart {
  /**
   * @param {string} title of the figure
   * @param {(value: number) => string} read returns a value as text
   * @param {number} span seconds that are shown
   */
  constructor(title, read, span = HOUR) {
    Object.assign(this, { title, read, span });
    this.line = svg("polyline", { class: "chart-line", points: "" });
    this.area = svg("polygon", { class: "chart-area", points: "" });
    this.now = el("span", { class: "chart-now" });
    this.range = el("p", { class: "quiet chart-range" });
    this.image = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "chart-image", preserveAspectRatio: "none" }, this.area, this.line);
    this.node = el("figure", { class: "chart" }, el("figcaption", {}, title, " ", this.now), this.image, this.range);
  }

  /** Show these points, `[[Unix time, value]]`, before `now`. */
  draw(points, now) {
    const shown = points.filter(([at]) => at >= now - this.span);
    const values = shown.map(([, value]) => value);
    const last = values.at(-1);
    say(this.now, last === undefined ? "–" : this.read(last));
    if (shown.length < 2) {
      [this.line, this.area].forEach((node) => set(node, "points", ""));
      say(this.range, "There are too few figures for a line yet.");
      set(this.image, "aria-label", `${this.title}: ${last === undefined ? "not known" : this.read(last)}`);
      return;
    }
    const top = Math.max(...values, 1e-9);
    // While little is known, that takes the whole width.
    const span = Math.max(now - shown[0][0], 1);
    const place = ([at, value]) => `${(WIDTH * (1 - (now - at) / span)).toFixed(1)},${(HEIGHT - 2 - (HEIGHT - 4) * Math.max(0, value) / top).toFixed(1)}`;
    const line = shown.map(place).join(" ");
    const [first, end] = [shown[0], shown.at(-1)].map(([at]) => (WIDTH * (1 - (now - at) / span)).toFixed(1));
    set(this.line, "points", line);
    set(this.area, "points", `${first},${HEIGHT} ${line} ${end},${HEIGHT}`);
    const time = duration(now - shown[0][0]);
    const [low, high] = [Math.min(...values), Math.max(...values)].map(this.read);
    say(this.range, low === high ? `${low} for ${time}` : `from ${low} to ${high}, in ${time}`);
    set(this.image, "aria-label", `${this.title}: now ${this.read(last)}, ${this.range.textContent}`);
  }
}
