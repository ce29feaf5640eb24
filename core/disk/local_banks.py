"""
The localfs cache driver's layout, written the short way: a directory for each bank, a msgpack file ``<key>.p`` for each key.

The driver itself takes 0.4 ms of CPU for each value, and a fleet that comes back writes tens of thousands. Whatever is
written here reads as ever through salt.cache, and the other way round. It must never be used with ids that were not
checked: they become paths.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import salt.payload


class LocalBanks:
    """
    Behaves as ``salt.cache.Cache`` does with localfs, for one writer. Files are for their owner only.

    :param cachedir: the master's cache directory.
    """

    def __init__(self, cachedir: str) -> None:
        self._root = cachedir
        self._known: set[str] = set()  # directories that were there when last looked

    def store(self, bank: str, key: str, value: Any) -> None:
        """Replace a value. A reader sees the old one or the new. :raises OSError: and leaves the old one."""
        folder = os.path.join(self._root, bank)
        draft, path = os.path.join(folder, f".{key}.new"), os.path.join(folder, f"{key}.p")
        data = salt.payload.dumps(value)
        try:
            self._write(folder, draft, data)
            os.replace(draft, path)
        except OSError:
            self._known.discard(folder)
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise

    def _write(self, folder: str, draft: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        if folder not in self._known:
            _make(folder)
            self._known.add(folder)
        try:
            handle = os.open(draft, flags, 0o600)
        except FileNotFoundError:  # somebody has removed the directory
            _make(folder)
            handle = os.open(draft, flags, 0o600)
        try:
            if os.write(handle, data) != len(data):
                raise OSError(f"{draft} could not be written whole")
        finally:
            os.close(handle)

    def fetch(self, bank: str, key: str) -> Any:
        """Return a value, ``{}`` where there is none. :raises Exception: whatever msgpack raises for a broken file."""
        try:
            with open(os.path.join(self._root, bank, f"{key}.p"), "rb") as stream:
                return salt.payload.loads(stream.read())
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def list(self, bank: str) -> list[str]:
        """Return the keys of a bank."""
        try:
            names = os.listdir(os.path.join(self._root, bank))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name[:-2] for name in names if name.endswith(".p")]

    def flush(self, bank: str, key: str) -> None:
        """Remove a key, and its bank with the last one."""
        folder = os.path.join(self._root, bank)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(os.path.join(folder, f"{key}.p"))
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # refused as long as there is anything in it
            self._known.discard(folder)


def _make(folder: str) -> None:
    """Make a directory, as a rule the last one of its path only."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        os.makedirs(folder, mode=0o700, exist_ok=True)
