"""How large the job cache is."""

from __future__ import annotations

import os
from typing import Any

from saltext.jobs.core.store import records
from saltext.jobs.core.store.drivers import has_date
from saltext.jobs.core.store.store import Store


def of(store: Store) -> dict[str, Any]:
    """
    Return driver; jobs, published and returns, as counts; oldest and newest, as jids; and bytes: what the banks take on
    disk, holes left out, None for a driver that has a server. With sqlite also free_bytes, and with mmap_cache bank_bytes.
    """
    keys = sorted(store.keys(records.LOADS))
    timed = [key for key in keys if has_date(key)]
    found: dict[str, Any] = {"driver": store.driver.name, "jobs": len(keys)}
    found["published"] = len(store.keys(records.PUBLISHED))
    found["returns"] = store.driver.count_returns(records.RETURNS, keys)
    found["oldest"] = store.decode(timed[0]) if timed else None
    found["newest"] = store.decode(timed[-1]) if timed else None
    banks = store.driver.banks_file
    if banks is not None:
        return {**found, "bytes": banks.file_bytes(), "free_bytes": banks.free_bytes()}
    found["bytes"] = _bytes(store) if store.driver.name in ("localfs", "mmap_cache") else None
    if store.driver.bank_bytes:
        found["bank_bytes"] = store.driver.bank_bytes
    return found


def _bytes(store: Store) -> int:
    taken = 0
    for bank in (*records.BANKS, records.RETURNS):
        for folder, _, files in os.walk(os.path.join(store.cachedir, bank)):
            for name in files:
                try:
                    taken += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    continue  # removed meanwhile
    return taken
