"""
Faults that a test really causes. Where that is not possible, calls of the operating system pretend to fail.

They apply to the whole process with its threads, as long as the block runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import resource
import signal
import stat

from tests.waiting import wait_for


@contextlib.contextmanager
def _limit(kind, value):
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def full_disk():
    """No file grows: each write fails with EFBIG, "File too large". Names can still be made and removed."""
    return _limit(resource.RLIMIT_FSIZE, 0)


def no_more_files():
    """No file can be opened: each ``open`` fails with EMFILE, "Too many open files"."""
    return _limit(resource.RLIMIT_NOFILE, 0)


@contextlib.contextmanager
def failing_syncs(monkeypatch, of_folders=False):
    """
    No write is certain to outlive a power cut: each sync fails with EIO, "Input/output error".

    No limit makes a disk do that, so the system's own calls are replaced.

    :param of_folders: only syncs of folders fail, that is, of names.
    """

    def failing(true):
        def sync(handle):
            if not of_folders or stat.S_ISDIR(os.fstat(handle).st_mode):
                raise OSError(errno.EIO, "Input/output error")
            true(handle)

        return sync

    with monkeypatch.context() as broken:
        for name in ("fsync", "fdatasync"):
            broken.setattr(os, name, failing(getattr(os, name)))
        yield


def freeze(*pids):
    """
    Have processes stand still, each with all its threads, until ``thaw``.

    The signal is obeyed after ``kill`` has returned. On a busy machine a thread answers a request before it stands still.

    :raises ProcessLookupError: if none of them is there.
    """
    if not sum(_send(pid, signal.SIGSTOP) for pid in pids):
        raise ProcessLookupError(f"none of {pids} is there")
    wait_for(lambda: all(map(is_frozen, pids)), what="they stand still")


def thaw(*pids):
    """Let them go on, those that are still there."""
    for pid in pids:
        _send(pid, signal.SIGCONT)


def _send(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def is_frozen(pid):
    """Whether no thread of a process can run: it has stopped, or has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        threads = [path.read_text() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
        return all(line.rpartition(")")[2].split()[0] in "TtZX" for line in threads)
    return not os.path.exists(f"/proc/{pid}")  # else a thread has ended meanwhile
