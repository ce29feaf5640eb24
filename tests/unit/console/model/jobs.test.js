import assert from "node:assert/strict";
import test from "node:test";

import { commandOf, countsOf, returnsOf, worstFirst, wrongOf } from "../../../../console/model/jobs.js";

const JOB = {
  Minions: ["d", "a", 7, "b"],
  Result: { c: { return: "no", retcode: 1 }, a: { return: true, retcode: 0, success: true }, b: "bare", e: { return: 1, success: false } },
};

test("each minion that was expected or has returned is shown once, by name", () => {
  assert.deepEqual(returnsOf(JOB).map(({ minion, state }) => [minion, state]), [
    ["a", "returned"], ["b", "returned"], ["c", "failed"], ["d", "missing"], ["e", "failed"],
  ]);
});

test("the value is the return, whether or not Salt has wrapped it", () => {
  const [a, b, , d] = returnsOf(JOB);
  assert.deepEqual([a.value, a.code, b.value, b.code, d.value], [true, 0, "bare", null, null]);
});

test("returns are counted by state, and failures come first", () => {
  const returns = returnsOf(JOB);
  const { failed, missing, returned } = countsOf(returns);
  assert.deepEqual([failed, missing, returned], [2, 1, 2]);
  assert.deepEqual(worstFirst(returns).map(({ minion }) => minion), ["c", "e", "d", "a", "b"]);
});

test("a job is shown with its arguments, named ones last", () => {
  const given = [{ __kwarg__: true, test: true, name: "b" }, "nginx", 5, { pillar: { a: [null] } }];
  assert.equal(commandOf({ Function: "state.apply", Arguments: given }), 'state.apply nginx 5 {"pillar":{"a":[null]}} test=true name=b');
  assert.deepEqual([{ Function: "test.ping" }, { Arguments: "x" }].map(commandOf), ["test.ping", ""]);
});

test("an answer that is no job has no returns", () => {
  for (const job of [{}, { Result: "x", Minions: "ab" }, { Result: null }]) assert.deepEqual(returnsOf(job), []);
});

test("of minions without a return it is said what batches and the queue know of them", () => {
  const known = { owed: { a: "pending" }, groups: [{ state: "offline", minions: ["b"] }, { state: "dead", minions: ["d"] }] };
  const found = returnsOf({ Minions: ["a", "b", "c", "d"], Result: {} }, known);
  assert.deepEqual(found.map(({ state }) => state), ["queued", "offline", "missing", "dead"]);
  assert.deepEqual([wrongOf(found), Object.values(countsOf(found)).reduce((sum, one) => sum + one)], [2, 4]);
});

test("a minion named like a property of every object is missing like any other", () => {
  assert.deepEqual(returnsOf({ Minions: ["toString", "constructor"], Result: {} }).map(({ state }) => state), ["missing", "missing"]);
});
