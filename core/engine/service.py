"""
An engine's side of the requests of runners: takes each one, has it carried out, and sends the answer or the refusal.

It must never leave a request without a reply: the waiting runner is told anything that goes wrong. A request whose answer
is not known yet waits, and is taken again with the next ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from salt.exceptions import SaltException

from saltext.jobs.core import lines
from saltext.jobs.core.engine.requests import Inbox, asked_at
from saltext.jobs.core.errors import JobCacheError, NotYet, StateError

log = lines.logger(__name__)

#: Carries out one request and returns the answer, or an awaitable of it. It gets the request as the runner made it, and
#: two more keys: ``asked_at``, the Unix time at which the request was made, and ``again`` if the request was taken
#: before and may have been carried out. It may raise ``NotYet``.
Verb = Callable[[Mapping[str, Any]], Any]

#: Errors whose message is meant for the operator. The traceback of any other goes to the log.
_EXPECTED = (SaltException, ValueError, OSError)
#: Of these: what fails may work again later.
_FOR_NOW = (OSError, StateError, JobCacheError)


class Service:
    """
    :param loop: the engine's tornado loop.
    :param inbox: the requests.
    :param verbs: ``{verb: function}``: what the engine can be asked for. A request names its verb under ``do``.
    """

    def __init__(self, loop: Any, inbox: Inbox, verbs: Mapping[str, Verb]) -> None:
        self._loop, self._inbox, self._verbs = loop, inbox, dict(verbs)

    def also(self, verbs: Mapping[str, Verb]) -> None:
        """Add verbs that the engine carries out."""
        self._verbs.update(verbs)

    def take(self) -> None:
        """
        Carry out all waiting requests.

        Verbs that are plain functions are answered when this returns; coroutines run side by side.
        """
        for request_id, request in self._inbox.take():
            try:
                value = self._verb(request)({**request, "asked_at": asked_at(request_id)})
            except Exception as exc:
                self._refuse(request_id, request, exc)
                continue
            if inspect.isawaitable(value):
                self._loop.spawn_callback(self._finish, request_id, request, value)
            else:
                self._reply(self._inbox.answer, request_id, value)

    def sweep(self, now: float) -> None:
        """Remove answers that nobody has fetched for long; ``now`` is Unix time."""
        self._inbox.sweep(now)

    def _verb(self, request: Mapping[str, Any]) -> Verb:
        do = request.get("do")
        if not isinstance(do, str) or do not in self._verbs:
            known = ", ".join(sorted(self._verbs))
            raise ValueError(f"The {self._inbox.engine} engine knows no request {do!r}; it knows {known}")
        return self._verbs[do]

    async def _finish(self, request_id: str, request: Mapping[str, Any], value: Awaitable[Any]) -> None:
        try:
            answer = await value
        except Exception as exc:
            self._refuse(request_id, request, exc)
        else:
            self._reply(self._inbox.answer, request_id, answer)

    def _refuse(self, request_id: str, request: Mapping[str, Any], exc: Exception) -> None:
        if isinstance(exc, NotYet):
            self._inbox.postpone(request_id)
            return
        reason = str(exc)
        if not isinstance(exc, _EXPECTED):
            log.error("The request %r failed", request.get("do"), exc_info=exc)
            reason = f"{type(exc).__name__}: {exc}"
        self._reply(self._inbox.refuse, request_id, reason or type(exc).__name__, isinstance(exc, _FOR_NOW))

    def _reply(self, reply: Callable[..., None], request_id: str, *value: Any) -> None:
        try:
            reply(request_id, *value)
        except Exception as exc:
            # The request is still there, and is taken again with the next ones.
            log.error("The reply to a request cannot be written: %s: %s", type(exc).__name__, exc)
