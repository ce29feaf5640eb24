"""The figures of the batch_manager engine, from batches in known states."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.metrics import Tally, metrics_of
from saltext.jobs.core.metrics import figures_of
from tests.unit.batch.bench import BEGIN, Bench


def test_batches_and_minions_are_counted_where_they_stand():
    running, paused = Bench("abcde", "2"), Bench("xyz", "1")
    running.sent()
    running.returns("a")
    paused.tell(facts.PauseRequested("root"))
    figures = figures_of(metrics_of([running.batch, paused.batch], Tally(), 4096, BEGIN))
    assert figures["saltext_jobs_batches"] == {"running": 1, "paused": 1, "waiting": 0, "stopping": 0}
    assert figures["saltext_jobs_batch_in_flight_minions"] == len(running.batch.flights) + len(paused.batch.flights)
    assert figures["saltext_jobs_batch_pending_minions"] == running.batch.count_pending() + paused.batch.count_pending()
    assert figures["saltext_jobs_batch_journal_bytes"] == 4096


def test_the_batch_that_waits_longest_is_reported_unless_it_is_paused():
    running, paused = Bench("ab", "1"), Bench("ab", "1")
    running.sent()
    paused.tell(facts.PauseRequested("root"))
    assert (
        figures_of(metrics_of([paused.batch], Tally(), 0, BEGIN + 500))["saltext_jobs_batch_without_progress_seconds"]
        == 0
    )
    figures = figures_of(metrics_of([running.batch, paused.batch], Tally(), 0, BEGIN + 500))
    assert figures["saltext_jobs_batch_without_progress_seconds"] == BEGIN + 500 - running.batch.last_progress


def test_the_limit_is_reported_if_there_is_one_and_a_batch_that_waits_for_others_is_not_stuck():
    waits = Bench("ab", "1")
    waits.batch.room.shared = True
    waits.tell(facts.Allotted(0, 7))
    figures = figures_of(metrics_of([waits.batch], Tally(), 0, BEGIN + 500, 7))
    assert figures["saltext_jobs_batch_in_flight_limit_minions"] == 7
    assert figures["saltext_jobs_batches_waiting_for_room"] == 1
    waits.tell(facts.PauseRequested("root"))
    figures = figures_of(metrics_of([waits.batch], Tally(), 0, BEGIN + 500))
    assert "saltext_jobs_batch_in_flight_limit_minions" not in figures
    assert figures["saltext_jobs_batches_waiting_for_room"] == 0


def test_without_a_batch_nothing_waits():
    assert figures_of(metrics_of([], Tally(), 0, BEGIN))["saltext_jobs_batch_without_progress_seconds"] == 0


def test_an_ended_batch_is_counted_with_what_became_of_its_minions():
    bench, tally = Bench("ab", "2"), Tally()
    bench.sent(missed="b")
    bench.returns("a")
    assert bench.batch.state == "complete"
    tally.add(bench.batch)
    figures = figures_of(metrics_of([], tally, 0, BEGIN))
    assert figures["saltext_jobs_batches_ended_total"] == {"complete": 1, "halted": 0}
    assert figures["saltext_jobs_batch_minions_total"] == {
        "completed": 1,
        "failed": 0,
        "lost": 0,
        "offline": 1,
        "killed": 0,
        "timed_out": 0,
    }


@pytest.mark.parametrize(
    ("opens", "check"), [(BEGIN + 600, {}), (BEGIN, {"kind": "approve", "fun": "", "arg": [], "kwargs": {}})]
)
def test_a_batch_that_waits_for_its_window_or_an_approval_is_not_counted_as_paused(opens, check):
    bench = Bench("ab", "1,1", window="02:00-05:00", check=check)
    bench.tell(facts.OpeningFound(opens))
    bench.sent()
    bench.returns("a")
    figures = figures_of(metrics_of([bench.batch], Tally(), 0, BEGIN))
    assert figures["saltext_jobs_batches"] == {"running": 0, "paused": 0, "waiting": 1, "stopping": 0}


def test_minions_count_when_they_end_and_not_when_their_batch_does():
    bench, tally = Bench("abc", "3"), Tally()
    bench.sent()
    bench.returns("a", retcode=1)
    assert figures_of(metrics_of([bench.batch], tally, 0, BEGIN))["saltext_jobs_batch_minions_total"]["failed"] == 1
    bench.returns("b", "c")
    tally.add(bench.batch)
    assert (tally.minions["failed"], tally.minions["completed"]) == (1, 2)


def test_a_batch_that_ended_before_the_engine_started_is_not_counted():
    bench = Bench("ab", "2")
    bench.sent()
    bench.returns("a", retcode=1)
    tally = Tally(BEGIN + 3600)
    tally.look([bench.batch])
    bench.returns("b", retcode=1)
    tally.add(bench.batch)
    assert tally.minions["failed"] == 1
