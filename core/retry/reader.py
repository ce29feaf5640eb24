"""
What the retry queue learns about a job from the log, the keys and the access lists. All but ``of_record`` may block, and
runs in a Worker. It must never believe a bus event, nor pass on a secret.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.returns import Returns
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.functions import NEVER_OWED
from saltext.jobs.core.ledger.records import EVERY_JOB, JOB_CACHE, work_of
from saltext.jobs.core.ledger.records import Published as Record
from saltext.jobs.core.master.access import Access
from saltext.jobs.core.master.job_cache import BATCH_MARK
from saltext.jobs.core.master.secrets import without_secrets
from saltext.jobs.core.retry.entry import Job
from saltext.jobs.core.retry.facts import JobRead, Kill, LookedUp, Published
from saltext.jobs.core.retry.load import is_by_id, limits_of, obstacle
from saltext.jobs.core.users import Identity

log = lines.logger(__name__)

#: Seconds for which the list of keys is reused.
_KEYS_FRESH = 1.0


class JobReader:
    def __init__(self, opts: Mapping[str, Any], returns: Returns, access: Access | None = None) -> None:
        self._opts, self._returns = dict(opts), returns
        self._access = access or Access(self._opts)
        self._keys: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        self._keys_at = 0.0

    def read(self, jid: str) -> JobRead:
        """Return what is known about a job of this master. :raises JobCacheError: when that cannot be told now."""
        rows = self._returns.publishes(jid)
        first = next((row for row in rows if row.load), None)
        if first is None:
            return JobRead(jid, None)
        try:
            load = without_secrets(first.loaded())
        except Exception as exc:  # the load may be damaged in any way
            log.error("Job %s is not kept, since its load in the log cannot be read: %s", jid, exc)
            return JobRead(jid, None)
        job = job_of(jid, load, first.at, len(first.load))
        if NEVER_OWED.intersection(job.funs):
            return JobRead(jid, None)
        # The job cache does not tell to which minion a job was published when: then each kill counts as later.
        told = (row._replace(at=0.0) if row.origin == JOB_CACHE else row for row in rows if is_same(row, first))
        published = {minion: row.at for row in told for minion in row.minions}
        minions = frozenset(published)
        returned = frozenset(self._returns.of(jid, minions))
        missing = minions - returned
        accepted = self.keys()[0] if missing else missing
        return JobRead(jid, job, published, missing & accepted, returned)

    def look_up(
        self, jid: str, minions: tuple[str, ...], load: Mapping[str, Any], askers: Mapping[str, Identity]
    ) -> LookedUp:
        """Return what became of a job. ``askers``: by minion, the user who asked for it by hand. :raises JobCacheError:"""
        returned = frozenset(self._returns.of(jid, minions))
        accepted = self.keys()[0]
        barred = frozenset(minion for minion in minions if minion not in accepted)
        owed = [minion for minion in minions if minion not in returned and minion not in barred]
        try:
            denied, unsure = self._access_to(owed, load, askers)
        except Exception as exc:  # an eauth module may raise anything
            raise JobCacheError(f"Who may publish job {jid} cannot be checked: {exc}") from exc
        return LookedUp(returned, barred, denied, unsure)

    def _access_to(
        self, minions: list[str], load: Mapping[str, Any], askers: Mapping[str, Identity]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """
        Return (denied, unsure), each ``{minion: reason}``. The publisher needs the right, and so does the user who asked for
        the job by hand. If the right of the publisher cannot be determined, that of the other user is enough.
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

    def keys(self, fresh: bool = False) -> tuple[frozenset[str], frozenset[str]]:
        """Return (minions with an accepted key, minions with any key). :raises OSError: when they cannot be read."""
        if fresh or time.monotonic() - self._keys_at > _KEYS_FRESH:
            self._keys, self._keys_at = compat.minion_keys(self._opts), time.monotonic()
        return self._keys


def of_record(record: Record) -> Iterable[Published | Kill]:
    """Return what a publish in the log means for the queue: nothing, if it is one of our own engines, and no kill."""
    is_found = record.origin == JOB_CACHE  # the log lacks it, the job cache had it
    if not (record.sent or is_found):
        return ()
    if record.ends:
        minions, user = frozenset(record.minions), record.user or "an unknown user"
        return [Kill("" if jid == EVERY_JOB else jid, minions, user, record.at) for jid in record.ends]
    if NEVER_OWED.issuperset(record.functions.split(",")) or (record.origin and not is_found):
        return ()
    return [Published(record.jid, record.at, record.minions)]


def is_same(row: Record, first: Record) -> bool:
    """Tell whether a publish is of the same job. Salt's own batches publish all parts but the first as the master's user."""
    return row.work == first.work and (row.user == first.user or not row.limited)


def job_of(jid: str, load: Mapping[str, Any], published_at: float, size: int = 0, is_known: bool = False) -> Job:
    """Return the job that a load of ``size`` bytes describes. What is invalid about it is logged unless it ``is_known``."""
    fun = load.get("fun")
    funs = tuple(str(name) for name in fun) if isinstance(fun, (list, tuple)) else (str(fun),) if fun else ()
    raw = load.get("kwargs")
    options = raw if isinstance(raw, Mapping) else {}
    kept_out = bool(load.get(BATCH_MARK) or options.get("nocache"))  # a batch sees to it, or returns are not stored
    limits = limits_of(jid, options.get("metadata"), is_known)
    by_id, work = is_by_id(load), work_of(load)
    return Job(jid, funs, published_at, work, limits, kept_out, obstacle(load), by_id, size >> 10, load)
