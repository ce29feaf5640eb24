"""
The driver mmap_cache of Salt 3008.

It takes ``mmap_cache_size`` times ``mmap_cache_slot_size`` bytes for every bank, 96 MB by default, and every job has a bank
of its own. So this module makes the index of a bank, as a sparse file, before the driver does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import salt.payload

try:
    import msgpack
except ImportError:  # the driver itself needs it
    msgpack = None

from saltext.jobs.core.banks import OWED
from saltext.jobs.core.disk.local_banks import LocalBanks, make_folder, owner_for_root
from saltext.jobs.core.store.drivers import Driver

OPEN_BANKS = 64  # open banks per process, four file descriptors each


class Mmap(Driver):
    """The driver mmap_cache, with small banks, few of them open, and any value that Salt can serialize."""

    in_jobs_folder = True

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self._root: str = opts["cachedir"]
        self._files = LocalBanks(self._root)
        self._owner = owner_for_root(self._root)
        self.longest = opts.get("mmap_cache_key_size", 64)
        self.bank_bytes = opts.get("mmap_cache_size", 1_000_000) * opts.get("mmap_cache_slot_size", 96)
        self._used: set[str] = set()
        self._guard = threading.RLock()  # a bank is closed while no other thread reads it

    def fetch(self, bank: str, key: str) -> Any:
        value = super().fetch(bank, key)
        if not isinstance(value, bytes) and not value and self.contains(bank, key):
            self._reopen(bank)
            value = super().fetch(bank, key)
        if not isinstance(value, bytes):
            return value
        try:
            return salt.payload.loads(value)
        except Exception as exc:
            raise self.error("fetch", bank, key, exc) from exc

    def contains(self, bank: str, key: str) -> bool:
        """Ask ``updated``: the driver's own ``contains`` misses the writes of other processes for 0.25 s."""
        return self.updated(bank, key) is not None

    def present(self, bank: str, keys: Iterable[str]) -> set[str]:
        """As ``Driver.present``. The retry queue is looked up in files: it has a bank for each minion."""
        if bank != OWED:
            return {key for key in keys if self.contains(bank, key)}
        try:
            return {key for key in keys if self._files.updated(bank, key) is not None}
        except OSError as exc:
            raise self.error("contains", bank, None, exc) from exc

    def store(self, bank: str, key: str, value: Any, durable: bool = False) -> None:
        self._make_index(bank)
        super().store(bank, key, _storable(value))

    def drop_bank(self, parent: str, name: str) -> None:
        super().drop_bank(parent, name)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(self._root, parent, name))

    def keys(self, bank: str) -> list[str]:
        if not os.path.isdir(os.path.join(self._root, bank)):
            return []  # listing a missing bank would create its directory
        return super().keys(bank)

    def banks(self, bank: str) -> list[str]:
        """Return the names in the bank's directory: the driver itself lists no banks."""
        try:
            return os.listdir(os.path.join(self._root, bank))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            raise self.error("list", bank, None, exc) from exc

    def _call(self, name: str, bank: str, *args: Any) -> Any:
        self._bound_open_banks(bank)
        return super()._call(name, bank, *args)

    def _prepare(self, modules: Any, calls: dict[str, Any], fixed: dict[str, Any]) -> None:
        """Do nothing: there is no client to make, and a first call would create a bank."""

    def _reopen(self, bank: str) -> None:
        """Have the driver open a bank again, which shows the writes of others at once, and not 0.25 s later."""
        with self._guard:
            _, calls, fixed = self._opened or self._open()
            opened = calls["fetch"].__globals__.get("_caches", {}).pop((fixed.get("cachedir"), bank), None)
            if opened is None:
                self._opened = None
            else:
                opened[1].close()

    def _bound_open_banks(self, bank: str) -> None:
        """Close banks by loading the driver again: it keeps every bank open for ever."""
        if bank not in self._used and len(self._used) >= OPEN_BANKS:
            self._used.clear()
            self._opened = None
            gc.collect()
        self._used.add(bank)

    def _make_index(self, bank: str) -> None:
        """
        Create the index of a bank as a sparse file.

        The driver would write zeros. A sparse file of the same size looks the same to the driver and the cluster runners,
        and takes only a few pages.
        """
        folder = os.path.join(self._root, bank)
        index = os.path.join(folder, ".mmap_cache.idx")
        if os.path.exists(index):
            return
        try:
            make_folder(folder, self._owner, 0o755)
            draft = os.path.join(folder, f".{os.getpid()}-{threading.get_ident()}")
            handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                if self._owner:
                    os.fchown(handle, *self._owner)
                os.ftruncate(handle, self.bank_bytes or 0)
                with contextlib.suppress(FileExistsError):
                    os.link(draft, index)  # unlike a rename, it never replaces the index of a faster process
            finally:
                os.close(handle)
                os.unlink(draft)
        except OSError as exc:
            raise self.error("create", bank, None, exc) from exc


def _storable(value: Any) -> Any:
    """
    Return ``value`` in a form that the driver can store and read. The driver refuses dict keys that are not text, and
    some types that Salt's serializer can write. Such a value is stored as the bytes that Salt's serializer makes of it.
    """
    packed = salt.payload.dumps(value)
    try:
        return msgpack.unpackb(packed, raw=False, strict_map_key=True)
    except Exception:
        return packed
