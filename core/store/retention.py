"""
Removes old jobs, and those that are too many. A sweep with nothing to do reads no load: the time in a jid tells which jobs
are certainly fresh.

A job's time is that of its last write, so that a replay or a copy keeps it for the full time again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from salt.exceptions import SaltCacheError

from saltext.jobs.core.ids import jid_at, jid_time
from saltext.jobs.core.store.drivers import Outage
from saltext.jobs.core.store.records import BANKS, LOADS, RETURNS, drop, drop_older
from saltext.jobs.core.store.store import Store

log = logging.getLogger(__name__)

CLOCK_SKEW = 86400.0  # a jid further in the future says nothing about its age
LARGE_BANK = 1000  # names; a smaller one is listed by every sweep
RUNNING = 3600.0  # seconds after its last write in which no job is removed for being too many: it may be running
PAUSE = 0.01  # seconds between two transactions, in which others write


def sweep(store: Store, keep: float, now: float, large: int = LARGE_BANK) -> None:
    """
    Remove the jobs last written more than ``keep`` seconds before ``now``, and what is that old of jobs without a load.

    :param large: names from which a bank is not listed by every sweep.
    :raises SaltCacheError: when the driver fails; the next sweep goes on.
    """
    _drop_old(store, _perhaps_old(store, LOADS, keep, now, large), keep, now)
    for bank in (*BANKS[1:], RETURNS):
        jids = _perhaps_old(store, bank, keep, now, large)
        with_load = store.driver.present(LOADS, jids) if jids else ()
        _drop_old(store, [jid for jid in jids if jid not in with_load], keep, now)


def trim(store: Store, now: float) -> None:
    """
    Remove the oldest jobs while there are more than the options allow, but none that may be running.

    :raises SaltCacheError: when the driver fails; the next sweep goes on.
    """
    if store.max_jobs is not None:
        excess = store.driver.count_loads() - store.max_jobs
        if excess > 0:
            _drop_old(store, store.driver.oldest_jids(excess), RUNNING, now)
    if store.max_bytes is None:
        return
    used = store.driver.used_bytes()
    if used is None:
        store.quiet.error("max_bytes", "max_bytes is for cache: sqlite, and does nothing with %s", store.driver.name)
        return
    count = store.driver.count_loads()
    while used > store.max_bytes and count:
        # As many as are too many if all are of one size, in steps, since they are not.
        part = max(1, min(count, int(count * (used - store.max_bytes) / used) // 2))
        _drop_old(store, store.driver.oldest_jids(part), RUNNING, now)
        left = store.driver.count_loads()
        if left == count:
            return  # all may be running
        used, count = store.driver.used_bytes() or 0, left


def _drop_old(store: Store, jids: list[str], keep: float, now: float) -> None:
    """Remove those of some jobs that were last written more than ``keep`` seconds ago."""
    for number, part in enumerate(_parts(jids, store.driver.removed_at_once)):
        if number and store.driver.removed_at_once > 1:
            time.sleep(PAUSE)
        try:
            with store.lock(part[0]) if store.driver.removed_at_once == 1 else contextlib.nullcontext():
                for jid in drop_older(store, part, now - keep):
                    if (jid_time(jid) or now) < now - keep:
                        drop(store, jid)
        except Outage:
            raise
        except SaltCacheError as exc:
            log.error("Jobs could not be removed from the job cache (%s): %s", ", ".join(part[:3]), exc)


def _parts(jids: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(jids), size):
        yield jids[start : start + size]


def _perhaps_old(store: Store, bank: str, keep: float, now: float, large: int) -> list[str]:
    """
    Return the jids in ``bank`` whose own time does not tell that they are fresh. As a rule there are none, and many jids.

    A large bank is not listed again while no jid in it can have become older than ``keep`` seconds: neither one
    that was there the last time, nor one that was written since.
    """
    low, high = jid_at(max(0.0, now - keep)), jid_at(now + CLOCK_SKEW)
    found = store.driver.outside(bank, low, high, of_banks=bank == RETURNS)
    if found is not None:
        return found
    at, first, last = store.swept.pop(bank, (0.0, low, high))
    if now - at >= keep or first < low or last > high:
        names = store.driver.banks(bank) if bank == RETURNS else store.driver.raw_keys(bank)
        at, first, last = now, min(names, default=low), max(names, default=high)
        if first < low or last > high:
            jids = names if bank == RETURNS else store.keys(bank)
            return [jid for jid in jids if not low <= jid <= high]
        if len(names) < large:
            return []
    store.swept[bank] = (at, first, last)
    return []
