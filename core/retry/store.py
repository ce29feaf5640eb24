"""
The retry queue in the site's database, a row for each record.

=========== ==========================================================================================================
kind        body
=========== ==========================================================================================================
``JOB``     a job: ``published_at``, and the ``load`` without secrets
``ENTRY``   the entry of one minion and one job (core/retry/entry.py)
``WATCHED`` what is known of a job besides its entries (there too)
``DONE``    the entry of a minion that has returned the job, or (DEAD) for which there was no room; until the job is old
``CURSOR``  how far the log was read; written with the last of what was learned from it
``PAUSED``  replays are paused
=========== ==========================================================================================================

One unreadable record must never keep another from being read. It stays where it is until the engine replaces it.
"""

from __future__ import annotations

import functools
import gc
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.ledger import queue, stored
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.ledger.requests import EngineStore
from saltext.jobs.core.ledger.tables import QUEUE
from saltext.jobs.core.retry.entry import ENDED, Entry, Job, Key, Kind, State, Watched
from saltext.jobs.core.retry.reader import job_of
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

#: Records to write, by key; None removes the record.
Changes = Mapping[Key, Mapping[str, Any] | None]
T = TypeVar("T")


class Cursor(NamedTuple):
    """How far the log was read."""

    at: float  # Unix time in seconds; all that was published before is settled, or in the queue
    position: Position | None = None  # the same as a place in the log; None if the log was not reached yet
    search: float = math.inf  # Unix time from which the job cache must still be searched for what the log lacks

    def as_record(self) -> dict[str, Any]:
        return {"at": self.at, "position": self.position and self.position._asdict(), "search": self.search}

    @classmethod
    def from_record(cls, record: Any) -> Cursor:
        """Return the cursor of a stored record. :raises ValueError, KeyError, TypeError: when it describes none."""
        position = record["position"] and Position(**record["position"])
        return cls(float(record["at"]), position, float(record["search"]))


class RetryStore(EngineStore):
    """Methods block, and raise OSError when the database cannot be used now."""

    engine = JOB_RETRY

    def _put(self, changes: Changes) -> None:
        rows = {
            (int(kind), *its): None if record is None else (_packed(record),)
            for (kind, *its), record in changes.items()
        }
        QUEUE.write(self._tables, rows)

    def is_paused(self) -> bool:
        return any(self._each(Kind.PAUSED, "pause", dict))

    def entries(self, minion: str | None = None, jid: str | None = None) -> Iterator[tuple[Entry, Job]]:
        """
        Yield (entry, its job) of one or all minions and of one or all jobs, ordered by jid. An entry that cannot be read is
        held, as nothing shows how far it got. One whose job cannot be read is left out, since it cannot be replayed.
        """
        known: dict[str, Job | None] = {}
        for part in queue.parts(self._tables, Kind.ENTRY, minion, jid):
            wanted = {row.jid for row in part}
            known = {name: known[name] for name in wanted & known.keys()}
            if lacking := sorted(wanted - known.keys()):
                bodies = queue.jobs(self._tables, lacking[0], lacking[-1])
                # An engine may have removed an entry, and its job, since.
                known.update((name, _job(name, bodies[name]) if name in bodies else None) for name in lacking)
            for row in part:
                job = known[row.jid]
                if job is not None:
                    yield _entry(sys.intern(row.minion), job, row.body), job

    def read(self) -> list[tuple[Entry, Job]]:
        """Return the whole queue, for an engine."""
        gc.disable()  # a pass of the collector stops all else, so it must not walk through what lives for long
        try:
            return list(self.entries())
        finally:
            gc.freeze()
            gc.enable()

    def done(self, jid: str, minion: str | None = None, state: State | None = State.DONE) -> dict[str, dict[str, Any]]:
        """Return the records of a job's entries that have returned it, by minion. DEAD: those without room; None: both."""
        found = self._each(Kind.DONE, "record", dict, minion, jid)
        return {row.minion: record for row, record in found if state in (None, record.get("state"))}

    def forget_done(self, before: float) -> None:
        """Remove the records of jobs that were published before that Unix time, and of entries that ended before it."""
        old = itertools.chain.from_iterable(queue.parts(self._tables, Kind.DONE, until=jid_at(max(0.0, before))))
        if gone := [Key(Kind.DONE, row.jid, row.minion) for row in old if _ended_at(row.body) < before]:
            self._tables.together(lambda: self._put(dict.fromkeys(gone)), self._lease)

    def watched(self, now: float, jid: str | None = None) -> dict[str, Watched]:
        """Return what is known of jobs, or of one, besides their entries, by jid, without unusable records."""
        found = self._each(Kind.WATCHED, "record", lambda record: Watched.from_record(record, now), jid=jid)
        return {row.jid: job for row, job in found}

    def cursor(self) -> Cursor | None:
        """Return how far the log was read; None if that is not known."""
        return next((cursor for _, cursor in self._each(Kind.CURSOR, "cursor", Cursor.from_record)), None)

    def _each(
        self, kind: Kind, what: str, make: Callable[[Any], T], minion: str | None = None, jid: str | None = None
    ) -> Iterator[tuple[queue.Row, T]]:
        for row in itertools.chain.from_iterable(queue.parts(self._tables, kind, minion, jid)):
            try:
                yield row, _read(row.body, make)
            except ValueError as exc:
                log.error("The %s of %s cannot be read: %s", what, row.jid, exc)


def owed_of(opts: Mapping[str, Any], jid: str) -> dict[str, tuple[bool, float, str, bool]]:
    """
    Return ``{minion: (is still owed the job, since when, in words, may have run it)}``; also of those that the engine was
    asked to take, and has not yet. Of those that have returned what the queue sent: when, and no words. :raises OSError:
    """
    # Requests first: one that is answered meanwhile has its entries in the queue.
    waiting, wanted = requests.waiting(opts, JOB_RETRY), ("enqueue", jid)
    asked = [request for request in waiting if (request.get("do"), request.get("jid")) == wanted]
    store = RetryStore(site_of(opts))
    over = store.done(jid, state=None)
    found = {minion: (False, record["sent_at"], "", True) for minion, record in over.items() if "sent_at" in record}
    for entry, _ in store.entries(jid=jid):
        is_owed, told = entry.state not in ENDED, f"owed by job_retry: {entry.state.value}, {entry.reason}"
        since = entry.queued if is_owed else entry.since
        may_have_run = entry.sent_at is not None or entry.begun_at > 0.0
        found[entry.minion] = is_owed, since, told if is_owed else f"no longer {told}", may_have_run
    for minion in store.watched(0.0, jid).get(jid, Watched()).settled - found.keys():  # purged, or gone with the time
        found[minion] = False, 0.0, "job_retry knows nothing of it any more", True
    for minion, record in over.items():
        if record.get("state") == State.DEAD:
            told = f"not taken by job_retry: {record['history'][-1][2]}"
            found.setdefault(minion, (False, record["queued_at"], told, False))
    for minion in {minion for request in asked for minion in request.get("minions") or ()}:
        found[minion] = True, 0.0, "handed to job_retry, which has not taken it yet", False
    return found


def _packed(record: Mapping[str, Any]) -> bytes:
    """Return the body of a record; that of an unusable one if it cannot be packed."""
    try:
        data: bytes = salt.payload.dumps(record, use_bin_type=True)
    except Exception as exc:  # msgpack raises many kinds
        log.error("A record of the retry queue cannot be kept: %s: %s", type(exc).__name__, exc)
        return b""
    return data


def _read(body: bytes, make: Callable[[Any], T]) -> T:
    """Return what ``make`` builds from a record. :raises ValueError: if it is unusable."""
    try:
        return make(stored.loads(bytes(body)))
    except Exception as exc:  # msgpack raises many kinds
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc


def _ended_at(body: bytes) -> float:
    try:
        return _read(body, lambda record: float(record["history"][-1][0]))
    except ValueError:  # it tells nobody anything
        return 0.0


def _entry(minion: str, job: Job, body: bytes) -> Entry:
    jid, at = job.jid, job.published_at
    try:
        return _read(body, functools.partial(Entry.from_record, minion, jid))
    except ValueError as exc:
        log.error("The entry of %s for job %s cannot be read; the job is held: %s", minion, jid, exc)
    entry = Entry(minion, jid, at, at + 10 * 365 * 86400.0, "queued")
    entry.move(State.HELD, at, "its record could not be read, so it is not known whether it was begun")
    return entry


def _job(jid: str, body: bytes) -> Job | None:
    def made(record: Any) -> Job:
        load, at = record["load"], float(record["published_at"])
        if not isinstance(load, Mapping) or not math.isfinite(at):
            raise ValueError("it is no record of a job")
        return job_of(sys.intern(jid), load, at, len(body), is_known=True)

    try:
        return _read(body, made)
    except ValueError as exc:
        log.error("Job %s cannot be replayed, since its record cannot be read: %s", jid, exc)
        return None
