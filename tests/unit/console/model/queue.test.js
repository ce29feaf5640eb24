import assert from "node:assert/strict";
import test from "node:test";

import { gist, keyOf, Queue, STATES, whyOf } from "../../../../console/model/queue.js";

function entry(minion, jid, state, more) {
  return { minion, jid, state, ...more };
}

function event(what, more) {
  return { what, minion: "web1", jid: "1", data: { fun: "test.ping", attempts: 2, reason: "away", ...more } };
}

test("an announced entry is shown in its new state", () => {
  const queue = new Queue();
  for (const [what, state] of [["queued", "pending"], ["sent", "sent"], ["held", "held"], ["expired", "expired"], ["cancelled", "cancelled"], ["dead", "dead"]]) {
    queue.follow(event(what));
    assert.equal(queue.rows.get("1 web1").state, state);
  }
});

test("an entry that is done is removed, and neither that nor a publish causes a read", () => {
  const queue = new Queue();
  assert.deepEqual(["queued", "sent", "done"].map((what) => queue.follow(event(what))), [true, false, false]);
  assert.equal(queue.rows.size, 0);
});

test("an event of an unknown kind changes nothing", () => {
  const queue = new Queue();
  for (const what of ["invented", "constructor", "__proto__"]) queue.follow(event(what));
  assert.equal(queue.rows.size, 0);
});

test("an event leaves fields alone that only a read has", () => {
  const queue = new Queue();
  queue.put([entry("web1", "1", "pending", { expires_at: 99 })]);
  queue.follow(event("sent"));
  assert.deepEqual([queue.rows.get("1 web1").expires_at, queue.rows.get("1 web1").attempts], [99, 2]);
});

test("entries are counted by state, and those in an unknown state are not counted", () => {
  const queue = new Queue();
  queue.put([entry("a", "1", "held"), entry("b", "1", "held"), entry("c", "1", "invented")]);
  assert.deepEqual(queue.counts(), { ...Object.fromEntries(STATES.map((state) => [state, 0])), held: 2 });
});

test("groups that need an operator come first, and so do their entries", () => {
  const queue = new Queue();
  queue.put([entry("b", "2", "pending"), entry("a", "1", "running"), entry("a", "3", "dead"), entry("c", "1", "held")]);
  assert.deepEqual(queue.grouped("minion").map(({ key, entries }) => [key, entries.map(({ jid }) => jid)]), [["c", ["1"]], ["a", ["3", "1"]], ["b", ["2"]]]);
  assert.deepEqual(queue.grouped("jid").map(({ key }) => key), ["1", "3", "2"]);
  assert.equal(keyOf(entry("a", "1")), "1 a");
});

test("a group says in one line what its worst entries wait for", () => {
  const entries = [["held", "a", 5, 1], ["held", "b", 9, 2], ["held", "b", 7, 0], ["pending", "c", 1, 0]].map(([state, reason, queued_at, attempts]) => ({ state, reason, queued_at, attempts }));
  assert.deepEqual(gist(entries), { states: [["held", 3], ["pending", 1]], reason: "b", others: 1, since: 1, attempts: 2 });
});

test("an entry that waits for its window says so, and not why it was queued", () => {
  const waiting = { state: "pending", reason: "it does not answer", waits_for: "its window 02:00-05:00" };
  assert.deepEqual([waiting, { ...waiting, state: "sent" }, { ...waiting, waits_for: null }].map(whyOf), ["waits for its window 02:00-05:00", "it does not answer", "it does not answer"]);
  assert.equal(gist([waiting, { ...waiting, reason: "it was away" }]).others, 0);
});
