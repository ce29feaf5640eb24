"""
Removes jobs that are too old or too many. A sweep with nothing to remove reads no load: the time in a jid tells which jobs
are certainly young.

The age of a job counts from its last write, so that a replay or a copy keeps it for the full time again. It must never
remove jobs of batches, or that the retry queue still owes: the record that vouches for a job must outlive its last publish.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from salt.exceptions import SaltCacheError

from saltext.jobs.core.banks import LOADS, OF_JOBS, RETURNS
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.ledger import queue
from saltext.jobs.core.ledger.batches import Batches, Kind
from saltext.jobs.core.store.drivers import Outage
from saltext.jobs.core.store.store import Store

CLOCK_SKEW = 86400.0  # a jid further in the future says nothing about its age
RUNNING = 3600.0  # a job may still be running this many seconds after its last write; ``trim`` does not remove it


def sweep(store: Store, keep: float, now: float) -> None:
    """
    Remove the jobs last written more than ``keep`` seconds before ``now``, and records of jobs without a load that are as
    old. :raises SaltCacheError: if the driver fails; the next sweep goes on.
    """
    # A jid between these shows by its own time that the job is young. Usually there are no others.
    low, high = jid_at(max(0.0, now - keep)), jid_at(now + CLOCK_SKEW)
    for bank in OF_JOBS if store.driver.is_plain else (*OF_JOBS, RETURNS):
        jids = store.driver.outside(bank, low, high)
        if bank != LOADS and jids:  # jobs with a load were handled first
            with_load = {jid for jid, _ in store.driver.fetch_each(LOADS, jids)}
            jids = [jid for jid in jids if jid not in with_load]
        _drop_old(store, jids, keep, now)


def trim(store: Store, now: float) -> None:
    """Remove the oldest jobs while there are more than the options allow; none that may be running. Raises as ``sweep``."""
    driver, limits = store.driver, store.limits
    if limits.max_jobs is not None and (excess := driver.count_loads() - limits.max_jobs) > 0:
        _drop_old(store, driver.oldest(excess), RUNNING, now)
    if limits.max_bytes is None:
        return
    if store.file is None:
        store.quiet.error("max_bytes", "max_bytes is for cache: sqlite, and does nothing with %s", driver.name)
        return
    count = driver.count_loads()
    while count and (used := store.file.used_bytes()) > limits.max_bytes:
        # Half of what would be too many if all jobs were of one size. They are not, so it is done in steps.
        part = max(1, min(count, int(count * (used - limits.max_bytes) / used) // 2))
        _drop_old(store, driver.oldest(part), RUNNING, now)
        if (left := driver.count_loads()) == count:
            return  # all may be running
        count = left


def _drop_old(store: Store, jids: Sequence[str], keep: float, now: float) -> None:
    """Remove those of some jobs that were last written more than ``keep`` seconds ago and that no engine needs."""
    old, safely = _not_needed(store, jids), store.driver.removes_safely
    for part in [old] if safely and old else [[jid] for jid in old]:
        try:
            with contextlib.nullcontext() if safely else store.lock(part[0]):
                store.driver.remove(part, now - keep)
        except Outage:
            raise
        except SaltCacheError as exc:
            told = "Jobs could not be removed from the job cache (%s): %s"
            store.quiet.error("remove", told, ", ".join(part[:3]), exc)


def _not_needed(store: Store, keys: Sequence[str]) -> list[str]:
    """Return the keys of those jobs that no engine needs any more. :raises SaltCacheError: when that cannot be told."""
    jids = {key: store.decode(key) for key in keys}
    try:
        tables = store.site
        needed = {*queue.owed(tables, jids.values()), *Batches(tables).jids(Kind.OPEN)}
        return [key for key, jid in jids.items() if jid not in needed]
    except OSError as exc:
        raise SaltCacheError(f"It cannot be told which jobs the engines need: {exc}") from exc
