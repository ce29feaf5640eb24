"""For how long freed slots are gathered: few publishes, and little idleness; whole batches, in simulated time."""

from __future__ import annotations

import heapq
import random

import pytest

from tests.unit.batch.shell_bench import FakeMinion, ShellBench


def live_through(root, durations, size):
    """Run a batch whose minions run for ``durations`` seconds. Returns (publishes, seconds from its start to its end)."""
    names = [f"m{number:04d}" for number in range(len(durations))]
    with ShellBench(root, map(FakeMinion, names, durations), logged=True, interval=600.0) as bench:
        bench.begin(names, str(size), timeout=36_000.0)
        batch = bench.end(100_000.0)
        assert bench.master.most <= size
        return len(bench.master.jobs()), batch.finished - bench.master.minions[names[0]].begun[0][1]


def ideal(durations, size):
    """Seconds that it takes where each slot is taken again at the moment at which it is freed."""
    slots = [0.0] * size
    for seconds in durations:
        heapq.heapreplace(slots, slots[0] + seconds)
    return max(slots)


def spread(seconds, count=1000, by=0.2, seed=1):
    rng = random.Random(seed)
    return [seconds * rng.uniform(1 - by, 1 + by) for _ in range(count)]


@pytest.mark.parametrize("seconds", [10.0, 60.0, 120.0])
def test_jobs_spread_by_a_fifth_need_few_publishes_and_take_little_longer_than_they_must(tmp_path, seconds):
    publishes, took = live_through(tmp_path, spread(seconds), 100)
    assert publishes <= 250
    assert took <= 1.06 * ideal(spread(seconds), 100)


def test_jobs_that_all_take_the_same_time_need_one_publish_for_each_round(tmp_path):
    publishes, took = live_through(tmp_path, [60.0] * 1000, 50)
    assert publishes == 20
    assert took <= 1.05 * 20 * 60


@pytest.mark.parametrize(("seconds", "size"), [(60.0, 1), (0.5, 20)])
def test_a_batch_of_one_at_a_time_and_one_of_short_jobs_wait_for_next_to_nothing(tmp_path, seconds, size):
    durations = spread(seconds, count=60)
    _, took = live_through(tmp_path, durations, size)
    assert took <= ideal(durations, size) + (60 / size) * 0.4


def test_long_jobs_are_sent_to_at_most_every_five_seconds(tmp_path):
    durations = spread(1200.0)
    publishes, took = live_through(tmp_path, durations, 200)
    assert took / 12 <= publishes <= took / 5
    assert took <= 1.02 * ideal(durations, 200)
