import assert from "node:assert/strict";
import test from "node:test";

import { hasFailed, isQuestion, meaning, wants } from "../../../../console/model/events.js";

const JID = "20260516120000000000";

test("events of a job are wanted if the view follows it, and publishes if it follows all jobs", () => {
  const ret = `salt/job/${JID}/ret/web1`;
  assert.equal(wants(ret), false);
  assert.equal(wants(ret, { jid: JID }), true);
  assert.equal(wants(ret, { jid: JID.slice(0, -1) }), false);
  assert.equal(wants(`salt/job/${JID}/new`, { published: true }), true);
  assert.equal(wants(ret, { published: true }), false);
});

test("events of batches, of the queue, of the engines and of runners are always wanted, and no others", () => {
  const tags = [`salt/batch/${JID}/new`, "salt/job_retry/web1/1/queued", "saltext/jobs/job_retry/beat/1", "salt/run/1/new"];
  assert.deepEqual(tags.map((tag) => wants(tag)), [true, true, true, true]);
  assert.deepEqual(["salt/run/1/ret", "salt/auth", "minion_start", ""].map((tag) => wants(tag)), [false, false, false, false]);
});

test("an event of a batch counts if its tag and its data agree", () => {
  const data = { jid: JID };
  assert.deepEqual(meaning(`salt/batch/${JID}/new`, data), { kind: "batch", jid: JID, what: "new", data });
  for (const tag of ["salt/batch/2/new", `salt/batch/${JID}`, `salt/batch/${JID}/new/more`]) assert.equal(meaning(tag, data), null);
});

test("an event of an entry counts if its tag and its data agree", () => {
  const data = { minion: "web1", jid: JID };
  assert.equal(meaning(`salt/job_retry/web1/${JID}/queued`, data).what, "queued");
  assert.equal(meaning(`salt/job_retry/web2/${JID}/queued`, data), null);
  assert.equal(meaning(`salt/job_retry/web1/1/queued`, data), null);
});

test("a publish, a start and a return of a job have the minions that they name", () => {
  assert.deepEqual(meaning(`salt/job/${JID}/new`, { jid: JID, minions: ["a", 1, null, "b"] }).minions, ["a", "b"]);
  assert.deepEqual(meaning(`salt/job/${JID}/new`, { jid: JID, minions: "ab" }).minions, []);
  assert.deepEqual(meaning(`salt/job/${JID}/start/a`, { id: "a" }), { kind: "began", jid: JID, minion: "a" });
  assert.equal(meaning(`salt/job/${JID}/ret/a`, { id: "a", jid: JID, retcode: 1 }).failed, true);
  assert.equal(meaning(`salt/job/${JID}/ret/a`, { id: "b", jid: JID }), null);
  assert.equal(meaning(`salt/job/${JID}/ret/a`, { id: "a", jid: "1" }), null);
});

test("a name that is too long, empty or not plain is ignored", () => {
  for (const name of ["", "a b", "a\u0000", "\ud800", "x".repeat(256)]) {
    assert.equal(meaning(`salt/job/${JID}/ret/${name}`, { id: name, jid: JID }), null);
  }
});

test("a beat belongs to one of the engines, and a call is named without its prefix", () => {
  assert.deepEqual(meaning("saltext/jobs/job_retry/beat/1", {}), { kind: "beat", engine: "job_retry" });
  for (const tag of ["saltext/jobs/other/beat/1", "saltext/jobs/job_retry/beat", "saltext/jobs/job_retry/end/1"]) assert.equal(meaning(tag, {}), null);
  assert.deepEqual(meaning("salt/run/1/new", { fun: "runner.batch.pause" }), { kind: "called", fun: "batch.pause" });
  assert.equal(meaning("salt/run/1/new", { fun: 7 }), null);
});

test("a question is told from a job", () => {
  for (const fun of ["test.ping", "saltutil.find_job", ["saltutil.find_job", "saltutil.running"]]) assert.equal(isQuestion({ fun }), true);
  for (const fun of ["state.apply", ["test.ping", "state.apply"], null, 7]) assert.equal(isQuestion({ fun }), false);
});

test("a return is a failure by its exit codes or by what it says", () => {
  const failed = [{ retcode: 1 }, { success: false }, { success: false, retcode: 0 }, { retcode: { a: 0, b: 2 } }, { retcode: "0" }];
  const well = [{}, { retcode: 0 }, { retcode: null, success: true }, { retcode: { a: 0, b: null } }, { retcode: {} }];
  assert.deepEqual(failed.map(hasFailed), failed.map(() => true));
  assert.deepEqual(well.map(hasFailed), well.map(() => false));
});
