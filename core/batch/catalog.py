"""
Looks up batches for the runner: ours, in their rows, and those of Salt 3008's own manager. It must never write.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.batch import native, summary
from saltext.jobs.core.batch.facts import Returned
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.member import Outcome
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.engine.returns import Returns, is_fed
from saltext.jobs.core.errors import JobCacheError, Refused, StateError
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.site import site_of
from saltext.jobs.core.users import WHO

log = lines.logger(__name__)

#: What a search for batches accepts: their states, and the words that people see for these.
STATES = (*summary.WORDS, "complete")

Summary = dict[str, Any]
Minions = dict[str, dict[str, Any]]
#: Takes a jid. Returns, by minion in the retry queue: whether it is still owed the job, since when, and that in words.
Owed = Callable[[str], Mapping[str, tuple[bool, float, str]]]


class Found(NamedTuple):
    """A batch: its summary, what reads its minions, and the ``batch`` itself if it is ours, else its ``state`` of Salt's."""

    summary: Summary
    batch: Batch | None
    state: Mapping[str, Any]
    minions: Callable[[], Minions]


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
        self.engine = requests.is_running(opts, BATCH_MANAGER)
        self.silent = round(requests.silent_for(opts, BATCH_MANAGER)) or None
        self.master = requests.driver_of(opts, BATCH_MANAGER)

    def ours(self, jid: str) -> Batch | None:
        """Return a batch of ours, or None. :raises Refused: if it is damaged. :raises OSError: if it cannot be read now."""
        try:
            batch = self._store.read(jid)
        except StateError as exc:
            raise Refused(str(exc)) from exc
        if batch is not None and batch.closed:
            add_late_returns(batch, self._returns)
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
        """Ask the retry queue about minions handed over to it: those that are owed nothing any more count as offline."""
        if batch.spec.offline != "queue" or self._owed is None:
            return
        told = self._told.setdefault(batch.spec.jid, {})
        try:
            owed = self._owed(batch.spec.jid)
        except (OSError, ValueError) as exc:
            log.warning("It is not known whether minions of batch %s are still owed its job: %s", batch.spec.jid, exc)
            return
        for minion, member in batch.members.items():
            if member.ended is not Outcome.QUEUED:
                if minion in owed and not owed[minion][2]:
                    told[minion] = {"started": owed[minion][1]}
                continue
            is_owed, since, why = owed.get(
                minion, (False, 0.0, "it did not answer, and job_retry does not owe it the job")
            )
            since = since or member.since
            if not is_owed:
                batch.settle(minion, Outcome.OFFLINE, since, None)
            told[minion] = {"since": since, "why": why}

    def need(self, jid: str) -> Batch:
        """Return a batch of ours. :raises Refused: if there is none, or if it cannot be read."""
        batch = self.ours(jid)
        if batch is None:
            raise Refused(f"{jid} is no batch of the batch_manager engine; salt-run batch.list shows the batches")
        return batch

    def retries(self, jid: str) -> list[Batch]:
        """
        Return the later batches of a batch's family, oldest first: those that have retried it, the batch from which it
        stems, or another retry of that. :raises Refused:
        """
        first, batch = jid, self.ours(jid)
        while batch is not None and batch.spec.parent:
            first, batch = batch.spec.parent, self.ours(batch.spec.parent)
        family = [first]
        for later, parent in self._parents_after(first):
            if parent in family:
                family.append(later)
        return [self.need(later) for later in family if later > jid]

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
        found = self._found(jid)
        if found is None:
            raise Refused(f"{jid} is no batch; salt-run batch.list shows the batches")
        return found

    def active(self) -> list[Summary]:
        """Return the summaries of all batches that have not ended, oldest first."""
        found = map(self._listed, sorted({*self._store.jids(Kind.OPEN), *native.active(self._opts)}))
        return [item for item in found if item and item["state"] not in summary.OVER]

    def newest(self, limit: int, wanted: Callable[[Summary], bool] = lambda found: True) -> list[Summary]:
        """Return the summaries of up to ``limit`` wanted batches, newest first; of Salt's own only those that are active."""
        jids = sorted({*self._store.jids(Kind.OPEN, Kind.ENDED), *native.active(self._opts)}, reverse=True)
        return list(itertools.islice((found for jid in jids if (found := self._listed(jid)) and wanted(found)), limit))

    def _summary(self, batch: Batch) -> Summary:
        # Once the batch has ended its engine does not matter.
        names = ("engine", "engine_silent_seconds", "engine_master")
        engine = (None,) * 3 if batch.finished else (self.engine, self.silent, self.master)
        found = summary.summary(batch, time.time(), self._sees({WHO: batch.spec.owner}))
        return {**found, **dict(zip(names, engine, strict=True))}

    def _found(self, jid: str) -> Found | None:
        if batch := self.ours(jid):
            told, latest = self._summary(batch), dict[str, tuple[str, str]]()
            if batch.finished and not batch.success:
                with contextlib.suppress(Refused):  # a later batch that cannot be read hides none before it
                    retries = self.retries(jid)
                    latest = summary.latest(batch, retries)
                    told["retries"] = [one.spec.jid for one in retries]
                    told["unmended"] = summary.unmended(latest)
            return Found(told, batch, {}, lambda: self.minions(batch, latest))
        if state := native.read(self._opts, jid):
            return Found(native.summary(state, time.time(), self._sees({})), None, state, lambda: native.minions(state))
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
            batch.step(Returned(minion, retcode), times.get(minion, batch.finished or batch.created))
    except JobCacheError as exc:
        log.warning("Returns that came after batch %s had ended are not shown: %s", batch.spec.jid, exc)


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
            and (start is None or created >= start)
            and (end is None or created <= end)
        )

    return is_wanted
