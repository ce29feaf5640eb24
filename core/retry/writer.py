"""
Writes the retry queue in the store's thread: many changes at once, and only the newest of each key.

Claims are written first, because publishes wait for them. The writer must never lose a change: it keeps those that cannot be
written now, and tries again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.retry.entry import CURSOR, Key, Kind
from saltext.jobs.core.retry.store import Changes, RetryStore

log = lines.logger(__name__)

#: Seconds before a failed write is tried again: at first, and at most.
_PAUSE, _LONGEST_PAUSE = 1.0, 15.0
#: Seconds for which changes are gathered, unless a caller waits for them.
_GATHER = 1.0
#: Most entries and notes that are written in one transaction, which keeps the master's workers from writing.
_PART = 500


class Writer:
    """
    All methods are called on the thread of ``loop``. The store is used in ``worker``.

    :param record_of: returns the present record of a key; None if there is none. Called just before the write.
    """

    def __init__(
        self, loop: Any, worker: Worker, store: RetryStore, record_of: Callable[[Key], dict[str, Any] | None]
    ) -> None:
        self._loop, self._worker, self._store, self._record_of = loop, worker, store, record_of
        # The keys that have changed: of claimed entries, of jobs, and of all else.
        self._claims, self._jobs, self._rest = dict[Key, None](), dict[Key, None](), dict[Key, None]()
        self._claimed, self._waiting = list[Callable[[], None]](), list[Callable[[], None]]()
        self._busy, self._is_synced = False, True
        self._timer: Any = None

    def put(self, keys: Iterable[Key]) -> None:
        """Store these records soon, as they are by then, and remove those that are gone by then."""
        for key in keys:
            (self._jobs if key.kind is Kind.JOB else self._rest)[key] = None
        # An entry often changes several times within a second; it is written once.
        if self._timer is None and not self._busy:
            self._timer = self._loop.call_later(_GATHER, self._begin)

    def claim(self, jid: str, minions: Iterable[str], call: Callable[[], None]) -> None:
        """Store these entries of a job before anything else, durably, then call back."""
        self._claims.update((Key(Kind.ENTRY, jid, minion), None) for minion in minions)
        self._claimed.append(call)
        self._begin()

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call back once everything put so far is stored."""
        self._waiting.append(call)
        self._begin()

    @property
    def idle(self) -> bool:
        """Whether everything is stored."""
        return not (self._busy or self._jobs or self._rest or self._waiting or self._claimed)

    def _begin(self) -> None:
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        if not self._busy:
            self._busy = True
            self._loop.spawn_callback(self._write)

    async def _write(self) -> None:
        while self._claimed or self._jobs or self._rest or self._waiting:
            changes, calls = self._take(), list[Callable[[], None]]()
            if not self._claims:
                calls, self._claimed = self._claimed, calls
            if not (self._claims or self._jobs or self._rest):
                calls, self._waiting = calls + self._waiting, []
            await self._write_one(changes, calls)
        self._busy = False

    def _take(self) -> Changes:
        """Take a limited number of changes, so that a claim need not wait long for them."""
        keys = list(dict.fromkeys(itertools.islice(itertools.chain(self._claims, self._rest), _PART)))
        for key in keys:
            self._claims.pop(key, None)
            self._rest.pop(key, None)
        changes = {key: self._record_of(key) for key in (*self._jobs, *keys) if key != CURSOR}
        # A job is written before its first entry, and removed after its last.
        self._jobs = {key: None for key in self._jobs if changes[key] is None} if self._rest or self._claims else {}
        changes = {key: record for key, record in changes.items() if key not in self._jobs}
        # All that the log has told before the cursor is written with it, or was written before.
        return changes if self._rest or self._claims else {**changes, CURSOR: self._record_of(CURSOR)}

    async def _write_one(self, changes: Changes, calls: list[Callable[[], None]]) -> None:
        pause = 0.0
        while changes or (calls and not self._is_synced):
            try:
                await self._worker.call(self._store.write, changes, bool(calls))
                self._is_synced = bool(calls)
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
