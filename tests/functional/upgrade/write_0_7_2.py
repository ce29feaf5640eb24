"""
Writes the batches that a master with version 0.7.2 leaves behind, by that version's own code, into ``written_by_0_7_2/``.
Run once, by

    git worktree add /tmp/v/saltext/jobs 8b99c8c2        # 0.7.2
    cp /tmp/v/saltext/jobs/package/__init__.py /tmp/v/saltext/jobs/
    PYTHONPATH=/tmp/v .venv/bin/python tests/functional/upgrade/write_0_7_2.py

Never run it with the code of another version: what it writes shows that this one reads what that one wrote. ``said.json``
is what 0.7.2 itself says of it.
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

OUT = pathlib.Path(__file__).resolve().parent / "written_by_0_7_2"
#: The present, as Unix time, and the jids of its batches.
NOW = 1_795_460_450.0
OPTS = {"id": "here_master", "cachedir": str(OUT), "hash_type": "sha256"}
RUNNING, ALLOTTED, LACKING, ASKED, ENDED = (f"2026112319005000000{number}" for number in range(5))
BOTH = ("a", "b")


def batch(jid, *steps, shared=False, **more):
    """A batch of four minions, two at a time, and its journal: its second half is facts. One step a second."""
    fields = {"batch": "2", "sizes": (2,), "user": "admin", "presence": "none", "acks": True, "timeout": 1.0, **more}
    spec = Spec(jid, "test.sleep", (60,), {}, "*", "glob", ("a", "b", "c", "d"), **fields)
    made = Batch(spec, NOW)
    made.go_by("a boot", 0.0)
    made.room.shared = shared
    journal, half = BatchStore(OPTS).new_journal(jid), len(steps) // 2
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
    shared = (facts.Tick(), facts.Allotted(BOTH, limit=2), facts.Published())
    lacks = (facts.Returned("a", 0), facts.Allotted((), "total", 2, {"c": RUNNING}))
    # Both minions say that they do not run it, the job cache has nothing, and they are just being asked for their records.
    idle = (facts.Tick(), facts.LookedUp(BOTH, ()), facts.Probed(idle=BOTH), *[facts.Tick()] * 3)
    asked = (facts.Tick(), facts.Published(), *[facts.Tick()] * 2, *idle, facts.Probed(idle=BOTH), *[facts.Tick()] * 12)
    whole = [facts.Tick(), facts.Published()]
    for pair in ("ab", "cd"):
        whole += [facts.Returned(minion, int(minion == "d")) for minion in pair] + [facts.Tick(), facts.Published()]
    made = [
        batch(RUNNING, *begun, exclusive=("eu",)),
        batch(ALLOTTED, *shared, shared=True),
        batch(LACKING, *shared, *lacks, facts.Tick(), shared=True),
        batch(ASKED, *asked, facts.LookedUp(BOTH, ()), facts.Probed(idle=BOTH)),
        batch(ENDED, *whole[:-1], facts.Closed()),
    ]
    BatchStore(OPTS).end(ENDED)
    return {one.spec.jid: {"summary": summary(one, NOW + 100), "minions": minions(one)} for one in made}


if __name__ == "__main__":
    assert FORMAT == 5, "this is not the code of 0.7.2"
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "saltext_jobs/batch_manager/batches").mkdir(parents=True)
    (OUT / "said.json").write_text(json.dumps({"now": NOW, "batches": batches()}, indent=1, sort_keys=True))
