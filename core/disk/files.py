"""
Files that are replaced as a whole, folders and locks.

What root makes in a directory belongs to that directory's owner: the master may run as another user, and must be able to
read and replace the file. That user may have put a link there. So root must never follow a link, nor give away a file that
it has not made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import stat
import threading
import time
from collections.abc import Iterator
from typing import Any

import salt.payload

from saltext.jobs.core.errors import StateError

#: Seconds between two tries to take a lock while others only look at it.
_PAUSE = 0.001
#: Tries to make a draft: another process may remove the directory along with the last file in it.
_DRAFTS = 10

Path = str | os.PathLike[str]


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Make a directory, and those above it, with these permissions, which the umask narrows. :raises OSError:"""
    missing, folder = [], os.fspath(folder)
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(folder, mode)
            if os.geteuid() == 0:
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    give(handle, os.path.dirname(folder))
                finally:
                    os.close(handle)


def give(handle: int, folder: str) -> None:
    """Give an open file, which this process has just made in ``folder``, to the owner of ``folder`` if this is root."""
    if os.geteuid() == 0 and (owner := _owner_of(folder))[0] != 0:
        os.fchown(handle, *owner)


@functools.lru_cache(maxsize=256)
def _owner_of(folder: str) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_uid, found.st_gid


def write_atomic(
    path: Path, data: bytes, mode: int = 0o600, folder_mode: int = 0o700, by_umask: bool = False, new: bool = False
) -> None:
    """
    Replace a file: a reader sees the old content or the new one. ``by_umask``: the umask narrows ``mode`` too.

    :raises OSError: if that fails; the old content stays.
    :raises FileExistsError: if it must be ``new``, and something has that name.
    """
    path = os.fspath(path)
    folder = path.rpartition("/")[0]
    # Its name begins with a dot, which identifies files that a crash has left.
    draft = f"{folder}/.{os.getpid()}-{threading.get_ident()}"
    handle = _new_file(folder, draft, mode, folder_mode)
    try:
        give(handle, folder)
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        if not by_umask:
            os.fchmod(handle, mode)
        if new and _has_linked(draft, path):
            os.unlink(draft)
        else:
            os.rename(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    finally:
        os.close(handle)


def _has_linked(draft: str, path: str) -> bool:
    """
    Give a draft its name, and tell whether that was possible. It is not on a file system without hard links, where two
    writers may take the name at one moment. :raises FileExistsError: if something has that name.
    """
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "There is something", path) from None
        return False
    return True


def _new_file(folder: str, path: str, mode: int, folder_mode: int) -> int:
    for _ in range(_DRAFTS):
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        except FileNotFoundError:
            make_folder(folder, folder_mode)
        except FileExistsError:  # left by a process that was killed, with the same number
            os.unlink(path)
    raise FileNotFoundError(errno.ENOENT, "The directory is removed again and again", folder)


def read_msgpack(path: Path) -> Any:
    """Return what a msgpack file has, or None. :raises StateError: if damaged. :raises OSError: if unreadable."""
    try:
        with open(path, "rb") as stream:
            data = stream.read()
    except FileNotFoundError:
        return None
    try:
        return salt.payload.loads(data)
    except Exception as exc:  # Salt and msgpack raise many kinds for a broken file.
        raise StateError(f"{path} is damaged: {type(exc).__name__}: {exc}") from exc


def open_lock(path: Path) -> int:
    """Open a lock file, made if it is missing, and return its descriptor. :raises StateError: if it is something else."""
    path = os.fspath(path)
    folder, flags = path.rpartition("/")[0], os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        try:
            handle = os.open(path, flags, 0o600)
        except FileNotFoundError:
            make_folder(folder)
            handle = os.open(path, flags, 0o600)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise StateError(f"{path} is a link, which this extension never makes: remove it") from exc
        raise
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(handle)
        raise StateError(f"{path} is not a plain file with a single name: remove it")
    give(handle, folder)
    return handle


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold a lock file, for which this waits, and yield its descriptor. :raises OSError, StateError: as ``open_lock``."""
    handle = open_lock(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield handle
        finally:
            # Closing is not enough: a child process that was forked meanwhile has the file open too.
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def hold(handle: int) -> bool:
    """
    Lock an open lock file, and tell whether that succeeded: no process held it. Processes that only look (``is_held``)
    share it for a moment, so this one tries again. :raises OSError:
    """
    while not _flock(handle, fcntl.LOCK_EX):
        if not _flock(handle, fcntl.LOCK_SH):
            return False  # it is held; else others only look
        fcntl.flock(handle, fcntl.LOCK_UN)
        time.sleep(_PAUSE)
    return True


def _flock(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: Path) -> bool:
    """Tell whether a process holds the lock file. Any number of processes can look at once."""
    if not os.path.lexists(path):
        return False
    handle = open_lock(path)
    try:
        return not _flock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)
