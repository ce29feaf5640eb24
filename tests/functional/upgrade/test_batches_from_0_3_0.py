"""
Batches of versions from 0.3.0 on are read and continued. ``written_by_0_3_0`` was written by that version's own code, and
its ``said.json`` is what that version says of it: see ``write_0_3_0.py``. Later versions have folders of the same form.
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


@pytest.fixture
def version():
    return "0_3_0"


@pytest.fixture
def left(version):
    return pathlib.Path(__file__).with_name(f"written_by_{version}")


@pytest.fixture
def store(left, tmp_path):
    shutil.copytree(left, tmp_path / "cache")
    return BatchStore(options_in(tmp_path))


@pytest.fixture
def said(left):
    return json.loads((left / "said.json").read_text())


@pytest.mark.parametrize("version", ["0_3_0", "0_4_0", "0_7_2"])
def test_a_batch_is_what_that_version_says_of_it(store, said):
    for jid, one in said["batches"].items():
        batch = store.read(jid)
        now = json.loads(json.dumps(summary(batch, said["now"] + 100)))
        now["options"] = {name: now["options"][name] for name in one["summary"]["options"]}
        assert {name: now[name] for name in one["summary"]} == one["summary"]
        assert minions(batch) == one["minions"]


@pytest.mark.parametrize("version", ["0_3_0", "0_4_0", "0_7_2"])
def test_an_open_batch_goes_on_and_no_minion_that_may_have_the_job_is_sent_it_again(store, said):
    assert store.open_jids() == sorted(said["batches"])[:-1]
    go_on_with(store, said)


def answers(effect, returned):
    """What the engine finds out if the minions of ``returned`` have returned and the others have never got the job."""
    if isinstance(effect, facts.LookUp):
        return facts.LookedUp(effect.minions, tuple((minion, 0) for minion in effect.minions if minion in returned))
    if isinstance(effect, facts.Probe):
        return facts.Probed(idle=effect.minions)
    return facts.Recorded(effect.minions) if isinstance(effect, facts.AskRecords) else None


def test_a_batch_that_ran_before_there_was_a_limit_asks_for_room_from_then_on(store, said):
    batch, journal = store.open(store.open_jids()[0])
    journal.close()
    returned, now = set(batch.flights), said["now"] + 200
    effects = batch.step(facts.Recovered(shared=True), now)
    # The journal is of a version with another policy, so the last minion counts as sent to until it is known not to be.
    while not batch.room.wanted and now < said["now"] + 400:
        now += 1
        told = [fact for effect in effects if (fact := answers(effect, returned))]
        effects = [effect for fact in (*told, facts.Tick()) for effect in batch.step(fact, now)]
    assert (batch.room.wanted, batch.pending()) == (1, ["d"])
    (publish,) = (effect for effect in batch.step(facts.Allotted(("d",)), now) if isinstance(effect, facts.Publish))
    assert publish.minions == ("d",)


@pytest.mark.parametrize("version", ["0_4_0", "0_7_2"])
def test_minions_that_it_was_just_asking_for_their_records_are_asked_again_before_they_count_as_lost(store, said):
    batch, journal = store.open(store.open_jids()[3])
    journal.close()
    now, asked = said["now"] + 200, ()
    effects = batch.step(facts.Recovered(), now)
    while not asked and now < said["now"] + 400:
        now += 1
        told = [fact for effect in effects if (fact := answers(effect, ()))]
        effects = [effect for fact in (*told, facts.Tick()) for effect in batch.step(fact, now)]
        asked = [effect.minions for effect in effects if isinstance(effect, facts.AskRecords)]
        assert {"a", "b"} <= set(batch.flights)
    assert asked == [("a", "b")]
