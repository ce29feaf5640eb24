"""Looks up batches for the runner: ours, in their rows, and those of Salt 3008's own manager. It must never write."""

from __future__ import annotations

import collections
import contextlib
import fnmatch
import itertools
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.batch import machine, summary
from saltext.jobs.core.batch.facts import Returned
from saltext.jobs.core.batch.member import Outcome
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.batch.store import BatchStore, path_of
from saltext.jobs.core.disk import files
from saltext.jobs.core.display.command import HIDDEN, published_words
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.engine.proof import Returns, is_fed
from saltext.jobs.core.errors import JobCacheError, Refused, StateError
from saltext.jobs.core.functions import retcode_of
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.site import left_by, site_of
from saltext.jobs.core.users import WHO

log = lines.logger(__name__)
_quiet = lines.Quiet(log)

Summary = dict[str, Any]
Minions = dict[str, dict[str, Any]]
#: Takes a jid. Returns, by minion in the retry queue: whether it is still owed the job, since when, and that in words.
Owed = Callable[[str], Mapping[str, tuple[bool, float, str, bool]]]


class Found(NamedTuple):
    """A batch: its summary, what reads its minions, and the ``batch`` itself if it is ours, else its ``state`` of Salt's."""

    summary: Summary
    batch: Batch | None
    state: Mapping[str, Any]
    minions: Callable[[], Minions]


def left_open(opts: Mapping[str, Any]) -> tuple[str, Sequence[str]]:
    """Return the file that was used before ``cache:`` was changed, and the jids of batches that have not ended there."""
    with contextlib.suppress(Exception):  # a file that cannot be read has nothing that could go on
        if other := left_by(opts):
            return site_of(other).place, BatchStore(other).jids(Kind.OPEN)
    return "", ()


class Catalog:
    """``sees``: whether the arguments of a load are shown. ``owed`` looks into the retry queue, and may raise OSError."""

    def __init__(
        self,
        opts: Mapping[str, Any],
        sees: Callable[[Mapping[str, Any]], bool] = lambda load: True,
        owed: Owed | None = None,
    ) -> None:
        self._opts, self._sees, self._owed = opts, sees, owed
        self._told: dict[str, Minions] = {}  # by jid: what the retry queue says of minions
        # What batches after a jid retry, oldest first; and that jid, at first one that is later than all.
        self._parents, self._read_after = dict[str, str | None](), "9"
        self._store, self._returns = BatchStore(opts), Returns(site_of(opts), JobCache(opts), is_fed(opts))
        told = requests.leading(opts, BATCH_MANAGER)
        self._engine = {name: told[name] for name in ("engine", "engine_silent_seconds", "engine_master")}

    def ours(self, jid: str) -> Batch | None:
        """Return a batch of ours, or None. :raises Refused: if it is damaged. :raises OSError: if it cannot be read now."""
        try:
            batch = self._store.read(jid)
        except StateError as exc:
            raise Refused(str(exc)) from exc
        if batch is not None and batch.closed:
            add_late_returns(batch, self._returns)
        if batch is not None:
            self._ask_queue(batch)
        return batch

    def minions(self, batch: Batch, latest: summary.Latest = MappingProxyType({})) -> Minions:
        """:param latest: how each minion stands after the retries of the batch, if there are any."""
        found = summary.minions(batch)
        for minion, told in self._told.get(batch.spec.jid, {}).items():
            found[minion].update(told)
        for minion, (jid, state) in latest.items():
            if jid != batch.spec.jid:
                found[minion].update(retry=jid, retry_state=state)
        return found

    def _ask_queue(self, batch: Batch) -> None:
        """Ask the retry queue about minions that the batch or an operator has handed over: whether it still owes the job."""
        is_over = all(one.retcode is not None for one in batch.members.values())
        if self._owed is None or (is_over and batch.spec.offline != "queue"):
            return
        told = self._told.setdefault(jid := batch.spec.jid, {})
        try:
            before = self._owed(batch.spec.parent) if batch.spec.parent else {}  # under that jid it is the same job
            owed = {name: one for name, one in before.items() if one[0]} | dict(self._owed(jid))
        except (OSError, ValueError) as exc:
            _quiet.warning("owed", "It is not known whether minions of batch %s are still owed its job: %s", jid, exc)
            return
        unknown = False, 0.0, "job_retry knows nothing of it any more", True
        for minion, ended in batch.outcomes.items():
            member, (is_owed, since, why, is_sent) = batch.members[minion], owed.get(minion, unknown)
            may_differ = is_owed or ended is Outcome.QUEUED or (ended is Outcome.OFFLINE and minion in owed)
            if not why:  # it has returned what the queue has sent it
                told[minion] = {"started": since}
            elif may_differ and member.retcode is None:
                is_lost = not is_owed and (is_sent or member.unanswered > 0)
                named = Outcome.QUEUED if is_owed else Outcome.LOST if is_lost else Outcome.OFFLINE
                batch.settle(minion, named, since or member.since, None)
                told[minion] = {"since": member.since, "why": f"{why}{'; it may have run there' if is_lost else ''}"}

    def need(self, jid: str) -> Batch:
        """Return a batch of ours. :raises Refused: if there is none, or if it cannot be read."""
        if (batch := self.ours(jid)) is None:
            raise self._none(jid, "no batch of the batch_manager engine")
        return batch

    def retries(self, jid: str) -> list[Batch]:
        """
        Return the later batches of a batch's family on some of its minions, oldest first: those that have retried it, the
        batch from which it stems, or another retry of that. :raises Refused:
        """
        first, batch = jid, self.ours(jid)
        its = frozenset(batch.spec.minions if batch is not None else ())
        while batch is not None and batch.spec.parent:
            first, batch = batch.spec.parent, self.ours(batch.spec.parent)
        family = [first]
        for later, parent in self._parents_after(first):
            if parent in family:
                family.append(later)
        return [one for one in map(self.need, filter(jid.__lt__, family)) if its.intersection(one.spec.minions)]

    def _parents_after(self, jid: str) -> Iterator[tuple[str, str | None]]:
        """Yield the later batches, oldest first, with the batch that each retries. :raises Refused: if one is damaged."""
        if jid < self._read_after:
            found = dict[str, str | None]()
            for later, spec in self._store.specs_after(jid, self._read_after):
                try:
                    found[later] = salt.payload.loads(spec).get("parent")
                except Exception as exc:  # of many kinds, if it is damaged
                    raise Refused(f"Batch {later} cannot be read, and may be a retry of {jid}: {exc}") from exc
            self._parents, self._read_after = {**found, **self._parents}, jid
        return ((later, parent) for later, parent in self._parents.items() if later > jid)

    def find(self, jid: str) -> Found:
        """Return a batch. :raises Refused: if there is none, or if it cannot be read."""
        if (found := self._found(jid)) is None:
            raise self._none(jid, "no batch")
        return found

    def _none(self, jid: str, what: str) -> Refused:
        place, left = left_open(self._opts)
        if jid in left:
            return Refused(f"{jid} is in {place}, which is not the database of this configuration; see jobs_doctor.run")
        return Refused(f"{jid} is {what}; salt-run batch.list shows the batches, and job_cache.outcome any job")

    def active(self) -> list[Summary]:
        """Return the summaries of all batches that have not ended, oldest first."""
        found = map(self._listed, sorted({*self._store.jids(Kind.OPEN), *_active_of_salt(self._opts)}))
        return [item for item in found if item and item["state"] not in summary.OVER]

    def newest(self, limit: int, wanted: Callable[[Summary], bool] = lambda found: True) -> list[Summary]:
        """Return the summaries of up to ``limit`` wanted batches, newest first; of Salt's own only those that are active."""
        jids = sorted({*self._store.jids(Kind.OPEN, Kind.ENDED), *_active_of_salt(self._opts)}, reverse=True)
        return list(itertools.islice((found for jid in jids if (found := self._listed(jid)) and wanted(found)), limit))

    def _found(self, jid: str) -> Found | None:
        if batch := self.ours(jid):
            told, latest = summary.summary(batch, time.time(), self._sees({WHO: batch.spec.owner})), dict[str, Any]()
            # Once the batch has ended its engine does not matter.
            told |= dict.fromkeys(self._engine) if batch.finished else self._engine
            if batch.finished and batch.counts[Outcome.COMPLETED] < len(batch.spec.minions):
                with contextlib.suppress(Refused):  # a later batch that cannot be read hides none before it
                    retries = self.retries(jid)
                    latest = summary.latest(batch, retries)
                    told |= {"retries": [one.spec.jid for one in retries], "unmended": summary.unmended(latest)}
            return Found(told, batch, {}, lambda: self.minions(batch, latest))
        if state := of_salt(self._opts, jid):
            told = _summary_of_salt(state, time.time(), self._sees({}))
            return Found(told, None, state, lambda: _minions_of_salt(state))
        return None

    def _listed(self, jid: str) -> Summary | None:
        """Return the summary of a batch; None if it is damaged, which is logged."""
        try:
            found = self._found(jid)
        except Refused as exc:
            log.error("A batch is left out of the list: %s", exc)
            return None
        return found and found.summary


def add_late_returns(batch: Batch, returns: Returns) -> None:
    """Have a batch that has ended take later returns: they correct the record of minions that it had given up."""
    try:
        found = returns.of(batch.spec.jid, batch.unsettled())
        times = returns.times(batch.spec.jid, found)
        for minion, retcode in found.items():
            machine.step(batch, Returned(minion, retcode), times.get(minion, batch.finished or batch.created))
    except JobCacheError as exc:
        _quiet.warning("late", "Returns that came after batch %s had ended are not shown: %s", batch.spec.jid, exc)


def chooser(
    state: str | None, fun: Sequence[str], user: Sequence[str], start: float | None, end: float | None
) -> Callable[[Summary], bool]:
    """Return a filter of batches: by the state or its word, by globs of functions and users, and by when they began."""

    def fits(value: Any, globs: Sequence[str]) -> bool:
        return not globs or any(fnmatch.fnmatchcase(str(value), glob) for glob in globs)

    def is_wanted(found: Summary) -> bool:
        created = found.get("created") or 0.0
        return (
            state in (None, found["state"], summary.word(found))
            and fits(found.get("fun"), fun)
            and fits(found.get("user"), user)
            and (start or 0.0) <= created <= (end or math.inf)
        )

    return is_wanted


# -- batches of Salt's own ----------------------------------------------------------------------------------------------
# ``batch_active.p`` in ``cachedir`` is their index. What a ``.batch.p`` has must never be believed: Salt's manager writes
# anything into it that a forged event carries.


def _active_of_salt(opts: Mapping[str, Any]) -> list[str]:
    """Return the jids of the batches that are active for Salt 3008; an unreadable index counts as empty."""
    try:
        jids = files.read_msgpack(pathlib.Path(opts["cachedir"], "batch_active.p"))
    except (StateError, OSError) as exc:
        log.warning("Salt's own batches may be missing: %s", exc)
        return []
    return [jid for jid in jids if is_plain(jid)] if isinstance(jids, (list, tuple)) else []


def of_salt(opts: Mapping[str, Any], jid: str) -> dict[str, Any] | None:
    """Return the state of a batch of Salt's own; None if there is none, or none that is readable and of this job."""
    try:
        state: Any = files.read_msgpack(path_of(opts, jid)) if is_plain(jid) else None
    except (StateError, OSError) as exc:
        log.debug("Ignoring a file: %s", exc)
        return None
    if not _is_state(state) or state["jid"] != jid or state.get("driver") == summary.DRIVER:
        return None
    return dict(state)


def _is_state(state: Any) -> bool:
    """
    Tell whether this has the form of a state of Salt's manager or CLI. The manager writes down the content of an event
    ``salt/batch/<jid>/new``, which any accepted minion can fire.
    """
    if not isinstance(state, Mapping):
        return False
    words = (state.get(name) for name in ("fun", "tgt_type", "driver", "user", "halted_reason"))
    times = (state.get(name) for name in ("created", "last_progress"))
    groups = [state.get(name) or () for name in ("all_minions", "pending", "active", "done", "failed")]
    return (
        is_plain(state.get("jid"))
        and all(word is None or isinstance(word, str) for word in words)
        and all(time is None or (type(time) in (int, float) and math.isfinite(time)) for time in times)
        and all(isinstance(group, (list, tuple, Mapping)) and all(map(is_plain, group)) for group in groups)
        and all(isinstance(state.get(name) or {}, Mapping) for name in ("active", "done"))
    )


def _summary_of_salt(state: Mapping[str, Any], now: float, is_seen: bool = True) -> dict[str, Any]:
    """Return the summary of a batch of Salt's own. ``now`` is Unix time; ``is_seen``: whether arguments are shown."""
    halted, progress = bool(state.get("halted")), state.get("last_progress")
    own = ("jid", "fun", "tgt", "tgt_type", "batch_size", "halted_reason", "driver", "user", "created", "last_progress")
    counts = collections.Counter(record["state"] for record in _minions_of_salt(state).values())
    stands = "halted" if halted else "running" if counts["active"] or counts["pending"] else "complete"
    return {
        **{name: state.get(name) for name in own},
        "arguments": published_words(state.get("arg")) if is_seen else [HIDDEN],
        "total": len(state.get("all_minions") or ()),
        **{name: counts[name] for name in (*summary.ENDED, "active", "pending")},
        "state": stands,
        "halted": halted,
        "success": None if stands == "running" else not (halted or counts["failed"]),
        "age_seconds": max(0.0, now - progress) if progress else None,
    }


def _minions_of_salt(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the minions of a batch of Salt's own in the form of ``summary.minions``."""
    found = {minion: summary.minion_record("pending", state.get("created")) for minion in state.get("pending") or ()}
    active = state.get("active") or {}
    found |= {minion: summary.minion_record("active", since, None, since) for minion, since in active.items()}
    for minion, data in (state.get("done") or {}).items():
        code = retcode_of(data) if isinstance(data, Mapping) else None
        found[minion] = summary.minion_record("failed" if code else "completed", None, code)
    found |= {minion: summary.minion_record("failed", None) for minion in state.get("failed") or {}}
    return {minion: found[minion] for minion in sorted(found)}
