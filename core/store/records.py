"""
The records of a job in the job cache, and the rules for writing them.

=====================  =====  ==========================================================
bank                   key    value
=====================  =====  ==========================================================
``jobs/loads``         jid    the load, without its secrets
``jobs/minions``       jid    sorted list of minion ids
``jobs/returns/<jid>`` minion ``{"return", "retcode", "success", "out"}``, as far as known
``jobs/endtimes``      jid    end time (with ``job_cache_store_endtime``)
``jobs/nocache``       jid    True: returns of this job are not stored
``jobs/published``     jid    vouches that a master's publish wrote the load (ours alone)
=====================  =====  ==========================================================

The layout is that of Salt 3008's own ``salt_cache``, which its ``cluster`` runners know; ``jobs/published`` is ours alone.
A record there has:

* ``at``: when the load was first published; ``last``: when it was last published again;
* ``by``: the master that published it;
* ``load``: a digest of the load;
* ``added``: the minions in ``jobs/minions`` that no publish of the job named. An accepted minion can add some, and so can
  any user who may publish, because a publish can name any jid.

Only :py:func:`publish` may create one. Nothing that a minion or a syndic sends may replace a published load; one that does
not match the digest is not believed. A damaged record counts as absent if the next write can heal it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import salt.payload
from salt.exceptions import SaltCacheError

from saltext.jobs.core import lines
from saltext.jobs.core.banks import LOADS, MINIONS, NOCACHE, PUBLISHED, RETURNS
from saltext.jobs.core.functions import function_of
from saltext.jobs.core.ids import ids_in
from saltext.jobs.core.ledger.records import JOB_CACHE, Published, publish_of, work_of
from saltext.jobs.core.store.drivers import ABSENT, Outage, Undecodable
from saltext.jobs.core.store.store import Store

log = lines.logger(__name__)

RECORD = ("return", "retcode", "success", "out")
#: Least seconds between two recorded publishes of a job.
_LATER = 0.001
#: Most jobs for which a process remembers what they run.
_MOST_WORKS = 1000
#: Longest name of a function in a log line.
_LONGEST_NAME = 200


class Work(NamedTuple):
    """What a job runs."""

    functions: str = ""
    digest: str = ""  # of functions and arguments; empty if that is not known
    stored: bool = True  # its returns are stored
    asked: bool = False  # the log has what minions return


# -- loads --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Publication:
    """The record in ``jobs/published``, as above, with times in Unix time."""

    at: float
    added: frozenset[str]  # the minions of the job that no publish named
    last: float
    by: str = ""  # the id of the master that published it
    load: str = ""  # the digest of the load
    seal: str = ""  # in the database of a site: proves that a master has published this load to these minions

    @classmethod
    def from_record(cls, record: Any) -> Publication:
        """Return the content of a record. :raises ValueError: if it is not a valid record."""
        try:
            at, by, load = record["at"], record["by"], record["load"]
            last = record.get("last", at)
            if isinstance(by, str) and isinstance(load, str) and math.isfinite(at) and math.isfinite(last):
                added = frozenset(ids_in(record.get("added")))
                return cls(float(at), added, float(max(at, last)), by, load, str(record.get("seal", "")))
        except (KeyError, TypeError, AttributeError, OverflowError):
            pass
        raise ValueError(f"it is {record!r:.300}")

    def as_record(self) -> dict[str, Any]:
        last = self.last if self.last > self.at else None
        more = {"last": last, "seal": self.seal, "added": sorted(self.added)}
        return {"at": self.at, "by": self.by, "load": self.load, **{name: it for name, it in more.items() if it}}


def digest(load: Mapping[str, Any]) -> str:
    """Return the digest of a load, which is the same once a driver has stored it and it is read back."""
    # Salt packs a value and what becomes of it in a driver alike: tuples and lists, bytes and text, dates and times.
    value = {name: value for name, value in load.items() if name != "Minions"} if "Minions" in load else load
    return hashlib.blake2b(salt.payload.dumps(value), digest_size=16).hexdigest()


class Kept:
    """
    What the job cache has of a job besides its returns: load (``{}`` if there is none), minions, and the record in
    ``jobs/published`` as ``publication``, None if it cannot be used, or if there is none (not ``is_published``).
    ``fresh``: there can be nothing yet, so nothing is read.
    """

    def __init__(self, store: Store, key: str, fresh: bool = False) -> None:
        places = [(PUBLISHED, key), (LOADS, key), (MINIONS, key)]
        found: list[Any] = [ABSENT] * 3 if fresh else store.driver.read_all(places)
        record, load, self.listed = found
        self.load: dict[str, Any] = load if isinstance(load, dict) else {}
        self.is_published = record is not ABSENT
        self.publication: Publication | None = None
        if self.is_published:
            try:
                self.publication = Publication.from_record(record)
            except ValueError as exc:
                store.quiet.error("publication", "The record of the publish of job %s cannot be used: %s", key, exc)

    @functools.cached_property
    def minions(self) -> set[str]:
        """The valid ids in the list of its minions."""
        return ids_in(self.listed)

    @property
    def is_believed(self) -> bool:
        """Whether there is a load, and it is the published one, or nothing tells which that is."""
        return bool(self.load) and (self.publication is None or self.publication.load == digest(self.load))

    def is_refused(self, store: Store, key: str) -> bool:
        """Tell whether there is a load that is not believed, and log that."""
        if not self.load or self.is_believed or self.publication is None:
            return False
        by = self.publication.by
        store.quiet.error(
            key, "The load of job %s is not the one that master %s published: it is not believed", key, by
        )
        return True

    def add_minions(self, store: Store, key: str, minions: Iterable[str]) -> None:
        """Merge some minions into those of the job. The caller holds the job's lock."""
        merged = sorted(self.minions.union(minions))
        if merged and merged != self.listed:
            store.store(MINIONS, key, merged)


def publish(
    store: Store, key: str, load: Mapping[str, Any], named: Collection[str], limited: bool, fresh: bool = False
) -> None:
    """
    Store what this master publishes: ``load``, for the minions ``named``. ``limited``: its user may not publish everything.
    ``fresh``: the jid is new.

    * The first publish of a job stores its load. So does a later one if that is gone, or is not the published one.
    * A later publish of the same job, such as a replay, adds its minions.
    * One of another job under the same jid does so too, but marks them as ``added``: the first job was not for them.
    """
    with store.lock(key):
        job, now = Kept(store, key, fresh), time.time()
        before, is_first = job.minions, not (job.is_published and job.is_believed)
        # Minions that are listed without a record were named by no publish.
        known = job.publication or Publication(now, frozenset(before), 0.0)
        if is_first or not known.load:
            known = dataclasses.replace(known, by=store.master, load=digest(load if is_first else job.load))
        if is_first or _is_same(load, job.load, limited):
            added = known.added.difference(named)
        else:
            added = known.added.union(set(named) - before)
        minions = sorted(before.union(named)) if before else named
        # Later than the last one even if the clock was set back: only this shows that there was another publish.
        current = dataclasses.replace(known, added=added, last=max(now, known.last + _LATER))
        seal = _seal(store, key, current, (name for name in minions if name not in added))
        record = dataclasses.replace(current, seal=seal).as_record()
        # The minions are written even if none is added: after a replay the job is kept for the full time again.
        writes = [(MINIONS, key, minions), (PUBLISHED, key, record)]
        store.driver.store_all([(LOADS, key, load), *writes] if is_first else writes)


def _is_same(load: Mapping[str, Any], first: Mapping[str, Any], limited: bool) -> bool:
    """Tell whether a load is of the same job as the first one."""
    # Salt's own batches publish their first part in the name of their user, and all others in that of the master's.
    names = ("fun", "arg", "user") if limited else ("fun", "arg")
    return len({digest({name: each.get(name) for name in names}) for each in (load, first)}) == 1


def _seal(store: Store, key: str, of: Publication, minions: Iterable[str]) -> str:
    """Return the seal of a publication. ``minions``: those that publishes have named."""
    return store.site.seal.mark(minions, PUBLISHED, key, of.load, of.at, of.last)


def published_before(store: Store, key: str) -> list[Published]:
    """
    Return the publish of a job that the log lacks, as the job cache has it, and the last one if there were several; no
    publish if none can be believed. Other masters may use the same job cache: in a site the seal tells which are its own.
    """
    job, site = Kept(store, key), store.site
    known = job.publication
    if known is None or not (site.is_far or known.by == store.master):
        return []
    if not job.load or job.is_refused(store, key):
        return []
    minions = sorted(job.minions - known.added)
    if known.seal != _seal(store, key, known, minions):
        store.quiet.error(key, "What the job cache has of the publish of job %s is no master's of this site", key)
        return []
    found = publish_of(store.decode(key), job.load, minions, JOB_CACHE, sent=False, fresh=False)
    found = found._replace(at=known.at)
    return [found, found._replace(at=known.last)] if known.last > known.at else [found]


def store_no_returns(store: Store, key: str) -> None:
    """Note that a job's returns are not to be stored, unless the job was published earlier with its returns."""
    if store.contains(NOCACHE, key):
        return
    if is_published(store, key):
        refused = (
            "A user publishes under the jid %s and wants no returns stored; those of the job with this jid are stored"
        )
        store.quiet.warning(f"nocache {key}", refused, key)
    else:
        store.store(NOCACHE, key, True)


def is_published(store: Store, key: str) -> bool:
    """Tell whether a master's publish wrote the job's load, so that nothing else may write it."""
    return store.contains(PUBLISHED, key)


def report(store: Store, key: str, load: Mapping[str, Any], minions: Iterable[Any]) -> None:
    """Store a load from a return, a syndic, salt-ssh or a runner, if the job has none, with the minions that it lists."""
    usable = store.plain_minions(key, minions)
    with store.lock(key):
        job = Kept(store, key)
        if job.is_published or job.load:
            return
        stored = dict(load)
        stored.pop("Minions", None)  # a syndic's master adds them; they have their own bank
        if "arg" not in stored:  # a return of a minion or of a runner has them as ``fun_args``
            places = [each.get("fun_args") for each in (load, load.get("return")) if isinstance(each, dict)]
            stored["arg"] = next((list(each) for each in places if isinstance(each, list)), [])
        store.store(LOADS, key, stored)
        if usable:
            job.add_minions(store, key, usable)


def report_minions(store: Store, key: str, minions: Iterable[Any] | None) -> None:
    """Add minions that no publish of this master named, as from the report of a syndic."""
    reported = store.plain_minions(key, minions)
    with store.lock(key):
        job = Kept(store, key)
        known = job.publication
        if known and (new := set(reported) - job.minions - known.added):
            store.store(PUBLISHED, key, dataclasses.replace(known, added=known.added | new).as_record())
        job.add_minions(store, key, reported)


def load_of(store: Store, key: str) -> dict[str, Any]:
    """Return the load, with its minions as ``Minions``; ``{}`` if there is none, or another than the publish stored."""
    job = Kept(store, key)
    if not job.load:  # as after a power cut: the log may have it
        first = next(iter(store.log.publishes(store.decode(key))), None) if store.log else None
        return {**first.loaded(), "Minions": list(first.minions)} if first and first.load else {}
    if job.is_refused(store, key):
        return {}
    # if it is not known which minions the job was meant for, those that returned
    listed = store.plain_minions(key, job.listed if isinstance(job.listed, list) else None)
    minions = listed or sorted(map(store.decode, store.keys(f"{RETURNS}/{key}")))
    return {**job.load, "Minions": minions} if minions else job.load


# -- returns ------------------------------------------------------------------------------------------------------


def work(store: Store, key: str) -> Work:
    """Return what the job that was published under a jid runs, by the log, or else by the job cache."""
    known: Work | None = store.works.get(key)
    if known is not None:
        return known
    first = next(iter(store.log.publishes(store.decode(key))), None) if store.log else None
    known = Work() if first and (first.fresh or first.asked) else _work_in_job_cache(store, key)
    if first is not None and not known.digest:
        known = Work(first.functions, first.work, first.stored, first.asked)
    if known.digest:  # it does not change
        if len(store.works) >= _MOST_WORKS:  # threads share it
            store.works.clear()
        store.works[key] = known
    return known


def _work_in_job_cache(store: Store, key: str) -> Work:
    try:
        job, is_stored = Kept(store, key), not store.contains(NOCACHE, key)
    except Outage:
        return Work()
    # Load and record are read one after the other: the load may be one that was reported just before the publish.
    if job.publication is None or not job.is_believed:
        return Work(stored=is_stored)
    return Work(function_of(job.load), work_of(job.load), is_stored)


def is_done(store: Store, key: str, job: Work, load: Mapping[str, Any]) -> bool:
    """
    Tell whether a return is of a job. A user with the right to publish anything may name any jid, and a minion runs a jid
    once: so a return of another function shows that the minion ignores the job, and must never count as the job's. Different
    arguments show this only if another job was published under the jid, because a return may not repeat its arguments
    unchanged. A return through a syndic may name no function; it counts as the job's.
    """
    if not job.digest or not load.get("fun"):
        return True
    is_same = function_of(load) == job.functions
    if is_same and ("fun_args" not in load or work_of(load) == job.digest):
        return True
    others = [each for each in store.log.publishes(store.decode(key)) if each.work != job.digest] if store.log else []
    if is_same and not others:
        return True
    store.quiet.error(
        f"borrowed {key}",
        "Minion %.255s has run %s under the jid %s of a job that runs %s. Its return does not count, and it ignores the job "
        "until it is restarted. Other jobs were published under this jid by: %s",
        load.get("id"),
        function_of(load)[:_LONGEST_NAME] or "?",
        key,
        job.functions,
        ", ".join(f"{each.user or 'an unknown user'} ({each.functions})" for each in others) or "nobody at this master",
    )
    return False


def add_return(store: Store, jid: str, minion: str, load: Mapping[str, Any]) -> bool:
    """
    Store the return of one minion, and tell whether it was the first, which is kept. ``jid`` and ``minion`` are keys;
    ``load`` has jid and id as they came, and those fields of ``RECORD`` that there are.
    """
    bank = f"{RETURNS}/{jid}"
    record = {name: load[name] for name in RECORD if name in load}
    is_plain = store.driver.is_plain
    with store.lock(jid, minion) if is_plain else contextlib.nullcontext():
        if is_plain and not (store.contains(LOADS, jid) or store.contains(MINIONS, jid)):
            # A trace for the sweep: without it, returns of a job without a load would stay for ever.
            store.store(MINIONS, jid, [store.decode(minion)])
        if store.driver.store_new(bank, minion, record):
            return True
        (first,) = store.driver.read_all([(bank, minion)])
        if first is ABSENT or first == {} or isinstance(first, Undecodable):  # after a full disk or a power cut
            store.store(bank, minion, record)
            return True
    _report_second_return(store, first, load, record)
    return False


def _report_second_return(store: Store, first: Any, load: Mapping[str, Any], record: dict[str, Any]) -> None:
    again = salt.payload.loads(salt.payload.dumps(record))
    if not isinstance(first, dict):
        first = {"return": first}
    differing = [name for name in RECORD if first.get(name) != again.get(name)]
    if not differing:
        log.debug("Minion %s returned the same again for jid %s", load["id"], load["jid"])
        return
    store.quiet.warning(
        f"{load['id']} {load['jid']}",
        "Minion %s returned again for jid %s, and differently in %s. The first return is kept. Either two minions "
        "share the id, or an old return was sent again",
        load["id"],
        load["jid"],
        ", ".join(differing),
    )


def some_returns(store: Store, jid: str, minions: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """
    Yield (minion, its return) of those of some minions that have returned a job: Undecodable for a damaged one, and else
    what is stored. :raises SaltCacheError: if one cannot be read now.
    """
    job, ids = store.key_of(jid), {store.key_of(minion): minion for minion in minions}
    names = [key for key in ids if key is not None]
    for key, data in store.driver.fetch_each(f"{RETURNS}/{job}", names) if job is not None else ():
        if isinstance(data, SaltCacheError) and not isinstance(data, Undecodable):
            raise data
        yield ids[key], data


def returns_of(store: Store, jid: str) -> dict[str, dict[str, Any]]:
    """Return ``{minion: {"return": …, "retcode": …, "success": …, "out": …}}`` of the job, as far as known."""
    returns = {}
    for minion, record in store.readable(f"{RETURNS}/{jid}"):
        is_whole = isinstance(record, dict) and "return" in record
        returns[store.decode(minion)] = record if is_whole else {"return": record}
    return returns
