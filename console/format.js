// How numbers, times and values read. Pure.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** Return a length of time in its two largest units: `3 h 12 min`. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  let left = Math.max(0, Math.round(seconds));
  if (left === 0) return "0 s";
  const parts = [];
  for (const [size, name] of UNITS) {
    const number = Math.floor(left / size);
    left -= number * size;
    if (number) parts.push(`${number} ${name}`);
    if (parts.length === 2 || (parts.length === 1 && size === 1)) break;
    if (parts.length === 1 && !left) break;
  }
  return parts.join(" ");
}

/** Return how long ago, or ahead, a moment is; both Unix time. */
export function ago(at, now) {
  if (!Number.isFinite(at)) return "–";
  const passed = now - at;
  if (passed < -1) return `in ${rough(-passed)}`;
  return passed < 2 ? "just now" : `${rough(passed)} ago`;
}

function rough(seconds) {
  const [size, name] = UNITS.find(([unit]) => seconds >= unit) || UNITS[3];
  return `${Math.floor(seconds / size)} ${name}`;
}

/** Return a moment, Unix time, in the zone and the manner of whoever looks. */
export function moment(at) {
  if (!Number.isFinite(at)) return "–";
  return new Date(at * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" });
}

export function count(number) {
  return Number.isFinite(number) ? number.toLocaleString() : "–";
}

/** Return `1 minion`, `3 minions`. */
export function many(number, one, several = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : several}`;
}

/** Return any value of the API as text of a line. */
export function line(value, most = 200) {
  if (value === null || value === undefined || value === "") return "–";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return cut(text, most);
}

/** Return text with its middle taken out where it is too long: of an id the end tells as much as the beginning. */
export function cut(text, most) {
  if (text.length <= most) return text;
  const half = Math.floor((most - 1) / 2);
  return `${text.slice(0, half)}…${text.slice(text.length - half)}`;
}

/** Return any value of the API as text of several lines. */
export function block(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** Return a target as it was written: a list with commas. */
export function target(tgt, type) {
  const text = Array.isArray(tgt) ? tgt.join(",") : line(tgt);
  return type && type !== "glob" ? `${text} (${line(type)})` : text;
}

/** Return a size in bytes. */
export function bytes(number) {
  if (!Number.isFinite(number)) return "–";
  let left = number, unit = 0;
  const units = ["B", "kB", "MB", "GB", "TB"];
  while (left >= 1000 && unit < units.length - 1) [left, unit] = [left / 1000, unit + 1];
  return `${left < 10 && unit ? left.toFixed(1) : Math.round(left)} ${units[unit]}`;
}

/**
 * Return the value that somebody meant who typed it into a form: a number, true, false, null, a list or a mapping where it is
 * written as one in JSON, and text otherwise. A number is one only where it reads the same again: a jid, which JavaScript cannot
 * hold exactly, a version 1.10, and 12e4, which may be a hash, stay text.
 */
export function typed(text) {
  const trimmed = text.trim();
  try {
    const value = JSON.parse(trimmed);
    return typeof value === "number" && String(value) !== trimmed ? trimmed : value;
  } catch {
    return trimmed;
  }
}
