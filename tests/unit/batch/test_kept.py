"""The state of a batch is declared once: what is not declared cannot be set, what is declared is in every snapshot."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from saltext.jobs.core.batch.inflight import TRANSITIONS, Flight, Phase
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.state import PARTS
from tests.unit.batch.bench import BEGIN, Bench, spec


def test_an_attribute_that_is_not_declared_cannot_be_set():
    batch = Batch(spec(), BEGIN)
    for part in (batch, *(getattr(batch, name) for name in PARTS)):
        with pytest.raises(AttributeError):
            part.novelty = 1


def test_every_declared_attribute_is_in_a_snapshot_or_made_from_one():
    bench = Bench("abcd", "2")
    bench.sent()
    bench.returns("a")
    data = bench.batch.snapshot()
    again = Batch.restore(data)
    assert again.snapshot() == data
    for name in PARTS:
        part = getattr(bench.batch, name)
        assert data[name].keys() == {field.name for field in dataclasses.fields(part) if field.metadata}
    assert (again.next_due, again.counts, again.pending()) == (
        bench.batch.next_due,
        bench.batch.counts,
        bench.batch.pending(),
    )


@pytest.mark.parametrize("name", ["resends", "doubtful_starts"])
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


def test_a_snapshot_does_not_change_with_the_batch():
    bench = Bench("abcd", "2", groups=(("x", 2), ("y", 2)))
    snapshot = bench.batch.snapshot()
    before = copy.deepcopy(snapshot)
    bench.sent()
    bench.returns("a", retcode=1)
    assert snapshot == before
