// What a minion has returned: a run of states as rows, or a value. Pure.

import { block } from "../format.js";

/**
 * The states of a run, the failed ones first, then those that changed something: `[{id, fun, result, comment, changes, seconds}]`.
 * Null if the value is no run of states.
 */
export function statesOf(value) {
  if (!value || typeof value !== "object" || Array.isArray(value)) return null;
  const entries = Object.entries(value);
  if (!entries.length || !entries.every(([key, one]) => key.split("_|-").length === 4 && one && typeof one === "object" && "result" in one)) return null;
  const rank = (row) => (row.result === false ? 0 : Object.keys(row.changes).length ? 1 : row.result === null ? 2 : 3);
  return entries.map(([key, one]) => {
    const [module, id, , fun] = key.split("_|-");
    const changes = one.changes && typeof one.changes === "object" ? one.changes : {};
    return { id: String(one.__id__ ?? id), fun: `${module}.${fun}`, result: one.result, comment: one.comment ?? "", changes, seconds: secondsOf(one.duration), order: Number(one.__run_num__) || 0 };
  }).sort((one, other) => rank(one) - rank(other) || one.order - other.order);
}

/** A value as text of about `most` characters; of an empty text that it is one. */
export function textOf(value, most) {
  return value === "" ? "(an empty text)" : block(value, most);
}

/** A duration in milliseconds, as Salt writes it: a number, or `12.5 ms`. */
function secondsOf(duration) {
  const number = typeof duration === "number" ? duration : Number.parseFloat(duration);
  return Number.isFinite(number) ? number / 1000 : null;
}
