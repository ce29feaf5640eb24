"""
How a runner asks an engine for something: a durable file, and a wake-up on the bus.

The file is the request. The wake-up carries no data, so an engine cannot be controlled over the bus. A request waits
while the engine is down. Its state is the suffix of its file, changed by an atomic rename:

    <id>.request   made, not yet taken: the runner may withdraw it
    <id>.taken     the engine works on it, and will answer it even after a crash
    <id>.reply     the answer, which the runner removes

An engine that finds a taken request after a restart must give the same answer as before.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack
import salt.payload
import salt.utils.event
from salt.exceptions import CommandExecutionError

from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Leader, Lease
from saltext.jobs.core.errors import EngineAbsent, NotNow, Refused, StateError
from saltext.jobs.core.master import events
from saltext.jobs.core.site import Folder, read_msgpack, site_of, write_msgpack
from saltext.jobs.core.version import VERSION

log = lines.logger(__name__)

#: Seconds between two signs of life of an engine, and seconds without one after which it looks dead.
BEAT, SILENT = 10.0, 35.0
#: Seconds after which an answer that nobody fetched, or a request that was set aside, is removed.
_STALE = 3600.0
#: Seconds between two looks for an answer: the shortest, and the longest.
_POLL, _SLOWEST = 0.02, 0.2
#: The folder of requests in an engine's folder.
_BELOW = "requests"


def is_running(opts: Mapping[str, Any], engine: str) -> bool:
    """Tell whether a process leads an engine, on this master or on one that shares its site."""
    return site_of(opts, engine).is_led(engine)


def silent_for(opts: Mapping[str, Any], engine: str) -> float:
    """
    Return for how many seconds a running engine has shown no sign of life, if that is longer than ``SILENT``.

    Returns 0 if the last sign is more recent, if no engine runs, and if the last sign is not known.
    """
    process = process_of(opts, engine)
    if process is None:
        return 0.0
    try:
        site = site_of(opts, engine)
        alive_at = site.alive_at(engine)
        silent = site.now() - alive_at if alive_at is not None else 0.0
    except OSError:
        return 0.0
    return silent if silent > SILENT else 0.0


def other_version(opts: Mapping[str, Any], engine: str) -> str:
    """
    Say that a running engine has another version than this process, and what to do.

    Empty if it has the same, if none runs, or if its version is not known.
    """
    process = process_of(opts, engine)
    if process is None or process.version in (VERSION, ""):
        return ""
    return f"the {engine} engine runs {process.version} of saltext-jobs, and this is {VERSION}: restart the master"


def process_of(opts: Mapping[str, Any], engine: str) -> Leader | None:
    """Return the process of a running engine; None if none runs, or if it is not known which."""
    site = site_of(opts, engine)
    if not site.is_led(engine):
        return None
    try:
        return site.leader(engine)
    except OSError:
        return None


class Inbox:
    """
    The engine's side of requests.

    :param opts: the master's options.
    :param engine: the engine's name.
    :param lease: the lease by which this process leads; None if no other process could lead.
    """

    def __init__(self, opts: Mapping[str, Any], engine: str, lease: Lease | None = None) -> None:
        self.engine, self._folder = engine, site_of(opts, engine).folder(engine, lease)
        self._underway: set[str] = set()  # taken by this process, and not answered

    def take(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """
        Take each waiting request, oldest first, and yield its id and content.

        Requests that were taken before and not answered come first, with a key ``again``: they may have been carried out
        already, and lack only the answer. A damaged request is set aside.
        """
        for name in self._named(".taken", ".request"):
            request_id = _id_of(name)
            if request_id in self._underway:
                continue
            taken = _name(request_id, ".taken")
            try:
                self._folder.rename(name, taken)
                request = read_msgpack(self._folder, taken)
            except FileNotFoundError:
                continue  # withdrawn at this moment
            except StateError as exc:
                self._set_aside(taken, str(exc))
                continue
            except OSError as exc:
                log.error("A request cannot be read; trying again later: %s", exc)
                continue
            if isinstance(request, dict):
                self._underway.add(request_id)
                yield request_id, {**request, "again": True} if name == taken else request
            else:
                self._set_aside(taken, f"{self._folder.where(taken)} holds no mapping")

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
        """Remove answers that nobody fetched, and requests that were set aside, once they are old."""
        for name in self._named(".reply", ".corrupt"):
            with contextlib.suppress(OSError):
                if now - self._folder.modified(name) > _STALE:
                    self._folder.remove(name)

    def _set_aside(self, taken: str, reason: str) -> None:
        log.error("A request is set aside: %s", reason)
        try:
            self._folder.set_aside(taken)
        except OSError as exc:
            log.error("A damaged request cannot be renamed; trying again: %s", exc)

    def _finish(self, request_id: str, reply: dict[str, Any]) -> None:
        # If the answer cannot be written, the request is taken again: by this process, or by one that leads by now. What was
        # answered is never taken again, not even after a power cut.
        self._underway.discard(request_id)
        self._folder.exchange(_name(request_id, ".taken"), _name(request_id, ".reply"), salt.payload.dumps(reply))

    def _named(self, *suffixes: str) -> list[str]:
        try:
            names = self._folder.names(_BELOW)
        except OSError as exc:
            log.error("The requests cannot be listed: %s", exc)
            return []
        return [name for suffix in suffixes for name in names if name.endswith(suffix)]


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
    site, request_id = site_of(opts, engine), _new_id()
    folder = site.folder(engine)
    try:
        write_msgpack(folder, _name(request_id, ".request"), dict(request), durable=True)
    except OSError as exc:
        raise NotNow(f"The request to the {engine} engine cannot be written: {exc}") from exc
    if keep and not is_running(opts, engine):
        log.warning("The %s engine is not running; it will carry out the request when it starts", engine)
        return None
    try:
        _wake(opts, engine)
        reply = _await_reply(folder, request_id, site.patience if patience is None else patience)
        if reply is None:
            reply = _give_up(opts, engine, folder, request_id, keep)
    except (KeyboardInterrupt, SystemExit):  # Salt may turn a Ctrl-C into either
        is_gone = not keep and folder.remove(_name(request_id, ".request"))
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
    """Return the requests that an engine has not taken yet, oldest first, without unreadable ones."""
    folder, found = site_of(opts, engine).folder(engine), []
    with contextlib.suppress(OSError):
        for name in folder.names(_BELOW):
            with contextlib.suppress(StateError, OSError):
                request = read_msgpack(folder, name) if name.endswith(".request") else None
                if isinstance(request, dict):
                    found.append(request)
    return found


def leave(opts: Mapping[str, Any], engine: str, request: Mapping[str, Any]) -> None:
    """
    Leave a request for an engine and wake it, without waiting for its answer.

    :raises OSError: if the request cannot be written.
    """
    write_msgpack(site_of(opts, engine).folder(engine), _name(_new_id(), ".request"), dict(request), durable=True)
    _wake(opts, engine)


def _new_id() -> str:
    # Ids sort by time, so that requests are taken in the order in which they were made.
    return f"{time.time_ns():020d}-{uuid.uuid4().hex}"


def asked_at(request_id: str) -> float:
    """Return when a request was made, in Unix time by the clock of the runner's machine; infinity if its id does not say."""
    number = request_id.partition("-")[0]
    return int(number) / 1e9 if number.isascii() and number.isdigit() else math.inf


def _name(request_id: str, state: str) -> str:
    return f"{_BELOW}/{request_id}{state}"


def _id_of(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0]


def _wake(opts: Mapping[str, Any], engine: str) -> None:
    if not is_running(opts, engine):
        return  # an engine looks for requests when it starts
    fire(opts, events.wake_tag(engine), {})


def fire(opts: Mapping[str, Any], tag: str, data: dict[str, Any]) -> None:
    """Put an event on this master's bus."""
    with salt.utils.event.get_master_event(dict(opts), opts["sock_dir"], listen=False) as bus:
        bus.fire_event(data, tag)


def _await_reply(folder: Folder, request_id: str, patience: float) -> dict[str, Any] | None:
    reply = _name(request_id, ".reply")
    deadline, pause = time.monotonic() + patience, _POLL
    while time.monotonic() < deadline:
        value: dict[str, Any] | None = None
        with contextlib.suppress(OSError):  # the fault may pass
            value = read_msgpack(folder, reply)
        if value is not None:
            with contextlib.suppress(OSError):
                folder.remove(reply)
            return value
        time.sleep(pause)
        pause = min(1.2 * pause, _SLOWEST)
    return None


def _give_up(opts: Mapping[str, Any], engine: str, folder: Folder, request_id: str, keep: bool) -> dict[str, Any]:
    where = f"The {engine} engine {_absence(opts, engine)}"
    if keep:
        raise EngineAbsent(f"{where}; the request stays and will be carried out.")
    if folder.remove(_name(request_id, ".request")):
        raise EngineAbsent(f"{where}; the request is withdrawn.")
    # The engine has just taken it, and owes an answer.
    reply = _await_reply(folder, request_id, site_of(opts, engine).patience)
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
