"""For how long freed slots are gathered: few publishes, and little idleness; whole batches, simulated."""

from __future__ import annotations

import heapq
import random

import pytest

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.pace import LONGEST_SECONDS, PublishWindow
from saltext.jobs.core.master.hearsay import Hearsay
from tests.unit.batch.bench import BEGIN, spec

#: Seconds that a publish takes, and a look into the job cache for what the bus tells of.
LATENCY = 0.05
LOOK = 0.01
#: Seconds, on average, between a return and the end of the look that proves it. Only then is the slot free.
HEARD = 0.06


def window(least=0.1, batch_wait=0.0):
    return PublishWindow(least, batch_wait)


def after(made, seconds, *freed):
    """A window whose jobs run for so long, with slots freed at some times."""
    for _ in range(50):
        made.ran(seconds)
    for at in freed:
        made.freed(BEGIN + at)
    return made


@pytest.mark.parametrize("freed", [[0.0], [0.0, 1.0], [0.0] * 50])
def test_the_first_slot_waits_for_four_per_cent_of_a_run_and_no_other_for_longer(freed):
    made = after(window(), 100.0, *freed)
    assert made.left(BEGIN + 1, flying=100, gathers=True) == pytest.approx(3.0)
    assert made.left(BEGIN + 9, flying=100, gathers=True) == 0.0


def test_no_slot_waits_for_more_than_five_seconds_however_long_the_jobs_run():
    made = after(window(), 100_000.0, 0.0)
    assert made.left(BEGIN, flying=100_000, gathers=True) == LONGEST_SECONDS


@pytest.mark.parametrize(
    ("made", "more"),
    [
        (after(window(), 100.0, 0.0), {"flying": 20, "gathers": True}),  # none of so few is likely to end meanwhile
        (after(window(), 100.0, 0.0), {"flying": 100, "gathers": False}),  # all that are left can be sent to
        (after(window(batch_wait=5.0), 100.0, 0.0), {"flying": 100, "gathers": True}),
        (after(window(), 0.5, 0.0), {"flying": 100, "gathers": True}),  # short jobs
        (after(window(), 0.0, 0.0), {"flying": 100, "gathers": True}),
    ],
)
def test_otherwise_slots_are_gathered_for_the_publish_window_and_no_longer(made, more):
    assert made.left(BEGIN, **more) == pytest.approx(0.1)


def test_the_window_depends_on_recent_runs_and_not_on_the_first_ones():
    made = window()
    for seconds in [100.0] * 500 + [10.0] * 60:
        made.ran(seconds)
    made.freed(BEGIN)
    assert made.left(BEGIN, flying=100, gathers=True) == pytest.approx(0.4)


# -- whole batches -----------------------------------------------------------------------------------------------------


def simulate(durations, size, **more):
    """Simulate a batch whose minions run for ``durations``. Returns (publishes, makespan, mean wait of a freed slot)."""
    names = [f"m{number:05d}" for number in range(len(durations))]
    batch = Batch(spec(names, str(size), timeout=36000.0, publish_window=0.1, **more), BEGIN)
    runs = dict(zip(names, durations, strict=True))
    queue, now, number = [], BEGIN, 0
    free, waits, hearsay = [], [], Hearsay()

    def at(when, fact):
        nonlocal number
        number += 1
        heapq.heappush(queue, (when, number, fact))

    def take(effects):
        for effect in effects:
            if isinstance(effect, facts.Publish):
                waits.extend(now - freed for freed in free[: len(effect.minions)])
                del free[: len(effect.minions)]
                at(now + LATENCY, facts.Published())
                for minion in effect.minions:
                    at(now + LATENCY + runs[minion], facts.Returned(minion, 0))

    take(batch.step(facts.Tick(), now))
    while not batch.finished:
        due, look = batch.next_due, hearsay.next_due
        first = min(when for when in (due, look, queue[0][0] if queue else None) if when is not None)
        now = max(now, first)
        if first == look:
            asked = hearsay.take(now)
            at(now + LOOK, facts.LookedUp((), tuple((minion, 0) for minion in asked)))
        elif first == due:
            take(batch.step(facts.Tick(), now))
        else:
            _, _, fact = heapq.heappop(queue)
            if isinstance(fact, facts.Returned):  # which the bus tells of
                free.append(now)
                hearsay.heard(fact.minion, now)
                continue
            if isinstance(fact, facts.LookedUp):
                found = [minion for minion, _ in fact.found]
                assert hearsay.looked(found, found, now, LOOK) == []
            take(batch.step(fact, now))
        assert len(batch.flights) <= size
    return batch.pace.publishes, now - BEGIN, sum(waits) / len(waits)


def ideal(durations, size):
    """The makespan where each slot is taken again at the moment at which it is freed."""
    slots = [0.0] * size
    for seconds in durations:
        heapq.heapreplace(slots, slots[0] + seconds)
    return max(slots)


def spread(seconds, count=5000, by=0.2, seed=1):
    rng = random.Random(seed)
    return [seconds * rng.uniform(1 - by, 1 + by) for _ in range(count)]


@pytest.mark.parametrize("seconds", [10.0, 60.0, 120.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_jobs_spread_by_a_fifth_need_few_publishes_and_take_little_longer_than_they_must(seconds, seed):
    durations = spread(seconds, seed=seed)
    publishes, makespan, wait = simulate(durations, 250)
    assert publishes <= 475
    assert makespan <= 1.05 * ideal(durations, 250)
    assert wait <= 0.023 * seconds + LATENCY + HEARD


def test_jobs_that_all_take_the_same_time_need_one_publish_for_each_round():
    publishes, makespan, _ = simulate([60.0] * 5000, 250)
    assert publishes == 20
    assert makespan <= 1.05 * 20 * 60


def test_a_batch_of_one_at_a_time_does_not_wait():
    _, makespan, _ = simulate(spread(60.0, count=50), 1)
    assert makespan <= 1.005 * sum(spread(60.0, count=50))


def test_long_jobs_are_sent_to_at_most_every_five_seconds():
    durations = spread(1200.0)
    publishes, makespan, _ = simulate(durations, 250)
    assert publishes <= makespan / 5
    assert makespan <= 1.01 * ideal(durations, 250)
