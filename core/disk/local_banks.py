"""
The localfs cache driver's layout, read and written directly: a directory for each bank, a msgpack file ``<key>.p``
for each key.

The driver itself takes 0.4 ms of CPU to write a value, and a fleet that comes back makes it write tens of thousands. What
is written here can be read through salt.cache, and the other way round. It must never be used with unchecked ids: they
become paths.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from typing import Any

import salt.payload

from saltext.jobs.core.disk import packed

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
#: Other users may read them, if the umask allows it, and never write them.
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755
#: Tries to write a draft: another process may remove the directory along with the last key in it.
_TRIES = 10
#: Bytes of a file that are read at a time. Most files have less.
_PIECE = 16 << 10


class LocalBanks:
    """
    Behaves as ``salt.cache.Cache`` does with localfs. Files belong to the owner of the cache directory.

    :param cachedir: the master's cache directory.
    """

    def __init__(self, cachedir: str) -> None:
        self._root = cachedir
        self._pid = os.getpid()
        self._owner = owner_for_root(cachedir)

    def store(self, bank: str, key: str, value: Any) -> None:
        """
        Replace a value. A reader sees the old one or the new.

        :raises OSError: and the old value stays, without a draft of the new one.
        """
        folder = f"{self._root}/{bank}"
        draft = f"{folder}/.{self._pid}-{threading.get_ident()}"
        data = memoryview(salt.payload.dumps(value, use_bin_type=True))
        handle = self._new_file(folder, draft)
        try:
            if self._owner:
                os.fchown(handle, *self._owner)
            while data:
                data = data[os.write(handle, data) :]
            os.rename(draft, f"{folder}/{key}.p")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        finally:
            os.close(handle)

    def _new_file(self, folder: str, draft: str) -> int:
        for _ in range(_TRIES):
            try:
                return os.open(draft, _NEW_FILE, _FILE_MODE)
            except FileNotFoundError:  # the bank's first value, or the directory was removed
                make_folder(folder, self._owner, _FOLDER_MODE)
            except FileExistsError:  # left by a process that was killed, with the same number
                os.unlink(draft)
        return os.open(draft, _NEW_FILE, _FILE_MODE)

    def fetch(self, bank: str, key: str, default: Any = None) -> Any:
        """
        Return a value; if there is none, ``default`` or ``{}``.

        :raises Exception: anything that msgpack raises for a broken file.
        """
        try:
            data = _content(f"{self._root}/{bank}/{key}.p")
        except (FileNotFoundError, NotADirectoryError):
            return {} if default is None else default
        return packed.loads(data)

    def contains(self, bank: str, key: str) -> bool:
        """Tell whether there is a value."""
        return os.path.isfile(f"{self._root}/{bank}/{key}.p")

    def updated(self, bank: str, key: str) -> float | None:
        """Return the Unix time of the last write, or None if there is no value."""
        try:
            return os.stat(f"{self._root}/{bank}/{key}.p").st_mtime
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, bank: str) -> list[str]:
        """Return all names in a bank's directory: keys with ``.p``, sub-banks, half-written files."""
        try:
            return os.listdir(os.path.join(self._root, bank))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def list(self, bank: str) -> list[str]:
        """Return the keys of a bank: neither sub-banks nor half-written files."""
        return [name[:-2] for name in self.names(bank) if name.endswith(".p")]

    def flush(self, bank: str, key: str | None = None) -> None:
        """Remove a key, and the bank with its last key; without a key the whole bank."""
        folder = os.path.join(self._root, bank)
        if key is None:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                shutil.rmtree(folder)
            return
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(os.path.join(folder, f"{key}.p"))
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # refused as long as there is anything in it


def _content(path: str) -> bytes:
    """Return what is in a file. A file object would take as long as all the rest."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(handle, _PIECE)]
        while len(parts[-1]) == _PIECE:
            parts.append(os.read(handle, _PIECE))
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(handle)


def owner_for_root(cachedir: str) -> tuple[int, int] | None:
    """
    Return the user and group that are to own what this process makes below ``cachedir``; None if its own are right.

    A master that runs as another user could not use root's files.
    """
    try:
        found = os.stat(cachedir)
    except OSError:
        return None
    return (found.st_uid, found.st_gid) if os.geteuid() == 0 and found.st_uid != 0 else None


def make_folder(folder: str, owner: tuple[int, int] | None, mode: int = 0o700) -> None:
    """Make a directory, and those above it that are missing. :raises OSError:"""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, mode)
        except FileExistsError:
            continue  # another process was faster
        if owner:
            os.chown(folder, *owner, follow_symlinks=False)
