"""
Wakes one of the processes that wait for their turn: the one that has waited longest.

They sleep on a named pipe, and the process that leaves the queue writes a byte to it. So they need not try again and
again. But no process may rely on being woken: the one that should write may be killed, or the pipe removed.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator

from saltext.jobs.core.disk.local_banks import owner_for_root

#: Most seconds of a sleep with a pipe, and seconds of a sleep without one.
LONGEST, WITHOUT = 0.1, 0.02

_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class Wakeup:
    """:param path: of the named pipe; it is made when a process first has to sleep."""

    def __init__(self, path: str) -> None:
        self.path = path

    @contextlib.contextmanager
    def sleeper(self) -> Iterator[Callable[[float], None]]:
        """Yield a function that sleeps until this process is woken, but at most for some seconds."""
        # On other systems a pipe without writers never blocks.
        handle = self._opened(os.O_RDWR) if sys.platform == "linux" else -1
        if handle < 0:
            yield lambda seconds: time.sleep(min(seconds, WITHOUT))
            return
        try:
            with select.epoll() as queue:
                queue.register(handle, select.EPOLLIN | select.EPOLLEXCLUSIVE)

                def sleep(seconds: float) -> None:
                    if queue.poll(seconds):
                        with contextlib.suppress(BlockingIOError):  # another one was faster
                            os.read(handle, 1)

                yield sleep
        finally:
            os.close(handle)

    def wake(self) -> None:
        """Wake the process that has waited longest, if one sleeps."""
        with contextlib.suppress(OSError):  # nobody sleeps
            handle = os.open(self.path, os.O_WRONLY | _FLAGS)
            try:
                if stat.S_ISFIFO(os.fstat(handle).st_mode):
                    os.write(handle, b"\0")
            finally:
                os.close(handle)

    def _opened(self, mode: int) -> int:
        """Return a descriptor of the pipe; -1 if there can be none."""
        try:
            try:
                handle = os.open(self.path, mode | _FLAGS)
            except FileNotFoundError:
                self._make()
                handle = os.open(self.path, mode | _FLAGS)
        except OSError:
            return -1
        if stat.S_ISFIFO(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        return -1

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.path, 0o600)
            owner = owner_for_root(os.path.dirname(self.path))
            if owner:
                os.chown(self.path, *owner, follow_symlinks=False)
