"""
File locks below the cache directory: only one process of this master at a time changes a job.

``salt.cache`` has no compare-and-set. Never hold two locks at once: different names may share a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterator

from salt.exceptions import SaltCacheError

from saltext.jobs.core.disk.local_banks import make_folder, owner_for_root

FILES = 64  # a fixed number, so that files never pile up
#: The file of the names that were taken last, how many it holds, and the bytes of each.
_TAKEN, _LAST, _NAME_BYTES = "taken", 64, 64

_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Locks:
    """:param cachedir: the master's cache directory."""

    def __init__(self, cachedir: str) -> None:
        self._folder = os.path.join(cachedir, "salt_cache.locks")
        self._owner = owner_for_root(cachedir)

    @contextlib.contextmanager
    def hold(self, *names: str) -> Iterator[None]:
        """Hold the lock of these names. :raises SaltCacheError: if that fails."""
        with self._held(f"{zlib.crc32(chr(0).join(names).encode()) % FILES:02x}"):
            yield

    def take(self, name: str) -> bool:
        """
        Take a name, unless it is among the names taken last on this master; return whether it was taken.

        :raises SaltCacheError: if that cannot be told.
        """
        wanted = name.encode()[-_NAME_BYTES:].ljust(_NAME_BYTES, b"\0")
        with self._held(_TAKEN) as handle:
            try:
                known = os.pread(handle, _LAST * _NAME_BYTES, 0)
                if any(known.startswith(wanted, at) for at in range(0, len(known), _NAME_BYTES)):
                    return False
                os.pwrite(handle, (wanted + known)[: _LAST * _NAME_BYTES], 0)
            except OSError as exc:
                raise SaltCacheError(f"{self._path(_TAKEN)} cannot be written: {exc}") from exc
        return True

    @contextlib.contextmanager
    def _held(self, name: str) -> Iterator[int]:
        handle = self._file(name)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError as exc:  # as on a network file system without locks
                raise SaltCacheError(f"Job cache lock {self._path(name)} cannot be held: {exc}") from exc
            try:
                yield handle
            finally:
                # Closing is not enough: a child process that was forked meanwhile has the file open too.
                fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _file(self, name: str) -> int:
        path = self._path(name)
        try:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, _OPEN)
            make_folder(self._folder, self._owner)
            try:
                handle = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                return os.open(path, _OPEN)
            if self._owner:
                os.fchown(handle, *self._owner)
            return handle
        except OSError as exc:
            raise SaltCacheError(f"Job cache lock {path} cannot be opened: {exc}") from exc
