"""
The retry queue in the site's database, a row for each record, and the writer with which the engine changes it.

=========== ==========================================================================================================
kind        body
=========== ==========================================================================================================
``JOB``     the snapshot of a job: ``published_at``, and the ``load`` without secrets
``ENTRY``   the entry of one minion and one job (core/retry/entry.py)
``WATCHED`` what is known of a job besides its entries (core/retry/watched.py)
``DONE``    the entry of one minion that has returned the job since it was queued, with its function; until the job is old
``CURSOR``  how far the log was read; written with the last of what was learned from it
``PAUSED``  replays are paused
=========== ==========================================================================================================

One unreadable record must never keep another from being read. It stays where it is until the engine replaces it.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import salt.payload

from saltext.jobs.core import compat, lines
from saltext.jobs.core.disk import stored
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ledger import queue
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.retry.entry import CURSOR, ENDED, PAUSED, Entry, Key, Kind, State
from saltext.jobs.core.retry.watched import Watched
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

#: Records to write, by key; None removes the record.
Changes = Mapping[Key, Mapping[str, Any] | None]
T = TypeVar("T")
#: Seconds before a failed write is tried again: at first, and at most.
_PAUSE, _LONGEST_PAUSE = 1.0, 15.0
#: Seconds for which changes are gathered, unless a caller waits for them.
_GATHER = 1.0
#: Most entries and notes that are written in one transaction, which keeps the master's workers from writing.
_PART = 500


class Cursor(NamedTuple):
    """
    ``at``: Unix time in seconds; all that was published before is settled, or in the queue. ``position``: the same as a
    place in the log; None if the log was not reached yet. ``search``: Unix time from which the job cache still had to be
    searched for jobs that the log lacks; infinite if no search was under way. ``began``: the end of the log at which reading
    began, as long as what was published before it had to be searched for, too.
    """

    at: float
    position: Position | None = None
    search: float = math.inf
    began: Position | None = None

    def as_record(self) -> dict[str, Any]:
        position, began = (place and place._asdict() for place in (self.position, self.began))
        return {"at": self.at, "position": position, "search": self.search, "began": began}

    @classmethod
    def from_record(cls, record: Any) -> Cursor:
        """Return the cursor of a stored record. :raises ValueError, KeyError, TypeError: when it describes none."""
        places = record["position"], record.get("began")
        position, began = (place and Position.from_record(place) for place in places)
        return cls(float(record["at"]), position, float(record["search"]), began)


class RetryStore:
    """
    All methods block, and raise OSError when the database cannot be used now.

    :param lease: by which this process leads; None for a runner, which only reads.
    """

    def __init__(self, tables: Tables, lease: Lease | None = None) -> None:
        self._tables, self._lease, self._requests = tables, lease, Requests(tables, JOB_RETRY)

    def name(self) -> str:
        """Return the name of the database; another one has none of this queue's records."""
        return self._tables.name()

    def write(self, changes: Changes, durable: bool = True, answers: Mapping[str, bytes] | None = None) -> None:
        """
        Store changes and answers to requests, in one transaction.

        :param durable: whether they must survive a power cut when this returns.
        """
        bodies = {key: None if record is None else _packed(record) for key, record in changes.items()}

        def work() -> None:
            queue.write(self._tables, bodies, durable=durable)
            for request_id, reply in (answers or {}).items():
                self._requests.answer(request_id, reply)

        self._tables.together(work, self._lease, durable)

    def is_paused(self) -> bool:
        """Tell whether replays are paused."""
        return PAUSED.jid in self._all(Kind.PAUSED, "pause", dict)

    def tidy(self) -> None:
        """Remove the jobs that have no entry. Their first entry may be about to follow, except at an engine's start."""
        queue.tidy(self._tables, self._lease)

    def entries(self, minion: str | None = None, jid: str | None = None) -> Iterator[tuple[Entry, dict[str, Any]]]:
        """
        Yield the entries of a minion, or of all, and of a job, or of all, each with the snapshot of its job; ordered by jid.

        In place of an unusable entry comes a held one: nothing shows how far the job got. A job without a usable snapshot
        cannot be replayed, so its entries are left out.
        """
        known: dict[str, dict[str, Any] | None] = {}
        for part in queue.parts(self._tables, Kind.ENTRY, minion, jid):
            wanted = {row.jid for row in part}
            known = {name: known[name] for name in wanted & known.keys()}
            if lacking := sorted(wanted - known.keys()):
                bodies = queue.jobs(self._tables, lacking[0], lacking[-1])
                known.update((name, _snapshot(name, bodies.get(name))) for name in lacking)
            for row in part:
                snapshot = known[row.jid]
                if snapshot is not None:
                    yield _entry(sys.intern(row.minion), sys.intern(row.jid), row.body, snapshot), snapshot

    def done(self, minion: str, jid: str) -> dict[str, Any] | None:
        """Return the record of an entry whose job has returned."""
        for row in itertools.chain.from_iterable(queue.parts(self._tables, Kind.DONE, minion, jid)):
            return _read(row.body, dict)
        return None

    def forget_done(self, before: float) -> None:
        """Remove the records of jobs that were published before that Unix time."""
        first = f"{datetime.datetime.fromtimestamp(before, datetime.timezone.utc):%Y%m%d%H%M%S%f}"
        queue.forget(self._tables, Kind.DONE, first, self._lease)

    def watched(self, now: float) -> dict[str, Watched]:
        """Return what is known of jobs besides their entries, by jid, without unusable records."""
        return self._all(Kind.WATCHED, "record", lambda record: Watched.from_record(record, now))

    def cursor(self) -> Cursor | None:
        """Return how far the log was read; None if that is not known."""
        return self._all(Kind.CURSOR, "cursor", Cursor.from_record).get(CURSOR.jid)

    def _all(self, kind: Kind, what: str, make: Callable[[Any], T]) -> dict[str, T]:
        found = {}
        for row in itertools.chain.from_iterable(queue.parts(self._tables, kind)):
            try:
                found[row.jid] = _read(row.body, make)
            except ValueError as exc:
                log.error("The %s of %s cannot be read: %s", what, row.jid, exc)
        return found


class Writer:
    """
    Stores what the engine has learned, as it is by then: all that has changed, the answers to requests, and the cursor. It
    must never lose a change: it keeps those that cannot be written now, and tries again.

    All methods are called on the thread of ``loop``. The store is used in ``worker``.

    :param record_of: returns the present record of a key; None if there is none.
    """

    def __init__(
        self, loop: Any, worker: Worker, store: RetryStore, record_of: Callable[[Key], Mapping[str, Any] | None]
    ) -> None:
        self._loop, self._worker, self._store, self._record_of = loop, worker, store, record_of
        self._jobs, self._rest = dict[Key, None](), dict[Key, None]()  # the keys that have changed
        self._answers, self._waiting = dict[str, bytes](), list[Callable[[], object]]()
        self._is_due = self._is_busy = False
        self._timer: Any = None

    def put(self, keys: Iterable[Key]) -> None:
        """Store these records and the cursor soon, as they are by then, and remove those that are gone by then."""
        for key in keys:
            (self._jobs if key.kind is Kind.JOB else self._rest)[key] = None
        self._is_due = True
        # An entry often changes several times within a second; it is written once.
        if self._timer is None and not self._is_busy:
            self._timer = self._loop.call_later(_GATHER, self._begin)

    def answer(self, request_id: str, reply: bytes) -> None:
        """Answer a request, together with the last of all that was put so far."""
        self._answers[request_id] = reply
        self._begin()

    def when_durable(self, call: Callable[[], object]) -> None:
        """Call back once everything put so far is stored."""
        self._waiting.append(call)
        self._begin()

    @property
    def idle(self) -> bool:
        """Whether everything is stored."""
        return not (self._is_busy or self._is_due)

    def _begin(self) -> None:
        self._is_due = True
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        if not self._is_busy:
            self._is_busy = True
            self._loop.spawn_callback(self._write)

    async def _write(self) -> None:
        while self._is_due:
            keys = list(itertools.islice(self._rest, _PART))
            for key in keys:
                del self._rest[key]
            changes, answers, calls = {key: self._record_of(key) for key in (*self._jobs, *keys)}, {}, []
            self._jobs, self._is_due = {}, bool(self._rest)
            if self._rest:  # a job is written before its first entry, and removed after its last
                self._jobs = {key: None for key in changes if key.kind is Kind.JOB and changes[key] is None}
                changes = {key: record for key, record in changes.items() if key not in self._jobs}
            else:  # all that the log has told before the cursor is written with it, or was written before
                changes[CURSOR] = self._record_of(CURSOR)
                answers, calls, self._answers, self._waiting = self._answers, self._waiting, {}, []
            await self._write_one(changes, answers, calls)
        self._is_busy = False

    async def _write_one(
        self, changes: Changes, answers: Mapping[str, bytes], calls: Iterable[Callable[[], object]]
    ) -> None:
        pause = 0.0
        while True:
            try:
                await self._worker.call(self._store.write, changes, bool(calls or answers), answers)
                break
            except OSError as exc:
                if not pause:
                    log.error("The retry queue cannot be written, and is kept in memory until it can be: %s", exc)
                pause = min(2 * pause or _PAUSE, _LONGEST_PAUSE)
                await compat.sleep(pause)
        if pause:
            log.warning("The retry queue can be written again")
        for call in calls:
            try:
                call()
            except Exception:
                log.exception("A task that waited for the store failed")


def owed_of(opts: Mapping[str, Any], jid: str) -> dict[str, tuple[bool, float, str]]:
    """
    Return ``{minion: (whether it is still owed the job, since when, in words)}``; also for those that the engine was asked
    to take, and has not taken yet. :raises OSError:
    """
    # Requests first: one that is answered meanwhile has its entries in the queue.
    asked = [
        request
        for request in requests.waiting(opts, JOB_RETRY)
        if (request.get("do"), request.get("jid")) == ("enqueue", jid)
    ]
    found = {}
    for entry, _ in RetryStore(site_of(opts).tables).entries(jid=jid):
        is_owed = entry.state not in ENDED
        told = f"{entry.state.value}, {entry.reason}"
        found[entry.minion] = (
            is_owed,
            entry.queued if is_owed else entry.since,
            f"owed by job_retry: {told}" if is_owed else f"no longer owed by job_retry: {told}",
        )
    for minion in {minion for request in asked for minion in request.get("minions") or ()}:
        found[minion] = True, 0.0, "handed to job_retry, which has not taken it yet"
    return found


def _packed(record: Mapping[str, Any]) -> bytes:
    """Return the body of a record; that of an unusable one if it cannot be packed."""
    try:
        data: bytes = salt.payload.dumps(record, use_bin_type=True)
    except Exception as exc:  # msgpack raises many kinds
        log.error("A record of the retry queue cannot be kept: %s: %s", type(exc).__name__, exc)
        return b""
    return data


def _read(body: bytes | None, make: Callable[[Any], T]) -> T:
    """Return what ``make`` builds from a record. :raises ValueError: if it is unusable."""
    try:
        return make(stored.loads(bytes(body or b"")))
    except Exception as exc:  # msgpack raises many kinds
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc


def _entry(minion: str, jid: str, body: bytes, snapshot: Mapping[str, Any]) -> Entry:
    try:
        return _read(body, functools.partial(Entry.from_record, minion, jid))
    except ValueError as exc:
        log.error("The entry of %s for job %s cannot be read; the job is held: %s", minion, jid, exc)
    at = float(snapshot["published_at"])
    entry = Entry(minion, jid, at, at + 10 * 365 * 86400.0, "queued")
    entry.move(State.HELD, at, "its record could not be read, so it is not known whether it was begun")
    return entry


def _snapshot(jid: str, body: bytes | None) -> dict[str, Any] | None:
    try:
        return _read(body, _checked)
    except ValueError as exc:
        log.error("Job %s cannot be replayed, since its record cannot be read: %s", jid, exc)
        return None


def _checked(snapshot: Any) -> dict[str, Any]:
    if not isinstance(snapshot["load"], Mapping) or not math.isfinite(snapshot["published_at"]):
        raise ValueError("it is no snapshot of a job")
    return dict(snapshot)
