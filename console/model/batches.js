// The batches, from `batch.list` and from events. Pure: no clock, no network, no page.

import { Followed } from "./followed.js";

/** The states of a minion of a batch, in the order in which they are shown. */
export const STATES = ["completed", "active", "pending", "failed", "timed_out", "lost", "offline", "queued", "killed"];
/** States of a minion that has ended without success. */
export const UNSUCCESSFUL = ["failed", "timed_out", "lost", "offline", "queued", "killed"];
/** States in which no return has ended the run. */
const WITHOUT_RETURN = ["lost", "offline", "queued", "killed"];
/** States of a batch that has ended. */
const OVER = new Set(["complete", "halted"]);
const KINDS = new Set(["new", "progress", "paused", "resumed", "check", "checked", "halted", "complete"]);

/** Return in words why a batch was halted, as `batch.status` does on a terminal. */
export function whyHalted({ halted_reason: reason, stopped_by: by, killing }) {
  if (reason === "stop") return `stopped by ${by || "batch.stop"}${killing ? " with kill=True" : ""}`;
  const [, group] = /^max_failures(?: in group (.*))?$/.exec(reason) ?? [null, null];
  if (group !== null) return `more minions failed than max_failures allows${group ? ` in group ${group}` : ""}`;
  return reason;
}

/** Most batches that are kept: forged events could add any number. */
const MOST = 20000;

export function isOver(batch) {
  return OVER.has(batch.state);
}

/** Whether a batch goes on only when an operator resumes it. */
export function isHeld(batch) {
  return batch.state === "paused" && ["operator", "publish", "permission"].includes(batch.paused_by);
}

/** Whether nothing of a batch was ever published. */
export function isUnsent(batch) {
  return batch.publishes === 0;
}

/** The jid of the batch with which the retries of one have succeeded on all its minions; else undefined. */
export function mendedBy({ retries = [], unmended = {} }) {
  return Object.keys(unmended).length ? undefined : retries.at(-1);
}

/** How many minions a retry could repeat, by state: those without success, but not what is queued nor what a retry has mended; until the end the batch may still send to those that are away or not reached. */
export function retriable(batch) {
  const left = batch.unmended ?? batch;
  const states = [...UNSUCCESSFUL, "pending"].filter((state) => state !== "queued" && (isOver(batch) || !["offline", "pending"].includes(state)));
  return Object.fromEntries(states.filter((state) => left[state] > 0).map((state) => [state, left[state]]));
}

/** Whether a batch goes on by itself when it is time. */
export function isScheduled(batch) {
  return batch.state === "paused" && ["window", "start"].includes(batch.paused_by);
}

/** Whether a minion has ended without a return: it may have ended its run long before, or not have run at all. */
export function isGivenUp({ state, retcode }) {
  return WITHOUT_RETURN.includes(state) || (state === "failed" && (retcode ?? null) === null);
}

/** In words how a minion has ended; after how many seconds is to follow. */
export function ending(minion) {
  if (!isGivenUp(minion)) return "ran";
  return minion.state === "killed" ? "killed after" : "given up after";
}

/** Whether a minion without success has succeeded in a retry. */
export function isMended({ state, retry_state: again }) {
  return UNSUCCESSFUL.includes(state) && again === "completed";
}

/** The state of a batch in one word, as in `salt-run batch.list`: `complete` does not say whether all went well. */
export function word(batch) {
  if (!batch.success && mendedBy(batch)) return "mended";
  if (batch.state === "complete") return (batch.success === undefined ? !batch.failed : batch.success) ? "succeeded" : "unsuccessful";
  if (batch.state === "running" && batch.blocked_reason && !batch.active) return "waiting";
  if (batch.state !== "paused" || !batch.paused_by || isHeld(batch)) return batch.state;
  return batch.paused_by === "start" ? "scheduled" : "waiting";
}

/** All these words; those that an operator looks for come first. */
export const WORDS = ["unsuccessful", "halted", "paused", "waiting", "scheduled", "running", "stopping", "mended", "succeeded"];

/** Whether a text is in what a batch runs, its target, its user or its jid. */
export function isLike(batch, text) {
  return [called(batch), [batch.tgt].flat().join(","), batch.user, batch.jid].some((one) => String(one ?? "").toLowerCase().includes(text.trim().toLowerCase()));
}

/** What a batch runs, as it would be typed. The runner has already hidden arguments named like a password. */
export function command(batch) {
  const words = Array.isArray(batch.arguments) ? batch.arguments.map((one) => (typeof one === "string" ? one : JSON.stringify(one))) : batch.told ? ["…"] : [];
  return [typeof batch.fun === "string" ? batch.fun : "", ...words].join(" ").trim();
}

/** What a batch runs, after what an operator has named it. */
export function called(batch) {
  const { name, ticket } = batch.options?.metadata ?? {};
  const given = [name, ticket].filter((one) => ["string", "number"].includes(typeof one) && one !== "");
  return `${given.length ? `${given.join(", ")}: ` : ""}${command(batch)}`;
}

/** Options that are shown elsewhere. */
const ELSEWHERE = new Set(["batch", "max_failures"]);
/** The values of some options that were not given. */
const USUAL = { presence: "ping", offline: "skip" };

/** The options with which a batch was started, `[[name, value]]`, without those that were not given, or have no effect. */
export function optionsOf(batch) {
  const options = batch.options && typeof batch.options === "object" ? batch.options : {};
  const idle = options.check && options.check !== "approve" ? [] : ["check_timeout"];
  return Object.entries(options)
    .filter(([name, value]) => !ELSEWHERE.has(name) && !idle.includes(name) && USUAL[name] !== value && ![null, undefined, false, "", 0].includes(value))
    .map(([name, value]) => [name, Array.isArray(value) ? value.join(", ") : value]);
}

/** Who may give the approval that a batch waits for, if `approve_by` limits that; else null. */
export function approversOf(batch) {
  const named = batch.options?.approve_by;
  return Number.isInteger(batch.approve) && Array.isArray(named) && named.length ? named.join(", ") : null;
}

/** How much of its failure budget a batch has used, such as `3 of 10%`; null if it has none. */
export function budget(batch) {
  const allowed = batch.options?.max_failures;
  if (allowed === null || allowed === undefined || allowed === "") return null;
  return `${number(batch.failed) + number(batch.timed_out) + number(batch.lost)} of ${allowed}`;
}

/**
 * The stages of a batch: `[{number, size, state}]`. `size` is how many at a time, as it was asked for. `state` is completed,
 * active, pending (not reached) or failed (the batch ended in this stage without success).
 */
export function stagesOf(batch) {
  const count = Math.min(number(batch.stages), 50);
  const sizes = String(batch.options?.batch ?? "").split(",").map((one) => one.trim());
  return Array.from({ length: count }, (_, index) => {
    const at = number(batch.stage) - 1;
    const here = !isOver(batch) ? "active" : word(batch) === "succeeded" ? "completed" : "failed";
    return { number: index + 1, size: sizes.length === count ? sizes[index] : "", state: index < at ? "completed" : index > at ? "pending" : here };
  });
}

/** How many of a batch's minions have ended. */
export function done(batch) {
  return number(batch.total) - number(batch.active) - number(batch.pending);
}

/**
 * A summary with counts from its single minions, if all of these are known. Each minion's events change these counts, so the sum
 * at the top of a page agrees with the minions below it even if the engine is silent.
 */
export function counted(batch, members) {
  if (!members.names.length || members.names.length !== batch.total) return batch;
  const { counts } = members;
  const sizes = batch.group === undefined && Array.isArray(batch.sizes) ? batch.sizes : [];
  // More than the stages so far send to: the next one has begun.
  let [stage, left] = [1, batch.total - number(counts.pending) - number(counts.offline) - number(counts.queued)];
  while (stage < sizes.length && (left -= sizes[stage - 1]) > 0) stage += 1;
  return { ...batch, ...counts, ...(stage > number(batch.stage) && sizes.length ? { stage, batch_size: sizes[stage - 1] } : {}) };
}

/** The seconds that a batch will still take, from the last `batch.status`; null if unknown, or if the batch has ended. */
function timeLeft(batch, now) {
  if (!(batch.eta_seconds > 0) || !batch.toldAt) return null;
  const share = batch.leftThen > 0 ? (number(batch.active) + number(batch.pending)) / batch.leftThen : 1;
  const left = Math.min(batch.eta_seconds - (now - batch.toldAt), batch.eta_seconds * share);
  return left >= 1 ? Number(left.toPrecision(2)) : null;
}

/** When a batch first sent, or was asked for. */
export function since(batch) {
  return batch.first_sent ?? batch.created;
}

/** Which of the two that is. */
export function sinceWhat(batch) {
  return isUnsent(batch) ? "Asked for" : "Started";
}

/** Minions a minute since the start of the batch, and the seconds that the rest will take; null if unknown, or while it is held or has no engine. */
export function pace(batch, now) {
  const ended = STATES.filter((state) => !["active", "pending", "offline", "queued"].includes(state)).reduce((sum, state) => sum + number(batch[state]), 0);
  const elapsed = (isOver(batch) ? batch.finished ?? batch.last_progress : now) - since(batch);
  const rate = elapsed > 0 ? (60 * ended) / elapsed : 0;
  if (isOver(batch)) return { rate: finite(rate), eta: null };
  // Time passes while a batch is paused or waits, which says nothing of how fast it is.
  return batch.state === "running" && batch.engine !== false && !batch.engine_silent_seconds ? { rate: finite(rate), eta: timeLeft(batch, now) } : { rate: null, eta: null };
}

function number(value) {
  return Number.isFinite(value) ? value : 0;
}

function finite(value) {
  return Number.isFinite(value) ? value : null;
}

/** Change a summary by an event, completely or not at all; returns whether the event had any news. */
export function apply(batch, what, data) {
  const told = STATES.map((state) => data[state]);
  if (!KINDS.has(what) || !told.every((one) => Number.isSafeInteger(one) && one >= 0)) return false;
  if (told.reduce((sum, one) => sum + one, 0) !== data.total) return false;
  STATES.forEach((state, index) => { batch[state] = told[index]; });
  batch.total = data.total;
  if (typeof data.status === "string") batch.state = data.status;
  if (batch.state !== "paused") batch.approve = null; // what it waited for has been given
  if (typeof data.group === "string") batch.group = data.group;
  if (what === "paused") Object.assign(batch, { paused_by: text(data.paused_by), paused_reason: text(data.reason), opens_at: finite(data.opens_at) });
  if (what === "progress") batch.blocked_reason = text(data.blocked_reason);
  if (what === "progress" && Number.isSafeInteger(data.stage)) Object.assign(batch, { stage: data.stage, batch_size: data.batch_size });
  if (what === "resumed") Object.assign(batch, { paused_by: null, paused_reason: null, opens_at: null });
  if (what === "halted" || what === "complete") {
    Object.assign(batch, { halted_reason: text(data.halted_reason), stopped_by: text(data.stopped_by), success: data.success === true });
  }
  return true;
}

function text(value) {
  return typeof value === "string" ? value : null;
}

export class Batches extends Followed {
  rows = new Map();

  /** Replace all summaries. */
  put(list, now) {
    this.rows = new Map(list.map((batch) => [String(batch.jid), { ...batch, jid: String(batch.jid), toldAt: now, leftThen: number(batch.active) + number(batch.pending) }]));
  }

  /**
   * Apply an event, and return whether to read again: yes, unless it only reports progress, because it may be forged and does not
   * tell everything.
   */
  follow({ jid, what, data }, now) {
    let batch = this.rows.get(jid);
    if (!batch) {
      if (what !== "new") return KINDS.has(what) && what !== "progress";
      batch = { jid, fun: data.fun, tgt: data.tgt, tgt_type: data.tgt_type, user: data.user, created: now, driver: "engine", told: true };
      if (apply(batch, what, data) && this.rows.size < MOST) this.rows.set(jid, batch);
      return true;
    }
    const { state, total } = batch;
    if (apply(batch, what, data)) batch.last_progress = now;
    return what !== "progress" || batch.state !== state || batch.total !== total;
  }

  /** All batches: first those that have not ended, then the others, each newest first. */
  sorted() {
    const rows = [...this.rows.values()].sort((one, other) => (one.jid < other.jid ? 1 : -1));
    return [...rows.filter((row) => !isOver(row)), ...rows.filter(isOver)];
  }
}
