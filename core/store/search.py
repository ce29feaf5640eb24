"""
Finds jobs by function, target, minion, user, time, outcome and metadata: newest first, a page at a time. What an operator
typed becomes a ``Query`` first.

The driver's index is used as far as it goes. For everything else the time in the jid is checked first, and then the load.
A page starts where the one before it ended, even if there are new jobs. The second part of this file finds the last result
of each minion: when the minion last ran a function, and how that ended. The third describes jobs as Salt does: a load may
contain anything, so one job must never hide the others.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import salt.utils.jid
from salt.exceptions import SaltCacheError

from saltext.jobs.core import lines
from saltext.jobs.core.banks import ENDTIMES, MINIONS, RETURNS
from saltext.jobs.core.display.command import HIDDEN, published_words, shown
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.functions import JOBS, KINDS, function_of, kind_of, retcode_of
from saltext.jobs.core.ids import ids_in, jid_at, jid_time
from saltext.jobs.core.ledger.jobs import JobTally, Named, has_failed, job_marks, tally_of
from saltext.jobs.core.options import kinds
from saltext.jobs.core.store.drivers import LAST, Matches, Wanted
from saltext.jobs.core.store.store import Store

log = lines.logger(__name__)

OUTCOMES = ("returned", "failed", "missing")
#: In place of one of the kinds of ``core/functions.py``: all of them.
ALL = "all"
_GLOB = frozenset("*?[")
_AT_ONCE = 200  # jobs that are read at a time

#: Tells whether the arguments and metadata of a load may be shown.
Sees = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Query:
    """What to search for; an empty field, or None, matches all. Globs are those of ``fnmatch``."""

    fun: tuple[str, ...] = ()
    tgt: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    minion: str | None = None  # the key of a minion that the job is for or that has returned
    minions: tuple[str, ...] = ()  # globs for the ids of such minions, if no key is given
    kind: str = ALL  # one of ``functions.KINDS``, or all of them
    start_time: float | None = None  # Unix times of the publish, both included
    end_time: float | None = None
    #: One of OUTCOMES, which at least one of these minions must have; at least one of all, if none are given.
    outcome: str | None = None
    #: At least one of these values must be in the job's metadata, as with ``jobs.list_jobs``.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    limit: int = 20
    after: str | None = None  # ``next`` of the page before

    @functools.cached_property
    def wanted(self) -> Wanted:
        """What an index can find. Several functions of a job are joined by commas."""
        globs, kind = _globs(self.fun), self.kind

        def is_wanted(fun: str) -> bool:
            if kind != ALL and kind_of(fun) != kind:
                return False
            return globs is None or any(globs(name) for name in (fun, *fun.split(",")))

        by_function = None if globs is None and kind == ALL else is_wanted
        return Wanted(by_function, _globs(self.user), self.minion, self.outcome == "failed")

    def fits(self, load: Mapping[str, Any]) -> bool:
        """Tell whether a load matches by function, user, target and metadata."""
        fun, user = job_marks(load)
        targets, tgt = _globs(self.tgt), load.get("tgt")
        if (self.wanted.fun and not self.wanted.fun(fun)) or (self.wanted.user and not self.wanted.user(user)):
            return False
        if targets and not any(targets(str(item)) for item in (tgt if isinstance(tgt, (list, tuple)) else [tgt])):
            return False
        metadata = _metadata(load)
        return not self.metadata or any(
            name in metadata and metadata[name] == value for name, value in self.metadata.items()
        )

    def is_met_by(self, tally: JobTally) -> bool:
        """Tell whether a job with this tally has the outcome, on one of the minions if some are named."""
        if self.minion is not None or self.minions:
            return self.outcome in tally.of_named if self.outcome else bool(tally.of_named)
        return self.outcome is None or getattr(tally, self.outcome) > 0


def _globs(patterns: tuple[str, ...]) -> Matches | None:
    if not patterns:
        return None
    return lambda value: any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


def _metadata(load: Mapping[str, Any]) -> Mapping[str, Any]:
    arg = load.get("arg")
    for place in (load, load.get("kwargs"), *(arg if isinstance(arg, (list, tuple)) else ())):
        if isinstance(place, Mapping) and isinstance(place.get("metadata"), Mapping):
            found: Mapping[str, Any] = place["metadata"]
            return found
    return {}


def search(store: Store, query: Query, sees: Sees = lambda load: True) -> dict[str, Any]:
    """
    Return ``{"jobs": [row], "next"}``: up to ``limit`` jobs, and the ``after`` of the page that follows, or None. A row has
    ``JID``, ``Function``, ``Arguments``, ``Target``, ``Target-type``, ``User``, ``StartTime`` and ``Metadata``, as
    ``jobs.list_jobs`` shows them, and counts: ``Minions`` (0 if not known), ``Returned``, ``Failed`` and ``Missing``.

    :param sees: tells of which jobs the arguments are shown.
    :raises SaltCacheError: if the store cannot be read.
    """
    rows: list[dict[str, Any]] = []
    last, most = "", min(query.limit + 1, _AT_ONCE)  # at first only as many as may suffice
    found, globs = _found(store, query), _globs(query.minions)
    named = query.minion if globs is None else lambda key: globs(store.decode(key))
    while some := list(itertools.islice(found, most)):
        tallies = store.driver.tallies(some, named)
        for key, load in store.loads(key for key in some if key not in tallies or query.is_met_by(tallies[key])):
            if not query.fits(load) or (query.metadata and not sees(load)):  # else guesses would find hidden metadata
                continue
            tally = tallies.get(key) or count_all(store, key, named)
            if not query.is_met_by(tally):
                continue
            if len(rows) == query.limit:  # there is one more than the limit
                return {"jobs": rows, "next": last}
            rows.append(_row(store, key, load, tally, sees(load)))
            last = key
        most = _AT_ONCE
    return {"jobs": rows, "next": None}


def _found(store: Store, query: Query) -> Iterator[str]:
    """Yield the keys of the loads that may match, newest first."""
    low = "" if query.start_time is None else jid_at(query.start_time)
    high = LAST if query.end_time is None else jid_at(query.end_time) + LAST
    before = LAST if query.after is None else query.after
    return (key for key in store.driver.find(low, min(high, before), query.wanted) if key < before)


def count_all(store: Store, key: str, named: Named | None) -> JobTally:
    """Return the tally of a job by reading all of its records."""
    minions = {name for name in map(store.key_of, _listed(store, key)) if name is not None}
    bank = f"{RETURNS}/{key}"
    failed: set[str] = set()
    returned: set[str] = set()
    for name, record in store.driver.fetch_each(bank):
        returned.add(name)
        if isinstance(record, SaltCacheError) or has_failed(record):
            failed.add(name)
    return tally_of(minions, returned, failed, named)


def _listed(store: Store, key: str) -> set[str]:
    """Return the minions that a job was for; none if that cannot be read: the job must hide no other."""
    return ids_in(dict(store.readable(MINIONS, [key])).get(key))


def _row(store: Store, key: str, load: dict[str, Any], tally: JobTally, is_seen: bool) -> dict[str, Any]:
    row = describe(salt.utils.jid.format_jid_instance_ext, store.decode(key), load)
    if is_seen:
        row.update(Arguments=shown(row["Arguments"]), Metadata=shown(_metadata(load)))
    else:
        row.update(Arguments=[HIDDEN], Metadata={})
    row.update(Minions=tally.minions, Returned=tally.returned, Failed=tally.failed, Missing=tally.missing)
    return row


#: How each argument of ``job_cache.search`` is read.
_ARGUMENTS: Mapping[str, kinds.Kind[Any]] = {
    **dict.fromkeys(("fun", "tgt", "user", "minion"), kinds.NAMES),
    **dict.fromkeys(("start_time", "end_time"), kinds.MOMENT),
    "kind": kinds.choice(*KINDS, ALL),
    "outcome": kinds.choice(*OUTCOMES),
    "metadata": kinds.MAPPING,
    "limit": kinds.whole(1),
    "after": kinds.WORD,
}


def query_of(store: Store, asked: Mapping[str, Any]) -> Query:
    """Return the Query of arguments of ``job_cache.search``, each None if it was not given. :raises Refused:"""
    given = {name: _ARGUMENTS[name].given(name, value) for name, value in asked.items() if value is not None}
    minions = given.pop("minion", ())
    if len(minions) == 1 and not _GLOB.intersection(minions[0]):
        given["minion"] = store.key_of(kinds.minion(minions[0]))
        if given["minion"] is None:
            raise Refused(f"minion is {asked['minion']!r}, which the driver {store.driver.name} cannot take as a key")
    else:
        given["minions"] = minions
    # a function that is named is wanted, whatever its kind
    return Query(**{"kind": ALL if given.get("fun") else JOBS, **given})


# -- the last result of each minion -------------------------------------------------------------------------------------

#: How a run ended; UNREADABLE if its return exists and cannot be read.
SUCCEEDED, FAILED, UNREADABLE = ("succeeded", "failed", "unreadable")
_NOTHING = dict.fromkeys(("jid", "at", "fun", "arguments", "outcome", "retcode", "missed"))


def last_results(
    store: Store, query: Query, minions: Iterable[str], sees: Sees = lambda load: True
) -> dict[str, dict[str, Any]]:
    """
    Return the last result of each of some minions, of the jobs whose jid is a time and that fit the query; see
    ``job_cache.minions``. ``sees`` tells of which jobs the arguments are shown. :raises SaltCacheError:
    """
    found: dict[str, dict[str, Any]] = {minion: dict(_NOTHING) for minion in sorted(minions)}
    places, left = _found(store, query), set(found)
    while left and (some := list(itertools.islice(places, _AT_ONCE))):
        for key, load in store.loads(key for key in some if jid_time(store.decode(key)) is not None):
            if not left or not query.fits(load):
                continue
            jid, bank = store.decode(key), f"{RETURNS}/{key}"
            about = {
                "jid": jid,
                "at": jid_time(jid),
                "fun": function_of(load),
                "arguments": published_words(load.get("arg")) if sees(load) else [HIDDEN],
            }
            names = [name for name in store.keys(bank) if store.decode(name) in left]
            for name, record in store.driver.fetch_each(bank, names):
                code = retcode_of(record) if isinstance(record, Mapping) else None
                outcome = UNREADABLE if code is None else FAILED if code else SUCCEEDED
                found[store.decode(name)].update(about, outcome=outcome, retcode=code)
                left.discard(store.decode(name))
            for minion in left.intersection(_listed(store, key)):
                found[minion]["missed"] = found[minion]["missed"] or jid
    return found


# -- jobs as ``jobs.list_jobs`` shows them -----------------------------------------------------------------------------


def all_jobs(store: Store, with_end: bool) -> dict[str, dict[str, Any]]:
    """Return ``{jid: description}`` of every job, with its ``EndTime`` if that is wanted and known."""
    jobs: dict[str, dict[str, Any]] = {}
    for key, load in store.loads():
        jid = store.decode(key)
        jobs[jid] = describe(salt.utils.jid.format_jid_instance, jid, load)
    for key, end in store.readable(ENDTIMES) if with_end else ():
        if end and store.decode(key) in jobs:
            jobs[store.decode(key)]["EndTime"] = end
    return jobs


def newest_jobs(store: Store, count: int, without_find_job: bool) -> list[dict[str, Any]]:
    """Return descriptions of the newest ``count`` jobs, the oldest of them first."""
    found: list[dict[str, Any]] = []
    keys = store.driver.find()
    while len(found) < count and (some := list(itertools.islice(keys, 2 * count))):
        for key, load in store.loads(some):
            if without_find_job and load.get("fun") == "saltutil.find_job":
                continue
            found.append(describe(salt.utils.jid.format_jid_instance_ext, store.decode(key), load))
    return found[:count][::-1]


def describe(form: Callable[[str, Any], dict[str, Any]], jid: str, load: dict[str, Any]) -> dict[str, Any]:
    """Return what Salt shows of a job. Not every jid of 20 characters is a time, and a load may hold anything."""
    try:
        return form(jid, load)
    except Exception as exc:
        log.debug("Job %s has no regular description: %s", jid, exc)
        shown = {"Function": str(load.get("fun", "unknown-function")), "Arguments": [], "Target": "unknown-target"}
        shown.update({"Target-type": "list", "User": str(load.get("user", "root")), "StartTime": "", "JID": jid})
        with contextlib.suppress(Exception):
            shown.update(salt.utils.jid.format_job_instance(load))
        if form is salt.utils.jid.format_jid_instance:
            del shown["JID"]
        return shown
