"""
How a runner asks an engine for something: by a row in the database (``core/ledger/requests.py``). So no event on the bus
controls an engine, and a request waits while the engine is down. The second half of the file is the engine's side.

An engine must never leave a request without a reply: the waiting runner is told anything that goes wrong. One whose answer
is not known yet is taken again later. An engine that finds a taken request after a restart must answer it as before.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgpack
import salt.payload
from salt.exceptions import CommandExecutionError, SaltException

from saltext.jobs import __version__ as VERSION
from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Leader, Lease
from saltext.jobs.core.errors import EngineAbsent, JobCacheError, NotNow, NotYet, Refused, StateError
from saltext.jobs.core.ledger import stored
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.options import is_configured
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

#: Seconds to wait for an engine: of a master alone, and of several, since another one takes over within that time.
_PATIENCE, _TAKEOVER = 10.0, 45.0
#: Requests that only read: that such a one is withdrawn says nothing to whoever wants to see figures.
_READS = frozenset({"metrics", "history", "stats", "set_aside"})
#: Seconds between two looks for an answer: the shortest, and the longest.
_POLL, _SLOWEST = 0.02, 0.2


def is_running(opts: Mapping[str, Any], engine: str) -> bool:
    """Tell whether a process leads an engine, on this master or on one that shares its site."""
    return site_of(opts).lead(engine) is not None


def differs(opts: Mapping[str, Any], engine: str, process: Leader | None, kept: bool = False) -> str:
    """
    Say that the process of an engine is known to have another key, version or database, and what to do; empty if not.
    ``kept``: for a request that every version can read (a stop, a pause, a change of the queue), so it must not wait.
    """
    site = site_of(opts)
    if process is not None and process.key not in (site.seal.mark((), "leader"), ""):
        return f"the {engine} engine ({process}) has another key than this master: all masters need the same one"
    if process is not None and not kept and process.place not in (site.place, ""):
        return f"the {engine} engine works in {process.place}, and `cache:` says {site.place}: restart the master"
    version = "" if process is None or kept else process.version
    told = f"the {engine} engine runs {version} of saltext-jobs, and this is {VERSION}: restart the master"
    return told if version not in (VERSION, "") else ""


def process_of(opts: Mapping[str, Any], engine: str) -> Leader | None:
    """Return the process of a running engine; None if none runs, or if it is not known which."""
    lead = site_of(opts).lead(engine)
    return lead.process if lead is not None else None


def leading(opts: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """
    Return engine (whether one runs), engine_silent_seconds (None if it answers), process, since, and engine_master: the
    master whose engine works for all masters of a site; None for a master alone.
    """
    lead = site_of(opts).lead(engine)
    process, silent = (lead.process, round(lead.hangs) or None) if lead is not None else (None, None)
    master = process.master if process is not None and opts.get("saltext_jobs_site") else None
    told = {"process": process and str(process), "since": process and process.since, "engine_master": master}
    return {"engine": lead is not None, "engine_silent_seconds": silent, **told}


def content_of(body: bytes) -> dict[str, Any] | None:
    """Return what is packed in a row; None if it is damaged."""
    try:
        found = stored.loads(body)
    except Exception:  # msgpack raises many kinds
        return None
    return found if isinstance(found, dict) else None


def ask(
    opts: Mapping[str, Any], engine: str, request: Mapping[str, Any], patience: float | None = None, keep: bool = False
) -> Any:
    """
    Leave a request for an engine, and return its answer. A Ctrl-C withdraws the request, unless the engine has taken it, or
    ``keep`` is set.

    :param patience: seconds to wait; by default those of the site.
    :param keep: leave the request for an engine that does not answer. If the engine is down, None is returned, and the
        engine takes the request when it starts.
    :raises CommandExecutionError: with the engine's reason, when it refuses, and after a Ctrl-C. (A SaltInvocationError
        would not make ``salt-run`` fail: Salt takes it for a question about usage.)
    :raises NotNow: when the request cannot be written, or the engine refuses it because something fails.
    :raises Refused: for a request that cannot be written so that it can be read.
    :raises EngineAbsent: when the engine ``differs``; and when no answer comes in time, with what becomes of the request.
    """
    if other := differs(opts, engine, process_of(opts, engine), keep):
        raise EngineAbsent(f"{other[0].upper()}{other[1:]}")
    try:
        body = salt.payload.dumps(dict(request))
        msgpack.unpackb(body, strict_map_key=False, raw=True)
    except Exception as exc:  # msgpack raises many kinds
        why = f"{type(exc).__name__}: {exc}"
        raise Refused(f"An argument cannot be handed to the engine, such as a list as a key: {why}") from exc
    site, request_id = site_of(opts), new_id()
    patience = patience or (_TAKEOVER if site.is_far else _PATIENCE)
    asked, withdrawn = Requests(site, engine), "" if request.get("do") in _READS else "; the request is withdrawn"
    try:
        try:
            asked.add(request_id, body)
        except OSError as exc:
            raise NotNow(f"The request to the {engine} engine cannot be written: {exc}") from exc
        if keep and not is_running(opts, engine):
            log.warning("The %s engine is not running; it will carry out the request when it starts", engine)
            return None
        reply = _await_reply(asked, request_id, patience)
        if reply is None:
            where = f"The {engine} engine {_absence(opts, engine)}"
            if keep:
                raise EngineAbsent(f"{where}; the request stays and will be carried out.")
            if asked.withdraw(request_id):
                raise EngineAbsent(f"{where}{withdrawn}")
            reply = _await_reply(asked, request_id, patience)  # the engine has just taken it, and owes an answer
            if reply is None:
                raise EngineAbsent(f"{where}; it has taken the request and may carry it out later.")
    except (KeyboardInterrupt, SystemExit):  # Salt may turn a Ctrl-C into either
        is_gone = not keep and asked.withdraw(request_id)
        what = withdrawn if is_gone else f"; the {engine} engine carries out the request"
        raise CommandExecutionError(f"Interrupted{what}") from None
    if "error" in reply:
        raise (NotNow if reply["for_now"] else CommandExecutionError)(reply["error"])
    return reply["value"]


def history(opts: Mapping[str, Any], engine: str) -> Any:
    """Return the figures that an engine has kept (``core.metrics.History``). :raises EngineAbsent: if none runs."""
    if not is_running(opts, engine):
        raise EngineAbsent(f"No {engine} engine runs on this master")
    return ask(opts, engine, {"do": "history"})


def waiting(opts: Mapping[str, Any], engine: str) -> list[dict[str, Any]]:
    """Return the requests that an engine has not answered yet, oldest first, without unreadable ones."""
    with contextlib.suppress(OSError):
        found = (content_of(each.body) for each in Requests(site_of(opts), engine).open())
        return [request for request in found if request is not None]
    return []


def leave(opts: Mapping[str, Any], engine: str, request: Mapping[str, Any]) -> None:
    """Leave a request for an engine, without waiting for its answer. :raises OSError: if it cannot be written."""
    Requests(site_of(opts), engine).add(new_id(), salt.payload.dumps(dict(request)))


def new_id() -> str:
    """Return the id of a request, which says when it is made."""
    return f"{time.time_ns():020d}-{uuid.uuid4().hex}"


def asked_at(request_id: str) -> float:
    """Return when a request was made, in Unix time by the clock of the runner's machine; infinity if its id does not say."""
    number = request_id.partition("-")[0]
    return int(number) / 1e9 if number.isascii() and number.isdigit() else math.inf


def _await_reply(asked: Requests, request_id: str, patience: float) -> dict[str, Any] | None:
    deadline, pause = time.monotonic() + patience, _POLL
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # the fault may pass
            if (reply := asked.reply(request_id)) is not None:
                with contextlib.suppress(OSError):
                    asked.forget(request_id)
                return content_of(reply)
        time.sleep(pause)
        pause = min(1.2 * pause, _SLOWEST)
    return None


def _absence(opts: Mapping[str, Any], engine: str) -> str:
    """Return why an engine has not answered, and where to look for the cause."""
    lead = site_of(opts).lead(engine)
    if lead is None:
        why = "restart the master if it is new under `engines:`, or else see the master's log"
        return f"is not running: {why if is_configured(opts, engine) else '`engines:` does not name it'}"
    if not lead.hangs:
        return "did not answer in time: it is busy, or it failed: look in the master's log"
    which = f" (process {lead.process})" if lead.process else ""
    return f"has not answered for {lead.hangs:.0f} s{which}: it hangs or is stopped; if it ends, the master restarts it"


# -- the engine's side --------------------------------------------------------------------------------------------------

#: Carries out a request, as the runner made it with ``asked_at`` (Unix time). It may have been carried out before, by a
#: process that has ended since. Returns the answer, or an awaitable of it; may raise ``NotYet``.
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
        """Carry out all waiting requests: each begins at once, in order; coroutines go on side by side."""
        for request_id, request in self.taken():
            with self._refusing(request_id, request):
                value = self._verb(request)({**request, "asked_at": asked_at(request_id)})
                if inspect.isawaitable(value):
                    self._loop.spawn_callback(self._finish, request_id, request, value)
                else:
                    self.reply(request_id, {"value": value})

    def taken(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Take each waiting request, oldest first, and yield its id and content. Old answers that nobody fetched go."""
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
                    yield request_id, request
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
            raise ValueError(f"The {self._engine} engine knows no request {do!r}, but {', '.join(sorted(self.verbs))}")
        return self.verbs[do]

    async def _finish(self, request_id: str, request: Mapping[str, Any], value: Awaitable[Any]) -> None:
        with self._refusing(request_id, request):
            self.reply(request_id, {"value": await value})

    @contextlib.contextmanager
    def _refusing(self, request_id: str, request: Mapping[str, Any]) -> Iterator[None]:
        """Answer a request with what is raised; or take it again later."""
        try:
            yield
        except NotYet:
            self._loop.call_later(min(AGAIN, 10 * self._pause), self._underway.discard, request_id)
        except Exception as exc:
            reason = str(exc)
            if not isinstance(exc, _EXPECTED):
                log.error("The request %r failed", request.get("do"), exc_info=exc)
                reason = f"{type(exc).__name__}: {exc}"
            if asked_at(request_id) < time.time() - _TAKEOVER:  # nobody waits
                log.warning("A request of %s (%s) is refused: %s", request.get("user"), request.get("do"), reason)
            self.reply(request_id, {"error": reason or type(exc).__name__, "for_now": isinstance(exc, _FOR_NOW)})

    def reply(self, request_id: str, reply: Mapping[str, Any]) -> None:
        """Answer a request: ``{"value": …}``, or ``{"error": why not, "for_now": whether it may be carried out later}``."""
        try:
            self._write(request_id, salt.payload.dumps(dict(reply)))
        except Exception as exc:
            self._underway.discard(request_id)  # it is taken again: by this process, or by one that leads by now
            told = "The reply to a request cannot be written: %s: %s"
            self._quiet.error("reply", told, type(exc).__name__, exc)
