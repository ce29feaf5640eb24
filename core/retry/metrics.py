"""
The figures of the job_retry engine. Pure: the caller passes the data.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from saltext.jobs.core.metrics import Figures
from saltext.jobs.core.retry.entry import Entry, State

#: The kinds of announcements about entries (``salt/job_retry/<minion>/<jid>/<kind>``).
_TOLD = ("queued", "sent", "done", "held", "expired", "cancelled", "dead")


def figures(entries: Iterable[Entry], told: Mapping[str, int], paused: bool, now: float) -> Figures:
    """Return the figures. ``told``: how often each kind of announcement was made."""
    entries = list(entries)
    states = Counter(entry.state for entry in entries)
    pending = [entry for entry in entries if entry.state is State.PENDING]
    return {
        "retry_entries": {state.value: states[state] for state in State if state is not State.DONE},
        "retry_oldest_pending_seconds": now - min((entry.queued for entry in pending), default=now),
        "retry_next_expiry_seconds": min((entry.expires_at for entry in pending), default=math.inf) - now,
        "retry_transitions_total": {kind: told.get(kind, 0) for kind in _TOLD},
        "retry_paused": paused,
    }
