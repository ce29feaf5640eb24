"""
The driver redis, with the keys of Salt's own driver, but several values at a time.

Salt 3008 keeps a bank in two hashes; earlier releases keep each value under a key of its own, and the names in sets. Both
layouts are used here, through the driver's own client and its own functions for names. If the driver lacks these, or
talks to a cluster of servers, it is used like any other driver.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import salt.payload

from saltext.jobs.core.store.calling import OUTAGE_SECONDS, run
from saltext.jobs.core.store.drivers import ABSENT, InParts


class Redis(InParts):
    """The driver redis, safe with a frozen server and with concurrent writers."""

    def _prepare(self, modules: Any, calls: dict[str, Any], fixed: dict[str, Any]) -> None:
        client = run(modules, self.own(calls)["_get_redis_server"])
        with contextlib.suppress(AttributeError):  # a cluster has many connections, with settings of their own
            _limit_waiting(client.connection_pool.connection_kwargs)
        super()._prepare(modules, calls, fixed)

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        data = salt.payload.dumps(value)
        done = self._pipe("store", bank, key, lambda layout, pipe: layout.add(pipe, bank, key, data))
        return super().store_new(bank, key, value) if done is None else bool(done[0])

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[Any]:
        if not items:
            return []

        def ask(layout: Any, pipe: Any) -> None:
            for bank, key in items:
                layout.get(pipe, bank, key)

        found = self._pipe("fetch", *items[0], ask)
        if found is None:
            return super().read_all(items)
        return [
            ABSENT if value is None else self.decoded(*item, value) for item, value in zip(items, found, strict=True)
        ]

    def store_all(self, items: Sequence[tuple[str, str, Any]], durable: bool = False) -> None:
        def tell(layout: Any, pipe: Any) -> None:
            for bank, key, value in items:
                layout.put(pipe, bank, key, salt.payload.dumps(value))

        if self._pipe("store", *items[0][:2], tell) is None:
            super().store_all(items, durable)

    def last_updated(self, items: Sequence[tuple[str, str]], bank: str) -> float | None:
        members = self._members(bank)
        return super().last_updated(items, bank) if members is None else self._last(items, bank, members)

    def _remove_one(self, items: Sequence[tuple[str, str]], parent: str, name: str, than: float) -> float | None:
        members = self._members(f"{parent}/{name}")
        if members is None:
            return super()._remove_one(items, parent, name, than)
        last = self._last(items, f"{parent}/{name}", members) if than < math.inf else -math.inf
        if last is not None and last < than:
            self._drop(items, parent, name, members)
        return last

    def _members(self, bank: str) -> list[str] | None:
        """Return the keys in a bank; None if the driver's layout is not known here."""
        found = self._pipe("list", bank, None, lambda layout, pipe: layout.members(pipe, bank))
        return None if found is None else [key.decode() for key in found[0] if key != b"."]

    def _last(self, items: Sequence[tuple[str, str]], bank: str, members: list[str]) -> float | None:
        def ask(layout: Any, pipe: Any) -> None:
            for item in (*items, *((bank, key) for key in members)):
                layout.time_of(pipe, *item)

        stamps = self._pipe("updated", bank, None, ask) if items or members else ()
        return max((float(salt.payload.loads(stamp)) for stamp in stamps or () if stamp), default=None)

    def _drop(self, items: Sequence[tuple[str, str]], parent: str, name: str, members: list[str]) -> None:
        def tell(layout: Any, pipe: Any) -> None:
            layout.drop(pipe, parent, name, members)
            for item in items:
                layout.cut(pipe, *item)

        self._pipe("flush", f"{parent}/{name}", None, tell)

    def drop_bank(self, parent: str, name: str) -> None:
        members = self._members(f"{parent}/{name}")
        if members is None:  # before Salt 3008 a parent still lists a bank that was flushed
            super().drop_bank(parent, name)
            self.flush(parent, name)
        else:
            self._drop((), parent, name, members)

    def _pipe(self, name: str, bank: str, key: str | None, fill: Callable[[Any, Any], None]) -> list[Any] | None:
        """
        Send in one round trip what ``fill(layout, pipe)`` puts into the pipe, and return the answers.

        Sends nothing and returns None if the driver's layout is not known here.
        """

        def work(modules: Any, calls: dict[str, Any], fixed: dict[str, Any]) -> Any:
            own = self.own(calls)
            layout = next((kind(own) for kind in (_Hashes, _Sets) if kind.needs <= own.keys()), None)
            client = run(modules, own["_get_redis_server"])
            if layout is None or type(client).__name__ not in ("Redis", "StrictRedis"):
                return None
            pipe = client.pipeline()
            # The functions for names read the driver's options, which exist in its loader's context only.
            run(modules, lambda: fill(layout, pipe))
            return pipe.execute()

        found: list[Any] | None = self._try(name, bank, key, work)
        return found


def _limit_waiting(settings: dict[str, Any]) -> None:
    """A frozen server accepts data and never answers, and the client's own retries would add up."""
    settings["socket_timeout"] = OUTAGE_SECONDS
    if "path" not in settings:
        settings["socket_connect_timeout"] = OUTAGE_SECONDS
    with contextlib.suppress(ImportError):
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        settings["retry"] = Retry(NoBackoff(), 0)


class _Hashes:
    """Salt 3008: a hash of values and one of times for each bank, and a sorted set of the banks."""

    needs = frozenset(("_normalize_bank", "_banks_set_key", "_get_redis_server"))

    def __init__(self, own: dict[str, Any]) -> None:
        self._names, self._banks = own["_normalize_bank"], own["_banks_set_key"]

    def get(self, pipe: Any, bank: str, key: str) -> None:
        pipe.hget(self._names(bank)[0], key)

    def time_of(self, pipe: Any, bank: str, key: str) -> None:
        pipe.hget(self._names(bank)[1], key)

    def members(self, pipe: Any, bank: str) -> None:
        pipe.hkeys(self._names(bank)[0])

    def put(self, pipe: Any, bank: str, key: str, data: bytes) -> None:
        values, times = self._names(bank)
        pipe.zadd(self._banks(), {values: 0})
        pipe.hset(values, key, data)
        pipe.hset(times, key, _now())

    def add(self, pipe: Any, bank: str, key: str, data: bytes) -> None:
        """The first answer tells whether there was no value."""
        values, times = self._names(bank)
        pipe.hsetnx(values, key, data)
        pipe.hsetnx(times, key, _now())
        pipe.zadd(self._banks(), {values: 0})

    def cut(self, pipe: Any, bank: str, key: str) -> None:
        for name in self._names(bank):
            pipe.hdel(name, key)

    def drop(self, pipe: Any, parent: str, name: str, keys: list[str]) -> None:
        values, times = self._names(f"{parent}/{name}")
        pipe.zrem(self._banks(), values)
        pipe.unlink(values, times)


class _Sets:
    """Salt 3006 and 3007: a key for each value and for its time, and sets of the names in each bank."""

    needs = frozenset(
        ("_get_key_redis_key", "_get_timestamp_key", "_get_bank_keys_redis_key", "_get_bank_redis_key")
    ) | {"_build_bank_hier", "_get_redis_server"}

    def __init__(self, own: dict[str, Any]) -> None:
        self._value, self._time = own["_get_key_redis_key"], own["_get_timestamp_key"]
        self._keys, self._banks, self._build = (
            own["_get_bank_keys_redis_key"],
            own["_get_bank_redis_key"],
            own["_build_bank_hier"],
        )

    def get(self, pipe: Any, bank: str, key: str) -> None:
        pipe.get(self._value(bank, key))

    def time_of(self, pipe: Any, bank: str, key: str) -> None:
        pipe.get(self._time(bank, key))

    def members(self, pipe: Any, bank: str) -> None:
        pipe.smembers(self._keys(bank))

    def put(self, pipe: Any, bank: str, key: str, data: bytes) -> None:
        self._build(bank, pipe)
        pipe.set(self._value(bank, key), data)
        pipe.sadd(self._keys(bank), key)
        pipe.set(self._time(bank, key), _now())

    def add(self, pipe: Any, bank: str, key: str, data: bytes) -> None:
        """The first answer tells whether there was no value."""
        pipe.set(self._value(bank, key), data, nx=True)
        self._build(bank, pipe)
        pipe.sadd(self._keys(bank), key)
        pipe.set(self._time(bank, key), _now(), nx=True)

    def cut(self, pipe: Any, bank: str, key: str) -> None:
        pipe.delete(self._value(bank, key), self._time(bank, key))
        pipe.srem(self._keys(bank), key)

    def drop(self, pipe: Any, parent: str, name: str, keys: list[str]) -> None:
        bank = f"{parent}/{name}"
        pipe.delete(
            *(self._value(bank, key) for key in keys), *(self._time(bank, key) for key in keys), self._keys(bank)
        )
        pipe.delete(self._banks(bank))
        for names in (self._banks(parent), self._keys(parent)):
            pipe.srem(names, name)


def _now() -> bytes:
    data: bytes = salt.payload.dumps(int(time.time()))
    return data
