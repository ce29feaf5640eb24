"""
What the retry queue learns about a job: from the log, the keys and the access lists, by ``JobReader``, which may block and
runs in a Worker; and from its load. The metadata say for how long and when it may be replayed, the target to which minions.
It must never believe a bus event, nor pass on a secret.

A job is published again to those that missed it and that its target still matches. Grains, pillar and addresses change; ids
do not. So a target by id is not checked again, and any other target is published as a compound target with the ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.proof import Returns
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.functions import NEVER_OWED
from saltext.jobs.core.ids import as_compound
from saltext.jobs.core.ledger.records import EVERY_JOB, JOB_CACHE, work_of
from saltext.jobs.core.ledger.records import Published as Record
from saltext.jobs.core.master.access import Access
from saltext.jobs.core.master.job_cache import BATCH_MARK
from saltext.jobs.core.master.secrets import without_secrets
from saltext.jobs.core.options.kinds import TIMEZONE, WINDOW, seconds, whole
from saltext.jobs.core.retry.entry import Job, Limits
from saltext.jobs.core.retry.facts import JobRead, Kill, LookedUp, Published
from saltext.jobs.core.users import Identity

log = lines.logger(__name__)

#: Seconds for which the list of keys is reused.
_KEYS_FRESH = 1.0
#: Longest time to live that a job may ask for, in seconds.
_LONGEST_TTL = 10 * 365 * 86400.0
#: Types of targets for which only a minion's id counts.
_BY_ID = frozenset({"glob", "pcre", "list"})
#: Letters in a compound target, by type.
_LETTERS = {
    "grain": "G",
    "grain_pcre": "P",
    "pillar": "I",
    "pillar_pcre": "J",
    "ipcidr": "S",
    "range": "R",
    "nodegroup": "N",
}
_DELIMITED = frozenset("GPIJ")
#: Returns the minions whose entries ended with a return of this job. The job cache may have lost that return since.
Done = Callable[[str], Iterable[str]]


class JobReader:
    def __init__(self, opts: Mapping[str, Any], returns: Returns, done: Done, access: Access | None = None) -> None:
        self._opts, self._returns, self._done = dict(opts), returns, done
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
        returned = minions.intersection({*self._returns.of(jid, minions), *self._done(jid)})
        missing = minions - returned
        return JobRead(jid, job, published, missing & self.keys()[0] if missing else missing, returned)

    def look_up(
        self, jid: str, minions: tuple[str, ...], load: Mapping[str, Any], askers: Mapping[str, Identity]
    ) -> LookedUp:
        """Return what became of a job. ``askers``: by minion, the user who asked for it by hand. :raises JobCacheError:"""
        returned = frozenset(self._returns.of(jid, minions))
        barred = frozenset(minions) - self.keys()[0]
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


# -- what its load says ---------------------------------------------------------------------------------------------------


def limits_of(jid: str, metadata: Any, is_known: bool = False) -> Limits:
    """Return what a job says about its replay. Invalid parts of it are ignored, and logged unless it ``is_known``."""
    wish = metadata.get("job_retry") if isinstance(metadata, Mapping) else None
    if wish is None:
        return Limits()
    if isinstance(wish, bool):
        return Limits(off=not wish, given=wish)
    valid, wrong = _limits(wish) if isinstance(wish, Mapping) else ({}, ["it is no mapping"])
    if wrong and not is_known:
        log.warning(
            "Job %s: its metadata job_retry is %.500r (%.500s); accepted is true, false, or a mapping with some of ttl "
            "(seconds, or 7d, of at most 10 years), max_attempts (a whole number of at least 1), window (such as 'Sat,Sun "
            "02:00-05:00', or '' for any time) and timezone (such as 'Europe/Berlin')",
            jid,
            wish,
            "; ".join(wrong),
        )
    return Limits(given=isinstance(wish, Mapping), **valid)


def _limits(wish: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the valid limits, and what is wrong with the others."""
    valid: dict[str, Any] = {}
    wrong = [f"{name!s:.50} is not known" for name in wish if name not in _READ]
    for name, read in _READ.items():
        if (value := wish.get(name)) is not None:
            try:
                valid[name] = read(value)
            except (ValueError, TypeError, AttributeError) as exc:
                wrong.append(f"{name}: {exc!s:.200}")
    return valid, wrong


#: What a job may say, and how it is read: as the option of that name.
_READ: Mapping[str, Callable[[Any], Any]] = {
    "ttl": seconds(maximum=_LONGEST_TTL).read,
    "max_attempts": whole(1).read,
    "window": WINDOW.read,
    "timezone": TIMEZONE.read,
}


def is_by_id(load: Mapping[str, Any]) -> bool:
    """Tell whether only the ids of minions decide which of them a job's target matches."""
    return str(load.get("tgt_type") or "glob") in _BY_ID


def expression_of(load: Mapping[str, Any]) -> str | None:
    """Return a job's target for use in a compound one, None if it goes by ids. :raises ValueError: if it cannot be used."""
    if is_by_id(load):
        return None
    kind, tgt = str(load["tgt_type"]), load.get("tgt")
    if kind == "compound":
        words = tgt.split() if isinstance(tgt, str) else [str(word) for word in tgt or ()]
        if not words or any(not word or word.split() != [word] for word in words):
            raise ValueError(f"its target {tgt!r} cannot be published again")
        return f"( {' '.join(words)} )"
    letter = _LETTERS.get(kind)
    if letter is None or not isinstance(tgt, str):
        raise ValueError(f"its target {tgt!r} of the type {kind} cannot be narrowed to single minions")
    if tgt.split() != [tgt]:
        raise ValueError(f"its target {tgt!r} has a blank, which a compound target cannot have")
    delimiter = str((load.get("kwargs") or {}).get("delimiter") or ":") if letter in _DELIMITED else ":"
    if len(delimiter) != 1:
        raise ValueError(f"its target has the delimiter {delimiter!r}; in a compound target it is one character")
    return f"{letter}{delimiter if delimiter != ':' else ''}@{tgt}"


def obstacle(load: Mapping[str, Any]) -> str:
    """Return why a job cannot be published again to single minions; empty if it can."""
    try:
        expression_of(load)
    except ValueError as exc:
        return str(exc)
    return ""


def narrowed(load: Mapping[str, Any], minions: Iterable[str], named: Iterable[str]) -> tuple[list[str] | str, str]:
    """Return (target, its type) for a publish to minions; ``named`` ones need not match the job's. :raises ValueError:"""
    exempt = set(named)
    bound = [minion for minion in minions if minion not in exempt]
    expression = expression_of(load) if bound else None
    if expression is None:
        return [*bound, *sorted(exempt)], "list"
    narrow = f"{as_compound(bound)} and {expression}"
    return (f"{as_compound(sorted(exempt))} or ( {narrow} )" if exempt else narrow), "compound"
