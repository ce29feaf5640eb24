"""
Files of the master's user that are replaced as a whole, and locks: what is here is private and atomic.

What is appended to has its own modules beside this one. What root makes below a directory belongs to that directory's
owner: the master may run as another user, and must be able to read and replace it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import salt.payload

from saltext.jobs.core.errors import StateError


def private_dir(path: pathlib.Path) -> None:
    """Make a directory, with those above it, that nobody but its owner may enter. :raises OSError:"""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            _give_to_owner_of(folder.parent, folder)


def _give_to_owner_of(folder: pathlib.Path, path: str | pathlib.Path) -> None:
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def new_temporary(path: pathlib.Path) -> tuple[int, str]:
    """
    Make an empty private file beside ``path``, to be renamed to it, and return (descriptor, name).

    Its name begins with a dot; one that a crash has left can be told by that. :raises OSError:
    """
    private_dir(path.parent)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        _give_to_owner_of(path.parent, temporary)
    except OSError:
        os.close(handle)
        os.unlink(temporary)
        raise
    return handle, temporary


def write_atomic(path: pathlib.Path, data: bytes, durable: bool = False) -> None:
    """
    Replace a file: a reader sees the old content or the new, and nobody but its owner may read it.

    :param durable: whether content and name must survive a power cut when this returns.
    :raises OSError: with the old content left as it was, unless it is the sync of the name that failed: then either may be
        there after a power cut.
    """
    handle, temporary = new_temporary(path)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(path: pathlib.Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_msgpack(path: pathlib.Path) -> Any:
    """
    Return what a msgpack file holds, or None where there is no file.

    :raises StateError: when it is damaged.
    :raises OSError: when it cannot be read at this moment; it may be whole.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return salt.payload.loads(data)
    except Exception as exc:  # Salt and msgpack raise many kinds for a broken file.
        raise StateError(f"{path} is damaged: {type(exc).__name__}: {exc}") from exc


def write_msgpack(path: pathlib.Path, value: Any, durable: bool = False) -> None:
    """Replace a file by the msgpack form of ``value``. :raises OSError: as ``write_atomic``."""
    write_atomic(path, salt.payload.dumps(value), durable)


def set_aside(path: pathlib.Path) -> pathlib.Path:
    """Rename a file that cannot be used to ``<name>.corrupt``, replacing an earlier one, and return the new path."""
    target = path.with_name(path.name + ".corrupt")
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, target)
    return target


@contextlib.contextmanager
def single_holder(path: pathlib.Path) -> Iterator[bool]:
    """
    Hold a lock file while the block runs; yields whether it was free.

    The kernel releases the lock when the holder dies, however it dies.
    """
    private_dir(path.parent)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _give_to_owner_of(path.parent, path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(handle)


def is_held(path: pathlib.Path) -> bool:
    """Tell whether somebody holds the lock file."""
    if not path.exists():
        return False
    with single_holder(path) as free:
        return not free
