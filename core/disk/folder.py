"""
The files of an engine, by names that are relative to its folder. ``core/site.py`` says what each method does.

A failure to look must never be reported as a missing file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
from collections.abc import Callable

from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.journal import Journal
from saltext.jobs.core.disk.lease import no_fence

#: The errors that mean that there is no file of that name, or that there can be none.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class FileFolder:
    """
    :param path: the directory, which the first write makes.
    :param fence: raises OSError if this process must not write any more, or if that is not known.
    """

    def __init__(self, path: pathlib.Path, fence: Callable[[], None] = no_fence) -> None:
        self.path, self._fence = path, fence

    def where(self, name: str = "") -> str:
        """Return how messages name a file."""
        return str(self.path / name)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes, durable: bool = False) -> None:
        """Replace a file as a whole."""
        files.write_atomic(self.path / name, data, durable, fence=self._fence)

    def names(self, below: str) -> list[str]:
        """Return the names of the files."""
        try:
            found = os.listdir(self.path / below)
        except FileNotFoundError:
            return []
        return sorted(f"{below}/{name}" for name in found if not name.startswith("."))

    def modified(self, name: str) -> float:
        """Return when a file was last written, in Unix time."""
        return os.stat(self.path / name).st_mtime

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        self._fence()
        os.replace(self.path / old, self.path / new)

    def set_aside(self, name: str) -> str:
        """Rename a file that cannot be used, and return its new path."""
        self._fence()
        aside = files.set_aside(self.path / name)
        with contextlib.suppress(FileNotFoundError):
            os.utime(aside)
        return str(aside)

    def remove(self, name: str) -> bool:
        """Remove a file, and tell whether it was there."""
        self._fence()
        try:
            os.unlink(self.path / name)
        except FileNotFoundError:
            return False
        return True

    def exists(self, *names: str) -> bool:
        """Tell whether one of these is there."""
        return any(map(self._is_there, names))

    def _is_there(self, name: str) -> bool:
        try:
            os.stat(os.path.join(self.path, name))
        except OSError as exc:
            if exc.errno not in _ABSENT:
                raise
            return False
        return True

    def sweep(self, below: str) -> None:
        """Remove unfinished files."""
        self._fence()
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.path / below):
                if name.startswith("."):
                    (self.path / below / name).unlink(missing_ok=True)

    def journal(self, name: str) -> Journal:
        """Return a journal."""
        return Journal(self.path / name, self._fence)
