"""
Writes the retry queue behind the loop: many changes at once, each key's newest one only, in the store's thread.

Claims come first and alone, since a publish waits for them. It must never lose a change: what the store does not take is
kept and written again until it does.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.retry.store import Changes, RetryStore

log = lines.logger(__name__)

#: Seconds before a store that failed is tried again, at first and at most.
_PAUSE, _LONGEST_PAUSE = 1.0, 15.0
#: Seconds for which changes are gathered, unless somebody waits for them.
_GATHER = 1.0
#: Most entries that are written at a stretch.
_PART = 500


class Writer:
    """
    :param loop: the engine's tornado loop; all methods are called on its thread.
    :param worker: the thread in which the store is used.
    :param store: where to.
    :param record_of: returns the record of an entry by its minion and jid, or None where there is no such entry: what is
        written is what an entry is by then.
    :param refused: called with (jid, reason) where the store refuses what belongs to a job; the rest it takes.
    """

    def __init__(
        self,
        loop: Any,
        worker: Worker,
        store: RetryStore,
        record_of: Callable[[str, str], dict[str, Any] | None],
        refused: Callable[[str, str], None],
    ) -> None:
        self._loop, self._worker, self._store = loop, worker, store
        self._record_of, self._refused = record_of, refused
        self._changes = Changes()
        self._entries: dict[tuple[str, str], None] = {}  # that have changed
        self._waiting: list[Callable[[], None]] = []
        self._claimed: list[Callable[[], None]] = []
        self._busy = False
        self._timer: Any = None

    def put_job(self, jid: str, snapshot: dict[str, Any] | None) -> None:
        """Store the snapshot of a job; None removes it."""
        self._changes.jobs[jid] = snapshot
        self._soon()

    def put_entries(self, keys: Iterable[tuple[str, str]]) -> None:
        """Store what has become of entries, by minion and jid."""
        self._entries.update(dict.fromkeys(keys))
        self._soon()

    def put_note(self, owner: str, jid: str, record: dict[str, Any] | None) -> None:
        """Store a master's note about a job; None removes it."""
        self._changes.notes[owner, jid] = record
        self._soon()

    def claim(self, jid: str, claims: dict[str, float], call: Callable[[], None]) -> None:
        """Store all claims of a job before anything else, and call back when they are."""
        self._changes.claims[jid] = claims
        self._claimed.append(call)
        self._begin()

    def when_durable(self, call: Callable[[], None]) -> None:
        """Call back when all that was put so far is stored."""
        self._waiting.append(call)
        self._begin()

    @property
    def idle(self) -> bool:
        """Whether everything is stored."""
        return not (self._busy or self._has_changes or self._waiting or self._claimed)

    @property
    def _has_changes(self) -> bool:
        return bool(self._entries or self._changes)

    def _soon(self) -> None:
        # An entry often changes again within the second: then it is written once.
        if self._timer is None and not self._busy:
            self._timer = self._loop.call_later(_GATHER, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        if not self._busy:
            self._busy = True
            self._loop.spawn_callback(self._write)

    async def _write(self) -> None:
        while self._has_changes or self._waiting or self._claimed:
            if self._claimed:
                claims, self._changes.claims = self._changes.claims, {}
                await self._write_one(Changes(claims=claims), "_claimed")
            elif self._waiting or self._due():
                await self._write_one(self._take(), "_waiting")
            else:
                break
        self._busy = False
        if self._has_changes:
            self._soon()

    def _due(self) -> bool:
        return self._timer is None and self._has_changes

    def _take(self) -> Changes:
        """Take a part of the changes that is written quickly, so that a claim need not wait long."""
        changes, keys = self._changes, list(itertools.islice(self._entries, _PART))
        for key in keys:
            del self._entries[key]
        entries = {key: self._record_of(*key) for key in keys}
        if not self._entries:
            self._changes = Changes()
            return dataclasses.replace(changes, entries=entries)
        # A job comes before its first entry, and goes after its last.
        part = Changes(
            jobs={jid: snapshot for jid, snapshot in changes.jobs.items() if snapshot is not None},
            entries=entries,
            notes=changes.notes,
        )
        changes.notes = {}
        changes.jobs = {jid: None for jid, snapshot in changes.jobs.items() if snapshot is None}
        return part

    async def _write_one(self, changes: Changes, waiting: str) -> None:
        # Those that wait for everything are called once nothing is left of what was put before them.
        whole = waiting == "_claimed" or not self._has_changes
        calls: list[Callable[[], None]] = []
        if whole:
            calls = getattr(self, waiting)
            setattr(self, waiting, [])
        pause = 0.0
        refused: dict[str, str] = {}
        while changes:
            try:
                refused = await self._worker.call(self._store.write, changes)
                break
            except StateError as exc:
                if not pause:
                    log.error("The retry queue cannot be written, and is kept in memory until it can be: %s", exc)
                pause = min(2 * pause or _PAUSE, _LONGEST_PAUSE)
                await compat.sleep(pause)
        if pause:
            log.warning("The retry queue can be written again")
        for jid, reason in refused.items():
            log.error("Job %s cannot be kept: %s", jid, reason)
        # What the store refuses is told before anybody goes on with it.
        told: list[Callable[[], None]] = [functools.partial(self._refused, *item) for item in refused.items()]
        for call in told + calls:
            try:
                call()
            except Exception:
                log.exception("What waited for the store failed")
