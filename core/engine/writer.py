"""
Writes what an engine has learned, as it is by then: all that has changed, and the answers to requests, in one transaction.

It must never lose a change: what cannot be written stays in memory, and is tried until it can be. What must not happen
before a change is durable waits for that (``when_durable``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from saltext.jobs.core import compat, lines
from saltext.jobs.core.engine.loop import Worker
from saltext.jobs.core.errors import AnotherDatabase
from saltext.jobs.core.ledger.requests import EngineStore

log = lines.logger(__name__)

K = TypeVar("K")
C = TypeVar("C")

#: Seconds for which changes are gathered, unless something waits for them: what changes often is written once.
GATHER = 1.0
#: Seconds before a write that failed is tried again: at first, and at most.
_PAUSE, _LONGEST_PAUSE = 1.0, 5.0


class Writer(Generic[K, C]):
    """
    All methods are called on the thread of ``loop``. ``what``: what is written, in words for the log. ``changes_of`` returns
    the present content of what was put, or of all that the engine knows, which ``everything`` returns: another database than
    before gets all of it. ``store`` is used in ``worker``.
    """

    def __init__(
        self,
        loop: Any,
        worker: Worker,
        what: str,
        store: EngineStore,
        changes_of: Callable[[Iterable[K]], C],
        everything: Callable[[], Iterable[K]],
    ) -> None:
        self._loop, self._worker, self._what, self._store = loop, worker, what, store
        self._changes_of, self._everything = changes_of, everything
        self._changed, self._answers = dict[K, None](), dict[str, bytes]()
        self._calls = list[Callable[[], object]]()  # that wait for a write
        self._timer: Any = None  # ends the gathering of changes for which nothing waits
        self._is_busy = False  # ``_work`` runs
        self._is_due = False  # it is to write what has come since it last began
        self._is_failing = False  # it could not write, and tries again
        self._is_over = False

    def put(self, changed: Iterable[K]) -> None:
        """Write these soon."""
        self._changed.update(dict.fromkeys(changed))
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER, self._begin)

    def answer(self, request_id: str, reply: bytes) -> None:
        """Answer a request, together with all that was put so far."""
        self._answers[request_id] = reply
        self._begin()

    def when_durable(self, call: Callable[[], object]) -> None:
        """Call back once everything put so far is written; in the order of these calls."""
        self._calls.append(call)
        self._begin()

    async def durable(self) -> None:
        """Return once everything put so far is written."""
        done = compat.Future()
        self.when_durable(lambda: done.set_result(None))
        await done

    def close(self) -> None:
        """Write nothing more, and call nobody back."""
        self._is_over = True

    def _begin(self) -> None:
        self._is_due = True
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        if not self._is_busy:
            self._is_busy = True
            self._loop.spawn_callback(self._work)

    async def _work(self) -> None:
        try:
            while self._is_due and not self._is_over:
                self._is_due = False
                count, changes, answers = len(self._calls), self._changes_of(self._changed), self._answers
                self._changed, self._answers = {}, {}
                await self._write(changes, bool(count or answers), answers)
                calls, self._calls = self._calls[:count], self._calls[count:]
                for call in calls if not self._is_over else ():
                    try:
                        call()
                    except Exception:
                        log.exception("What waited for the changes of %s failed", self._what)
        finally:
            self._is_busy = False

    async def _write(self, changes: C, is_urgent: bool, answers: Mapping[str, bytes]) -> None:
        pause = _PAUSE
        while not self._is_over:
            try:
                await self._worker.call(self._store.write, changes, is_urgent, answers)
            except AnotherDatabase:
                log.error("The database of %s is another one; what the engine knows is written into it", self._what)
                changes = self._changes_of(self._everything())
            except Exception as exc:
                if not self._is_failing:
                    told = None if isinstance(exc, OSError) else exc
                    line = "The changes of %s cannot be written, and wait until they can be: %s"
                    log.critical(line, self._what, exc, exc_info=told)
                self._is_failing = True
                await compat.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                if self._is_failing:
                    log.info("The changes of %s are written again", self._what)
                self._is_failing = False
                return
