"""
What comes from the bus and from the job cache, on its way into the recorder's spool.

The loop's thread takes a record in: check, strip, pack. A Worker of its own looks up the loads and writes the spool, a
batch at a time (``spool_writer.py``). It must never wait for a returner, and never take in a record while it holds
LIMIT bytes. If the disk takes nothing, records beyond LIMIT are dropped, and looked for in the job cache once the disk
works again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.master import secrets
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder.choice import Recent, digest
from saltext.jobs.core.recorder.files import Known, Seen
from saltext.jobs.core.recorder.record import (
    EVENT,
    REPLACES,
    RETURN,
    Record,
    content_of,
    packed,
)
from saltext.jobs.core.recorder.returner import ReturnerModule
from saltext.jobs.core.recorder.spool import Spool
from saltext.jobs.core.recorder.spool_writer import Due, SpoolWriter, Verdicts, Waiting, event_in, load_in
from saltext.jobs.core.settings import RecorderSettings

log = lines.logger(__name__)

#: Bytes of packed records that are held in memory while the disk takes none.
LIMIT = 64 << 20
#: Records, and bytes of packed records, after which a batch is complete.
_BATCH, _BATCH_BYTES = 1000, 4 << 20
#: Least number of digests that are remembered in memory; a return has two.
_RECENT = 100_000
#: Least number of jobs for which it is remembered whether they are recorded.
_JOBS = 20_000
#: Seconds within which the load of an announced job must appear in the job cache.
_LOAD_PATIENCE = 1.0
#: Most loads that may be awaited at a time, and bytes of their events.
_OWED, _OWED_BYTES = 20_000, 16 << 20
#: Seconds between two messages about the same trouble.
_QUIET = 60.0
#: Seconds between two attempts to write to a disk that takes nothing.
_RETRY = 1.0


@dataclasses.dataclass(frozen=True)
class _Owed:
    since: float
    event: bytes  # the packed event that announced the job, or empty


@dataclasses.dataclass(frozen=True)
class Flushed:
    """
    The outcome of a flush: whether the spool has new records, and whether records were dropped that the job cache may
    have.
    """

    stored: bool = False
    missed: bool = False


class Intake:
    """
    :param settings: the recorder's options.
    :param clock: the engine's clock.
    :param spool: where records go.
    :param seen: remembers what was recorded.
    :param loads: where loads are looked up.
    :param worker: the thread that uses the three above.
    """

    def __init__(
        self, settings: RecorderSettings, clock: Clock, spool: Spool, seen: Seen, loads: ReturnerModule, worker: Worker
    ) -> None:
        self._settings, self._clock, self._spool, self._worker = settings, clock, spool, worker
        self._writer = SpoolWriter(settings, spool, seen, loads)
        self._recent = Recent(_RECENT)
        #: What was recorded when the files were last read.
        self.known: Known = Known(())
        self._waiting: list[Waiting] = []
        self._bytes = 0
        self._owed: dict[str, _Owed] = {}
        self._owed_bytes = 0
        self._jobs: dict[str, bool] = {}
        self._retry_at = 0.0
        self._has_overflowed = self._is_busy = False
        self._last_error = float("-inf")
        self._quiet = Quiet(log)
        self._last_event = 0.0
        #: Returns taken in since the start.
        self.accepted = 0
        #: Events taken in, and dropped.
        self.events = self.events_dropped = 0

    @property
    def has_room(self) -> bool:
        """Whether there is room for records that are not urgent."""
        return self._bytes < LIMIT // 4

    @property
    def has_work(self) -> bool:
        """Whether records or loads wait to be written."""
        return bool(self._waiting or self._owed)

    @property
    def waiting(self) -> int:
        """Records that are not in the spool yet."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether a batch is complete."""
        if self._is_busy:
            return False
        return len(self._waiting) >= _BATCH or self._bytes >= _BATCH_BYTES

    def wants(self, fun: Any) -> bool:
        """Tell whether jobs with this function are recorded."""
        return self._writer.wants(fun)

    def has(self, jid: str, minion: str = "") -> bool:
        """Tell whether a minion's return was recorded; without a minion, whether the job's load was."""
        return self._is_known(digest(jid, minion))

    def has_content(self, jid: str, minion: str, data: Mapping[str, Any]) -> bool:
        """Tell whether a return that says the same was recorded. :raises Exception: when it can't be packed."""
        return self._is_known(digest(jid, minion, content_of(data)))

    def announce(self, jid: str, event: Mapping[str, Any] | None = None) -> None:
        """Record a job's load soon: from the job cache, or from its event if the job cache does not have it."""
        if jid in self._owed or self._jobs.get(jid) is False or self.has(jid):
            return
        data = b"" if event is None else salt.payload.dumps(load_in(event), use_bin_type=True)
        self._owed[jid] = _Owed(self._clock.now(), data)
        self._owed_bytes += len(data)
        while len(self._owed) > _OWED or self._owed_bytes > _OWED_BYTES:
            self._forget_owed(next(iter(self._owed)))

    def accept(self, jid: str, minion: str, data: Mapping[str, Any]) -> None:
        """Record a return from its event, unless the minion's return was recorded before."""
        if self._jobs.get(jid) is False:
            return
        item = digest(jid, minion)
        if not self._is_known(item):
            digests = item, digest(jid, minion, content_of(data))
            self._take(Record(RETURN, jid, minion, secrets.return_for_history(data)), digests)

    def reconcile(self, jid: str, minion: str, data: Mapping[str, Any]) -> bool:
        """
        Record a minion's return from the job cache. Returns whether there was room for it.

        If an earlier event differed, the record says that it replaces that event.
        """
        item, content = digest(jid, minion), digest(jid, minion, content_of(data))
        body = secrets.return_for_history(data)
        if self._is_known(item):
            body[REPLACES] = "event"
            self._quiet.warning(
                minion,
                "The event with the return of job %s by %s differed from the job cache's; both are recorded",
                jid,
                minion,
            )
        return self._take(Record(RETURN, jid, minion, body), (item, content))

    def accept_event(self, tag: str, data: Mapping[str, Any]) -> None:
        """
        Record an event without its secrets. A dropped event can be found nowhere else, so it is only counted.

        Events take at most half of the spool: a sender of many events must not crowd out returns.
        """
        if self._bytes >= LIMIT // 2 or self._spool.size > self._settings.spool_max_bytes // 2:
            self.events_dropped += 1
            self._quiet.error("events", "The spool is half full, so events are dropped (returns are not)")
            return
        # Each event has a time of its own, so that a returner recognises an event that comes twice.
        self._last_event = max(self._clock.now(), self._last_event + 2e-6)
        body = {"tag": tag, "data": secrets.event_for_history(data)}
        payload = packed(Record(EVENT, "", "", body), self._last_event)
        self._waiting.append(Waiting("", (), payload))
        self._bytes += len(payload)
        self.events += 1

    async def put_back(self, payloads: Sequence[bytes], returner: str) -> None:
        """
        Write packed records into the spool once more, for one returner; when this returns they are there.

        :raises OSError: when they can't be written; then none is there.
        """
        await self._worker.call(self._writer.put_back, payloads, returner)

    async def flush(self) -> Flushed:
        """Write what waits into the spool."""
        now = self._clock.now()
        if self._is_busy or now < self._retry_at:
            return Flushed()
        due = self._due_jobs(now)
        if not (self._waiting or due):
            return Flushed()
        self._is_busy = True
        batch, self._waiting = self._waiting, []
        try:
            verdicts = await self._worker.call(self._writer.store, batch, due, now)
        except OSError as exc:
            self._keep(batch, exc, now)
            batch = []
            return Flushed()
        finally:
            self._is_busy = False
            self._bytes -= sum(len(item.payload) for item in batch)  # only now: until then it is in memory too
        return self._settle(verdicts)

    def drain(self) -> None:
        """
        Write what waits into the spool, now, in this thread: the engine ends, and its Worker has ended.

        The job cache is not asked any more; missing loads are found in it at the next start.
        """
        batch, self._waiting, self._bytes = self._waiting, [], 0
        announced = {jid: event_in(owed.event).get("fun") for jid, owed in self._owed.items() if owed.event}
        kept = [item for item in batch if item.jid not in announced or self.wants(announced[item.jid])]
        try:
            self._writer.write([], kept, self._clock.now())
        except OSError as exc:
            log.critical(
                "The recorder's spool cannot be written, and %d records in memory are lost: %s", len(kept), exc
            )

    def what_was_recorded(self) -> Known:
        """
        Return what is remembered. Call it before anything is recorded.

        :raises OSError: when it can't be read.
        """
        return self._writer.what_was_recorded(self._clock.now())

    def _is_known(self, item: int) -> bool:
        return item in self._recent or item in self.known

    def _take(self, record: Record, digests: tuple[int, int]) -> bool:
        if self._bytes >= LIMIT:
            self._has_overflowed = True
            return False
        payload = packed(record, self._clock.now())
        for item in digests:
            self._recent.add(item)
        self.announce(record.jid)
        self._waiting.append(Waiting(record.jid, digests, payload))
        self._bytes += len(payload)
        self.accepted += 1
        return True

    def _forget_owed(self, jid: str) -> None:
        owed = self._owed.pop(jid, None)
        if owed is not None:
            self._owed_bytes -= len(owed.event)

    def _due_jobs(self, now: float) -> dict[str, Due]:
        """Return the jobs to look up now: unknown ones with returns, and awaited ones with returns or overdue."""
        with_returns = {item.jid for item in self._waiting if item.jid}
        due = {jid: Due(b"", is_new=False) for jid in with_returns if jid not in self._jobs}
        for jid, owed in self._owed.items():
            if jid in with_returns or now - owed.since >= _LOAD_PATIENCE:
                due[jid] = Due(owed.event, is_new=True)
        return due

    def _keep(self, batch: list[Waiting], exc: OSError, now: float) -> None:
        self._waiting = batch + self._waiting
        self._retry_at = now + _RETRY
        if now - self._last_error >= _QUIET:
            self._last_error = now
            log.critical(
                "The recorder's spool cannot be written; %d records wait in memory: %s", len(self._waiting), exc
            )

    def _settle(self, verdicts: Verdicts) -> Flushed:
        for jid in verdicts.settled:
            self._forget_owed(jid)
            self._recent.add(digest(jid))
        self._jobs.update(verdicts.wanted)
        while len(self._jobs) > 2 * _JOBS:
            for jid in list(self._jobs)[:_JOBS]:
                del self._jobs[jid]
        missed, self._has_overflowed = self._has_overflowed, False
        if missed:
            log.warning("The spool works again: looking in the job cache for what could not be stored meanwhile")
        return Flushed(stored=True, missed=missed)
