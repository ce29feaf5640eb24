"""
The files of the driver localfs, read and written by core/disk/local_banks.py in place of Salt's own driver.

Salt's driver takes five times as long to write a value. Its ``list`` names half-written files and, before Salt 3008,
strips every ``p`` and dot off the end of a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from saltext.jobs.core.disk.local_banks import LocalBanks
from saltext.jobs.core.store.calling import Undecodable
from saltext.jobs.core.store.drivers import ABSENT, Driver, JobIndex

Result = TypeVar("Result")
#: Most keys that are looked for one by one: with more, listing the bank of a large fleet is as fast.
_FEW = 200


class Local(Driver):
    """The files of localfs. There is no server that could be away."""

    in_jobs_folder = True

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self._banks = LocalBanks(opts["cachedir"], readable=True)
        self.index = LocalIndex(self)

    def fetch(self, bank: str, key: str) -> Any:
        return self._do(self._banks.fetch, "fetch", bank, key)

    def _read(self, bank: str, key: str) -> Any:
        try:
            return self._banks.fetch(bank, key, ABSENT)
        except Exception as exc:
            error = self.error("fetch", bank, key, exc)
            if isinstance(error, Undecodable):
                return error
            raise error from exc

    def fetch_each(self, bank: str, keys: Iterable[str] | None = None) -> Iterator[tuple[str, Any]]:
        fetch = self._banks.fetch
        for key in self.keys(bank) if keys is None else keys:
            try:
                value = fetch(bank, key, ABSENT)
            except Exception as exc:
                yield key, self.error("fetch", bank, key, exc)
                continue
            if value is not ABSENT:
                yield key, value

    def present(self, bank: str, keys: Iterable[str]) -> set[str]:
        wanted = set(keys)
        if len(wanted) <= _FEW:
            return {key for key in wanted if self.contains(bank, key)}
        return super().present(bank, wanted)

    def contains(self, bank: str, key: str) -> bool:
        return self._do(self._banks.contains, "contains", bank, key)

    def updated(self, bank: str, key: str) -> float | None:
        return self._do(self._banks.updated, "updated", bank, key)

    def store(self, bank: str, key: str, value: Any, durable: bool = False) -> None:
        try:
            self._banks.store(bank, key, value, durable)
        except Exception as exc:
            raise self.error("store", bank, key, exc) from exc

    def _last_in(self, bank: str) -> float | None:
        return self._do(self._banks.bank_updated, "updated", bank)

    def _flush_if_there(self, bank: str, key: str) -> None:
        self._do(self._banks.unlink, "flush", bank, key)

    def flush(self, bank: str, key: str) -> None:
        self._do(self._banks.flush, "flush", bank, key)

    def drop_bank(self, parent: str, name: str) -> None:
        self._do(self._banks.drop, "flush", f"{parent}/{name}")

    def keys(self, bank: str) -> list[str]:
        return self._do(self._banks.list, "list", bank)

    def changed(self, bank: str, since: float) -> list[str]:
        """Return the keys that may have been written at or after a Unix time."""
        return self._do(lambda bank: self._banks.changed(bank, since), "list", bank)

    def banks(self, bank: str) -> list[str]:
        return self._do(self._banks.names, "list", bank)

    def _do(self, call: Callable[..., Result], name: str, bank: str, *key: str) -> Result:
        try:
            return call(bank, *key)
        except Exception as exc:  # msgpack raises many kinds for a broken file
            raise self.error(name, bank, key[0] if key else None, exc) from exc


class LocalIndex(JobIndex):
    """An index that uses the times at which the files were written."""

    def __init__(self, driver: Local) -> None:
        self._driver: Local = driver

    def written_since(self, bank: str, since: float) -> list[str]:
        return self._driver.changed(bank, since)
