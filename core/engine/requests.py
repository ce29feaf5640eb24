"""
How a runner asks an engine for something: a row in the database (``core/ledger/requests.py``), and a wake-up on the bus.

The row is the request. The wake-up carries no data, so an engine cannot be controlled over the bus. A request waits
while the engine is down. An engine that finds a taken request after a restart must give the same answer as before.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgpack
import salt.payload
import salt.utils.event
from salt.exceptions import CommandExecutionError

from saltext.jobs.core import lines
from saltext.jobs.core.disk import stored
from saltext.jobs.core.disk.lease import Leader, Lease
from saltext.jobs.core.errors import EngineAbsent, NotNow, Refused
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.master import events
from saltext.jobs.core.site import site_of
from saltext.jobs.core.version import VERSION

log = lines.logger(__name__)

#: Seconds between two signs of life of an engine, and seconds without one after which it looks dead.
BEAT, SILENT = 10.0, 35.0
#: Seconds after which an answer that nobody fetched is removed.
_STALE = 3600.0
#: Seconds between two looks for an answer: the shortest, and the longest.
_POLL, _SLOWEST = 0.02, 0.2


def is_running(opts: Mapping[str, Any], engine: str) -> bool:
    """Tell whether a process leads an engine, on this master or on one that shares its site."""
    return site_of(opts).lead(engine) is not None


def silent_for(opts: Mapping[str, Any], engine: str) -> float:
    """Return for how many seconds a running engine has shown no sign of life; 0 for up to ``SILENT``, or if not known."""
    lead = site_of(opts).lead(engine)
    silent = lead.silent or 0.0 if lead is not None else 0.0
    return silent if silent > SILENT else 0.0


def other_version(opts: Mapping[str, Any], engine: str) -> str:
    """Say that a running engine is known to have another version than this process, and what to do; empty if not."""
    process = process_of(opts, engine)
    if process is None or process.version in (VERSION, ""):
        return ""
    return f"the {engine} engine runs {process.version} of saltext-jobs, and this is {VERSION}: restart the master"


def process_of(opts: Mapping[str, Any], engine: str) -> Leader | None:
    """Return the process of a running engine; None if none runs, or if it is not known which."""
    lead = site_of(opts).lead(engine)
    return lead.process if lead is not None else None


def driver_of(opts: Mapping[str, Any], engine: str) -> str | None:
    """Return the master whose engine works for all masters of a site; None if none does, or for a master alone."""
    process = process_of(opts, engine)
    return process.master if process is not None and opts.get("saltext_jobs_site") else None


def leading(opts: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """
    Return ``{"engine": whether one runs, "process": which one, on which machine and of which master, "since": when it took
    the lead, in Unix time}``; None for what is not known.
    """
    lead = site_of(opts).lead(engine)
    process = lead.process if lead is not None else None
    return {"engine": lead is not None, "process": process and str(process), "since": process and process.since}


class Inbox:
    """The engine's side of requests. :param lease: by which this process leads; None if no other process could lead."""

    def __init__(self, opts: Mapping[str, Any], engine: str, lease: Lease | None = None) -> None:
        self.engine, self._requests = engine, Requests(site_of(opts).tables, engine, lease)
        #: Writes the answer to a request. If it does so later, it must do so in the end.
        self.write: Callable[[str, bytes], None] = self._requests.answer
        self._underway: set[str] = set()  # taken by this process, and not answered

    def take(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """
        Take each waiting request, oldest first, and yield its id and content.

        Requests that were taken before and not answered come first, with a key ``again``: they may have been carried out
        already, and lack only the answer. A damaged request is refused.
        """
        try:
            found = self._requests.open()
            self._underway.intersection_update(each.id for each in found)
            for request_id, taken, body in found:
                if request_id in self._underway or not (taken or self._requests.take(request_id)):
                    continue
                self._underway.add(request_id)
                request = _content_of(body)
                if request is not None:
                    yield request_id, {**request, "again": True} if taken else request
                    continue
                log.error("A request to the %s engine is damaged, and is refused: %s", self.engine, request_id)
                self.refuse(request_id, "The request is damaged")
        except OSError as exc:
            log.error("The requests cannot be taken now; trying again later: %s", exc)

    def answer(self, request_id: str, value: Any) -> None:
        """Give the result of a request. :raises OSError:"""
        self._finish(request_id, {"value": value})

    def refuse(self, request_id: str, message: str, for_now: bool = False) -> None:
        """Give the reason why a request is not carried out; ``for_now``: the same one may be, later. :raises OSError:"""
        self._finish(request_id, {"error": message, "for_now": for_now})

    def postpone(self, request_id: str) -> None:
        """Have a request taken again with the next ones; it then has the key ``again``."""
        self._underway.discard(request_id)

    def sweep(self, now: float) -> None:
        """Remove answers that nobody has fetched for long."""
        with contextlib.suppress(OSError):
            self._requests.sweep(now - _STALE)

    def _finish(self, request_id: str, reply: dict[str, Any]) -> None:
        try:
            self.write(request_id, salt.payload.dumps(reply))
        except Exception:
            self._underway.discard(request_id)  # it is taken again: by this process, or by one that leads by now
            raise


def _content_of(body: bytes) -> dict[str, Any] | None:
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
    Leave a request for an engine, wake it, and return its answer.

    A Ctrl-C withdraws the request, unless the engine has taken it, or ``keep`` is set. The CommandExecutionError that
    follows says what becomes of the request.

    :param patience: seconds to wait; by default those of the site.
    :param keep: leave the request for an engine that does not answer, instead of withdrawing it. If the engine is down, None
        is returned, and the engine takes the request when it starts.
    :raises CommandExecutionError: with the engine's reason, when it refuses. (A SaltInvocationError would not make
        ``salt-run`` fail: Salt takes it for a question about usage.)
    :raises NotNow: when the request cannot be written, or the engine refuses it because something fails.
    :raises Refused: for a request that cannot be written so that it can be read.
    :raises EngineAbsent: when the engine is of another version, unless ``keep`` is set; and when no answer comes in time.
        Then the message says what becomes of the request.
    """
    other = other_version(opts, engine)
    # Every version can read a kept request (a stop, a pause, a change of the queue). Such a request must not wait for a
    # restart.
    if other and not keep:
        raise EngineAbsent(f"{other[0].upper()}{other[1:]}")
    try:
        msgpack.unpackb(salt.payload.dumps(dict(request)), strict_map_key=False, raw=True)
    except Exception as exc:  # msgpack raises many kinds
        why = f"{type(exc).__name__}: {exc}"
        raise Refused(f"An argument cannot be handed to the engine, such as a list as a key: {why}") from exc
    site, request_id = site_of(opts), new_id()
    asked = Requests(site.tables, engine)
    try:
        try:
            asked.add(request_id, salt.payload.dumps(dict(request)))
        except OSError as exc:
            raise NotNow(f"The request to the {engine} engine cannot be written: {exc}") from exc
        if keep and not is_running(opts, engine):
            log.warning("The %s engine is not running; it will carry out the request when it starts", engine)
            return None
        _wake(opts, engine)
        reply = _await_reply(asked, request_id, site.patience if patience is None else patience)
        if reply is None:
            reply = _give_up(opts, engine, asked, request_id, keep)
    except (KeyboardInterrupt, SystemExit):  # Salt may turn a Ctrl-C into either
        is_gone = not keep and asked.withdraw(request_id)
        raise CommandExecutionError(
            "Interrupted; the request is withdrawn"
            if is_gone
            else f"Interrupted; the {engine} engine carries out the request"
        ) from None
    if "error" in reply:
        raise (NotNow if reply["for_now"] else CommandExecutionError)(reply["error"])
    return reply["value"]


def history(opts: Mapping[str, Any], engine: str) -> Any:
    """
    Return the figures that an engine has kept; see ``core.metrics.History``.

    :raises EngineAbsent: at once if no engine runs; otherwise as ``ask``.
    """
    if not is_running(opts, engine):
        raise EngineAbsent(f"No {engine} engine runs on this master")
    return ask(opts, engine, {"do": "history"})


def waiting(opts: Mapping[str, Any], engine: str) -> list[dict[str, Any]]:
    """Return the requests that an engine has not answered yet, oldest first, without unreadable ones."""
    found = []
    with contextlib.suppress(OSError):
        found = [_content_of(each.body) for each in Requests(site_of(opts).tables, engine).open()]
    return [request for request in found if request is not None]


def leave(opts: Mapping[str, Any], engine: str, request: Mapping[str, Any]) -> None:
    """
    Leave a request for an engine and wake it, without waiting for its answer.

    :raises OSError: if the request cannot be written.
    """
    Requests(site_of(opts).tables, engine).add(new_id(), salt.payload.dumps(dict(request)))
    _wake(opts, engine)


def new_id() -> str:
    """Return the id of a request. Ids sort by time: requests are taken in the order in which they were made."""
    return f"{time.time_ns():020d}-{uuid.uuid4().hex}"


def asked_at(request_id: str) -> float:
    """Return when a request was made, in Unix time by the clock of the runner's machine; infinity if its id does not say."""
    number = request_id.partition("-")[0]
    return int(number) / 1e9 if number.isascii() and number.isdigit() else math.inf


def _wake(opts: Mapping[str, Any], engine: str) -> None:
    if not is_running(opts, engine):
        return  # an engine looks for requests when it starts
    fire(opts, events.wake_tag(engine), {})


def fire(opts: Mapping[str, Any], tag: str, data: dict[str, Any]) -> None:
    """Put an event on this master's bus."""
    with salt.utils.event.get_master_event(dict(opts), opts["sock_dir"], listen=False) as bus:
        bus.fire_event(data, tag)


def _await_reply(asked: Requests, request_id: str, patience: float) -> dict[str, Any] | None:
    deadline, pause = time.monotonic() + patience, _POLL
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # the fault may pass
            if (reply := asked.reply(request_id)) is not None:
                with contextlib.suppress(OSError):
                    asked.forget(request_id)
                return _content_of(reply)
        time.sleep(pause)
        pause = min(1.2 * pause, _SLOWEST)
    return None


def _give_up(opts: Mapping[str, Any], engine: str, asked: Requests, request_id: str, keep: bool) -> dict[str, Any]:
    where = f"The {engine} engine {_absence(opts, engine)}"
    if keep:
        raise EngineAbsent(f"{where}; the request stays and will be carried out.")
    if asked.withdraw(request_id):
        raise EngineAbsent(f"{where}; the request is withdrawn.")
    # The engine has just taken it, and owes an answer.
    reply = _await_reply(asked, request_id, site_of(opts).patience)
    if reply is None:
        raise EngineAbsent(f"{where}; it has taken the request and may carry it out later.")
    return reply


def _absence(opts: Mapping[str, Any], engine: str) -> str:
    """Return why an engine has not answered, and where to look for the cause."""
    if not is_running(opts, engine):
        return "is not running (is it under `engines:` in the master's configuration?)"
    silent, process = silent_for(opts, engine), process_of(opts, engine)
    if not silent:
        return "did not answer in time: it is busy, or it failed: look in the master's log"
    which = f" (process {process})" if process else ""
    return f"has not answered for {silent:.0f} s{which}: it hangs or is stopped; look in the master's log"
