import assert from "node:assert/strict";
import test from "node:test";

import { Batches, WORDS, apply, approversOf, budget, called, command, counted, done, isHeld, isLike, isOver, isScheduled, optionsOf, pace, retriable, sinceWhat, stagesOf, whyHalted, word } from "../../../../console/model/batches.js";

const NONE = { completed: 0, active: 0, pending: 0, failed: 0, timed_out: 0, lost: 0, offline: 0, queued: 0, killed: 0 };
const JID = "20260516120000000000";

function batch(more) {
  return { jid: JID, state: "running", ...NONE, total: 4, pending: 4, created: 1000, last_progress: 1000, ...more };
}

function told(more) {
  return { jid: JID, ...NONE, ...more };
}

test("a batch is over when it is complete or halted", () => {
  assert.deepEqual(["running", "paused", "complete", "halted"].map((state) => isOver({ state })), [false, false, true, true]);
});

test("one word says whether all went well and whether an operator has to act", () => {
  const words = { true: "succeeded", false: "unsuccessful" };
  for (const success of [true, false]) assert.equal(word(batch({ state: "complete", success })), words[success]);
  assert.deepEqual([0, 1].map((failed) => word(batch({ state: "complete", failed }))), ["succeeded", "unsuccessful"]);
  const waits = { operator: "paused", publish: "paused", permission: "paused", approval: "waiting", window: "waiting", rights: "waiting", start: "scheduled", undefined: "paused" };
  for (const [by, told] of Object.entries(waits)) assert.equal(word({ state: "paused", paused_by: by === "undefined" ? undefined : by }), told);
  for (const [active, told] of [[0, "waiting"], [2, "running"]]) assert.equal(word({ state: "running", blocked_reason: "waits for room", active }), told);
  assert.deepEqual(["running", "stopping", "halted"].map((state) => word({ state })), ["running", "stopping", "halted"]);
  for (const [unmended, told] of [[{}, "mended"], [{ failed: 1 }, "halted"]]) assert.equal(word({ state: "halted", retries: ["2"], unmended }), told);
});

test("minions that are neither active nor pending have ended, whatever is missing", () => {
  assert.equal(done(batch({ pending: 1, active: 1 })), 2);
  assert.equal(done({ total: 3 }), 3);
  assert.equal(done({ total: "3", active: NaN }), 0);
});

test("the pace is that of the ended minions, and says when the rest will have ended", () => {
  assert.deepEqual(pace(batch({ completed: 2, pending: 2, created: 0, first_sent: 1000 }), 1060), { rate: 2, eta: null });
  const read = batch({ completed: 2, pending: 2, eta_seconds: 60, toldAt: 1060, leftThen: 2 });
  assert.deepEqual(pace(read, 1060), { rate: 2, eta: 60 });
  assert.equal(pace(read, 1080).eta, 40);
  assert.equal(pace({ ...read, pending: 1 }, 1062).eta, 30);
  assert.equal(pace(read, 1200).eta, null);
  assert.deepEqual(pace(batch(), 1060), { rate: 0, eta: null });
  assert.deepEqual(pace(batch({ completed: 2, pending: 2 }), 1000), { rate: 0, eta: null });
});

test("a batch that has ended or does not run has no time left", () => {
  const ended = batch({ state: "complete", completed: 4, pending: 0, last_progress: 1120 });
  assert.deepEqual(pace(ended, 9999), { rate: 2, eta: null });
  for (const away of [{ state: "paused" }, { engine: false }, { engine_silent_seconds: 60 }]) {
    assert.deepEqual(pace(batch({ completed: 2, pending: 2, eta_seconds: 60, toldAt: 1060, leftThen: 2, ...away }), 1060), { rate: null, eta: null });
  }
});

test("an event is applied whole", () => {
  const row = batch();
  assert.equal(apply(row, "paused", told({ total: 4, completed: 3, pending: 1, status: "paused", paused_by: "window", reason: "by anna", opens_at: 7 })), true);
  assert.deepEqual([row.completed, row.pending, row.state, row.paused_reason, row.opens_at], [3, 1, "paused", "by anna", 7]);
  assert.deepEqual([isScheduled(row), isHeld(row)], [true, false]);
  row.approve = 1;
  assert.equal(apply(row, "resumed", told({ total: 4, completed: 3, pending: 1, status: "running" })), true);
  assert.equal(row.approve, null, "nothing is left to approve");
  assert.deepEqual([row.state, row.paused_by, row.paused_reason, row.opens_at], ["running", null, null, null]);
});

test("an event whose counts do not add up, or are invalid, changes nothing", () => {
  for (const data of [{ total: 5, completed: 4 }, { total: 4, completed: 5, failed: -1 }, { total: 4, completed: "4" }, { total: 4, completed: 4.5, failed: -0.5 }]) {
    const row = batch();
    assert.equal(apply(row, "progress", told(data)), false);
    assert.deepEqual(row, batch());
  }
  assert.equal(apply(batch(), "invented", told({ total: 4, completed: 4 })), false);
});

test("a batch succeeds only if the event says so explicitly", () => {
  for (const [success, shown] of [[true, true], ["yes", false], [undefined, false]]) {
    const row = batch();
    apply(row, "complete", told({ total: 4, completed: 4, status: "complete", success }));
    assert.equal(row.success, shown);
  }
});

test("the end of a known batch causes a read, and its progress does not", () => {
  const batches = new Batches();
  batches.put([batch()]);
  const data = told({ total: 4, completed: 1, pending: 3, status: "running" });
  assert.equal(batches.follow({ jid: JID, what: "progress", data }, 1010), false);
  assert.equal(batches.rows.get(JID).last_progress, 1010);
  assert.equal(batches.follow({ jid: JID, what: "progress", data: { ...data, status: "paused" } }, 1020), true);
  assert.equal(batches.follow({ jid: JID, what: "complete", data: told({ total: 4, completed: 4, status: "complete" }) }, 1030), true);
});

test("a new batch is shown and read, and every event of an unknown one but progress causes a read", () => {
  const batches = new Batches();
  assert.equal(batches.follow({ jid: JID, what: "new", data: told({ total: 4, pending: 4, fun: "test.ping" }) }, 5), true);
  assert.deepEqual([batches.rows.get(JID).fun, batches.rows.get(JID).created], ["test.ping", 5]);
  assert.deepEqual(["progress", "halted", "invented"].map((what) => batches.follow({ jid: "9", what, data: {} }, 5)), [false, true, false]);
});

test("forged new batches do not fill the page's memory", () => {
  const batches = new Batches();
  for (let number = 0; number < 20010; number += 1) batches.follow({ jid: `${number}`, what: "new", data: told({ total: 0 }) }, 5);
  assert.equal(batches.rows.size, 20000);
});

test("batches that have not ended come first, the newest at the top", () => {
  const batches = new Batches();
  batches.put([batch({ jid: "1" }), batch({ jid: "2", state: "complete" }), batch({ jid: 3 }), batch({ jid: "4", state: "halted" })]);
  assert.deepEqual(batches.sorted().map(({ jid }) => jid), ["3", "1", "4", "2"]);
});

test("the counts of a batch are those of its minions, if all of them are known", () => {
  const counts = { ...NONE, completed: 3, active: 1 };
  assert.deepEqual(counted(batch(), { names: ["a", "b", "c", "d"], counts }), { ...batch(), ...counts });
  for (const names of [[], ["a", "b"]]) assert.deepEqual(counted(batch(), { names, counts }), batch());
});

test("what a batch runs is shown with its arguments, and with the options that it has", () => {
  assert.equal(command({ fun: "state.apply", arguments: ["nginx", "pillar={'a': 1}", 5] }), "state.apply nginx pillar={'a': 1} 5");
  assert.equal(command({ fun: "test.ping" }), "test.ping");
  const options = { batch: "10%", window: "Sat", by: null, max_runtime: 0, offline: "fail", presence: "ping", check_timeout: 300 };
  assert.deepEqual(optionsOf({ options }), [["window", "Sat"], ["offline", "fail"]]);
  assert.deepEqual(optionsOf({ options: { check: "approve", approve_by: ["anna", "%ops"], check_timeout: 300 } }),
    [["check", "approve"], ["approve_by", "anna, %ops"]]);
  assert.deepEqual(optionsOf({ options: { check: "test.true", check_timeout: 300 } }), [["check", "test.true"], ["check_timeout", 300]]);
  assert.deepEqual(optionsOf({}), []);
});

test("a row from an event shows that its arguments are not known, and one that has not sent when it was asked for", () => {
  assert.equal(command({ fun: "state.apply", told: true }), "state.apply …");
  for (const [more, what] of [[{ publishes: 0, paused_by: "window" }, "Asked for"], [{ publishes: 1, paused_by: "window" }, "Started"], [{ publishes: 0, paused_by: "operator" }, "Asked for"]])
    assert.equal(sinceWhat(batch({ state: "paused", ...more })), what);
});

test("a batch is found by its function, target, user and jid", () => {
  const one = batch({ fun: "state.apply", arguments: ["nginx"], tgt: ["web1", "db1"], user: "Anna" });
  for (const text of ["", " nginx ", "APPLY", "db1", "anna", JID.slice(0, 8)]) assert.equal(isLike(one, text), true);
  for (const text of ["bert", "undefined", "null"]) assert.equal(isLike(batch(), text), false);
  for (const state of ["running", "stopping", "halted", "paused"]) assert.ok(WORDS.includes(word({ state })));
});

test("the users who may approve are shown while a batch waits for that", () => {
  const options = { approve_by: ["anna", "%ops"] };
  assert.equal(approversOf(batch({ approve: 0, options })), "anna, %ops");
  for (const more of [{ options }, { approve: 1 }, { approve: 1, options: { approve_by: null } }]) assert.equal(approversOf(batch(more)), null);
});

test("the budget shows how many failures count, of those allowed", () => {
  assert.equal(budget(batch({ failed: 1, lost: 1, timed_out: 1, offline: 5, options: { max_failures: "10%" } })), "3 of 10%");
  assert.equal(budget(batch({ failed: 1, options: { max_failures: 0 } })), "1 of 0");
  for (const options of [undefined, { max_failures: null }]) assert.equal(budget(batch({ failed: 1, options })), null);
});

test("stages have the requested sizes, and the stage in which a batch failed is marked", () => {
  const ramp = { stages: 3, stage: 2, options: { batch: "1,10%,50%" } };
  assert.deepEqual(stagesOf(batch(ramp)).map(({ size, state }) => `${size} ${state}`), ["1 completed", "10% active", "50% pending"]);
  assert.equal(stagesOf(batch({ ...ramp, state: "halted" }))[1].state, "failed");
  assert.deepEqual(stagesOf(batch({ ...ramp, stage: 3, state: "complete", success: true })).map(({ state }) => state), ["completed", "completed", "completed"]);
  assert.deepEqual(stagesOf(batch({ stages: 2, stage: 1 })).map(({ size }) => size), ["", ""]);
});

test("why a batch was halted is said in words", () => {
  assert.equal(whyHalted({ halted_reason: "stop", stopped_by: "anna" }), "stopped by anna");
  assert.equal(whyHalted({ halted_reason: "stop", killing: true }), "stopped by batch.stop with kill=True");
  assert.equal(whyHalted({ halted_reason: "max_failures" }), "more minions failed than max_failures allows");
  assert.equal(whyHalted({ halted_reason: "max_failures in group eu" }), "more minions failed than max_failures allows in group eu");
  assert.equal(whyHalted({ halted_reason: "max_failures are many" }), "max_failures are many");
});

test("the stage that is shown is never behind the minions that are sent to", () => {
  const batch = { total: 10, state: "running", stage: 1, stages: 3, sizes: [1, 3, 6], batch_size: 1 };
  const shown = (sent) => counted(batch, { names: Array(10), counts: { pending: 10 - sent, offline: 0, active: 1 } });
  assert.deepEqual([1, 2, 4, 5, 10].map((sent) => [shown(sent).stage, shown(sent).batch_size]), [[1, 1], [2, 3], [2, 3], [3, 6], [3, 6]]);
});

test("a batch is called by its name or ticket and what it runs", () => {
  const batch = { fun: "state.apply", arguments: ["web"], options: { metadata: { ticket: "OPS-7", other: {} } } };
  assert.equal(called(batch), "OPS-7: state.apply web");
  assert.equal(called({ fun: "test.ping" }), "test.ping");
});

test("a retry is offered for the minions without success that no retry has mended, and never for queued ones", () => {
  const halted = { state: "halted", failed: 3, lost: 1, offline: 5, queued: 2, pending: 4 };
  assert.deepEqual(retriable(halted), { failed: 3, lost: 1, offline: 5, pending: 4 });
  assert.deepEqual(retriable({ ...halted, state: "running" }), { failed: 3, lost: 1 });
  assert.deepEqual(retriable({ ...halted, unmended: { failed: 1 } }), { failed: 1 });
  assert.deepEqual(retriable({ ...halted, unmended: {} }), {});
});
