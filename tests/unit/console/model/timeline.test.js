import assert from "node:assert/strict";
import test from "node:test";

import { Members } from "../../../../console/model/members.js";
import { COLUMNS, curvesOf, heatOf, rowsOf, runsOf, slowestOf, spreadOf } from "../../../../console/model/timeline.js";

/** Minions by name: state, start, end, group. Those that failed have returned. */
function members(told) {
  const made = new Members();
  made.put(Object.fromEntries(Object.entries(told).map(([name, [state, started, since, group]]) => [name, { state, started, since, group, retcode: state === "failed" ? 1 : null }])));
  return made;
}

const MADE = members({ a: ["completed", 0, 10], b: ["failed", 11, 20], c: ["completed", 11, 15], d: ["active", 15, 15], e: ["pending", null, 0], f: ["offline", null, 3] });

test("a run is from the start to the return, or to now; minions that were not sent to have none", () => {
  assert.deepEqual(runsOf(MADE, 30).map(({ name, from, to, ended, bad }) => [name, from, to, ended, bad]), [
    ["a", 0, 10, true, false], ["b", 11, 20, true, true], ["c", 11, 15, true, false], ["d", 15, 30, false, false],
  ]);
});

test("each stage has a row, in which a minion follows another where a slot became free", () => {
  const rows = rowsOf(runsOf(MADE, 30), [1, 2]);
  assert.deepEqual(rows.map(({ label, lanes, bars }) => [label, lanes, bars.map(({ name, lane }) => `${name}${lane}`)]), [
    ["Stage 1", 1, ["a0"]], ["Stage 2", 2, ["b0", "c1", "d1"]],
  ]);
  const groups = members({ a: ["completed", 0, 1, "eu"], b: ["completed", 2, 3, "us"], c: ["completed", 4, 5, "us"] });
  assert.deepEqual(rowsOf(runsOf(groups, 9), [1]).map(({ label, lanes, bars }) => [label, lanes, bars.length]), [["eu", 1, 1], ["us", 1, 2]]);
});

test("too many minions to be drawn one by one are counted in a heat map, and by run time", () => {
  const many = members(Object.fromEntries(Array.from({ length: 20_000 }, (_, n) => [`m${n}`, [n % 100 ? "completed" : "failed", n / 100, n / 100 + 1 + (n % 10)]])));
  const runs = runsOf(many, 500);
  assert.equal(rowsOf(runs, [500]), null);
  const heat = heatOf(runs, 0, 211);
  assert.equal(heat.cells.reduce((sum, { count }) => sum + count, 0), 20_000);
  assert.equal(heat.cells.reduce((sum, { bad }) => sum + bad, 0), 200);
  assert.ok(heat.cells.every(({ x, y }) => x >= 0 && x < COLUMNS && y >= 0));
  const spread = spreadOf(runs);
  assert.deepEqual([spread.median, spread.ninety, spread.longest].map(Math.round), [6, 10, 10]);
  assert.equal(spread.bars.reduce((sum, { count }) => sum + count, 0), 20_000);
  assert.equal(spreadOf([]), null);
});

test("the slowest come first, those that still run among them", () => {
  assert.deepEqual(slowestOf(runsOf(MADE, 30), 3).map(({ name }) => name), ["d", "a", "b"]);
});

test("how long a minion was waited for that did not return is no run time, and is on the timeline", () => {
  const told = { a: ["completed", 0, 5], b: ["timed_out", 0, 9], c: ["lost", 0, 39], d: ["killed", 0, 30], e: ["offline", 0, 30] };
  const runs = runsOf(members(told), 50);
  assert.deepEqual(runs.map(({ name, to }) => `${name}${to}`), ["a5", "b9", "c39", "d30", "e30"]);
  assert.deepEqual([spreadOf(runs).longest, heatOf(runs, 0, 40).longest, heatOf(runs, 0, 40).givenUp], [9, 9, 3]);
  assert.deepEqual(slowestOf(runs).map(({ name }) => name), ["b", "a"]);
  const away = new Members(); // a batch that counts absent minions as failed
  away.put({ f: { state: "failed", started: 0, since: 60, retcode: null } });
  assert.deepEqual([spreadOf(runsOf(away, 60)), slowestOf(runsOf(away, 60))], [null, []]);
});

test("the curves end with what is known now", () => {
  const { ended, flying } = curvesOf(MADE, runsOf(MADE, 30), 0, 30);
  assert.deepEqual([ended.at(-1), flying.at(-1)], [[30, 4, 2], [30, 1]]);
  assert.equal(Math.max(...flying.map(([, size]) => size)), 2);
});
