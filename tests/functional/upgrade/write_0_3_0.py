"""
Writes the batches that a master with version 0.3.0 leaves behind, by that version's own code, into ``written_by_0_3_0/``.
Run once, by

    git worktree add /tmp/v/saltext/jobs aa23e38        # 0.3.0
    PYTHONPATH=/tmp/v .venv/bin/python tests/functional/upgrade/write_0_3_0.py

Never run it with the code of another version: what it writes shows that this one reads what that one wrote. ``said.json``
is what 0.3.0 itself says of it.
"""

import json
import pathlib
import shutil

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.state import FORMAT
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.batch.summary import minions, summary
from saltext.jobs.core.disk.journal import Journal

OUT = pathlib.Path(__file__).resolve().parent / "written_by_0_3_0"
#: The present, as Unix time, and the jids of its batches.
NOW = 1_795_442_358.0
OPTS = {"id": "here_master", "cachedir": str(OUT), "hash_type": "sha256"}
RUNNING, PINGING, GROUPED, TAKEN_OVER, WAITING, STOPPING, ENDED = (
    f"2026112314531000000{number}" for number in range(7)
)
MINIONS = ("a", "b", "c", "d")


def batch(jid, *steps, **more):
    """A batch of four minions, two at a time, and its journal: its second half is facts. One step a second."""
    fields = {"batch": "2", "sizes": (2,), "user": "admin", "presence": "none", "acks": True, **more}
    made, path = (
        Batch(Spec(jid, "test.sleep", (60,), {}, "*", "glob", MINIONS, **fields), NOW),
        BatchStore(OPTS).journal_path(jid),
    )
    made.go_by("a boot", 0.0)
    journal, half = Journal(path), len(steps) // 2
    for second, fact in enumerate(steps[:half]):
        made.step(fact, NOW + second)
    journal.rewrite(made.snapshot())
    for second, fact in enumerate(steps[half:], half):
        made.step(fact, NOW + second)
        journal.append(facts.record_of(fact, NOW + second))
    journal.sync()
    journal.close()
    return made


def batches():
    begun = (facts.Tick(), facts.Published(), facts.Returned("a", 0), facts.Acknowledged("b"), facts.Tick())
    owner = {"kind": "password", "name": "ann", "backends": ["pam"]}
    rights = {"owner": {**owner, "name": "bob"}, "on_behalf": {}}
    taken_over = (facts.Tick(), facts.RightsChecked(1, "may not"), facts.ResumeRequested("bob", rights))
    ramp = {"batch": "1,50%", "sizes": (1, 2), "check": {"kind": "approve", "fun": "", "arg": [], "kwargs": {}}}
    whole = [facts.Tick(), facts.Published()]
    for pair in ("ab", "cd"):
        whole += [facts.Returned(minion, int(minion == "d")) for minion in pair] + [facts.Tick(), facts.Published()]
    groups = {
        "groups": (("eu", 1), ("us", 3)),
        "by": "grains:region",
        "sizes": (1, 2),
        "group_failures_allowed": (0.0, 1.0),
    }
    made = [
        batch(RUNNING, *begun),
        batch(
            PINGING, facts.Tick(), facts.Seen(("c", "a")), facts.Gathered(("b",)), facts.Published(), presence="ping"
        ),
        batch(
            GROUPED, facts.Tick(), facts.Published(), facts.Returned("a", 0), facts.Tick(), facts.Published(), **groups
        ),
        batch(TAKEN_OVER, *taken_over, facts.RightsChecked(2), facts.Tick(), facts.Published(), owner=owner),
        batch(
            WAITING, facts.Tick(), facts.Published(), facts.Returned("a", 0), facts.Tick(), **ramp, approve_by=("eve",)
        ),
        batch(STOPPING, *begun, facts.StopRequested(True, "admin")),
        batch(ENDED, *whole[:-1], facts.Closed()),
    ]
    BatchStore(OPTS).end(ENDED)
    return {one.spec.jid: {"summary": summary(one, NOW + 100), "minions": minions(one)} for one in made}


if __name__ == "__main__":
    assert FORMAT == 3, "this is not the code of 0.3.0"
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "saltext_jobs/batch_manager/batches").mkdir(parents=True)
    (OUT / "said.json").write_text(json.dumps({"now": NOW, "batches": batches()}, indent=1, sort_keys=True))
