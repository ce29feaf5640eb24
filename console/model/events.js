// The meaning of an event for this page, from its tag and its data. Every accepted minion can fire any event, so an event is a
// hint: it changes what is shown, and everything that matters is then read from the API.

const ENGINES = new Set(["batch_manager", "job_retry", "job_recorder"]);
const PLAIN = /^[^\s/\p{Cc}\p{Cs}]{1,255}$/u;

/**
 * Whether an event with this tag is worth decoding: a return may have megabytes.
 * @param {string} tag
 * @param {object} view the view: `jid` is the job that it follows; with `published` it follows all published jobs
 */
export function wants(tag, { jid, published = false } = {}) {
  if (tag.startsWith("salt/job/")) {
    return (jid !== undefined && tag.startsWith(`salt/job/${jid}/`)) || (published && tag.endsWith("/new"));
  }
  return tag.startsWith("salt/batch/") || tag.startsWith("salt/job_retry/") || tag.startsWith("saltext/jobs/")
    || (tag.startsWith("salt/run/") && tag.endsWith("/new"));
}

/**
 * Return `{kind, …}` or null. Kinds: `batch` (jid, what), `entry` (minion, jid, what), `published` (jid, minions),
 * `began` and `returned` (jid, minion), `beat` (engine), `called` (fun: a user has called a runner).
 */
export function meaning(tag, data) {
  const parts = tag.split("/");
  if (!parts.every((part) => part.length <= 255)) return null;
  const [, family, one, two, three] = parts;
  if (parts[0] === "saltext") {
    return parts.length === 5 && two === "beat" && ENGINES.has(one) ? { kind: "beat", engine: one } : null;
  }
  if (family === "batch" && parts.length === 4 && PLAIN.test(one) && data.jid === one) return { kind: "batch", jid: one, what: two, data };
  if (family === "job_retry" && parts.length === 5 && PLAIN.test(one) && PLAIN.test(two)) {
    return data.minion === one && data.jid === two ? { kind: "entry", minion: one, jid: two, what: three, data } : null;
  }
  if (family === "run" && parts.length === 4) {
    return typeof data.fun === "string" ? { kind: "called", fun: data.fun.replace(/^runner\./, "") } : null;
  }
  if (family !== "job" || !PLAIN.test(one)) return null;
  if (two === "new" && parts.length === 4 && data.jid === one) return { kind: "published", jid: one, minions: names(data.minions), data };
  if (parts.length !== 5 || !PLAIN.test(three) || data.id !== three) return null;
  if (two === "start") return { kind: "began", jid: one, minion: three };
  return two === "ret" && data.jid === one ? { kind: "returned", jid: one, minion: three, failed: hasFailed(data), retcode: data.retcode, data } : null;
}

/** Functions that ask which minions are there and what runs: `job_cache.search` leaves them out (`LOOKS` in `core/functions.py`). */
const LOOKS = new Set(["test.ping", ...["find_job", "find_cached_job", "is_running", "running"].map((name) => `saltutil.${name}`)]);

/** Whether a publish is only a question. */
export function isQuestion({ fun }) {
  return [fun].flat().every((name) => LOOKS.has(name));
}

function names(value) {
  return Array.isArray(value) ? value.filter((name) => typeof name === "string") : [];
}

/** Whether a return tells of a failure: an exit code other than 0, or `success: false`. */
export function hasFailed(ret) {
  const code = ret.retcode;
  const codes = code && typeof code === "object" ? Object.values(code) : [code];
  return ret.success === false || codes.some((one) => one !== 0 && one !== null && one !== undefined);
}
