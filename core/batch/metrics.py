"""The figures of the batch_manager engine. Pure: their sources are arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from saltext.jobs.core.batch.gates import HELD
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.member import Outcome
from saltext.jobs.core.batch.summary import OVER
from saltext.jobs.core.metrics import Figures

_OPEN = ("running", "paused", "waiting", "stopping")


class Tally:
    """How batches and minions have ended since the engine's start. A minion counts when it ends, not with its batch."""

    def __init__(self) -> None:
        self._counted: dict[str, Counter[str]] = {}
        self.batches = dict.fromkeys(OVER, 0)
        self.minions = Counter(dict.fromkeys((outcome.value for outcome in Outcome), 0))

    def begin(self, batch: Batch) -> None:
        """Count the minions of a batch from now on."""
        self._counted[batch.spec.jid] = _ended(batch)

    def look(self, batch: Batch) -> None:
        """Count the minions of a batch that have ended since the last look."""
        counts, known = _ended(batch), self._counted[batch.spec.jid]
        self.minions.update(counts - known)  # fewer than before: a lost minion has returned after all
        self._counted[batch.spec.jid] = counts | known

    def add(self, batch: Batch) -> None:
        """Count an ended batch, and the rest of its minions."""
        self.look(batch)
        self.batches[batch.state] += 1
        del self._counted[batch.spec.jid]


def _ended(batch: Batch) -> Counter[str]:
    return Counter({outcome.value: batch.counts[outcome] for outcome in Outcome})


def _state_of(batch: Batch) -> str:
    """Return the state, or ``waiting`` for a wait that needs no resume: for window, time, approval, or other batches."""
    pause = batch.waits_for()
    if batch.waits_for_room() and not batch.flights:
        return "waiting"
    return "waiting" if pause and pause.by not in HELD else batch.state


def figures(batches: Collection[Batch], tally: Tally, now: float, limit: int | None = None) -> Figures:
    """Return the figures of the batches that have not ended, and of ``tally``. :param limit: ``max_in_flight``."""
    for batch in batches:
        tally.look(batch)
    states = [_state_of(batch) for batch in batches]
    running = (batch for batch, state in zip(batches, states, strict=True) if state == "running")
    found: Figures = {
        "batches": {state: states.count(state) for state in _OPEN},
        "batches_ended_total": tally.batches,
        "batch_minions_total": tally.minions,
        "batch_in_flight_minions": sum(len(batch.flights) for batch in batches),
        "batch_pending_minions": sum(len(batch.pending) for batch in batches),
        "batch_without_progress_seconds": max([0.0, *(now - batch.last_progress for batch in running)]),
    }
    return found if limit is None else {**found, "batch_in_flight_limit_minions": limit}
