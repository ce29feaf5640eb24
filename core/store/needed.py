"""
The jobs that an engine still needs: those of batches, and those that the retry queue owes somebody.

However old they are, they stay in the job cache: what vouches for a job must not be gone while the job is still to be sent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from saltext.jobs.core.store.store import Store

#: Where batches are, below ``cachedir``, and how the journals of open and of ended ones are called after their jid.
BATCHES = ("saltext_jobs", "batch_manager", "batches")
OPEN, ENDED = ".journal", ".ended"


def is_batch(cachedir: str, jid: str, *kinds: str) -> bool:
    """Tell whether a jid, which must be a plain name, is that of a batch of one of these kinds: OPEN, ENDED."""
    base = os.path.join(cachedir, *BATCHES, jid)
    return any(os.path.exists(base + kind) for kind in kinds)


def not_needed(store: Store, keys: Sequence[str]) -> list[str]:
    """Return those of some jobs, by the keys of their jids, that no engine needs any more."""
    owed = store.driver.owed(keys) if keys else set()
    return [key for key in keys if key not in owed and not is_batch(store.cachedir, store.decode(key), OPEN)]
