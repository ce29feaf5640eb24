"""
The driver localfs, without the driver: its files, read and written by core/disk/local_banks.py.

Salt's own takes five times as long to write a value, its ``list`` names half-written files and, before Salt 3008, cuts every
``p`` and dot off the end of a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from saltext.jobs.core.disk.local_banks import LocalBanks
from saltext.jobs.core.store.drivers import Driver

Result = TypeVar("Result")


class Local(Driver):
    """The files of localfs. There is no server that could be away."""

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self._banks = LocalBanks(opts["cachedir"])

    def fetch(self, bank: str, key: str) -> Any:
        return self._do(self._banks.fetch, "fetch", bank, key)

    def contains(self, bank: str, key: str) -> bool:
        return self._do(self._banks.contains, "contains", bank, key)

    def updated(self, bank: str, key: str) -> float | None:
        return self._do(self._banks.updated, "updated", bank, key)

    def store(self, bank: str, key: str, value: Any) -> None:
        try:
            self._banks.store(bank, key, value)
        except Exception as exc:
            raise self.error("store", bank, key, exc) from exc

    def flush(self, bank: str, key: str) -> None:
        self._do(self._banks.flush, "flush", bank, key)

    def drop_bank(self, parent: str, name: str) -> None:
        self._do(self._banks.drop, "flush", f"{parent}/{name}")

    def keys(self, bank: str) -> list[str]:
        return self._do(self._banks.list, "list", bank)

    def banks(self, bank: str) -> list[str]:
        return self.raw_keys(bank)

    def raw_keys(self, bank: str) -> list[str]:
        return self._do(self._banks.names, "list", bank)

    def _do(self, call: Callable[..., Result], name: str, bank: str, *key: str) -> Result:
        try:
            return call(bank, *key)
        except Exception as exc:  # msgpack raises many kinds for a broken file
            raise self.error(name, bank, key[0] if key else None, exc) from exc
