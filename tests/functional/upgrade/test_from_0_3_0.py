"""
What version 0.3.0 has left of batches is read and gone on with. ``written_by_0_3_0`` was written by that version's own code,
and ``said.json`` is what that version says of it: see ``write_0_3_0.py``.
"""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.batch.summary import minions, summary
from tests.functional.options import options_in
from tests.functional.upgrade.open_batches import go_on_with

LEFT = pathlib.Path(__file__).with_name("written_by_0_3_0")
SAID = json.loads((LEFT / "said.json").read_text())
*OPEN, ENDED = sorted(SAID["batches"])


@pytest.fixture
def store(tmp_path):
    shutil.copytree(LEFT, tmp_path / "cache")
    return BatchStore(options_in(tmp_path))


def test_a_batch_is_what_that_version_says_of_it(store):
    for jid, said in SAID["batches"].items():
        batch = store.read(jid)
        now = json.loads(json.dumps(summary(batch, SAID["now"] + 100)))
        assert now["options"].pop("exclusive") is None
        assert {name: now[name] for name in said["summary"]} == said["summary"]
        assert minions(batch) == said["minions"]


def test_an_open_batch_is_gone_on_with_and_nobody_is_sent_to_again_who_may_have_the_job(store):
    assert store.open_jids() == OPEN
    go_on_with(store, SAID)


def answers(effect, returned):
    """What is found out where the minions of ``returned`` have returned, and the others have never got the job."""
    if isinstance(effect, facts.LookUp):
        return facts.LookedUp(effect.minions, tuple((minion, 0) for minion in effect.minions if minion in returned))
    if isinstance(effect, facts.Probe):
        return facts.Probed(idle=effect.minions)
    return facts.Recorded(effect.minions) if isinstance(effect, facts.AskRecords) else None


def test_a_batch_that_ran_before_there_was_a_limit_asks_for_room_from_then_on(store):
    batch, journal = store.open(OPEN[0])
    journal.close()
    returned, now = set(batch.flights), SAID["now"] + 200
    effects = batch.step(facts.Recovered(shared=True), now)
    # What is there was folded by another policy, so the last minion counts as sent to until it is known that it was not.
    while not batch.room.wanted and now < SAID["now"] + 400:
        now += 1
        told = [fact for effect in effects if (fact := answers(effect, returned))]
        effects = [effect for fact in (*told, facts.Tick()) for effect in batch.step(fact, now)]
    assert (batch.room.wanted, batch.pending()) == (1, ["d"])
    (publish,) = (effect for effect in batch.step(facts.Allotted(("d",)), now) if isinstance(effect, facts.Publish))
    assert publish.minions == ("d",)
