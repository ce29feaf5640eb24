"""
What comes from the bus and from the job cache, on its way into the recorder's spool.

The loop's thread takes a record in: check, strip, pack. A Worker of its own looks up the loads and writes the spool, a
batch at a time. It must never wait for a returner, and never hold more than LIMIT bytes: what comes beyond that, because
the disk takes nothing, is not kept but looked for in the job cache once the disk works again.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import salt.payload

from saltext.jobs.core.disk.spool import Spool
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master.returner import ReturnerModule
from saltext.jobs.core.master.secrets import load_for_history, return_for_history
from saltext.jobs.core.recorder.files import Known, Seen
from saltext.jobs.core.recorder.lane import Recent, digest, is_wanted
from saltext.jobs.core.settings import RecorderSettings

log = logging.getLogger(__name__)

#: Bytes of packed records that are held in memory while the disk takes none.
LIMIT = 64 << 20
#: Digests remembered in memory at least.
_RECENT = 50_000
#: Seconds that an announced job's load may take to appear in the job cache.
_LOAD_PATIENCE = 1.0
#: Seconds for which the job cache is left alone after it failed.
_CACHE_REST = 10.0
#: Loads that may be owed at a time.
_OWED = 20_000
#: Seconds between two messages about the same trouble.
_QUIET = 60.0
#: Seconds between two attempts to write to a disk that takes nothing.
_RETRY = 1.0

_TIME = struct.Struct(">d")

LOAD, RETURN = "load", "ret"


@dataclasses.dataclass(frozen=True)
class Record:
    """
    What goes to a returner: a load (``minion`` is empty) or a return.

    ``to`` names the one returner that it is for; empty when it is for all.
    """

    kind: str
    jid: str
    minion: str
    body: dict[str, Any]
    to: str = ""


def packed(record: Record, now: float) -> bytes:
    """Return a record in the form in which the spool holds it, with the time at which it was taken in."""
    return _TIME.pack(now) + bytes(salt.payload.dumps(dataclasses.astuple(record), use_bin_type=True))


def taken_at(payload: bytes) -> float:
    """Return when a packed record was taken in."""
    return float(_TIME.unpack_from(payload)[0])


def unpacked(payload: bytes) -> Record:
    """Return the record. :raises Exception: when it is none."""
    return Record(*salt.payload.loads(payload[_TIME.size :]))


def _digest_of(payload: bytes) -> int:
    try:
        record = unpacked(payload)
    except Exception as exc:  # Salt and msgpack raise many kinds for what is no record.
        log.error("A record in the spool cannot be read: %s", exc)
        return 0
    return digest(record.jid, record.minion)


@dataclasses.dataclass(frozen=True)
class _Waiting:
    jid: str
    digest: int
    payload: bytes


class Intake:
    """
    :param settings: the recorder's options.
    :param spool: where records go.
    :param seen: remembers what was recorded.
    :param job_cache: where loads are looked up.
    :param worker: the thread that uses the three above.
    :param on_stored: called, on the loop, when the spool has new records.
    :param on_missed: called, on the loop, when records were let go that the job cache may still have.
    """

    def __init__(
        self,
        settings: RecorderSettings,
        spool: Spool,
        seen: Seen,
        job_cache: ReturnerModule,
        worker: Worker,
        on_stored: Callable[[], None],
        on_missed: Callable[[], None],
    ) -> None:
        self._settings, self._spool, self._seen, self._cache = settings, spool, seen, job_cache
        self._worker, self._on_stored, self._on_missed = worker, on_stored, on_missed
        self._recent = Recent(_RECENT)
        #: What was recorded before this process began.
        self.known: Known = Known(())
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._owed: dict[str, tuple[float, Mapping[str, Any] | None]] = {}
        self._rest_until = self._retry_at = 0.0
        self._has_overflowed = self._is_busy = False
        self._last_error = self._last_cache_error = 0.0
        #: Returns taken in since the start.
        self.accepted = 0

    @property
    def has_room(self) -> bool:
        """Whether there is room for what is not urgent."""
        return self._bytes < LIMIT // 4

    @property
    def waiting(self) -> int:
        """Records that are not in the spool yet."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether a batch is complete."""
        return len(self._waiting) >= self._settings.max_batch

    def wants(self, fun: Any) -> bool:
        return is_wanted(fun, self._settings.include, self._settings.exclude)

    def has(self, jid: str, minion: str = "") -> bool:
        """Tell whether a return, or without a minion a load, was recorded."""
        item = digest(jid, minion)
        return item in self._recent or item in self.known

    def announce(self, jid: str, event: Mapping[str, Any] | None = None) -> None:
        """Record a job's load soon: from the job cache, or from its event where the job cache hasn't got it."""
        if not self.has(jid):
            self._owed.setdefault(jid, (time.time(), event))
            while len(self._owed) > _OWED:
                del self._owed[next(iter(self._owed))]

    def accept(self, jid: str, minion: str, data: Mapping[str, Any]) -> None:
        """Record a return, unless that was done before."""
        item = digest(jid, minion)
        if item in self._recent or item in self.known:
            return
        if self._bytes >= LIMIT:
            self._has_overflowed = True
            return
        payload = packed(Record(RETURN, jid, minion, return_for_history(data)), time.time())
        self._recent.add(item)
        self.announce(jid)
        self._put(_Waiting(jid, item, payload))
        self.accepted += 1

    async def put_back(self, payloads: Sequence[bytes], returner: str) -> None:
        """
        Write packed records into the spool once more, for one returner; when this returns they are there.

        :raises OSError: when they can't be written; then none is there.
        """
        frames = [packed(dataclasses.replace(unpacked(item), to=returner), taken_at(item)) for item in payloads]
        await self._worker.call(self._spool.append, frames)
        self._on_stored()

    async def flush(self) -> None:
        """Write what waits into the spool."""
        now = time.time()
        due = self._due_loads(now)
        if self._is_busy or now < self._retry_at or not (self._waiting or due):
            return
        self._is_busy = True
        batch, self._waiting, self._bytes = self._waiting, [], 0
        try:
            settled = await self._worker.call(self._store, batch, due, now)
        except OSError as exc:
            self._keep(batch, exc, now)
        else:
            self._settle(settled)
        finally:
            self._is_busy = False

    def _put(self, item: _Waiting) -> None:
        self._waiting.append(item)
        self._bytes += len(item.payload)

    def _due_loads(self, now: float) -> dict[str, Mapping[str, Any] | None]:
        if not self._owed or now < self._rest_until:
            return {}
        with_returns = {item.jid for item in self._waiting}
        return {
            jid: event
            for jid, (since, event) in self._owed.items()
            if jid in with_returns or now - since >= _LOAD_PATIENCE
        }

    def _keep(self, batch: list[_Waiting], exc: OSError, now: float) -> None:
        self._waiting = batch + self._waiting
        self._bytes = sum(len(item.payload) for item in self._waiting)
        self._retry_at = now + _RETRY
        if now - self._last_error >= _QUIET:
            self._last_error = now
            log.critical("The recorder's spool takes nothing, %d records wait in memory: %s", len(self._waiting), exc)

    def _settle(self, loads: set[str]) -> None:
        for jid in loads:
            self._owed.pop(jid, None)
            self._recent.add(digest(jid))
        self._on_stored()
        if self._has_overflowed:
            self._has_overflowed = False
            log.warning("The spool works again: looking in the job cache for what could not be held meanwhile")
            self._on_missed()

    def what_was_recorded(self) -> Known:
        """
        Return what is remembered; in the Worker's thread, and before anything is recorded.

        What a crash kept from being remembered is in the spool's last segment.
        """
        known = self._seen.load()
        forgotten = [item for item in map(_digest_of, self._spool.tail_payloads()) if item and item not in known]
        if not forgotten:
            return known
        self._seen.add(forgotten, time.time())
        return self._seen.load()

    # -- in the Worker's thread ---------------------------------------------------------------------------------------

    def _store(self, batch: list[_Waiting], loads: dict[str, Mapping[str, Any] | None], now: float) -> set[str]:
        """Write loads and then returns; returns the jids whose load need not be looked for any more."""
        frames: list[bytes] = []
        digests: list[int] = []
        settled: set[str] = set()
        for jid, event in loads.items():
            if not self._cache_may_be_asked(now):
                break
            load = self._look_up(jid, event, now)
            if load is None:
                continue
            settled.add(jid)
            if load:
                frames.append(packed(Record(LOAD, jid, "", load_for_history(load)), now))
                digests.append(digest(jid))
        frames += [item.payload for item in batch]
        digests += [item.digest for item in batch]
        self._spool.append(frames)
        self._spool.drop_oldest()
        self._remember(digests, now)
        return settled

    def _remember(self, digests: list[int], now: float) -> None:
        try:
            self._seen.add(digests, now)
            self._seen.forget_old(now)
        except OSError as exc:
            # The records themselves are safe. After a restart some might be taken from the job cache once more.
            log.error("What was recorded cannot be remembered: %s", exc)

    def _cache_may_be_asked(self, now: float) -> bool:
        return now >= self._rest_until

    def _look_up(self, jid: str, event: Mapping[str, Any] | None, now: float) -> dict[str, Any] | None:
        """Return the load; ``{}`` where nobody knows one, None where it is to be tried again."""
        try:
            load = self._cache.load(jid) if is_plain(jid) else {}
        except Exception as exc:  # A returner raises whatever its client library raises.
            self._rest_until = now + _CACHE_REST
            if now - self._last_cache_error >= _QUIET:
                self._last_cache_error = now
                log.error("Loads cannot be read from the job cache: %s: %s", type(exc).__name__, exc)
            return None
        if load or event is None:
            return load
        # Seen on the bus only: anybody who may fire events can have made it up.
        return {**event, "source": "event"}
