"""
The figures of the batch_manager engine. Pure: their sources are arguments.
"""

from __future__ import annotations

from collections.abc import Collection

from saltext.jobs.core.batch.gates import HELD
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.outcomes import Outcome
from saltext.jobs.core.metrics import Metric, counter, gauge

_OPEN = ("running", "paused", "waiting", "stopping")
_ENDS = ("complete", "halted")


class Tally:
    """
    How batches and minions have ended since the engine's start. A minion counts when it ends, not when its batch does.

    :param since: Unix time of the engine's start: minions that ended before it are not counted.
    """

    def __init__(self, since: float = 0.0) -> None:
        self._since = since
        self._counted: dict[str, dict[str, int]] = {}
        self.batches = dict.fromkeys(_ENDS, 0)
        self.minions = dict.fromkeys((outcome.value for outcome in Outcome), 0)

    def look(self, batches: Collection[Batch]) -> None:
        """Count the minions that have ended since the last look. :param batches: the batches that have not ended."""
        for batch in batches:
            self._count(batch)

    def add(self, batch: Batch) -> None:
        """Count an ended batch, and the rest of its minions."""
        self.batches[batch.state] += 1
        self._count(batch)
        del self._counted[batch.spec.jid]

    def _count(self, batch: Batch) -> None:
        counts = {outcome.value: batch.counts[outcome] for outcome in Outcome}
        known = self._counted.get(batch.spec.jid)
        if known is None:
            known = counts if batch.created < self._since else dict.fromkeys(counts, 0)
        for name, number in counts.items():
            self.minions[name] += max(0, number - known[name])  # a lost minion may have returned after all
        self._counted[batch.spec.jid] = {name: max(number, known[name]) for name, number in counts.items()}


def _state_of(batch: Batch) -> str:
    """``waiting``: no operator has to resume it; it waits for its window, its time, an approval, or other batches."""
    pause = batch.waits_for()
    if batch.waits_for_room() and not batch.flights:
        return "waiting"
    return "waiting" if pause and pause.by not in HELD else batch.state


def metrics_of(
    batches: Collection[Batch], tally: Tally, journal_bytes: int, now: float, limit: int | None = None
) -> list[Metric]:
    """
    Return the figures.

    :param batches: the batches that have not ended.
    :param tally: counts the minions that have ended.
    :param now: Unix time.
    :param limit: how many minions may be in flight over all batches; None for any number.
    """
    tally.look(batches)
    states = [_state_of(batch) for batch in batches]
    running = (batch for batch, state in zip(batches, states, strict=True) if state == "running")
    waiting = [now - batch.last_progress for batch in running]
    in_flight = "saltext_jobs_batch_in_flight_limit_minions", "Minions that may be in flight over all batches."
    return [
        gauge("saltext_jobs_batches", "Batches that have not ended.", {s: states.count(s) for s in _OPEN}, "state"),
        counter("saltext_jobs_batches_ended_total", "Batches that ended.", tally.batches, "outcome"),
        counter("saltext_jobs_batch_minions_total", "Minions that ended.", tally.minions, "outcome"),
        gauge(
            "saltext_jobs_batch_in_flight_minions", "Minions in flight.", sum(len(batch.flights) for batch in batches)
        ),
        *([gauge(*in_flight, limit)] if limit is not None else []),
        gauge(
            "saltext_jobs_batches_waiting_for_room",
            "Batches that send to fewer minions than they could, because of other batches.",
            sum(bool(batch.waits_for_room()) for batch in batches),
        ),
        gauge(
            "saltext_jobs_batch_pending_minions",
            "Minions to be sent to.",
            sum(batch.count_pending() for batch in batches),
        ),
        gauge(
            "saltext_jobs_batch_without_progress_seconds",
            "Time since the last progress of the running batch that waits longest.",
            max(0.0, *waiting) if waiting else 0.0,
        ),
        gauge(
            "saltext_jobs_batch_journal_bytes", "Size of the journals of batches that have not ended.", journal_bytes
        ),
    ]
