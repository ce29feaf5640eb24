"""
The order of the processes that wait to write to one file.

Each has a ticket: a lock on one byte of ``.lock``. The byte's number is the time at which the process came, so the order
does not depend on who runs first, and the ticket of a process that ends is gone. Its owner sleeps on a socket that is named
after the number. No process may rely on being woken: the process that should wake it may be killed or frozen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator

#: Most seconds of a sleep with a ticket, and seconds of a sleep on a system without tickets.
LONGEST, WITHOUT = 0.1, 0.02

#: C's struct flock; and the kind of the sockets.
_LOCK, _SOCKET = "hhqqi", socket.SOCK_DGRAM | getattr(socket, "SOCK_NONBLOCK", 0)


@contextlib.contextmanager
def ticket(handle: int) -> Iterator[tuple[Callable[[float], None], Callable[[], bool]]]:
    """
    Take the last place. Yield a function that sleeps until this process is woken, but at most for some seconds, and one
    that tells whether this process is the first. When its place is free again, the first of the others is woken.

    :param handle: a descriptor of ``.lock`` that nobody else uses.
    """
    if sys.platform != "linux":  # no order: each sleeps, and tries
        yield lambda seconds: time.sleep(WITHOUT), lambda: True
        return
    number = time.monotonic_ns()
    while not _has_taken(handle, number):
        number += 1
    try:
        with socket.socket(socket.AF_UNIX, _SOCKET) as bed:
            with contextlib.suppress(OSError):  # then nobody wakes it
                bed.bind(_name(number))

            def sleep(seconds: float) -> None:
                bed.settimeout(seconds)
                with contextlib.suppress(TimeoutError):
                    bed.recv(1)

            yield sleep, lambda: first_of(handle, number) is None
    finally:
        # Closing is not enough: a child process that was forked meanwhile has the descriptor too.
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0))
        wake(first_of(handle))


def first_of(handle: int, before: int = 0) -> int | None:
    """
    Return the number of the first ticket of others; None if there is none.

    :param before: only look for tickets before this number; 0 looks for any.
    """
    if sys.platform != "linux":
        return None
    wanted = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, before, 0)
    kind, _, number, _, _ = struct.unpack(_LOCK, fcntl.fcntl(handle, fcntl.F_OFD_GETLK, wanted))
    # The system names any of them, usually the first.
    return None if kind == fcntl.F_UNLCK else first_of(handle, number) or number


def wake(number: int | None) -> bool:
    """Wake the owner of a ticket. Tell whether that succeeded: a frozen one can be woken a few times only."""
    if number is not None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, _SOCKET) as sender:
            sender.sendto(b"", _name(number))
            return True
    return False


def _has_taken(handle: int, number: int) -> bool:
    """Take a ticket, unless another process came at the same moment."""
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0))
    except BlockingIOError:
        return False
    return True


def _name(number: int) -> str:
    """Return the name of a socket, which needs no file."""
    return f"\0saltext-jobs-{number}"
