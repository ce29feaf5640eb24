// A job and its returns, from `jobs.list_job`. Pure.

import { hasFailed } from "./events.js";

/** Names of arguments whose values are hidden, as `batch.list` and `job_cache.search` hide them. */
const SECRET = /passw|passphrase|secret|token|credential|bearer|cookie|authorization|(private|api|access|ssh)[_-]?key|(^|[^a-z])(pass|pwd|auth)(?![a-z])/i;
const HIDDEN = "********";
/** Most levels of a value that are searched. */
const DEEPEST = 20;

/** The arguments of a job as words, `{plain, named}`: those in their order, and those by name. Secrets are hidden. */
export function argumentsOf(job) {
  const given = Array.isArray(job.Arguments) ? job.Arguments : [];
  const isNamed = (one) => one !== null && typeof one === "object" && one.__kwarg__ === true;
  const named = given.filter(isNamed).flatMap((one) => Object.entries(one)).filter(([name]) => name !== "__kwarg__");
  return { plain: given.filter((one) => !isNamed(one)).map((one) => written(one, "")), named: named.map(([name, value]) => `${name}=${written(value, name)}`) };
}

/** What a job has run, as it would be typed. */
export function commandOf(job) {
  const { plain, named } = argumentsOf(job);
  return [typeof job.Function === "string" ? job.Function : "", ...plain, ...named].join(" ");
}

function written(value, name) {
  const found = shown(value, name);
  return typeof found === "string" ? found : JSON.stringify(found);
}

function shown(value, name, depth = DEEPEST) {
  if (SECRET.test(name)) return HIDDEN;
  if (value === null || typeof value !== "object") return value;
  if (!depth) return "…";
  if (Array.isArray(value)) return value.map((one) => shown(one, "", depth - 1));
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, shown(one, key, depth - 1)]));
}

/** Return `[{minion, state, value, code}]` of a job, by name; `state` is failed, missing or returned. */
export function returnsOf(job) {
  const result = job && job.Result && typeof job.Result === "object" ? job.Result : {};
  const expected = Array.isArray(job.Minions) ? job.Minions.filter((name) => typeof name === "string") : [];
  const names = [...new Set([...Object.keys(result), ...expected])].sort();
  return names.map((minion) => {
    if (!Object.hasOwn(result, minion)) return { minion, state: "missing", value: null, code: null };
    const record = result[minion];
    const wrapped = record && typeof record === "object" && "return" in record;
    const failed = wrapped && hasFailed(record);
    return { minion, state: failed ? "failed" : "returned", value: wrapped ? record.return : record, code: wrapped ? record.retcode : null };
  });
}

/** The counts of returns by state. */
export function countsOf(returns) {
  const counts = { failed: 0, missing: 0, returned: 0 };
  for (const { state } of returns) counts[state] += 1;
  return counts;
}

/** Returns in the order in which they are shown: failures, then missing ones, then the rest. */
export function worstFirst(returns) {
  const rank = { failed: 0, missing: 1, returned: 2 };
  return [...returns].sort((one, other) => rank[one.state] - rank[other.state]);
}
