"""
Writes the retry queue behind the loop: many changes at once, each key's newest one only, in the store's thread.

It must never lose a change: what the store does not take is kept and written again until it does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.retry_store import Changes, RetryStore
from saltext.jobs.core.worker import Worker

log = logging.getLogger(__name__)

#: Seconds before a store that failed is tried again, at first and at most.
_PAUSE, _LONGEST_PAUSE = 1.0, 15.0


class Writer:
    """
    :param loop: the engine's tornado loop; all methods are called on its thread.
    :param worker: the thread in which the store is used.
    :param store: where to.
    """

    def __init__(self, loop: Any, worker: Worker, store: RetryStore) -> None:
        self._loop, self._worker, self._store = loop, worker, store
        self._changes = Changes()
        self._waiting: list[Callable[[], None]] = []
        self._busy = False

    def put_job(self, jid: str, snapshot: dict[str, Any] | None) -> None:
        """Store the snapshot of a job; None removes it."""
        self._changes.jobs[jid] = snapshot
        self._begin()

    def put_entry(self, minion: str, jid: str, record: dict[str, Any] | None) -> None:
        """Store the record of an entry; None removes it."""
        self._changes.entries[minion, jid] = record
        self._begin()

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call back when all that was put so far is stored."""
        self._waiting.append(call)
        self._begin()

    def _begin(self) -> None:
        if not self._busy:
            self._busy = True
            self._loop.spawn_callback(self._write)

    async def _write(self) -> None:
        while self._changes or self._waiting:
            waiting, self._waiting = self._waiting, []
            await self._write_one()
            for call in waiting:
                try:
                    call()
                except Exception:
                    log.exception("What waited for the store failed")
        self._busy = False

    async def _write_one(self) -> None:
        changes, self._changes = self._changes, Changes()
        pause = 0.0
        while changes:
            try:
                await self._worker.call(self._store.write, changes)
            except StateError as exc:
                if not pause:
                    log.error("The retry queue cannot be written, and is kept in memory until it can be: %s", exc)
                pause = min(2 * pause or _PAUSE, _LONGEST_PAUSE)
                await compat.sleep(pause)
            else:
                if pause:
                    log.warning("The retry queue can be written again")
                return
