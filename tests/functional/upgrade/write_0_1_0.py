"""
Writes what a master with version 0.1.0 leaves behind, by that version's own code, into ``written_by_0_1_0/``. Run once, by

    git worktree add /tmp/v/saltext/jobs 775d8f6        # the last commit of 0.1.0
    PYTHONPATH=/tmp/v .venv/bin/python tests/functional/upgrade/write_0_1_0.py

It must never be run with the code of another version: what it writes shows that this one reads what that one wrote.
``said.json`` is what 0.1.0 itself says of it. (A spool of 0.1.0 is in ``tests/functional/recorder/spool_0_1_0`` already.)
"""

import json
import os
import pathlib
import shutil

import salt.config

import saltext.jobs.returners.salt_cache as returner
from saltext.jobs.core import batch_facts as facts
from saltext.jobs.core import files
from saltext.jobs.core.batch import Batch
from saltext.jobs.core.batch_snapshot import snapshot
from saltext.jobs.core.batch_spec import Spec
from saltext.jobs.core.batch_store import BatchStore
from saltext.jobs.core.batch_summary import minions, summary
from saltext.jobs.core.journal import Journal
from saltext.jobs.core.recorder import digest
from saltext.jobs.core.recorder_files import Aside, Progress, Seen
from saltext.jobs.core.recorder_intake import Record, packed
from saltext.jobs.core.requests import engine_dir, leave
from saltext.jobs.core.retry_entry import Entry, State
from saltext.jobs.core.retry_store import Changes, RetryStore
from saltext.jobs.core.spool import Spool

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "written_by_0_1_0"
#: The present, as Unix time, and the jids of its jobs.
NOW = 1_795_000_000.0
OPTS = {
    **salt.config.master_config(None),
    "id": "here_master",
    "cachedir": str(OUT),
    "sock_dir": str(OUT),
    "cache": "localfs",
    "master_job_cache": "salt_cache",
    "cluster_id": None,
}
RUNNING, PAUSED, STOPPING, ENDED = (f"2026111811064000000{number}" for number in range(4))
OWED, DONE = (f"2026111811064100000{number}" for number in range(2))


def batch(jid, *steps):
    """A batch of four minions, two at a time, and its journal. ``steps`` are facts, one a second."""
    minions_of_all = ("a", "b", "c", "d")
    spec = Spec(jid, "test.sleep", (60,), {}, "*", "glob", minions_of_all, "2", (2,), user="admin", presence="none")
    made, path = Batch(spec, NOW), BatchStore(OPTS).journal_path(jid)
    journal = Journal(path)
    journal.rewrite(snapshot(made))
    for second, fact in enumerate(steps):
        made.step(fact, NOW + second)
        journal.append(facts.record_of(fact, NOW + second))
    journal.sync()
    journal.close()
    return made


def batches():
    begun = (facts.Tick(), facts.Published(), facts.Returned("a", 0), facts.Acknowledged("b"), facts.Tick())
    whole = [facts.Tick(), facts.Published()]
    for pair in ("ab", "cd"):
        whole += [facts.Returned(minion, 0) for minion in pair] + [facts.Tick(), facts.Published()]
    made = [
        batch(RUNNING, *begun),
        batch(PAUSED, *begun, facts.Published(), facts.Returned("b", 1), facts.PauseRequested("admin")),
        batch(STOPPING, *begun, facts.StopRequested(True, "admin")),
        batch(ENDED, *whole[:-1], facts.Closed()),
    ]
    BatchStore(OPTS).end(ENDED)
    leave(OPTS, "batch_manager", {"do": "stop", "jid": RUNNING, "user": "admin", "kill": False})
    return {one.spec.jid: {"summary": summary(one, NOW + 100), "minions": minions(one)} for one in made}


def entry(minion, *moves, restarts=0):
    made = Entry(minion, OWED, NOW, NOW + 7 * 86400, "it did not return")
    for move in moves:
        if move is State.CLAIMED:
            made.claim(NOW + 10)
        else:
            made.move(move, NOW + 20, "since it is so")
    made.restarts = restarts
    return made


def retry():
    entries = [
        entry("a"),
        entry("b", State.CLAIMED, State.SENT, restarts=1),
        entry("c", State.CLAIMED, State.SENT, State.DONE),
        entry("d", State.HELD),
    ]
    load = {"jid": OWED, "fun": "test.ping", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "admin", "kwargs": {}}
    job = {"owner": "here_master", "published_at": NOW, "load": load, "minions": ["a", "b", "c", "d"]}
    changes = Changes({OWED: job}, {(one.minion, OWED): one.as_record() for one in entries}, {OWED: {"a": NOW + 30}})
    RetryStore(OPTS).write(changes)
    RetryStore(OPTS).beat("here_master", NOW)
    folder = engine_dir(OPTS, "job_retry")
    files.write_msgpack(folder / "checkpoint", {"at": NOW, "closed": {DONE: NOW}})
    files.write_atomic(folder / "paused", b"")
    leave(OPTS, "job_retry", {"do": "cancel", "minion": "a", "jid": OWED})
    return {one.minion: {"state": one.state.value, "attempts": one.attempts, "reason": one.reason} for one in entries}


def recorder():
    folder = engine_dir(OPTS, "job_recorder")
    body = {"jid": DONE, "fun": "test.ping", "return": "\xe9\u4e16", "retcode": 0}
    returns = [Record("ret", DONE, minion, {**body, "id": minion}) for minion in "abc"]
    payloads = [packed(Record("load", DONE, "", {"jid": DONE, "fun": "test.ping"}), NOW)]
    payloads += [packed(one, NOW) for one in returns]
    spool = Spool(folder / "spool", 1 << 20)
    spool.append(payloads)
    spool.close()
    progress = Progress(folder / "returners" / "pgjsonb" / "progress", 0)
    progress.mark(0)
    progress.mark(2)
    progress.close()
    aside = Aside(folder / "returners" / "pgjsonb" / "aside", 1 << 20)
    aside.add(2, {"reason": "ValueError: it is too long", "tries": 5, "time": NOW, "payload": payloads[2]})
    aside.add(3, {"reason": "ValueError: it is too odd", "tries": 5, "time": NOW, "payload": payloads[3]})
    seen = Seen(folder / "seen", 86400.0)
    seen.add([digest(DONE), *(digest(DONE, minion) for minion in "abc")], NOW)
    seen.close()
    return {"records": len(payloads), "done": [0, 2], "set_aside": ["b", "c"]}


def job_cache():
    returner.__opts__ = OPTS
    returner.__salt__ = returner.__context__ = {}
    for jid in (OWED, DONE):
        load = {"jid": jid, "fun": "test.ping", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "admin", "ret": ""}
        returner.save_load(jid, load, minions=["a", "b", "c", "d"])
    for minion in "abc":
        returner.returner(
            {"jid": DONE, "id": minion, "fun": "test.ping", "return": True, "retcode": 0, "success": True}
        )
    returner.save_minions(DONE, ["e"], syndic_id="elsewhere")
    return {"returned": ["a", "b", "c"], "minions": ["a", "b", "c", "d", "e"]}


if __name__ == "__main__":
    assert not hasattr(Batch, "restore"), "this is not the code of version 0.1.0"
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    said = {"now": NOW, "batches": batches(), "retry": retry(), "recorder": recorder(), "job_cache": job_cache()}
    shutil.rmtree(OUT / "salt_cache.locks")
    (OUT / "said.json").write_text(json.dumps(said, indent=1, sort_keys=True))
