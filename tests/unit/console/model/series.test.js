import assert from "node:assert/strict";
import test from "node:test";

import { DAY, Series, flat } from "../../../../console/model/series.js";

test("values that come late or twice, or are no numbers, are left out", () => {
  const series = new Series();
  for (const [at, value] of [[10, 1], [10, 2], [5, 3], [11, NaN], [Infinity, 4], [12, 5]]) series.add(at, value);
  assert.deepEqual(series.points, [[10, 1], [12, 5]]);
});

test("an hour is kept, and no more than 400 points", () => {
  const series = new Series();
  series.add(0, 1);
  series.add(3600, 2);
  assert.equal(series.points.length, 2);
  series.add(3601, 3);
  assert.deepEqual(series.points[0], [3600, 2]);
  for (let at = 3602; at < 4100; at += 1) series.add(at, at);
  assert.equal(series.points.length, 400);
  assert.deepEqual(series.points.at(-1), [4099, 4099]);
});

test("a day is kept where that is wanted", () => {
  const series = new Series(DAY);
  for (const at of [0, 86400, 86401]) series.add(at, 1);
  assert.deepEqual(series.points, [[86400, 1], [86401, 1]]);
});

test("the rate of a counter is its increase a minute, and a restart has none", () => {
  const series = new Series();
  for (const [at, value] of [[0, 0], [30, 5], [60, 1], [90, 1]]) series.add(at, value);
  assert.deepEqual(series.rates(), [[30, 10], [90, 0]]);
});

test("figures are flat by their labels, and a value that is no number is left out", () => {
  assert.deepEqual(flat({ a: 1, b: { x: 2, y: "3" }, c: null, d: "4" }), { a: 1, "b{x}": 2 });
  assert.deepEqual(flat(null), {});
});
