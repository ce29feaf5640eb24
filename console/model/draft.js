// The content of the form for a new batch: as it is kept over a reload, and as another batch fills it. Pure.

/** A keyword argument, as a runner writes it among the words of a job. */
const KEYWORD = /^[A-Za-z_]\w*=/;

/** The form, filled from an earlier batch or job, without its start time, which has passed. */
export function draftOf(batch) {
  const words = Array.isArray(batch.arguments) ? batch.arguments.map((one) => (typeof one === "string" ? one : JSON.stringify(one))) : [];
  const options = batch.options && typeof batch.options === "object" ? batch.options : {};
  return kept({
    ...Object.fromEntries(Object.entries(options).map(([name, value]) => [name, text(value)])),
    ...(options.max_failures === 0 ? { max_failures: "0" } : {}),
    start_at: "",
    tgt: Array.isArray(batch.tgt) ? batch.tgt.join(",") : text(batch.tgt),
    tgt_type: text(batch.tgt_type) || "glob",
    fun: text(batch.fun),
    arg: words.filter((word) => !KEYWORD.test(word)).join("\n"),
    kwarg: words.filter((word) => KEYWORD.test(word)).join("\n"),
    batch: text(options.batch ?? batch.batch_size),
  });
}

/** The texts of a kept draft, which may be anything, by the name of the field. */
export function kept(found) {
  const given = found && typeof found === "object" ? found : {};
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value && typeof value === "string"));
}

/** What jobs of `job_cache.search` had under a name, such as Function; that of most jobs first. */
export function used(jobs, name) {
  const counts = new Map();
  for (const job of jobs) {
    if (job && typeof job[name] === "string") counts.set(job[name], (counts.get(job[name]) ?? 0) + 1);
  }
  return [...counts].sort(([, one], [, other]) => other - one).map(([value]) => value);
}

/** What completes the states in a text of comma-separated names: `web.con` by `web.config` and so on, at most `most`. */
export function completions(typed, names, most = 8) {
  const start = typed.split(/[\n,]/).at(-1).trim();
  return names.filter((name) => name.startsWith(start) && name !== start).slice(0, most);
}

/** The text with the last name in it replaced. */
export function completed(typed, name) {
  return typed.replace(/[^\n,]*$/, name);
}

function text(value) {
  return value === null || value === undefined || value === 0 ? "" : String(value);
}
