import assert from "node:assert/strict";
import test from "node:test";

import { Beats } from "../../../../console/model/beats.js";

test("an engine is silent after 35 s without a sign of life, until it shows one", () => {
  const beats = new Beats();
  beats.heard("batch_manager", 1000);
  beats.heard("job_retry", 1060);
  assert.deepEqual([1035, 1036, 1080].map((now) => beats.silent("batch_manager", now, now)), [0, 36, 80]);
  assert.deepEqual(beats.allSilent(1080, 1080), [["batch_manager", 80]]);
  beats.heard("batch_manager", 1081);
  assert.deepEqual(beats.allSilent(1082, 1082), []);
});

test("nothing is known of an engine that was never heard, or over a silent connection", () => {
  const beats = new Beats();
  assert.equal(beats.silent("batch_manager", 5000, 5000), 0);
  beats.heard("batch_manager", 1000);
  assert.equal(beats.silent("batch_manager", 5000, 1002), 0);
});

test("an engine's silence that a runner reports counts from then on", () => {
  const beats = new Beats();
  beats.told("batch_manager", 80, 1000);
  assert.equal(beats.silent("batch_manager", 1005, 1000), 85);
  beats.told("batch_manager", null, 1006);
  assert.equal(beats.last("batch_manager"), 920);
});
