"""
The files of an engine on a disk, by names such as ``requests/<id>.request``, relative to its folder.

A failure to look must never be reported as a missing file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib

from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.journal import Journal

#: The errors that mean that there is no file of that name, or that there can be none.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class FileFolder:
    """
    After an OSError other than FileNotFoundError it is not known whether the file is there.

    :param path: the directory, which the first write makes.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def where(self, name: str = "") -> str:
        """Return how messages name a file, or the folder: where an operator finds it."""
        return str(self.path / name)

    def read(self, name: str) -> bytes:
        """Return the content of a file. :raises FileNotFoundError: when it is not there. :raises OSError:"""
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes, durable: bool = False) -> None:
        """
        Replace a file as a whole: a reader sees the old content or the new one.

        :param durable: whether it must survive a power cut when this returns.
        :raises OSError: the old content stays. If only durability is uncertain, a power cut may leave either content.
        """
        files.write_atomic(self.path / name, data, durable)

    def names(self, below: str) -> list[str]:
        """Return the names of the files in ``below``, each with ``below/`` before it, sorted. :raises OSError:"""
        try:
            found = os.listdir(self.path / below)
        except FileNotFoundError:
            return []
        return sorted(f"{below}/{name}" for name in found if not name.startswith("."))

    def modified(self, name: str) -> float:
        """Return when a file was last written, in Unix time. :raises FileNotFoundError, OSError:"""
        return os.stat(self.path / name).st_mtime

    def rename(self, old: str, new: str) -> None:
        """Rename a file; it replaces a file that has the new name. :raises FileNotFoundError, OSError:"""
        os.replace(self.path / old, self.path / new)

    def set_aside(self, name: str) -> str:
        """
        Rename an unusable file to ``<name>.corrupt``, set its time to now, and return where it is. If there is no file,
        do nothing. :raises OSError:
        """
        aside = files.set_aside(self.path / name)
        with contextlib.suppress(FileNotFoundError):
            os.utime(aside)
        return str(aside)

    def remove(self, name: str) -> bool:
        """Remove a file, and tell whether it was there. :raises OSError:"""
        try:
            os.unlink(self.path / name)
        except FileNotFoundError:
            return False
        return True

    def exists(self, *names: str) -> bool:
        """Tell whether one of these is there. :raises OSError: when that cannot be told."""
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
        """Remove unfinished files in ``below``, which a killed process has left. :raises OSError:"""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.path / below):
                if name.startswith("."):
                    (self.path / below / name).unlink(missing_ok=True)

    def journal(self, name: str) -> Journal:
        """Return the journal of that name, whether or not there is one."""
        return Journal(self.path / name)
