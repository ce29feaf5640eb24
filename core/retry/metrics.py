"""
The figures of the job_retry engine. Pure: the caller passes the data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from saltext.jobs.core.metrics import Metric, counter, gauge
from saltext.jobs.core.retry.entry import Entry, State

#: The kinds of announcements about entries (``salt/job_retry/<minion>/<jid>/<kind>``).
_TOLD = ("queued", "sent", "done", "held", "expired", "cancelled", "dead")


def metrics_of(entries: Iterable[Entry], told: Mapping[str, int], paused: bool, now: float) -> list[Metric]:
    """Return the figures. ``told``: how often each kind of announcement was made."""
    states: Counter[State] = Counter()
    oldest, expiry = now, math.inf
    minions, jobs = set(), set()
    for entry in entries:
        states[entry.state] += 1
        minions.add(entry.minion)
        jobs.add(entry.jid)
        if entry.state is State.PENDING:
            oldest = min(oldest, entry.queued)
            expiry = min(expiry, entry.expires_at)
    return [
        gauge(
            "saltext_jobs_retry_entries",
            "Entries of the queue.",
            {state.value: states[state] for state in State if state is not State.DONE},
            "state",
        ),
        gauge("saltext_jobs_retry_minions", "Minions with entries.", len(minions)),
        gauge("saltext_jobs_retry_jobs", "Jobs with entries.", len(jobs)),
        gauge("saltext_jobs_retry_oldest_pending_seconds", "Age of the oldest pending entry.", now - oldest),
        gauge(
            "saltext_jobs_retry_next_expiry_seconds",
            "Time until the first pending entry expires; infinite where none is pending.",
            expiry - now,
        ),
        counter(
            "saltext_jobs_retry_transitions_total",
            "Times that an entry came into a state; sent is a replay.",
            {kind: told.get(kind, 0) for kind in _TOLD},
            "outcome",
        ),
        gauge("saltext_jobs_retry_paused", "Whether replays are paused.", paused),
    ]
