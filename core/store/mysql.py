"""
The driver mysql. It lists no banks. Its client is one connection, though Salt 3008 stores returns from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import salt.payload

from saltext.jobs.core.banks import NOCACHE
from saltext.jobs.core.store.calling import OUTAGE_SECONDS, run
from saltext.jobs.core.store.drivers import ABSENT, InParts

LARGE = 500_000  # bytes from which on the server's limit is checked first


class Mysql(InParts):
    """The driver mysql, safe with a frozen server and with concurrent writers."""

    lists_banks = False
    chunk = 100

    def __init__(self, opts: Mapping[str, Any]) -> None:
        super().__init__(opts)
        self._guard = threading.RLock()
        # A frozen server accepts data and never answers. Time-outs that operators set are kept.
        for name in ("connect_timeout", "read_timeout", "write_timeout"):
            if self._opts.get(f"mysql.{name}") is None:
                self._opts[f"mysql.{name}"] = int(OUTAGE_SECONDS)

    def _is_refusal(self, name: str) -> bool:
        """Tell whether the server is up: it also drops the connection for a value above its max_allowed_packet."""
        if name != "store":
            return False
        try:
            modules, calls, fixed = self._opened or self._open()
            run(modules, calls["contains"], NOCACHE, "first", **fixed)
        except Exception:
            self._opened = None
            return False
        return True

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[Any]:
        if not items:
            return []
        banks, keys = ({item[at]: None for item in items} for at in (0, 1))

        def work(modules: Any, calls: dict[str, Any], fixed: dict[str, Any]) -> dict[tuple[str, str], bytes]:
            own = self.own(calls)

            def select() -> dict[tuple[str, str], bytes]:
                own["_init_client"]()
                context = own["__context__"]
                query = (
                    f"SELECT bank, etcd_key, data FROM {context['mysql_table_name']} WHERE bank IN ({_marks(banks)}) "
                    f"AND etcd_key IN ({_marks(keys)})"
                )
                cursor, _ = own["run_query"](context.get("mysql_client"), query, args=(*banks, *keys))
                found = {(bank, key): data for bank, key, data in cursor.fetchall()}
                cursor.close()
                return found

            return run(modules, select)  # type: ignore[no-any-return]

        found = self._try("fetch", *items[0], work)
        return [self.decoded(*item, found[item]) if item in found else ABSENT for item in items]

    def store_new(self, bank: str, key: str, value: Any, durable: bool = False) -> bool:
        data = salt.payload.dumps(value)

        def work(modules: Any, calls: dict[str, Any], fixed: dict[str, Any]) -> int:
            own = self.own(calls)

            def insert() -> int:
                own["_init_client"]()
                context = own["__context__"]
                if len(data) > LARGE:
                    _refuse_what_is_too_large(own, len(data))
                # Not INSERT IGNORE, which would cut a value that is too long for its column.
                query = (
                    f"INSERT INTO {context['mysql_table_name']} (bank, etcd_key, data) VALUES (%s, %s, %s) "
                    "ON DUPLICATE KEY UPDATE bank = bank"
                )
                cursor, count = own["run_query"](context.get("mysql_client"), query, args=(bank, key, data))
                cursor.close()
                return int(count)

            return int(run(modules, insert))

        return bool(self._try("store", bank, key, work))


def _marks(values: Collection[str]) -> str:
    return ",".join(["%s"] * len(values))


def _refuse_what_is_too_large(own: dict[str, Any], size: int) -> None:
    """Otherwise the server would drop the connection without a word, and the driver would send the value four times."""
    cursor, _ = own["run_query"](own["__context__"].get("mysql_client"), "SELECT @@max_allowed_packet")
    (limit,) = cursor.fetchone()
    cursor.close()
    if size >= int(limit):
        raise ValueError(f"the value has {size} bytes, and the server's max_allowed_packet is {limit}")
