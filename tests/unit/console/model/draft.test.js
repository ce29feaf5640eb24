import assert from "node:assert/strict";
import test from "node:test";

import { completed, completions, draftOf, kept, used } from "../../../../console/model/draft.js";

test("a batch fills the form with its job, target and speed, but not its start time", () => {
  const options = { batch: "1,10%", max_failures: 0, by: null, window: "Sat", start_at: 5, max_runtime: 0, offline: "fail", check: "approve", approve_by: ["anna", "%ops"] };
  const batch = { fun: "state.apply", arguments: ["nginx", "test=True", 5], tgt: ["web1", "web2"], tgt_type: "list", options };
  assert.deepEqual(draftOf(batch), {
    tgt: "web1,web2", tgt_type: "list", fun: "state.apply", arg: "nginx\n5", kwarg: "test=True", batch: "1,10%", max_failures: "0", check: "approve", approve_by: "anna,%ops", window: "Sat", offline: "fail",
  });
});

test("a batch with missing data fills what it can", () => {
  assert.deepEqual(draftOf({ fun: "test.ping", tgt: "*", batch_size: 2 }), { tgt: "*", tgt_type: "glob", fun: "test.ping", batch: "2" });
});

test("only the texts of a kept draft are used", () => {
  assert.deepEqual(kept({ tgt: "*", fun: 5, by: "", arg: null }), { tgt: "*" });
  for (const nothing of [null, 5, "x", undefined]) assert.deepEqual(kept(nothing), {});
});

test("functions of recent jobs are offered, those used most first", () => {
  const jobs = [{ Function: "test.ping" }, { Function: "state.apply" }, { Function: "state.apply" }, { Function: 5 }, null];
  assert.deepEqual(used(jobs, "Function"), ["state.apply", "test.ping"]);
});

test("the last of several states is completed", () => {
  const names = ["common", "web", "web.tls", "web.vhosts"];
  assert.deepEqual(completions("common,web", names), ["web.tls", "web.vhosts"]);
  assert.deepEqual(completions("", names, 2), ["common", "web"]);
  assert.equal(completed("common,we", "web.tls"), "common,web.tls");
  assert.equal(completed("test\nwe", "web"), "test\nweb");
});
