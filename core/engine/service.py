"""
An engine's side of the requests of runners: takes each one, has it carried out, and writes the answer or the refusal.

It must never leave a request without a reply: the waiting runner is told anything that goes wrong. One whose answer is not
known yet is taken again later. An engine that finds a taken request after a restart must give the same answer as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import salt.payload
from salt.exceptions import SaltException

from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.requests import asked_at, content_of
from saltext.jobs.core.errors import JobCacheError, NotYet, StateError
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

#: Carries out a request, as the runner made it with ``asked_at`` (Unix time) and, if it was taken before and may have been
#: carried out, ``again``. Returns the answer, or an awaitable of it; may raise ``NotYet``.
Verb = Callable[[Mapping[str, Any]], Any]

#: Seconds between two looks for requests, and before one is taken again that could not be answered.
LOOK, AGAIN = 0.5, 5.0
#: Seconds after which an answer that nobody fetched is removed.
_STALE = 3600.0
#: Errors whose message is meant for the operator. The traceback of any other goes to the log.
_EXPECTED = (SaltException, ValueError, OSError)
#: Of these: what fails may work again later.
_FOR_NOW = (OSError, StateError, JobCacheError)


class Service:
    """Takes nothing until ``serve``. ``lease``: by which this process leads; ``pause``: seconds between two looks."""

    def __init__(
        self, opts: Mapping[str, Any], engine: str, loop: Any, lease: Lease | None = None, pause: float = LOOK
    ) -> None:
        self._engine, self._loop, self._pause = engine, loop, pause
        self._requests = Requests(site_of(opts), engine, lease)
        self._write: Callable[[str, bytes], None] = self._requests.answer
        self._underway: set[str] = set()  # taken by this process, and not answered
        self._quiet = Quiet(log)
        self._timer: Any = None
        self.verbs: dict[str, Verb] = {}  # what the engine can be asked for; a request names its verb under ``do``

    def serve(self, verbs: Mapping[str, Verb], write: Callable[[str, bytes], None] | None = None) -> None:
        """Carry out all waiting requests, and those that come. ``write`` writes an answer, now or later, but in the end."""
        self.verbs.update(verbs)
        self._write = write or self._write
        self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None

    def _look(self) -> None:
        self._timer = self._loop.call_later(self._pause, self._look)
        self.take()

    def take(self) -> None:
        """Carry out all waiting requests; verbs that are coroutines run side by side."""
        for request_id, request in self.taken():
            try:
                value = self._verb(request)({**request, "asked_at": asked_at(request_id)})
            except Exception as exc:
                self._refuse(request_id, request, exc)
                continue
            if inspect.isawaitable(value):
                self._loop.spawn_callback(self._finish, request_id, request, value)
            else:
                self.reply(request_id, {"value": value})

    def taken(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """
        Take each waiting request, oldest first, and yield its id and content. Those that were taken before and not answered
        come first, with ``again``. A damaged one is refused. Old answers that nobody fetched are removed.
        """
        try:
            found = self._requests.open()
            self._underway.intersection_update(each.id for each in found)
            new = [each for each in found if each.id not in self._underway]
            for request_id, taken, body in new:
                if not (taken or self._requests.take(request_id)):
                    continue
                self._underway.add(request_id)
                request = content_of(body)
                if request is not None:
                    yield request_id, {**request, "again": True} if taken else request
                    continue
                log.error("A request to the %s engine is damaged, and is refused: %s", self._engine, request_id)
                self.reply(request_id, {"error": "The request is damaged", "for_now": False})
            if new:
                self._requests.sweep(_STALE)
        except OSError as exc:
            self._quiet.error("take", "The requests cannot be taken now; trying again later: %s", exc)

    def _verb(self, request: Mapping[str, Any]) -> Verb:
        do = request.get("do")
        if not isinstance(do, str) or do not in self.verbs:
            known = ", ".join(sorted(self.verbs))
            raise ValueError(f"The {self._engine} engine knows no request {do!r}; it knows {known}")
        return self.verbs[do]

    async def _finish(self, request_id: str, request: Mapping[str, Any], value: Awaitable[Any]) -> None:
        try:
            answer = await value
        except Exception as exc:
            self._refuse(request_id, request, exc)
        else:
            self.reply(request_id, {"value": answer})

    def _refuse(self, request_id: str, request: Mapping[str, Any], exc: Exception) -> None:
        if isinstance(exc, NotYet):
            self._loop.call_later(min(AGAIN, 10 * self._pause), self._underway.discard, request_id)
            return
        reason = str(exc)
        if not isinstance(exc, _EXPECTED):
            log.error("The request %r failed", request.get("do"), exc_info=exc)
            reason = f"{type(exc).__name__}: {exc}"
        self.reply(request_id, {"error": reason or type(exc).__name__, "for_now": isinstance(exc, _FOR_NOW)})

    def reply(self, request_id: str, reply: Mapping[str, Any]) -> None:
        """Answer a request: ``{"value": …}``, or ``{"error": why not, "for_now": whether it may be carried out later}``."""
        try:
            self._write(request_id, salt.payload.dumps(dict(reply)))
        except Exception as exc:
            self._underway.discard(request_id)  # it is taken again: by this process, or by one that leads by now
            told = "The reply to a request cannot be written: %s: %s"
            self._quiet.error("reply", told, type(exc).__name__, exc)
