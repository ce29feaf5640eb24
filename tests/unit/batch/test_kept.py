"""The state of a batch is declared once: what is not declared cannot be set, what is declared is in every snapshot."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from saltext.jobs.core.batch.inflight import TRANSITIONS, Flight, Phase
from saltext.jobs.core.batch.kept import Kept, kept, made
from saltext.jobs.core.batch.machine import Batch
from tests.unit.batch.bench import BEGIN, Bench, spec


def parts(batch):
    return [batch, *batch.parts]


def test_an_attribute_that_is_not_declared_cannot_be_set():
    for part in parts(Batch(spec(), BEGIN)):
        with pytest.raises(AttributeError):
            part.novelty = 1


def test_no_two_attributes_share_a_name_in_a_snapshot():
    names = [name for part in parts(Batch(spec(), BEGIN)) for name in part.values()]
    assert len(names) == len(set(names))


def test_every_declared_attribute_is_in_a_snapshot_or_made_from_one():
    bench = Bench("abcd", "2")
    bench.sent()
    bench.returns("a")
    data = bench.batch.snapshot()
    again = Batch.restore(data)
    for part, twin in zip(parts(bench.batch), parts(again), strict=True):
        for field in dataclasses.fields(part):
            if field.metadata:
                assert (field.metadata["name"] or field.name) in data, field.name
        assert part.values() == twin.values()
    assert (again.next_due, again.counts, again.pending()) == (
        bench.batch.next_due,
        bench.batch.counts,
        bench.batch.pending(),
    )


def test_a_field_that_an_older_snapshot_does_not_have_keeps_its_first_value():
    @dataclasses.dataclass(slots=True)
    class Part(Kept):
        old: int = kept(int)
        new: list[int] = kept(lambda: [7])
        sum: int = made(int)

        def rebuild(self):
            self.sum = self.old + sum(self.new)

    part = Part()
    part.load({"old": 3, "stranger": 1})
    assert (part.old, part.new, part.sum) == (3, [7], 10)
    assert part.values() == {"old": 3, "new": [7]}


def test_a_snapshot_of_the_first_release_is_read():
    bench = Bench("abcd", "2")
    bench.sent()
    bench.returns("a", retcode=1)
    first_release = {
        **bench.batch.snapshot(),
        "flights": {"b": ["sent", BEGIN, BEGIN + 60.0, 0, 0, False, False, False]},
        "outcomes": {"a": ["failed", BEGIN, 1]},
        "pending": ["c", "d"],
        "publishing": None,
        "cooling": [],
        "tried": [],
        "to_queue": [],
    }
    batch = Batch.restore(first_release)
    assert (batch.pending(), list(batch.flights), batch.outcomes["a"][2]) == (["c", "d"], ["b"], 1)
    assert batch.record.budget_used == 1
    assert batch.next_due is not None


@pytest.mark.parametrize("name", ["resent", "begun_after_all"])
def test_a_snapshot_whose_counts_are_names_is_refused(name):
    with pytest.raises(ValueError, match="dictionary update"):
        Batch.restore({**Batch(spec(), BEGIN).snapshot(), name: ["a", "b"]})


def test_a_flight_goes_only_where_the_table_lets_it():
    assert set(TRANSITIONS) == set(Phase)
    flight = Flight(Phase.SENDING, BEGIN)
    with pytest.raises(ValueError, match="from sending to final"):
        flight.move(Phase.FINAL)
    flight.move(Phase.SENT, BEGIN + 60)
    assert (flight.phase, flight.due) == (Phase.SENT, BEGIN + 60)
    assert Flight.from_list(flight.as_list()) == flight


def test_no_two_parts_of_a_batch_give_a_field_the_same_name_in_a_snapshot():
    names = [name for part in parts(Batch(spec(), BEGIN)) for name in part.values()]
    assert len(names) == len(set(names))


def test_a_snapshot_does_not_change_with_the_batch():
    bench = Bench("abcd", "2", groups=(("x", 2), ("y", 2)))
    snapshot = bench.batch.snapshot()
    before = copy.deepcopy(snapshot)
    bench.sent()
    bench.returns("a", retcode=1)
    assert snapshot == before


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("paused", "operator"),
        ("paused by ann", "operator"),
        ("6 publishes failed in a row, the last one: no route", "publish"),
        ("ann may not publish it any more", "permission"),
    ],
)
def test_a_pause_that_was_written_as_a_sentence_is_read_as_a_code_and_shown_as_before(told, code):
    batch = Batch.restore({**Bench("ab", "1").batch.snapshot(), "paused": told})
    assert (batch.paused.by.value, batch.paused.reason) == (code, told)
    assert Batch.restore(batch.snapshot()).paused == batch.paused
