import assert from "node:assert/strict";
import test from "node:test";

import { statesOf, textOf } from "../../../../console/model/returned.js";

const one = (more) => ({ result: true, changes: {}, comment: "", duration: 12.5, ...more });

test("failed states come first, then those that changed something, then the others as they ran", () => {
  const found = statesOf({
    "pkg_|-a_|-a_|-installed": one({ __run_num__: 0 }),
    "file_|-/etc/b_|-b_|-managed": one({ __run_num__: 1, changes: { diff: "+x" }, duration: "12.5 ms", __id__: "/etc/b" }),
    "cmd_|-c_|-c_|-run": one({ __run_num__: 2, result: false, comment: "no", duration: undefined }),
  });
  assert.deepEqual(found.map(({ id, fun, result, seconds }) => [id, fun, result, seconds]), [
    ["c", "cmd.run", false, null], ["/etc/b", "file.managed", true, 0.0125], ["a", "pkg.installed", true, 0.0125],
  ]);
});

test("anything else is no run of states", () => {
  for (const value of [null, "text", [], {}, { a: 1 }, { "a_|-b_|-c_|-d": null }, { "a_|-b": { result: true } }]) assert.equal(statesOf(value), null);
});

test("an empty text is said to be one, and nothing else is changed", () => {
  assert.deepEqual(["", "ok", {}, [], null].map((value) => textOf(value, 10)), ["(an empty text)", "ok", "{}", "[]", "null"]);
});
