"""
The figures of the batch_manager engine. Pure: what they are taken from is handed in.
"""

from __future__ import annotations

from collections.abc import Collection

from saltext.jobs.core.batch.flight import Outcome
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.pause import HELD
from saltext.jobs.core.metrics import Metric, counter, gauge

_OPEN = ("running", "paused", "waiting", "stopping")
_ENDS = ("complete", "halted")


class Tally:
    """What has become of the batches that ended since the engine's start."""

    def __init__(self) -> None:
        self.batches = dict.fromkeys(_ENDS, 0)
        self.minions = dict.fromkeys((outcome.value for outcome in Outcome), 0)

    def add(self, batch: Batch) -> None:
        """Count a batch that has ended, and its minions."""
        self.batches[batch.state] += 1
        for outcome in Outcome:
            self.minions[outcome.value] += batch.counts[outcome]


def _state_of(batch: Batch) -> str:
    """``waiting`` is paused where nobody has to resume it: for its window, its time, an approval."""
    pause = batch.waits_for()
    return "waiting" if pause and pause.by not in HELD else batch.state


def metrics_of(batches: Collection[Batch], ended: Tally, journal_bytes: int, now: float) -> list[Metric]:
    """
    Return the figures.

    :param batches: those that have not ended.
    :param now: Unix time.
    """
    states = [_state_of(batch) for batch in batches]
    waiting = [now - batch.last_progress for batch in batches if batch.state == "running"]
    return [
        gauge("salt_batch_batches", "Batches that have not ended.", {s: states.count(s) for s in _OPEN}, "state"),
        counter("salt_batch_ended_total", "Batches that ended.", ended.batches, "outcome"),
        counter("salt_batch_minions_total", "Minions of batches that ended.", ended.minions, "outcome"),
        gauge("salt_batch_in_flight_minions", "Minions in flight.", sum(len(batch.flights) for batch in batches)),
        gauge("salt_batch_pending_minions", "Minions to be sent to.", sum(batch.count_pending() for batch in batches)),
        gauge(
            "salt_batch_without_progress_seconds",
            "Time since the last progress of the running batch that waits longest.",
            max(0.0, *waiting) if waiting else 0.0,
        ),
        gauge("salt_batch_journal_bytes", "Size of the journals of batches that have not ended.", journal_bytes),
    ]
