"""
The record in ``jobs/published``, which vouches that a master's publish wrote a load. It has a digest of the load, so one
that was replaced later is not believed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import salt.payload

from saltext.jobs.core.store.keys import are_plain, plain


@dataclass(frozen=True)
class Publication:
    """When a job was first and last published, in Unix time, and the minions of the job that no publish named."""

    at: float
    added: frozenset[str]
    last: float
    by: str = ""  # the id of the master that published it
    load: str = ""  # the digest of the load
    seal: str = ""  # in the database of a site: proves that a master has published this load to these minions

    @classmethod
    def from_record(cls, record: Any) -> Publication:
        """Return the content of a record. :raises ValueError: if it is not a valid record."""
        try:
            at, by, load = record["at"], record["by"], record["load"]
            last = record.get("last", at)
            if isinstance(by, str) and isinstance(load, str) and math.isfinite(at) and math.isfinite(last):
                added = frozenset(ids_in(record.get("added")))
                return cls(float(at), added, float(max(at, last)), by, load, str(record.get("seal", "")))
        except (KeyError, TypeError, AttributeError, OverflowError):
            pass
        raise ValueError(f"it is {record!r:.300}")

    def as_record(self) -> dict[str, Any]:
        record: dict[str, Any] = {"at": self.at, "by": self.by, "load": self.load}
        if self.last > self.at:
            record["last"] = self.last
        if self.seal:
            record["seal"] = self.seal
        if self.added:
            record["added"] = sorted(self.added)
        return record


def ids_in(value: Any) -> set[str]:
    """Return the valid minion ids in what should be a list of them."""
    if not isinstance(value, (list, tuple, set, frozenset)):
        return set()
    if isinstance(value, list) and are_plain(value):
        return set(value)
    return {item for item in value if isinstance(item, str) and plain(item) is not None}


def digest(load: Mapping[str, Any]) -> str:
    """Return the digest of a load, which is the same once a driver has stored it and it is read back."""
    # Salt packs a value and what becomes of it in a driver alike: tuples and lists, bytes and text, dates and times.
    value = {name: value for name, value in load.items() if name != "Minions"} if "Minions" in load else load
    return hashlib.blake2b(salt.payload.dumps(value), digest_size=16).hexdigest()
