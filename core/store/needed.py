"""
The jobs that an engine still needs: those of batches, and those that the retry queue owes a minion.

They stay in the job cache however old they are: the record that vouches for a job must exist as long as the job may be sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from salt.exceptions import SaltCacheError

from saltext.jobs.core.banks import OWED
from saltext.jobs.core.site import Site
from saltext.jobs.core.store.store import Store

#: The folder of batches in their engine's folder, and the endings of the journals of open and of ended ones.
BATCHES = "batches"
OPEN, ENDED = ".journal", ".ended"


def is_batch(site: Site, jid: str, *kinds: str) -> bool:
    """
    Tell whether a jid, which must be a plain name, is that of a batch of one of these kinds: OPEN, ENDED.

    :raises OSError: when that cannot be told.
    """
    folder = site.folder("batch_manager")
    return folder.exists(*(f"{BATCHES}/{jid}{kind}" for kind in kinds))


def not_needed(store: Store, keys: Sequence[str]) -> list[str]:
    """
    Return those of some jobs, by the keys of their jids, that no engine needs any more.

    :raises SaltCacheError: when that cannot be told.
    """
    owed = store.driver.present(OWED, keys) if keys else set()
    try:
        return [key for key in keys if key not in owed and not is_batch(store.site, store.decode(key), OPEN)]
    except OSError as exc:
        raise SaltCacheError(f"Batches cannot be looked up: {exc}") from exc
