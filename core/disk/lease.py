"""
The lead of an engine: one process works as it. A second one, of this master or of another one on the same cachedir, is
kept out by a lock on a file, which says who leads and in which epoch. The kernel releases the lock when the process ends.

Masters that work as one need PostgreSQL: ``core/postgresql/lease.py``.
"""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from saltext.jobs import __version__ as VERSION
from saltext.jobs.core.disk import files

#: Seconds without a sign of life after which a process looks dead.
SILENT = 35.0


class Leader(NamedTuple):
    """The process of an engine."""

    pid: int
    user: str
    host: str
    version: str = ""  # that of the extension; empty if it is not known
    epoch: int = 0  # Unix time of the takeover in microseconds, higher than all earlier ones; 0 if it is not known
    master: str = ""  # the id of its master
    run: str = ""  # an id of this run of the master, which changes with a restart
    place: str = ""  # of the database that it works in; empty if it is not known
    key: str = ""  # tells whether another process seals with the same key; empty if it seals nothing

    def __str__(self) -> str:
        return f"{self.pid} of {self.user} on {self.host}{self.master and f', master {self.master}'}"

    @property
    def since(self) -> float:
        """When it took the lead, in Unix time."""
        return self.epoch / 1e6

    def is_of(self, other: Leader) -> bool:
        """Tell whether both are known to be processes of one master that was not restarted in between."""
        return bool(self.run) and (self.host, self.master, self.run) == (other.host, other.master, other.run)

    def as_line(self) -> bytes:
        """Return what the file, or the row, says of it."""
        return f"{json.dumps(self._asdict())}\n".encode()


def leader_of(line: bytes) -> Leader | None:
    """Return the process that a line of ``as_line`` names; None if it names none."""
    try:
        return Leader(**json.loads(line))
    except (ValueError, TypeError):
        return None


def this_process(epoch: int, master: str, run: str, place: str = "", key: str = "") -> Leader:
    """Return this process as the leader of an epoch."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return Leader(os.getpid(), user, socket.gethostname(), VERSION, epoch, master, run, place, key)


class Lead(NamedTuple):
    """A process leads."""

    process: Leader | None  # None if that is not known
    silent: float | None  # seconds since it last said that it is alive; None if that is not known
    left: float | None = None  # seconds for which it still has its lease; None if it leads until it ends

    @property
    def hangs(self) -> float:
        """For how many seconds it has shown no sign of life; 0 for up to ``SILENT``, or if that is not known."""
        return self.silent if self.silent is not None and self.silent > SILENT else 0.0


class Lease:
    """The lead of an engine, which one process has. After ``take`` has returned True you must ``release`` it."""

    def __init__(self) -> None:
        self.predecessor: Leader | None = None  # the process that led before; None if that is not known
        self.leader: Leader | None = None  # this process, once it leads
        self.refused = 0  # how often something was refused, because this process did not lead or could not tell
        self.on_lost: Callable[[], None] = lambda: None  # called in any thread, once another process is seen to lead

    @property
    def epoch(self) -> int:
        """The epoch of this process, higher than all earlier epochs; 0 before it leads."""
        return self.leader.epoch if self.leader is not None else 0

    @property
    def left(self) -> float | None:
        """Seconds for which this process leads without a further renewal; None if it leads until it ends."""
        return None

    @property
    def is_takeover(self) -> bool:
        """Whether another master led before, or may have led. That master may have ended in the middle of anything."""
        return self.leader is None or self.predecessor is None or not self.leader.is_of(self.predecessor)

    def take(self) -> bool:
        """Take the lead if no process has it, and tell whether it did. :raises OSError, StateError: if it cannot tell."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise Superseded if another process leads, once ``on_lost`` was called; OSError if it is not known which leads."""

    def beat(self) -> None:
        """Say that this process is alive; called every ten seconds. :raises OSError: as ``check``."""
        raise NotImplementedError

    def release(self) -> None:
        """Let another process lead."""
        raise NotImplementedError


class FileLease(Lease):
    """``run``: an id of this run of the ``master``, which changes with a restart. Either may be empty: it is not known."""

    def __init__(self, path: pathlib.Path, master: str, run: str = "", place: str = "") -> None:
        super().__init__()
        self._path, self._master, self._run, self._place = path, master, run, place
        self._handle = -1

    def take(self) -> bool:
        handle = files.open_lock(self._path)
        try:
            is_free = files.hold(handle)
            if is_free:
                self._sign(handle)
                self._handle, handle = handle, -1
        finally:
            if handle >= 0:
                os.close(handle)
        return is_free

    def _sign(self, handle: int) -> None:
        self.predecessor = leader_of(os.pread(handle, 4096, 0))
        before = self.predecessor.epoch if self.predecessor is not None else 0
        epoch = max(before + 1, int(time.time() * 1_000_000))
        self.leader = this_process(epoch, self._master, self._run, self._place)
        line = self.leader.as_line()
        os.pwrite(handle, line, 0)
        os.ftruncate(handle, len(line))
        os.fsync(handle)

    def beat(self) -> None:
        os.utime(self._path)

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
