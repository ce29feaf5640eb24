"""
What the retry queue learns about a job from the log, and from the job cache, the keys and the access lists. ``of_record``
reads the log and does not block. All else may block, and runs in a Worker.

It must never believe a bus event, nor pass on a secret. A job is owed only to minions to which this master published it: the
job cache's list does not prove that, because any accepted minion can add others to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.functions import KILLS
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.log.records import EVERY_JOB, ended_by
from saltext.jobs.core.log.records import Published as Record
from saltext.jobs.core.master.access import Access
from saltext.jobs.core.master.job_cache import BATCH_MARK, JobCache
from saltext.jobs.core.master.secrets import without_secrets
from saltext.jobs.core.retry.capture import NEVER
from saltext.jobs.core.retry.entry import Asker, Job
from saltext.jobs.core.retry.facts import JobRead, KeysRead, Kill, LookedUp, Published
from saltext.jobs.core.retry.load import is_by_id, limits_of, obstacle
from saltext.jobs.core.store.records import work_of

log = lines.logger(__name__)

#: Seconds for which the list of keys is reused.
_KEYS_FRESH = 1.0
#: Seconds by which the modification time of a file may lag.
_COARSE = 1.0


class JobReader:
    """
    :param access: who may publish what; default: as ``opts`` say.
    :param wall: returns the Unix time of the wall clock, which stamps the records of the job cache.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        cache: JobCache,
        access: Access | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._opts, self._cache, self._wall = dict(opts), cache, wall
        self._access = access or Access(self._opts)
        self._keys: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        self._keys_at = 0.0
        self._gone_at: dict[str, float] = {}  # minions without a key -> when that was first seen

    def read(self, jid: str, publishes: Iterable[tuple[str, Iterable[str]]] = ()) -> JobRead:
        """
        Return what the job cache knows about a job of this master.

        :param publishes: the publishes that the log has under this jid: (digest of what it runs, minions).
        :raises JobCacheError: when the job cache cannot be read.
        """
        publication = self._cache.publication(jid)
        if publication is None:
            return JobRead(jid, None, recorded=self._cache.has_publication(jid))
        load = self._cache.published_load(jid)
        if not load:
            return JobRead(jid, None, recorded=False)
        if not publication.vouches_for(load):
            log.error("Job %s is not kept: its load in the job cache is not the one that this master published", jid)
            return JobRead(jid, None)
        minions = frozenset(minion for minion in load.pop("Minions", None) or () if is_plain(minion))
        load, work = without_secrets(load), work_of(load)
        minions = minions.union(*(named for runs, named in publishes if runs == work))
        if kills := self._kills(jid, load, minions - publication.added):
            return JobRead(jid, None, kills=kills)
        returned = self._cache.have_returned(jid, minions)
        missing = self._of_the_job(jid, minions - returned, publication.added)
        return JobRead(jid, job_of(jid, load, publication.at), missing, returned=returned)

    def _kills(self, jid: str, load: Mapping[str, Any], minions: frozenset[str]) -> tuple[Kill, ...]:
        """
        Return which jobs a signal ends, and on which of ``minions``; nothing for a job that is no signal.

        If a job has several functions, Salt checks the right to one of them only, so the others are checked here. A signal
        that its user may not send ends no job.
        """
        ended = ended_by(load) if minions else []
        if ended and isinstance(load.get("fun"), (list, tuple)):
            try:
                standing = self._access.of_publisher(load, sorted(minions))
            except Exception as exc:  # An eauth module may raise any exception of its client library.
                raise JobCacheError(f"Who may publish job {jid} cannot be checked: {exc}") from exc
            minions = minions.difference(standing.denied, standing.unsure)
        return _kills_of(ended if minions else (), minions, load.get("user"))

    def _of_the_job(self, jid: str, minions: frozenset[str], added: frozenset[str]) -> frozenset[str]:
        """Return those of ``minions`` to which this master published a job and whose keys are accepted."""
        known = minions & self.keys()[0] if minions else minions
        if refused := known & added:
            log.warning("Job %s is not kept for minions that it was not published to: %s", jid, sorted(refused)[:5])
        return known - added

    def look_up(
        self,
        jid: str,
        minions: tuple[str, ...],
        load: Mapping[str, Any],
        publish: bool = False,
        askers: Mapping[str, Asker] | None = None,
    ) -> LookedUp:
        """
        Return what became of a job; with ``publish`` also when it was published, if that was only once.

        :param askers: ``{minion: the user who requested the job for it by hand}``.
        :raises JobCacheError: when the job cache cannot be read.
        """
        returned = self._cache.have_returned(jid, minions)
        accepted = self.keys()[0]
        barred = frozenset(minion for minion in minions if minion not in accepted)
        owed = [minion for minion in minions if minion not in returned and minion not in barred]
        try:
            denied, unsure = self._access_to(owed, load, askers or {})
        except Exception as exc:  # An eauth module may raise any exception of its client library.
            raise JobCacheError(f"Who may publish job {jid} cannot be checked: {exc}") from exc
        publication = self._cache.publication(jid) if publish else None
        only = publication.at if publication and publication.last <= publication.at else None
        return LookedUp(jid, minions, returned, barred, denied, unsure, only=only)

    def _access_to(
        self, minions: list[str], load: Mapping[str, Any], askers: Mapping[str, Asker]
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
        for asker in {asker for asker in askers.values() if asker.limited}:
            its = [minion for minion in minions if askers.get(minion) == asker]
            standing = self._access.of_asker(asker.user, asker.eauth, load, its)
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

    Two kinds of signals are left to be read in the job cache: a signal among several functions, because its user may lack
    the right to some of them, and a signal to minions that the log does not name.
    """
    functions = record.functions.split(",")
    if not record.sent or (NEVER.issuperset(functions) and not record.ends):
        return ()
    if record.ends and record.minions is not None and record.functions in KILLS:
        return _kills_of(record.ends, frozenset(record.minions), record.user, record.at, record.jid)
    if record.ends or not record.origin:
        return [Published(record.jid, record.at, False, bool(record.ends), record.minions, record.work)]
    return ()


def _kills_of(
    ended: Iterable[str], minions: frozenset[str], user: Any, at: float = math.inf, signal: str = ""
) -> tuple[Kill, ...]:
    name = str(user or "an unknown user")
    return tuple(Kill("" if jid == EVERY_JOB else jid, minions, name, at, signal) for jid in ended)


def job_of(jid: str, load: Mapping[str, Any], published_at: float) -> Job:
    """Return the job that a load describes."""
    fun = load.get("fun")
    funs = tuple(str(name) for name in fun) if isinstance(fun, (list, tuple)) else (str(fun),) if fun else ()
    raw = load.get("kwargs")
    options = raw if isinstance(raw, Mapping) else {}
    kept_out = bool(load.get(BATCH_MARK) or options.get("nocache"))  # then its returns are not stored
    limits = limits_of(jid, options.get("metadata"))
    return Job(jid, funs, published_at, work_of(load), limits, kept_out, obstacle(load), is_by_id(load), load)
