"""
Removes jobs that are too old or too many. A sweep with nothing to remove reads no load: the time in a jid tells which jobs
are certainly young.

The age of a job counts from its last write, so that a replay or a copy keeps it for the full time again. Jobs of batches,
and jobs that the retry queue still owes a minion, stay however old they are, because the record that vouches for a job
must exist as long as the job may be sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from salt.exceptions import SaltCacheError

from saltext.jobs.core import lines
from saltext.jobs.core.banks import LOADS, OWED, RETURNS
from saltext.jobs.core.ids import jid_at, jid_time
from saltext.jobs.core.site import Site
from saltext.jobs.core.store.calling import Outage
from saltext.jobs.core.store.records import BANKS, drop, drop_older
from saltext.jobs.core.store.store import Store, Young

log = lines.logger(__name__)

CLOCK_SKEW = 86400.0  # a jid further in the future says nothing about its age
LARGE_BANK = 1000  # names from which on a bank is large; every sweep lists a smaller one
RUNNING = 3600.0  # a job may still be running this many seconds after its last write; ``trim`` does not remove it

#: The folder of batches in their engine's folder, and the endings of the journals of open and of ended ones.
BATCHES = "batches"
OPEN, ENDED = ".journal", ".ended"


def sweep(store: Store, keep: float, now: float, large: int = LARGE_BANK) -> None:
    """
    Remove the jobs last written more than ``keep`` seconds before ``now``, and the records of jobs without a load that are
    as old.

    :param large: names from which on a bank is not listed by every sweep.
    :raises SaltCacheError: if the driver fails; the next sweep goes on.
    """
    written = now
    for bank in (*BANKS, RETURNS):
        known = _known_young(store, bank, keep, now)
        jids = _perhaps_old(store, bank, known.low if known else "", keep, now, large)
        if bank != LOADS and jids:  # jobs with a load were handled first
            with_load = store.driver.present(LOADS, jids)
            jids = [jid for jid in jids if jid not in with_load]
        written = min(written, _drop_old(store, jids, keep, now), known.written if known else now)
        low, high = _edges(keep, now)
        store.young[bank] = Young(max(low, known.low) if known else low, high, written)


def trim(store: Store, now: float) -> None:
    """
    Remove the oldest jobs while there are more than the options allow, but no job that may be running.

    :raises SaltCacheError: if the driver fails; the next sweep goes on.
    """
    if store.max_jobs is not None:
        excess = store.driver.index.count_loads() - store.max_jobs
        if excess > 0:
            _drop_old(store, store.driver.index.oldest_jids(excess), RUNNING, now)
    if store.max_bytes is None:
        return
    file = store.driver.one_file
    if file is None:
        store.quiet.error("max_bytes", "max_bytes is for cache: sqlite, and does nothing with %s", store.driver.name)
        return
    used, count = file.used_bytes(), store.driver.index.count_loads()
    while used > store.max_bytes and count:
        # Half of what would be too many if all jobs were of one size. They are not, so it is done in steps.
        part = max(1, min(count, int(count * (used - store.max_bytes) / used) // 2))
        _drop_old(store, store.driver.index.oldest_jids(part), RUNNING, now)
        left = store.driver.index.count_loads()
        if left == count:
            return  # all may be running
        used, count = file.used_bytes(), left


def _drop_old(store: Store, jids: list[str], keep: float, now: float) -> float:
    """
    Remove those of some jobs that were last written more than ``keep`` seconds ago and that no engine needs.

    :return: a Unix time that is not later than the last write of any other job. 0 if that is not known.
    """
    free = _not_needed(store, jids)
    written = now if len(free) == len(jids) else 0.0
    for number, part in enumerate(_parts(free, store.driver.removed_at_once)):
        if number and store.driver.one_file is not None:
            store.driver.one_file.banks_file.give_way()
        try:
            with store.lock(part[0]) if store.driver.removed_at_once == 1 else contextlib.nullcontext():
                left = drop_older(store, part, now - keep)
                if left.written is not None:
                    written = min(written, left.written)
                for jid in left.unknown:
                    if (jid_time(jid) or now) < now - keep:
                        drop(store, jid)
        except Outage:
            raise
        except SaltCacheError as exc:
            written = 0.0
            log.error("Jobs could not be removed from the job cache (%s): %s", ", ".join(part[:3]), exc)
    return written


def _parts(jids: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(jids), size):
        yield jids[start : start + size]


def _edges(keep: float, now: float) -> tuple[str, str]:
    """Return the lowest and the highest jid of jobs that are certainly young."""
    return jid_at(max(0.0, now - keep)), jid_at(now + CLOCK_SKEW)


def _known_young(store: Store, bank: str, keep: float, now: float) -> Young | None:
    """Return what the last sweep learned; None if a job that it kept may be old by now, such as a migrated one."""
    known = store.young.get(bank)
    return known if known and known.high <= _edges(keep, now)[1] and known.written > now - keep else None


def _perhaps_old(store: Store, bank: str, since: str, keep: float, now: float, large: int) -> list[str]:
    """
    Return the jids in ``bank`` that do not show by their own time that they are young. Usually there are none.

    :param since: a jid: no job with a lower jid is old, and none with a jid after the young ones. Empty if not known.
    """
    low, high = _edges(keep, now)
    found = store.driver.index.outside(bank, since, low, high, of_banks=bank == RETURNS)
    if found is None:
        found = _listed_outside(store, bank, low, high, keep, now, large)
    return [jid for jid in found if since <= jid < low] if since else found


def _listed_outside(store: Store, bank: str, low: str, high: str, keep: float, now: float, large: int) -> list[str]:
    """
    Return the jids in ``bank`` that are not between ``low`` and ``high``.

    A large bank is listed again only once a jid in it can have become older than ``keep`` seconds, whether it was there
    the last time or was written since.
    """
    at, first, last = store.swept.pop(bank, (0.0, low, high))
    if now - at >= keep or first < low or last > high:
        jids = store.driver.banks(bank) if bank == RETURNS else store.keys(bank)
        at, first, last = now, min(jids, default=low), max(jids, default=high)
        if first < low or last > high:
            return [jid for jid in jids if not low <= jid <= high]
        if len(jids) < large:
            return []
    store.swept[bank] = (at, first, last)
    return []


# -- what is still needed -------------------------------------------------------------------------------------------------


def is_batch(site: Site, jid: str, *kinds: str) -> bool:
    """
    Tell whether a jid, which must be a plain name, is that of a batch of one of these kinds: OPEN, ENDED.

    :raises OSError: when that cannot be told.
    """
    folder = site.folder("batch_manager")
    return folder.exists(*(f"{BATCHES}/{jid}{kind}" for kind in kinds))


def _not_needed(store: Store, keys: Sequence[str]) -> list[str]:
    """
    Return those of some jobs, by the keys of their jids, that no engine needs any more.

    :raises SaltCacheError: when that cannot be told.
    """
    owed = store.driver.present(OWED, keys) if keys else set()
    try:
        return [key for key in keys if key not in owed and not is_batch(store.site, store.decode(key), OPEN)]
    except OSError as exc:
        raise SaltCacheError(f"Batches cannot be looked up: {exc}") from exc
