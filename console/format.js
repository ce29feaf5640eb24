// Formats numbers, times and values as text. Pure.

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

/** Return a length of time in its two largest units: `3 h 12 min`; if it is `exact` and below ten seconds, with a decimal. */
export function duration(seconds, exact = false) {
  if (!Number.isFinite(seconds)) return "–";
  if (exact && seconds > 0 && seconds < 10) return `${seconds < 0.1 ? Math.max(seconds, 0.001).toPrecision(1) : seconds.toFixed(1)} s`;
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

/** Return how long ago, or ahead, a moment is; both are Unix times. */
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

/**
 * Return a moment, a Unix time, in the user's own zone, with its offset from UTC: the master's log and salt-run may use another
 * zone.
 */
export function moment(at) {
  const date = new Date(at * 1000);
  if (typeof at !== "number" || !Number.isFinite(date.getTime())) return "–";
  const ahead = -date.getTimezoneOffset();
  const local = new Date(date.getTime() + ahead * 60000).toISOString().slice(0, 19).replace("T", " ");
  const two = (number) => String(number).padStart(2, "0");
  return `${local} ${ahead < 0 ? "-" : "+"}${two(Math.floor(Math.abs(ahead) / 60))}:${two(Math.abs(ahead) % 60)}`;
}

/** Return when a job was published, as its jid says, which is in UTC; a dash if the jid is no time. */
export function published(jid) {
  const [, date, time] = /^(\d{8})(\d{6})\d{6}/.exec(jid) ?? [null, "", ""];
  return moment(Date.parse(`${date.replace(/(....)(..)/, "$1-$2-")}T${time.replace(/(..)(..)/, "$1:$2:")}Z`) / 1000);
}

/** Return the time of day of a moment, in the user's own zone. */
export function clock(at) {
  return moment(at).slice(11, 19);
}

/** Return a number as salt-run prints it, whatever the browser's locale: in an English sentence `10.000` would be ten. */
export function count(number) {
  return Number.isFinite(number) ? number.toLocaleString("en", { maximumFractionDigits: 20 }) : "–";
}

/** Return a pace as a number, with one decimal if it is small. */
export function tempo(number) {
  return Number.isFinite(number) ? number.toLocaleString("en", { maximumFractionDigits: number < 10 ? 1 : 0 }) : "–";
}

/** Return `1 minion`, `3 minions`. */
export function many(number, one, several = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : several}`;
}

/** Return any value from the API as one line of text. */
export function line(value, most = 200) {
  if (value === null || value === undefined || value === "") return "–";
  return cut(typeof value === "string" ? value : block(value, 2 * most).replace(/\s+/g, " "), most);
}

/** Return text without its middle if it is too long: the end of an id tells as much as its beginning. */
export function cut(text, most) {
  if (text.length <= most) return text;
  const half = Math.floor((most - 1) / 2);
  return `${text.slice(0, half)}…${text.slice(text.length - half)}`;
}

/** Most levels of indentation: deeper lines would be nothing but spaces. */
const DEEPEST = 30;

/**
 * Return any value from the API as several lines of text: JSON, or a string as it is. A minion may return anything, so this
 * does not recurse, and stops soon after `most` characters.
 * @param {number} most a text longer than this is not whole
 */
export function block(value, most) {
  if (typeof value === "string") return value.slice(0, most + 1);
  const open = []; // lists and mappings that have begun and not ended, outermost first
  let text = "";
  const begin = (one) => {
    if (one === null || typeof one !== "object") {
      text += JSON.stringify(typeof one === "string" ? one.slice(0, most + 1) : one);
      return;
    }
    const [names, [first, last]] = Array.isArray(one) ? [null, "[]"] : [Object.keys(one), "{}"];
    const length = (names ?? one).length;
    text += length ? first : first + last;
    if (length) open.push({ one, names, length, last, at: 0 });
  };
  const newLine = () => `\n${"  ".repeat(Math.min(open.length, DEEPEST))}`;
  begin(value);
  while (open.length && text.length <= most) {
    const now = open.at(-1);
    if (now.at === now.length) {
      open.pop();
      text += newLine() + now.last;
    } else {
      text += (now.at ? "," : "") + newLine();
      const name = now.names ? now.names[now.at] : now.at;
      if (now.names) text += `${JSON.stringify(name.slice(0, most + 1))}: `;
      now.at += 1;
      begin(now.one[name]);
    }
  }
  return text;
}

/** Return a target as it was written; a list with commas. */
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
 * Return the value of text typed into a form: a number, true, false, null, a list or a mapping if it is JSON, else text. What
 * would not print as it was typed is no number but text: a jid, which JavaScript cannot hold exactly, a version 1.10, and 12e4,
 * which may be a hash.
 */
export function typed(text) {
  const trimmed = text.trim();
  try {
    const value = JSON.parse({ True: "true", False: "false", None: "null" }[trimmed] ?? trimmed);
    return typeof value === "number" && String(value) !== trimmed ? trimmed : value;
  } catch {
    return trimmed;
  }
}

/** Return a state in words. */
export function name(state) {
  return String(state).replaceAll("_", " ");
}
