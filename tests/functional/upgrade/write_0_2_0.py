"""
Writes what a master with version 0.2.0 leaves behind, by that version's own code, into ``written_by_0_2_0/``. Run once, by

    git worktree add /tmp/v/saltext/jobs 3c11661        # the last commit of 0.2.0
    PYTHONPATH=/tmp/v .venv/bin/python tests/functional/upgrade/write_0_2_0.py

Never run it with the code of another version: tests read what it writes, to show that the present version reads data of
0.2.0. ``said.json`` is what 0.2.0 itself says of these data. That version kept no log of the master.
"""

import json
import os
import pathlib
import shutil

import salt.config

import saltext.jobs.returners.salt_cache as returner
from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.batch.summary import minions, summary
from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.engine.requests import engine_dir, leave
from saltext.jobs.core.retry import checkpoint
from saltext.jobs.core.retry.entry import Asker, Entry, State
from saltext.jobs.core.retry.note import Note
from saltext.jobs.core.retry.store import Changes, RetryStore

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "written_by_0_2_0"
#: The present, as Unix time, and the jids of its jobs.
NOW = 1_795_442_358.0
OPTS = {
    **salt.config.master_config(None),
    "id": "here_master",
    "cachedir": str(OUT),
    "sock_dir": str(OUT),
    "cache": "localfs",
    "master_job_cache": "salt_cache",
    "cluster_id": None,
}
RUNNING, PAUSED, WAITING, TIMED, STOPPING, ENDED = (f"2026111914531000000{number}" for number in range(6))
OWED, OPEN, CLOSED = (f"2026111914532000000{number}" for number in range(3))
FUN = "state.highstate"
MINIONS = ("a", "b", "c", "d", "e", "f")


def batch(jid, *steps, **more):
    """A batch of four minions, two at a time, and its journal. ``steps`` are facts, one a second."""
    fields = {"batch": "2", "sizes": (2,), "user": "admin", "presence": "none", **more}
    spec = Spec(jid, "test.sleep", (60,), {}, "*", "glob", MINIONS[:4], **fields)
    made, path = Batch(spec, NOW), BatchStore(OPTS).journal_path(jid)
    journal = Journal(path)
    journal.rewrite(made.snapshot())
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
    ramp = {"batch": "1,50%", "sizes": (1, 2), "check": {"kind": "approve", "fun": "", "arg": [], "kwargs": {}}}
    timed = {"window": "Mon-Sun 10:00-12:00", "timezone": "UTC", "max_failures": "25%", "failures_allowed": 1.0}
    made = [
        batch(RUNNING, *begun),
        batch(PAUSED, *begun, facts.Published(), facts.Returned("b", 1), facts.PauseRequested("admin")),
        batch(WAITING, facts.Tick(), facts.Published(), facts.Returned("a", 0), facts.Tick(), **ramp),
        batch(TIMED, facts.Tick(), facts.OpeningFound(NOW + 3600, NOW + 7200), **timed),
        batch(STOPPING, *begun, facts.StopRequested(True, "admin")),
        batch(ENDED, *whole[:-1], facts.Closed()),
    ]
    BatchStore(OPTS).end(ENDED)
    leave(OPTS, "batch_manager", {"do": "approve", "jid": WAITING, "user": "admin", "stage": 1})
    return {one.spec.jid: {"summary": summary(one, NOW + 100), "minions": minions(one)} for one in made}


def entry(minion, *moves, **more):
    made = Entry(minion, OWED, NOW, NOW + 7 * 86400, "it did not return")
    for move in moves:
        if move is State.CLAIMED:
            made.claim(NOW + 10)
        else:
            made.move(move, NOW + 20, "since it is so")
    for name, value in more.items():
        setattr(made, name, value)
    return made


def retry():
    entries = [
        entry("a"),
        entry("b", State.CLAIMED, State.SENT, lost=1),
        entry("c", State.CLAIMED, State.SENT, State.PENDING, tries=2, next_at=NOW + 60),
        entry("d", State.HELD),
        entry("e", State.CANCELLED, State.PENDING, named=True, asker=Asker("ann", "pam", True)),
    ]
    load = {"jid": OWED, "fun": FUN, "arg": [], "tgt": "*", "tgt_type": "glob", "user": "admin", "kwargs": {}}
    job = {"owner": "here_master", "published_at": NOW, "load": load, "minions": [one.minion for one in entries]}
    note = Note(NOW + 7 * 86400, begun=("a",), settled=("b",), killed={"c": "ann"})
    changes = Changes(
        {OWED: job},
        {(one.minion, OWED): one.as_record() for one in entries},
        {OWED: {"a": NOW + 30}},
        {("here_master", OPEN): note.as_record()},
    )
    RetryStore(OPTS).write(changes)
    RetryStore(OPTS).beat("here_master", NOW)
    folder = engine_dir(OPTS, "job_retry")
    written = checkpoint.Checkpoint(folder / "checkpoint", NOW)
    assert written.write(NOW - 1.0, {CLOSED: NOW + 1e6})
    leave(OPTS, "job_retry", {"do": "cancel", "minion": "d", "jid": OWED, "user": "admin"})
    return {one.minion: {"state": one.state.value, "attempts": one.attempts, "reason": one.reason} for one in entries}


def job_cache():
    """Three jobs: one is owed, one was published when the engine was gone, and one the engine had closed."""
    returner.__opts__ = OPTS
    returner.__salt__ = returner.__context__ = {}
    for jid in (OWED, OPEN, CLOSED):
        load = {"jid": jid, "fun": FUN, "arg": [], "tgt": "*", "tgt_type": "glob", "user": "admin", "ret": ""}
        returner.save_load(jid, load, minions=list(MINIONS))
    for jid, minion in ((OPEN, "d"), *((CLOSED, minion) for minion in MINIONS)):
        returner.returner({"jid": jid, "id": minion, "fun": FUN, "return": True, "retcode": 0, "success": True})


if __name__ == "__main__":
    assert not os.path.exists(pathlib.Path(returner.__file__).parents[1] / "core/log"), "this is not the code of 0.2.0"
    shutil.rmtree(OUT, ignore_errors=True)
    os.makedirs(OUT)
    said = {"now": NOW, "batches": batches(), "retry": retry()}
    job_cache()
    shutil.rmtree(OUT / "salt_cache.locks", ignore_errors=True)
    (OUT / "said.json").write_text(json.dumps(said, indent=1, sort_keys=True))
