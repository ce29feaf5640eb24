"""
Processes that the demo starts. Each leads its own session. So Ctrl-C reaches only the demo, and everything that a daemon has
started can be found and ended with it.

It must never signal a process that is not in one of these sessions.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

#: Seconds that a daemon gets to stop by itself.
_GRACE = 10.0
_POLL = 0.1

_CHANCE = random.SystemRandom()  # forked processes may have the same seed
#: For each port that ``free_port`` has returned, what keeps it from other processes as long as this one lives.
_KEPT: list[socket.socket] = []


def free_port() -> int:
    """
    Return a port of the loopback for a server that is still to be started, and perhaps restarted.

    It is below the ports that the kernel chooses: one of those may go to another program while the server is away. And no
    other process that calls this gets the port as long as this one lives.
    """
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _CHANCE.randrange(10_000, lowest)
        kept = socket.socket(socket.AF_UNIX)
        try:
            kept.bind(f"\0saltext-jobs port {port}")
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
        else:
            _KEPT.append(kept)
            return port


def wait_for(probe: Callable[[], T], seconds: float) -> T | None:
    """Call ``probe`` until it returns something true, and return that; None when ``seconds`` have passed."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL)


class Daemon:
    """A process that runs until it is stopped. What it prints goes to ``output``."""

    def __init__(self, command: Sequence[str], output: pathlib.Path) -> None:
        self._command = list(command)
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it in a session of its own."""
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/"
            )

    def is_alive(self) -> bool:
        """Tell whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def ask_to_stop(self) -> None:
        """Send SIGTERM, once."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """Stop it and its whole session; processes that do not end in time are killed."""
        if self._process is None:
            return
        self.ask_to_stop()
        session = self._process.pid
        wait_for(lambda: not self.is_alive() and not _members(session), _GRACE)
        while _members(session):
            for pid in _members(session):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(_POLL)
        self._process = None


def is_running(pid: int) -> bool:
    """Tell whether a process exists; a zombie does not count."""
    status = _status(pid)
    return status is not None and status[0] != "Z"


def family(pid: int) -> set[int]:
    """Return ``pid`` and all that descend from it."""
    parents = {child: status[1] for child in _all() if (status := _status(child))}
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def _members(session: int) -> list[int]:
    return [pid for pid in _all() if (status := _status(pid)) and status[2] == session and status[0] != "Z"]


def _all() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _status(pid: int) -> tuple[str, int, int] | None:
    """Return (state, parent, session) of a process, or None if there is none; see proc(5)."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, parent, _group, session = text.rpartition(")")[2].split()[:4]
    return state, int(parent), int(session)
