"""
Removes old jobs. A sweep with nothing to do reads no load: the time in a jid tells which jobs are certainly fresh.

A job's time is that of its last write, so that a replay or a copy keeps it for the full time again.
"""

from __future__ import annotations

import logging

from salt.exceptions import SaltCacheError

from saltext.jobs.core.ids import jid_time
from saltext.jobs.core.store.drivers import Outage
from saltext.jobs.core.store.listing import jid_at
from saltext.jobs.core.store.records import BANKS, LOADS, RETURNS, drop, drop_older
from saltext.jobs.core.store.store import Store

log = logging.getLogger(__name__)

CLOCK_SKEW = 86400.0  # a jid further in the future says nothing about its age
LARGE_BANK = 1000  # names; a smaller one is listed by every sweep


def sweep(store: Store, keep: float, now: float, large: int = LARGE_BANK) -> None:
    """
    Remove the jobs last written more than ``keep`` seconds before ``now``, and what is that old of jobs without a load.

    :param large: names from which a bank is not listed by every sweep.
    :raises SaltCacheError: when the driver fails; the next sweep goes on.
    """
    for jid in _perhaps_old(store, LOADS, keep, now, large):
        _drop_if_old(store, jid, keep, now)
    for bank in (*BANKS[1:], RETURNS):
        for jid in _perhaps_old(store, bank, keep, now, large):
            if not store.contains(LOADS, jid):
                _drop_if_old(store, jid, keep, now)


def _perhaps_old(store: Store, bank: str, keep: float, now: float, large: int) -> list[str]:
    """
    Return the jids in ``bank`` whose own time does not tell that they are fresh. As a rule there are none, and many jids.

    A large bank is not listed again while no jid in it can have become older than ``keep`` seconds: neither one
    that was there the last time, nor one that was written since.
    """
    low, high = jid_at(max(0.0, now - keep)), jid_at(now + CLOCK_SKEW)
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


def _drop_if_old(store: Store, jid: str, keep: float, now: float) -> None:
    try:
        with store.lock(jid):
            if drop_older(store, jid, now - keep) is None and (jid_time(jid) or now) < now - keep:
                drop(store, jid)
    except Outage:
        raise
    except SaltCacheError as exc:
        log.error("Job %s could not be removed from the job cache: %s", jid, exc)
