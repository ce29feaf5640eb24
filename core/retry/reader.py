"""
What the retry queue learns about a job from the log, the keys and the access lists. ``of_record`` does not block. All else
may block, and runs in a Worker.

It must never believe a bus event, nor pass on a secret. A job is owed only to minions to which this master published it: the
log names them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.returns import Returns
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.functions import KILLS, NEVER_OWED
from saltext.jobs.core.log.records import EVERY_JOB, JOB_CACHE, work_of
from saltext.jobs.core.log.records import Published as Record
from saltext.jobs.core.master.access import Access
from saltext.jobs.core.master.job_cache import BATCH_MARK, JobCache
from saltext.jobs.core.master.secrets import without_secrets
from saltext.jobs.core.retry.entry import Job
from saltext.jobs.core.retry.facts import JobRead, KeysRead, Kill, LookedUp, Published
from saltext.jobs.core.retry.load import is_by_id, limits_of, obstacle
from saltext.jobs.core.users import Identity

log = lines.logger(__name__)

#: Seconds for which the list of keys is reused.
_KEYS_FRESH = 1.0
#: Seconds by which the modification time of a file may lag.
_COARSE = 1.0


class JobReader:
    """
    :param access: who may publish what; default: as ``opts`` say.
    :param wall: returns the Unix time of the wall clock, which stamps the records of the log.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        returns: Returns,
        access: Access | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._opts, self._returns, self._wall = dict(opts), returns, wall
        self._access = access or Access(self._opts)
        self._keys: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        self._keys_at = 0.0
        self._gone_at: dict[str, float] = {}  # minions without a key -> when that was first seen

    def read(self, jid: str) -> JobRead:
        """
        Return what is known about a job of this master.

        :raises JobCacheError: when that cannot be told now.
        """
        rows = self._returns.publishes(jid)
        first = next((row for row in rows if row.load), None)
        if first is None:
            return JobRead(jid, None)
        try:
            load = without_secrets(first.loaded())
        except Exception as exc:  # of many kinds
            log.error("Job %s is not kept, since its load in the log cannot be read: %s", jid, exc)
            return JobRead(jid, None)
        minions = frozenset[str]().union(*(row.minions for row in rows if is_same(row, first)))
        if first.ends:
            return JobRead(jid, None, kills=self._kills(first, load, minions))
        returned = frozenset(self._returns.of(jid, minions))
        missing = minions - returned
        accepted = self.keys()[0] if missing else missing
        return JobRead(jid, job_of(jid, load, first.at), minions, missing & accepted, returned=returned)

    def _kills(self, signal: Record, load: Mapping[str, Any], minions: frozenset[str]) -> tuple[Kill, ...]:
        """
        Return which jobs a signal ends, and on which of ``minions``.

        If a job has several functions, Salt checks the right to one of them only, so the others are checked here. A signal
        that its user may not send ends no job.
        """
        if signal.functions not in KILLS:
            try:
                standing = self._access.of_publisher(load, sorted(minions))
            except Exception as exc:  # An eauth module may raise any exception of its client library.
                raise JobCacheError(f"Who may publish job {signal.jid} cannot be checked: {exc}") from exc
            minions = minions.difference(standing.denied, standing.unsure)
        return _kills_of(signal.ends if minions else (), minions, signal.user, signal.at)

    def look_up(
        self,
        jid: str,
        minions: tuple[str, ...],
        load: Mapping[str, Any],
        askers: Mapping[str, Identity] | None = None,
    ) -> LookedUp:
        """
        Return what became of a job.

        :param askers: ``{minion: the user who requested the job for it by hand}``.
        :raises JobCacheError: when the job cache cannot be read.
        """
        returned = frozenset(self._returns.of(jid, minions))
        accepted = self.keys()[0]
        barred = frozenset(minion for minion in minions if minion not in accepted)
        owed = [minion for minion in minions if minion not in returned and minion not in barred]
        try:
            denied, unsure = self._access_to(owed, load, askers or {})
        except Exception as exc:  # An eauth module may raise any exception of its client library.
            raise JobCacheError(f"Who may publish job {jid} cannot be checked: {exc}") from exc
        return LookedUp(jid, minions, returned, barred, denied, unsure)

    def _access_to(
        self, minions: list[str], load: Mapping[str, Any], askers: Mapping[str, Identity]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """
        Return (denied, unsure), each ``{minion: reason}``: the minions that must not get a job, and those whose access
        cannot be determined.

        The publisher needs the right, and so does the user who requested the job by hand. If the publisher's right cannot
        be determined, that user's right is enough.
        """
        publisher = self._access.of_publisher(load, minions)
        denied = dict(publisher.denied)
        unsure = {minion: why for minion, why in publisher.unsure.items() if minion not in askers}
        for asker in set(askers.values()):
            its = [minion for minion in minions if askers.get(minion) == asker]
            standing = self._access.of_identity(asker, load, its)
            denied.update(standing.denied)
            unsure.update(standing.unsure)
        return denied, unsure

    def keys(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return (minions with an accepted key, minions with any key)."""
        if time.monotonic() - self._keys_at > _KEYS_FRESH:
            self._keys = compat.minion_keys(self._opts)
            self._keys_at = time.monotonic()
        return self._keys

    def check_keys(self, minions: Iterable[str]) -> KeysRead:
        """
        Return which of ``minions`` have no key here, accepted or not. Return also which minions that had no key have got one
        since, and when, by the wall clock.

        :raises OSError: when keys cannot be read.
        """
        self._keys_at, now = 0.0, self._wall()
        accepted, there = self.keys()
        gone = frozenset(minions) - there
        made_at = {minion: compat.key_changed_at(self._opts, minion) for minion in self._gone_at if minion in there}
        renewed = {minion: at for minion, at in made_at.items() if at >= self._gone_at[minion] - _COARSE}
        self._gone_at = {minion: self._gone_at.get(minion, now) for minion in gone}
        return KeysRead(gone, renewed, not accepted)


def of_record(record: Record) -> Iterable[Published | Kill]:
    """
    Return what a publish in the log means for the queue. Publishes of this extension's engines mean nothing, except kills.

    A signal among several functions is left to be read, because its user may lack the right to some of them.
    """
    functions = record.functions.split(",")
    is_found = record.origin == JOB_CACHE  # in the log's place
    if not (record.sent or is_found) or (NEVER_OWED.issuperset(functions) and not record.ends):
        return ()
    if record.ends and record.functions in KILLS:
        return _kills_of(record.ends, frozenset(record.minions), record.user, record.at)
    if record.ends or is_found or not record.origin:
        return [Published(record.jid, record.at, record.minions, record.work, bool(record.ends))]
    return ()


def untold(cache: JobCache, returns: Returns, since: float, place: int) -> list[Record]:
    """
    Return the publishes since a time that the log does not tell after a place, the oldest first. Blocks.

    :raises JobCacheError: when that cannot be told now.
    """
    rows = (row for jid in cache.published_since(since) for row in returns.untold(jid, place))
    return sorted((row for row in rows if row.at >= since), key=lambda row: row.at)


def is_same(row: Record, first: Record) -> bool:
    """
    Tell whether a publish under the jid of another one is of the same job. Salt's own batches publish their first part in
    the name of their user, and all others in the name of the master's user.
    """
    return row.work == first.work and (row.user == first.user or not row.limited)


def _kills_of(ended: Iterable[str], minions: frozenset[str], user: Any, at: float) -> tuple[Kill, ...]:
    name = str(user or "an unknown user")
    return tuple(Kill("" if jid == EVERY_JOB else jid, minions, name, at) for jid in ended)


def job_of(jid: str, load: Mapping[str, Any], published_at: float) -> Job:
    """Return the job that a load describes."""
    fun = load.get("fun")
    funs = tuple(str(name) for name in fun) if isinstance(fun, (list, tuple)) else (str(fun),) if fun else ()
    raw = load.get("kwargs")
    options = raw if isinstance(raw, Mapping) else {}
    kept_out = bool(load.get(BATCH_MARK) or options.get("nocache"))  # then its returns are not stored
    limits = limits_of(jid, options.get("metadata"))
    return Job(jid, funs, published_at, work_of(load), limits, kept_out, obstacle(load), is_by_id(load), load)
