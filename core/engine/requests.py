"""
How a runner asks an engine for something: a durable file, and a wake-up on the bus.

The file is the request; the wake-up carries nothing, so that what is on the bus can control nothing. A request that is
made while the engine is down waits for it. States of a request are names of one file, changed by atomic renames:

    <id>.request   made, not yet seen: the runner may withdraw it
    <id>.taken     the engine works on it: it will be answered, after a crash too
    <id>.reply     the answer, which the runner removes

An engine must answer a request again in the same way when it finds it still taken after a restart.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import salt.utils.event
from salt.exceptions import CommandExecutionError

from saltext.jobs.core import lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import Leader, leader_in, no_fence, path_of
from saltext.jobs.core.errors import EngineAbsent, StateError
from saltext.jobs.core.master import events
from saltext.jobs.core.version import VERSION

log = lines.logger(__name__)

#: Seconds between two times that an engine says that it is alive, and after how many without it does not look so.
BEAT, SILENT = 10.0, 35.0
#: Seconds that a runner waits for an engine.
PATIENCE = 10.0
#: Seconds after which an answer that nobody fetched is removed.
_STALE = 3600.0
_POLL = 0.02


def engine_dir(opts: Mapping[str, Any], engine: str) -> pathlib.Path:
    """Return the directory of an engine's own files."""
    return lock_path(opts, engine).parent


def lock_path(opts: Mapping[str, Any], engine: str) -> pathlib.Path:
    """Return the lock file that an engine holds as long as it lives."""
    return path_of(opts["cachedir"], engine)


def is_running(opts: Mapping[str, Any], engine: str) -> bool:
    """Tell whether an engine of this master is alive."""
    return files.is_held(lock_path(opts, engine))


def silent_for(opts: Mapping[str, Any], engine: str) -> float:
    """
    Return for how many seconds an engine that runs has not said that it is alive, where that is too long.

    0 where it has, where none runs, and where it is not known, as of an engine of an earlier version.
    """
    process = process_of(opts, engine)
    if process is None or not process.tells_version:
        return 0.0
    try:
        silent = time.time() - lock_path(opts, engine).stat().st_mtime
    except OSError:
        return 0.0
    return silent if silent > SILENT else 0.0


def other_version(opts: Mapping[str, Any], engine: str) -> str:
    """Say that an engine that runs is of another version than this process, and what to do; empty where it is not."""
    process = process_of(opts, engine)
    if process is None or not VERSION or process.version == VERSION or (process.tells_version and not process.version):
        return ""
    theirs = process.version or "0.2.0 or an earlier version"
    return f"the {engine} engine runs {theirs} of saltext-jobs, and this is {VERSION}: restart the master"


def process_of(opts: Mapping[str, Any], engine: str) -> Leader | None:
    """Return the process of an engine that runs; None where none does, or where it has not said."""
    if not is_running(opts, engine):
        return None
    try:
        return leader_in(lock_path(opts, engine))
    except OSError:
        return None


class Inbox:
    """
    The engine's side.

    :param opts: the master's options.
    :param engine: the engine's name.
    :param fence: raises OSError where this process must not act any more, or it is not known whether it may.
    """

    def __init__(self, opts: Mapping[str, Any], engine: str, fence: Callable[[], None] = no_fence) -> None:
        self.engine, self._fence = engine, fence
        self._dir = engine_dir(opts, engine) / "requests"
        files.private_dir(self._dir)
        self._underway: set[str] = set()  # taken by this process, and not answered

    def take(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """
        Yield (id, request) of each request that is waiting, oldest first, after taking it.

        What an earlier engine took comes first, with a key ``again``: it may have been carried out already, and only the
        answer be missing. One that is damaged is set aside. :raises OSError: as ``fence``.
        """
        self._fence()
        for path in self._named(".taken", ".request"):
            if path.stem in self._underway:
                continue
            taken = path.with_suffix(".taken")
            try:
                os.replace(path, taken)
                request = files.read_msgpack(taken)
            except FileNotFoundError:
                continue  # withdrawn in this moment
            except StateError as exc:
                self._set_aside(taken, str(exc))
                continue
            except OSError as exc:
                log.error("A request cannot be read now, and is left for later: %s", exc)
                continue
            if isinstance(request, dict):
                self._underway.add(path.stem)
                yield path.stem, {**request, "again": True} if path == taken else request
            else:
                self._set_aside(taken, f"{taken} holds no mapping")

    def answer(self, request_id: str, value: Any) -> None:
        """Give the result of a request."""
        self._finish(request_id, {"value": value})

    def refuse(self, request_id: str, message: str) -> None:
        """Give the reason why a request is not carried out."""
        self._finish(request_id, {"error": message})

    def sweep(self, now: float) -> None:
        """Remove answers that nobody fetched."""
        for path in self._named(".reply", ".corrupt"):
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > _STALE:
                    path.unlink()

    def _set_aside(self, taken: pathlib.Path, reason: str) -> None:
        log.error("A request is set aside: %s", reason)
        try:
            files.set_aside(taken)
        except OSError as exc:
            log.error("It cannot even be renamed, which is tried again: %s", exc)

    def _finish(self, request_id: str, reply: dict[str, Any]) -> None:
        # If the answer cannot be written, the request is taken again. One that has taken over meanwhile answers it anew.
        self._underway.discard(request_id)
        self._fence()
        files.write_msgpack(self._dir / f"{request_id}.reply", reply)
        with contextlib.suppress(FileNotFoundError):
            (self._dir / f"{request_id}.taken").unlink()

    def _named(self, *suffixes: str) -> list[pathlib.Path]:
        try:
            names = sorted(name for name in os.listdir(self._dir) if not name.startswith("."))
        except OSError as exc:
            log.error("The requests cannot be listed: %s", exc)
            return []
        return [self._dir / name for suffix in suffixes for name in names if name.endswith(suffix)]


def ask(
    opts: Mapping[str, Any], engine: str, request: Mapping[str, Any], patience: float = PATIENCE, keep: bool = False
) -> Any:
    """
    Leave a request for an engine, wake it, and return its answer.

    :param patience: seconds to wait.
    :param keep: leave the request behind for an engine that does not answer, instead of withdrawing it; then None is
        returned when the engine is down, and it will see the request before it does anything else.
    :raises CommandExecutionError: with the engine's reason, when it refuses. (A SaltInvocationError would not make
        ``salt-run`` fail: Salt takes it for a question about usage.)
    :raises EngineAbsent: when the engine is of another version, and the request is not to be kept; when nobody answered in
        time: what became of the request is in the message. A Ctrl-C meanwhile
        withdraws the request, if it is not too late or to be kept, and raises a CommandExecutionError that says so.
    """
    other = other_version(opts, engine)
    if other and not keep:  # a stop is read by every version, and must not wait for a restart
        raise EngineAbsent(f"{other[0].upper()}{other[1:]}")
    path = _new_path(opts, engine)
    try:
        files.write_msgpack(path, dict(request), durable=True)
    except OSError as exc:
        raise CommandExecutionError(f"The request to the {engine} engine cannot be written: {exc}") from exc
    except (KeyboardInterrupt, SystemExit):  # Salt makes the one of the other
        raise CommandExecutionError(f"Interrupted; {_after_early_interruption(engine, path)}") from None
    if keep and not is_running(opts, engine):
        log.warning("The %s engine is not running; it will carry out the request when it starts", engine)
        return None
    try:
        _wake(opts, engine)
        reply = _await_reply(path, patience)
        if reply is None:
            reply = _give_up(opts, engine, path, keep)
    except (KeyboardInterrupt, SystemExit):
        raise CommandExecutionError(f"Interrupted; {_after_interruption(engine, path, keep)}") from None
    if "error" in reply:
        raise CommandExecutionError(reply["error"])
    return reply["value"]


def history(opts: Mapping[str, Any], engine: str) -> Any:
    """
    Return the figures that an engine has kept: see ``core.metrics.History``.

    :raises EngineAbsent: at once, where no engine runs; otherwise as ``ask``.
    """
    if not is_running(opts, engine):
        raise EngineAbsent(f"No {engine} engine runs on this master")
    return ask(opts, engine, {"do": "history"})


def waiting(opts: Mapping[str, Any], engine: str) -> list[dict[str, Any]]:
    """Return the requests that an engine has not taken yet, oldest first; what cannot be read is left out."""
    found = []
    for path in sorted((engine_dir(opts, engine) / "requests").glob("*.request")):
        with contextlib.suppress(StateError, OSError):
            request = files.read_msgpack(path)
            if isinstance(request, dict):
                found.append(request)
    return found


def longest_wait(opts: Mapping[str, Any], engine: str) -> float:
    """Return for how many seconds the oldest request has waited that an engine has not taken yet; 0 where none waits."""
    now, waits = time.time(), [0.0]
    for path in (engine_dir(opts, engine) / "requests").glob("*.request"):
        with contextlib.suppress(OSError):
            waits.append(now - path.stat().st_mtime)
    return max(waits)


def leave(opts: Mapping[str, Any], engine: str, request: Mapping[str, Any]) -> None:
    """
    Leave a request for an engine and wake it, without waiting for its answer.

    :raises OSError: when the request cannot be written.
    """
    files.write_msgpack(_new_path(opts, engine), dict(request), durable=True)
    _wake(opts, engine)


def _new_path(opts: Mapping[str, Any], engine: str) -> pathlib.Path:
    # Names sort by time, so that requests are taken in the order in which they were made.
    return engine_dir(opts, engine) / "requests" / f"{time.time_ns():020d}-{uuid.uuid4().hex}.request"


def _wake(opts: Mapping[str, Any], engine: str) -> None:
    if not is_running(opts, engine):
        return  # It looks for requests when it starts.
    with salt.utils.event.get_master_event(dict(opts), opts["sock_dir"], listen=False) as bus:
        bus.fire_event({}, events.wake_tag(engine))


def _await_reply(path: pathlib.Path, patience: float) -> dict[str, Any] | None:
    reply = path.with_suffix(".reply")
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        value: dict[str, Any] | None = None
        with contextlib.suppress(OSError):  # which may pass
            value = files.read_msgpack(reply)
        if value is not None:
            with contextlib.suppress(OSError):
                reply.unlink()
            return value
        time.sleep(_POLL)
    return None


def _give_up(opts: Mapping[str, Any], engine: str, path: pathlib.Path, keep: bool) -> dict[str, Any]:
    where = f"The {engine} engine {_absence(opts, engine)}"
    if keep:
        raise EngineAbsent(f"{where}; the request stays and will be carried out.")
    try:
        path.unlink()
    except FileNotFoundError:
        # It was taken in this moment: the engine owes an answer.
        reply = _await_reply(path, PATIENCE)
        if reply is None:
            raise EngineAbsent(f"{where}; it has taken the request and may carry it out later.") from None
        return reply
    raise EngineAbsent(f"{where}; the request is withdrawn.")


def _absence(opts: Mapping[str, Any], engine: str) -> str:
    """Say why an engine has not answered, and where to look."""
    if not is_running(opts, engine):
        return "is not running (is it under `engines:` in the master's configuration?)"
    silent, process = silent_for(opts, engine), process_of(opts, engine)
    if not silent:
        return "did not answer in time: it is busy, or look in the master's log"
    which = f" (process {process})" if process else ""
    return f"has not answered for {silent:.0f} s{which}: it hangs or is stopped; look in the master's log"


def _after_interruption(engine: str, path: pathlib.Path, keep: bool) -> str:
    """Withdraw a request nobody waits for any more, where that is wanted and possible; say what becomes of it."""
    if keep:
        return f"the {engine} engine will carry out the request"
    try:
        path.unlink()
    except FileNotFoundError:
        return f"the {engine} engine has taken the request already and carries it out"
    return "the request is withdrawn"


def _after_early_interruption(engine: str, path: pathlib.Path) -> str:
    """As ``_after_interruption``, of a request that was being written: it may have no name yet, or be taken."""
    if any(path.with_suffix(state).exists() for state in (".request", ".taken", ".reply")):
        return _after_interruption(engine, path, keep=False)
    return "the request is withdrawn"
