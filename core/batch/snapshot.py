"""
A batch as plain values, and back: what a journal begins with.

Pure: stdlib only. What ``restore`` returns must be equal in every respect to what ``snapshot`` was given.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.flight import Flight, Outcome
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.spec import Spec

#: Attributes that are plain values already.
_PLAIN = (
    "created",
    "started",
    "finished",
    "closed",
    "last_progress",
    "halted",
    "paused",
    "killing",
    "stopped_by",
    "gathering",
    "pinging",
    "publish_at",
    "not_before",
    "failures",
    "publishes",
    "publish_failures",
    "stage",
    "quota",
    "budget_used",
)


def snapshot(batch: Batch) -> dict[str, Any]:
    """Return a batch as a dict of plain values."""
    data: dict[str, Any] = {name: getattr(batch, name) for name in _PLAIN}
    data["spec"] = batch.spec.as_dict()
    data["pending"] = batch.pending()
    data["publishing"] = None if batch.publishing is None else list(batch.publishing)
    data["flights"] = {minion: flight.as_list() for minion, flight in batch.flights.items()}
    data["outcomes"] = {minion: [value[0].value, *value[1:]] for minion, value in batch.outcomes.items()}
    data["tried"], data["to_queue"], data["cooling"] = sorted(batch.tried), list(batch.to_queue), list(batch.cooling)
    return data


def restore(data: Mapping[str, Any]) -> Batch:
    """
    Return the batch of a snapshot.

    :raises ValueError, KeyError, TypeError: when it is none.
    """
    batch = Batch(Spec.from_dict(data["spec"]), data["created"])
    for name in _PLAIN:
        setattr(batch, name, data[name])
    batch.order = collections.deque(data["pending"])
    batch.waiting = set(data["pending"])
    batch.publishing = None if data["publishing"] is None else tuple(data["publishing"])
    batch.flights = {minion: Flight.from_list(values) for minion, values in data["flights"].items()}
    batch.outcomes = {
        minion: (Outcome(outcome), since, retcode) for minion, (outcome, since, retcode) in data["outcomes"].items()
    }
    batch.counts = collections.Counter(outcome for outcome, *_ in batch.outcomes.values())
    batch.tried, batch.to_queue = set(data["tried"]), dict.fromkeys(data["to_queue"])
    batch.cooling = collections.deque(data["cooling"])
    batch.due = [(flight.due, minion) for minion, flight in batch.flights.items() if flight.due is not None]
    heapq.heapify(batch.due)
    return batch
