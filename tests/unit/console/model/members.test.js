import assert from "node:assert/strict";
import test from "node:test";

import { Members } from "../../../../console/model/members.js";

function members(states) {
  const made = new Members();
  made.put(Object.fromEntries(Object.entries(states).map(([name, state]) => [name, { state, since: 1, retcode: 0 }])));
  return made;
}

function state(made, name) {
  return made.stateAt(made.places.get(name));
}

test("minions are counted by state, and an unknown state counts as pending", () => {
  const made = members({ a: "completed", b: "active", c: "invented" });
  assert.deepEqual([made.counts.completed, made.counts.active, made.counts.pending], [1, 1, 1]);
});

test("minions of a group are together, in the order of the groups", () => {
  const made = new Members();
  made.put({ a: { state: "pending", group: "eu" }, b: { state: "pending", group: "us" }, c: { state: "pending", group: "eu" } });
  assert.deepEqual(made.names, ["a", "c", "b"]);
});

test("a publish and a start move only pending minions", () => {
  const made = members({ a: "pending", b: "completed", c: "pending" });
  made.follow({ kind: "published", minions: ["a", "b", "unknown"] });
  made.follow({ kind: "began", minion: "c" });
  assert.deepEqual(["a", "b", "c"].map((name) => state(made, name)), ["active", "completed", "active"]);
  assert.deepEqual([made.counts.active, made.counts.pending, made.counts.completed], [2, 0, 1]);
});

test("a return moves a minion in any state that has not returned yet, and no other", () => {
  const made = members({ a: "active", b: "lost", c: "offline", h: "queued", d: "pending", e: "failed", f: "timed_out", g: "killed" });
  for (const minion of "abcdefgh") made.follow({ kind: "returned", minion, failed: minion === "b" });
  assert.deepEqual([..."abcdefgh"].map((name) => state(made, name)), ["completed", "failed", "completed", "completed", "failed", "timed_out", "killed", "completed"]);
});

test("an event brings the times and the exit code of the state that it tells of, without a read", () => {
  const made = new Members();
  made.put({ a: { state: "pending", since: 1, started: null, retcode: null } });
  made.follow({ kind: "published", minions: ["a"] }, 5);
  assert.deepEqual(made.at(0), { name: "a", state: "active", since: 5, started: 5, retcode: null, seen: undefined });
  made.follow({ kind: "returned", minion: "a", failed: true, retcode: 2 }, 9);
  assert.deepEqual(made.at(0), { name: "a", state: "failed", since: 9, started: 5, retcode: 2, seen: undefined });
});

test("the counts of an event agree if none of them differs", () => {
  const made = members({ a: "completed", b: "active" });
  assert.equal(made.agrees({ completed: 1, active: 1 }), true);
  assert.equal(made.agrees({ completed: "two" }), true);
  assert.equal(made.agrees({ completed: 2, active: 0 }), false);
});

test("names are found by a part and by state, and those beyond the limit are counted", () => {
  const made = members({ Web1: "failed", web2: "completed", db1: "failed" });
  assert.deepEqual(made.find("WEB", new Set(), 9), { places: [0, 1], more: 0 });
  assert.deepEqual(made.find("", new Set(["failed"]), 1), { places: [0], more: 1 });
});

test("the order of the names stays the same object if no minion came or went", () => {
  const made = members({ a: "pending", b: "pending" });
  const { names } = made;
  made.put({ a: { state: "active" }, b: { state: "completed" } });
  assert.equal(made.names, names);
  assert.equal(state(made, "b"), "completed");
});

test("a failure that a retry has mended is among the completed, and still counts as a failure", () => {
  const made = new Members();
  const again = { a: ["failed", "completed"], b: ["failed", "failed"], c: ["lost", undefined], d: ["completed", "failed"] };
  made.put(Object.fromEntries(Object.entries(again).map(([name, [state, retry_state]]) => [name, { state, retry_state }])));
  assert.deepEqual(made.find("", new Set(), 9).places.map((place) => made.names[place]), ["b", "c", "a", "d"]);
  assert.deepEqual([[...made.mended()], made.counts.failed], [["a"], 2]);
});

test("failures come first, then the minions that have run the job longest", () => {
  const made = new Members();
  const since = { a: ["completed", 1], b: ["active", 30], c: ["active", 20], d: ["pending", 1], e: ["failed", 40], f: ["pending", 1], g: ["lost", 2] };
  made.put(Object.fromEntries(Object.entries(since).map(([name, [state, at]]) => [name, { state, since: at, seen: at + 5 }])));
  made.follow({ kind: "began", minion: "f" }, 50);
  const { places } = made.find("", new Set(), 9);
  assert.deepEqual(places.map((place) => made.names[place]), ["e", "g", "c", "b", "f", "d", "a"]);
  assert.deepEqual([made.at(places[2]).since, made.at(places[2]).seen], [20, 25]);
  assert.deepEqual(made.find("", new Set(["active"]), 2), { places: [2, 1], more: 1 });
});
