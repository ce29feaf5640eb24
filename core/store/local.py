"""
The driver localfs: a directory for each bank, a msgpack file ``<key>.p`` for each key.

Salt's own functions take 0.4 ms to write a value, list half-written files as keys, and before Salt 3008 cut names that end
in ``p``. What is written here can be read through ``salt.cache``, and the other way round. It must never be used with
unchecked ids: they become paths.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import salt.payload

from saltext.jobs.core.disk import stored
from saltext.jobs.core.disk.files import write_atomic
from saltext.jobs.core.store.calling import Undecodable
from saltext.jobs.core.store.drivers import ABSENT, Driver

#: Bytes of a file that are read at a time. Most files have less.
_PIECE = 16 << 10
_MISSING = (FileNotFoundError, NotADirectoryError)


class Local(Driver):
    """Files belong to the owner of the cache directory. Other users may read them, if the umask allows it."""

    lists_banks = True

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self.folder = opts["cachedir"]

    def banks(self, bank: str) -> list[str]:
        names: list[str] = self._call("names", bank)
        return names

    def _read(self, bank: str, key: str) -> Any:
        try:
            return self._call("read", bank, key)
        except Undecodable as exc:
            return exc

    def fetch(self, bank: str, key: str) -> Any:
        value = self._call("read", bank, key)
        return {} if value is ABSENT else value

    def _call(self, name: str, bank: str, *args: Any) -> Any:
        try:
            return _CALLS[name](f"{self.folder}/{bank}", *args)
        except Exception as exc:  # msgpack raises many kinds for a broken file
            raise self.error(name, bank, args[0] if args else None, exc) from None


def _read(folder: str, key: str) -> Any:
    """Return a value; ABSENT if there is none. A file object would take as long as all the rest."""
    try:
        handle = os.open(f"{folder}/{key}.p", os.O_RDONLY)
    except _MISSING:
        return ABSENT
    try:
        parts = [os.read(handle, _PIECE)]
        while len(parts[-1]) == _PIECE:
            parts.append(os.read(handle, _PIECE))
    finally:
        os.close(handle)
    return stored.loads(parts[0] if len(parts) == 1 else b"".join(parts))


def _store(folder: str, key: str, value: Any) -> None:
    data = salt.payload.dumps(value, use_bin_type=True)
    write_atomic(f"{folder}/{key}.p", data, 0o644, 0o755, by_umask=True)


def _contains(folder: str, key: str) -> bool:
    return os.path.isfile(f"{folder}/{key}.p")


def _updated(folder: str, key: str) -> float | None:
    try:
        return os.stat(f"{folder}/{key}.p").st_mtime
    except _MISSING:
        return None


def _flush(folder: str, key: str | None = None) -> None:
    """Remove a key, and the bank with its last key; without a key the whole bank."""
    with contextlib.suppress(*_MISSING):
        if key is None:
            shutil.rmtree(folder)
            return
        os.unlink(f"{folder}/{key}.p")
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # refused as long as there is anything in it


def _names(folder: str) -> list[str]:
    """Return all names in a bank's directory: keys with ``.p``, sub-banks, half-written files."""
    try:
        return os.listdir(folder)
    except _MISSING:
        return []


def _list(folder: str) -> list[str]:
    return [name[:-2] for name in _names(folder) if name.endswith(".p")]


_CALLS: dict[str, Callable[..., Any]] = {
    "read": _read,
    "store": _store,
    "contains": _contains,
    "updated": _updated,
    "flush": _flush,
    "names": _names,
    "list": _list,
}
