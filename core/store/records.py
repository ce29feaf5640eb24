"""
What the job cache keeps of a job, and the rules by which it is written.

=====================  =====  ==========================================================
bank                   key    value
=====================  =====  ==========================================================
``jobs/loads``         jid    the load, without its secrets
``jobs/minions``       jid    sorted list of minion ids
``jobs/returns/<jid>`` minion ``{"return", "retcode", "success", "out"}``, what there is
``jobs/endtimes``      jid    end time (with ``job_cache_store_endtime``)
``jobs/nocache``       jid    True: returns of this job are not stored
``jobs/published``     jid    ``{"at", "by", "added", "last"}``: a publish wrote the load (ours alone)
=====================  =====  ==========================================================

The layout is that of Salt 3008's own ``salt_cache``, which its ``cluster`` runners know; ``jobs/published`` is ours alone.
It records that this master's publish wrote the load: when (``at``), which master (``by``) and, where there are any, the
minions of ``jobs/minions`` that no publish named (``added``): an accepted minion can have some added. It must never be made
on any other path than :py:func:`publish`. Nothing that a minion or a syndic sends may replace a published load.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

import salt.payload
from salt.exceptions import SaltCacheError

from saltext.jobs.core.master.secrets import without_secrets
from saltext.jobs.core.store.drivers import Outage
from saltext.jobs.core.store.store import Store, plain_minions

log = logging.getLogger(__name__)

LOADS = "jobs/loads"
MINIONS = "jobs/minions"
RETURNS = "jobs/returns"
ENDTIMES = "jobs/endtimes"
NOCACHE = "jobs/nocache"
PUBLISHED = "jobs/published"
BANKS = (LOADS, MINIONS, PUBLISHED, NOCACHE, ENDTIMES)  # a job's load first
RECORD = ("return", "retcode", "success", "out")


# -- loads --------------------------------------------------------------------------------------------------------


def publish(store: Store, key: str, load: Mapping[str, Any], minions: Iterable[Any], master: Any) -> None:
    """
    Store what this master's publish hands over. The first load of a job stays; a later publish adds its minions.

    :param minions: the matched minions.
    :param master: this master's id.
    """
    named = plain_minions(key, minions)
    with store.lock(key):
        known = _publication(store, key)
        # A load that a cluster shed or that was cleaned away is stored again with its next publish.
        if known is None or not store.contains(LOADS, key):
            store.store(LOADS, key, without_secrets(load))
        # Written even if nothing is added: a replay starts the time that the job is kept anew.
        before = add_minions(store, key, named, always=True)
        added = set(known.get("added", ()) if known else before)
        last = {"last": time.time()} if known else {}
        _note_publication(store, key, {**(known or {}), **last}, added.difference(named), master)


def is_published(store: Store, key: str) -> bool:
    """Tell whether a publish of a master wrote the job's load, so that nothing else may."""
    return store.contains(PUBLISHED, key)


def report(store: Store, key: str, load: Mapping[str, Any], minions: Iterable[Any]) -> None:
    """
    Store a load that comes from a return, a syndic, salt-ssh or a runner, while the job has none.

    :param minions: whom it was meant for, as far as this master can know.
    """
    usable = plain_minions(key, minions)
    with store.lock(key):
        if store.contains(PUBLISHED, key) or store.contains(LOADS, key):
            return
        stored = without_secrets(load)
        stored.pop("Minions", None)  # a syndic's master adds it; kept in its own bank
        stored.setdefault("arg", _reported_arguments(load))
        store.store(LOADS, key, stored)
        if usable:
            add_minions(store, key, usable)


def _reported_arguments(load: Mapping[str, Any]) -> list[Any]:
    """A return, and the return of a runner, carries its arguments as fun_args."""
    for source in (load, load.get("return")):
        if isinstance(source, dict) and isinstance(source.get("fun_args"), list):
            return list(source["fun_args"])
    return []


def load_of(store: Store, key: str) -> dict[str, Any]:
    """Return the load of the job, with its minions as ``Minions``; ``{}`` where there is none."""
    load = store.fetch(LOADS, key)
    if not load or not isinstance(load, dict):
        return {}
    # Where nobody could tell whom the job was meant for, those who answered.
    minions = store.fetch(MINIONS, key) or [store.decode(name) for name in store.keys(f"{RETURNS}/{key}")]
    if minions:
        load["Minions"] = sorted(minions)
    return load


# -- what vouches for a load --------------------------------------------------------------------------------------


def _publication(store: Store, key: str) -> dict[str, Any] | None:
    """Return the record of the job's publish; None where there is none, ``{}`` where it is damaged."""
    if not store.contains(PUBLISHED, key):
        return None
    known = read(store, PUBLISHED, key)
    return known if isinstance(known, dict) else {}


def _note_publication(store: Store, key: str, known: dict[str, Any], added: Iterable[str], master: Any) -> None:
    """
    Record a publish. ``added`` are the minions of the job that no publish named; ``last`` in what is ``known`` is the time
    of the newest publish, where it is not the first.
    """
    note = {"at": known.get("at", time.time()), "by": known.get("by", master)}
    if known.get("last"):
        note["last"] = known["last"]
    if added:
        note["added"] = sorted(added)
    store.store(PUBLISHED, key, note)


# -- minions ------------------------------------------------------------------------------------------------------


def report_minions(store: Store, key: str, minions: Iterable[Any] | None, master: Any) -> None:
    """Add minions that no publish of this master named, as a syndic reports them."""
    reported = plain_minions(key, minions)
    with store.lock(key):
        known = _publication(store, key)
        if known:
            added = reported.difference(store.fetch(MINIONS, key) or ())
            _note_publication(store, key, known, added.union(known.get("added", ())), master)
        add_minions(store, key, reported)


def add_minions(store: Store, key: str, minions: set[str], always: bool = False) -> set[str]:
    """Merge ``minions`` into those of the job, and return the set as it was before. The caller holds the job's lock."""
    stored = store.fetch(MINIONS, key) or []
    before = set(stored)
    merged = sorted(before | minions)
    if always or merged != stored:
        store.store(MINIONS, key, merged)
    return before


# -- returns ------------------------------------------------------------------------------------------------------


def add_return(store: Store, jid: str, minion: str, load: Mapping[str, Any]) -> bool:
    """
    Store the return of one minion, and tell whether it was the first one, which is kept.

    :param jid: the job's key.
    :param minion: the minion's key.
    :param load: jid and id as they came, and what there is of the fields of a record.
    """
    bank = f"{RETURNS}/{jid}"
    record = {name: load[name] for name in RECORD if name in load}
    with store.lock(jid, minion):
        if not store.contains(bank, minion):
            if not store.driver.lists_banks:
                _index_returns(store, jid, store.decode(minion))
            store.store(bank, minion, record)
            return True
    _report_second_return(store, bank, minion, load, record)
    return False


def _index_returns(store: Store, jid: str, minion: str) -> None:
    """Leave a trace that the sweep finds: without it, returns that came without a load would stay for ever."""
    if not store.contains(LOADS, jid) and not store.contains(MINIONS, jid):
        store.store(MINIONS, jid, [minion])


def _report_second_return(
    store: Store, bank: str, minion: str, load: Mapping[str, Any], record: dict[str, Any]
) -> None:
    try:
        first = store.fetch(bank, minion)
        again = salt.payload.loads(salt.payload.dumps(record))
    except Outage:
        raise
    except Exception as exc:
        log.warning("Minion %s returned again for jid %s, which cannot be compared: %s", load["id"], load["jid"], exc)
        return
    if not isinstance(first, dict):
        first = {"return": first}
    differing = [name for name in RECORD if first.get(name) != again.get(name)]
    if not differing:
        log.debug("Minion %s returned the same again for jid %s", load["id"], load["jid"])
        return
    log.warning(
        "Minion %s returned again for jid %s, and differently in %s. The first return is kept. Either two minions "
        "share the id, or somebody sends an old return again",
        load["id"],
        load["jid"],
        ", ".join(differing),
    )


def returns_of(store: Store, jid: str) -> dict[str, dict[str, Any]]:
    """Return ``{minion: {"return": …, "retcode": …, "success": …, "out": …}}`` of the job, with what there is."""
    bank = f"{RETURNS}/{jid}"
    returns = {}
    for minion in store.keys(bank):
        record = read(store, bank, minion)
        if not record and (record is None or not store.contains(bank, minion)):
            continue
        if not isinstance(record, dict) or "return" not in record:
            record = {"return": record}
        returns[store.decode(minion)] = record
    return returns


# -- one of many, and all of one ----------------------------------------------------------------------------------


def read(store: Store, bank: str, key: str) -> Any:
    """Return one of many values: None, after an error in the log, where this one cannot be read."""
    try:
        return store.fetch(bank, key)
    except Outage:
        raise
    except SaltCacheError as exc:
        log.error("Skipped in the job cache: %s", exc)
        return None


def last_written(store: Store, jid: str) -> float | None:
    """Return when anything of the job was last written, in Unix time; None where the driver cannot tell."""
    times = [_written(store, bank, jid) for bank in BANKS]
    if not times[0]:
        bank = f"{RETURNS}/{jid}"
        times.extend(_written(store, bank, minion) for minion in store.keys(bank))
    return max((seconds for seconds in times if seconds), default=None)


def _written(store: Store, bank: str, key: str) -> float | None:
    try:
        return store.updated(bank, key) if store.contains(bank, key) else None
    except Outage:
        raise
    except SaltCacheError as exc:
        log.debug("No time known: %s", exc)
        return None


def drop(store: Store, jid: str) -> None:
    """Remove all of a job. Its load goes last: a sweep that dies in between finds the job again."""
    store.driver.drop_bank(RETURNS, jid)
    for bank in reversed(BANKS):
        if store.contains(bank, jid):
            store.flush(bank, jid)
