"""
Files of the master's user that are replaced as a whole, and locks. All are private, and replaced atomically.

Files that are appended to have modules of their own. What root makes in a directory belongs to that directory's owner:
the master may run as another user, and must be able to read and replace the file. That user may have put a link there. So
root must never follow a link, nor give away a file that it has not made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat
import tempfile
import time
from typing import Any

import salt.payload

from saltext.jobs.core.errors import StateError

#: How often a lock is tried while others only look at it, and seconds between two tries.
_TRIES, _PAUSE = 100, 0.001


def private_dir(path: pathlib.Path) -> None:
    """Make a directory, with its parents, that only its owner may enter. :raises OSError:"""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            if os.geteuid() == 0:
                handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    _give_to_owner_of(folder.parent, handle)
                finally:
                    os.close(handle)


def _give_to_owner_of(folder: pathlib.Path, handle: int) -> None:
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(handle, owner.st_uid, owner.st_gid)


def write_atomic(path: pathlib.Path, data: bytes, mode: int = 0o600) -> None:
    """
    Replace a file: a reader sees the old content or the new one. Only its owner may read it.

    :param mode: other permissions, for what others are meant to read.
    :raises OSError: the old content stays.
    """
    private_dir(path.parent)
    # Its name begins with a dot, which identifies files that a crash has left.
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            _give_to_owner_of(path.parent, handle)
            stream.write(data)
            os.fchmod(handle, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_msgpack(path: pathlib.Path) -> Any:
    """
    Return the content of a msgpack file, or None if there is no file.

    :raises StateError: when it is damaged.
    :raises OSError: when it cannot be read at this moment; it may be whole.
    """
    try:
        return salt.payload.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError:
        raise
    except Exception as exc:  # Salt and msgpack raise many kinds for a broken file.
        raise StateError(f"{path} is damaged: {type(exc).__name__}: {exc}") from exc


def write_msgpack(path: pathlib.Path, value: Any) -> None:
    """Replace a file by the msgpack form of ``value``. :raises OSError: as ``write_atomic``."""
    write_atomic(path, salt.payload.dumps(value))


def open_lock(path: pathlib.Path) -> int:
    """
    Open a lock file, which is made if it is missing, and return its descriptor.

    :raises StateError: when there is something else in its place. :raises OSError:
    """
    private_dir(path.parent)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise StateError(
                f"{path} is a symbolic link, which this extension never makes: find out who did, and remove it"
            ) from exc
        raise
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(handle)
        raise StateError(f"{path} is not a plain file with a single name: remove it")
    _give_to_owner_of(path.parent, handle)
    return handle


def hold(handle: int) -> bool:
    """
    Lock an open lock file, and tell whether that succeeded: no process held it. Processes that only look (``is_held``)
    share it for a moment, so this one tries again.

    :raises OSError:
    """
    for _ in range(_TRIES):
        if _flock(handle, fcntl.LOCK_EX):
            return True
        if not _flock(handle, fcntl.LOCK_SH):
            return False
        fcntl.flock(handle, fcntl.LOCK_UN)
        time.sleep(_PAUSE)
    return False


def _flock(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: pathlib.Path) -> bool:
    """Tell whether a process holds the lock file. Any number of processes can look at once."""
    if not os.path.lexists(path):
        return False
    handle = open_lock(path)
    try:
        return not _flock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)
