"""
How long a batch will still take, from the run times of its minions. Its pace would mislead: it depends on the first
returns. There is no forecast before enough minions have returned. Pure: stdlib only.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable

from saltext.jobs.core.batch.machine import Batch


def two_digits(number: float) -> float:
    """Return an estimate, rounded to two significant digits."""
    return float(f"{number:.2g}")


def seconds_left(batch: Batch, now: float) -> float | None:
    """
    Return for how many seconds a batch will still run, rounded to two significant digits; 0 if it has ended.

    None if there is no forecast: the batch waits; or so few minions have returned that quick ones would mislead; or those in
    flight already run longer than the others did.
    """
    if batch.finished:
        return 0.0
    runs = sorted(batch.publish_window.runs)
    waits = batch.state == "paused" or batch.waits_for_room()
    if waits or not runs or (batch.pace.stage == 0 and len(runs) < _enough(batch)):
        return None
    run = runs[len(runs) // 2]
    left = _present(batch, run, now)
    if not batch.halted:
        left += sum(_stage(count, size, run + batch.spec.batch_wait) for count, size in _later(batch))
    return two_digits(left) if left > 0 else None


def _enough(batch: Batch) -> float:
    """Return how many minions must have returned: half of those that run at once, or of the run times that are kept."""
    runs = batch.publish_window.runs
    return min(batch.pace.size, len(batch.spec.minions), runs.maxlen or len(runs)) / 2


def _here(batch: Batch, pending: int) -> int:
    """Return how many of a group's pending minions belong to the present stage."""
    return pending if batch.pace.quota is None else max(0, min(pending, batch.pace.quota))


def _pending(batch: Batch) -> collections.Counter[int]:
    """Return how many minions of each group are pending, by the group's place."""
    if not batch.spec.groups:
        return collections.Counter({0: batch.count_pending()})
    return collections.Counter(batch.membership.of(minion) for minion in batch.pending())


def _present(batch: Batch, run: float, now: float) -> float:
    """Return how long the present stage takes: its slots share the run times of the minions in flight and to come."""
    flying = [max(0.0, run - (now - (flight.began or flight.since))) for flight in batch.flights.values()]
    count = 0 if batch.halted else _here(batch, _pending(batch)[batch.pace.group])
    if not count:
        return max(flying, default=0.0)
    each = run + batch.spec.batch_wait
    return max(each, (sum(flying) + count * each) / min(batch.pace.size, len(flying) + count))


def _later(batch: Batch) -> Iterable[tuple[int, int]]:
    """Yield how many minions each later stage sends to, and its size."""
    pending, pace = _pending(batch), batch.pace
    pending[pace.group] -= _here(batch, pending[pace.group])
    for stage in pace.stages[pace.stage + 1 :]:
        count = min(stage.size, pending[stage.group]) if stage.wave else pending[stage.group]
        pending[stage.group] -= count
        yield count, stage.size


def _stage(count: int, size: int, each: float) -> float:
    return each * max(1.0, count / size) if count else 0.0
