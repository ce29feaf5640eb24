// Jobs of `job_cache.search`, and the returns of one from `jobs.list_job`. Pure.

import { hasFailed } from "./events.js";

/** A row of `job_cache.search`, as it would be typed. The runner has already hidden arguments named like a password. */
export function commandOf(row) {
  const given = Array.isArray(row.Arguments) ? row.Arguments : [];
  const isNamed = (one) => one !== null && typeof one === "object" && one.__kwarg__ === true;
  const named = given.filter(isNamed).flatMap((one) => Object.entries(one)).filter(([name]) => name !== "__kwarg__");
  const plain = given.filter((one) => !isNamed(one)).map(written);
  return [typeof row.Function === "string" ? row.Function : "", ...plain, ...named.map(([name, value]) => `${name}=${written(value)}`)].join(" ");
}

function written(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** What may become of a minion, in the order in which it is shown: first without success, by itself, by a batch or by the retry queue. */
const WRONG = ["failed", "timed_out", "lost", "killed", "offline", "dead", "expired", "cancelled"];
export const FATES = [...WRONG, "missing", "queued", "active", "pending", "returned"];

/**
 * Return `[{minion, state, value, code}]` of a job, by name; `state` is one of FATES.
 * @param {object} known `job_cache.outcome`: what batches and the retry queue know of minions without a return
 */
export function returnsOf(job, known) {
  const [groups, owed] = [known?.groups ?? [], known?.owed ?? {}];
  const silent = new Map(groups.flatMap(({ state, minions }) => minions.map((minion) => [minion, state])));
  for (const minion of Object.keys(owed)) silent.set(minion, "queued");
  const result = job && job.Result && typeof job.Result === "object" ? job.Result : {};
  const expected = Array.isArray(job.Minions) ? job.Minions.filter((name) => typeof name === "string") : [];
  const names = [...new Set([...Object.keys(result), ...expected])].sort();
  return names.map((minion) => {
    if (!Object.hasOwn(result, minion)) return { minion, state: silent.get(minion) ?? "missing", value: null, code: null };
    const record = result[minion];
    const wrapped = record && typeof record === "object" && "return" in record;
    const failed = wrapped && hasFailed(record);
    return { minion, state: failed ? "failed" : "returned", value: wrapped ? record.return : record, code: wrapped ? record.retcode : null };
  });
}

/** How many minions ended without success. */
export function wrongOf(returns) {
  return returns.filter(({ state }) => WRONG.includes(state)).length;
}

/** The counts of returns by state. */
export function countsOf(returns) {
  const counts = Object.fromEntries(FATES.map((state) => [state, 0]));
  for (const { state } of returns) counts[state] += 1;
  return counts;
}

/** Returns in the order in which they are shown. */
export function worstFirst(returns) {
  return [...returns].sort((one, other) => FATES.indexOf(one.state) - FATES.indexOf(other.state));
}
