"""
The record in ``jobs/published``, which vouches that this master's publish wrote a load.

It has a digest of the load. So a load that was replaced later is not believed, even if the driver let it be replaced.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import salt.payload

from saltext.jobs.core.store.keys import are_plain, plain

#: Longest name of a function in a log line.
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Publication:
    """When a job was first and last published, in Unix time, and the minions of the job that no publish named."""

    at: float
    added: frozenset[str]
    last: float
    #: The id of the master that published it.
    by: str = ""
    #: The digest of the load.
    load: str = ""
    #: In the database of a site: proves that a master has published this load to these minions.
    seal: str = ""

    @classmethod
    def from_record(cls, record: Any) -> Publication:
        """Return the content of a record. :raises ValueError: if it is not a valid record."""
        if type(record) is not dict and not isinstance(record, Mapping):
            raise ValueError(f"it is a {type(record).__name__}")
        if "format" in record:
            raise ValueError(f"it is of format {record['format']!r}, which this version does not know")
        by, load, at = record.get("by"), record.get("load"), _moment(record.get("at"))
        last = max(at, _moment(record["last"])) if "last" in record else at
        if not isinstance(by, str) or not isinstance(load, str):
            raise ValueError(f"it was published by {by!r}, with the digest {load!r}")
        added: frozenset[str] = frozenset(ids_in(record["added"])) if "added" in record else frozenset()
        return cls(at, added, last, by, load, str(record.get("seal", "")))

    def as_record(self) -> dict[str, Any]:
        """Return the form in which it is stored."""
        record: dict[str, Any] = {"at": self.at, "by": self.by, "load": self.load}
        if self.last > self.at:
            record["last"] = self.last
        if self.seal:
            record["seal"] = self.seal
        if self.added:
            record["added"] = sorted(self.added)
        return record

    def vouches_for(self, load: Mapping[str, Any]) -> bool:
        """Tell whether ``load``, with or without ``Minions``, is the published one."""
        return self.load == digest(load)


def function_name(load: Mapping[str, Any]) -> str:
    """Return the function of a return for people, cut if it is too long for a name."""
    fun = load.get("fun")
    return (",".join(map(str, fun)) if isinstance(fun, (list, tuple)) else str(fun))[:_LONGEST_NAME]


def _moment(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"it was published at {value!r}")
    return float(value)


def ids_in(value: Any) -> set[str]:
    """Return the valid minion ids in what should be a list of them."""
    if value is None or not isinstance(value, (list, tuple, set, frozenset)):
        return set()
    if isinstance(value, list) and are_plain(value):
        return set(value)
    return {item for item in value if isinstance(item, str) and plain(item) is not None}


def digest(load: Mapping[str, Any]) -> str:
    """Return the digest of a load, which is the same once a driver has stored it and it is read back."""
    return _hashed({name: value for name, value in load.items() if name != "Minions"} if "Minions" in load else load)


def work_of(load: Mapping[str, Any]) -> str:
    """Return the digest of a load or return that has nothing but its functions and arguments."""
    return _hashed({"arg": load.get("arg") or load.get("fun_args") or [], "fun": load.get("fun")})


def _hashed(value: Any) -> str:
    # Salt packs a value and what becomes of it in a driver alike: tuples and lists, bytes and text, dates and times.
    return hashlib.blake2b(salt.payload.dumps(value), digest_size=16).hexdigest()
