"""
File locks below the cache directory: of all processes of this master, one at a time does something to one job.

``salt.cache`` has no compare-and-set. Only one lock may be held at a time: different names may share a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterator

from salt.exceptions import SaltCacheError

from saltext.jobs.core.disk.local_banks import make_folder, owner_for_root

FILES = 64  # a fixed number, so that they never pile up

_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class Locks:
    """:param cachedir: the master's cache directory."""

    def __init__(self, cachedir: str) -> None:
        self._folder = os.path.join(cachedir, "salt_cache.locks")
        self._owner = owner_for_root(cachedir)

    @contextlib.contextmanager
    def hold(self, *names: str) -> Iterator[None]:
        """Keep whoever else on this master names the same out of the block. :raises SaltCacheError: when that fails."""
        number = zlib.crc32("\0".join(names).encode()) % FILES
        handle = self._file(number)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError as exc:  # as on a network file system without a lock manager
                raise SaltCacheError(f"Job cache lock {self._path(number)} cannot be held: {exc}") from exc
            try:
                yield
            finally:
                # Closing is not enough: a process forked meanwhile has the file open too.
                fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number:02x}")

    def _file(self, number: int) -> int:
        path = self._path(number)
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
