"""
The record in ``jobs/published``, which vouches that this master's publish wrote a load.

It has a digest of the load. So a load that was replaced later is not believed, even if the driver let it be replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import salt.payload

from saltext.jobs.core.disk import packed
from saltext.jobs.core.store.keys import plain

#: The types of nearly all values in a load. No driver changes such values.
_PLAIN = frozenset((str, bool, type(None)))
#: How many levels of a value are walked through. Deeper ones are hashed as Salt packs them, because Salt can pack more
#: levels than Python can walk through.
_DEPTH = 500
#: Longest name of a borrower's user or function that is kept or logged.
_LONGEST_NAME = 200
#: Most borrowers of a jid that are kept: those that came first.
_MOST_BORROWED = 5


class Borrowed(NamedTuple):
    """Another job that was published under the jid: its functions, its user, and when, in Unix time."""

    fun: str
    user: str
    at: float


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
    #: Other jobs that were published under its jid: a minion that has run one of them ignores this job.
    borrowed: tuple[Borrowed, ...] = ()

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
        borrowed = tuple(_borrowed_in(record["borrowed"])) if "borrowed" in record else ()
        return cls(at, added, last, by, load, borrowed)

    def as_record(self) -> dict[str, Any]:
        """Return the form in which it is stored."""
        record: dict[str, Any] = {"at": self.at, "by": self.by, "load": self.load}
        if self.last > self.at:
            record["last"] = self.last
        if self.added:
            record["added"] = sorted(self.added)
        if self.borrowed:
            record["borrowed"] = [list(each) for each in self.borrowed]
        return record

    def with_borrowed(self, load: Mapping[str, Any], at: float) -> Publication:
        """Return a record that also names another job with this load, published under the jid, if there is room for it."""
        fun, user = function_name(load), str(load.get("user") or "")[:_LONGEST_NAME]
        known = any((each.fun, each.user) == (fun, user) for each in self.borrowed)
        if known or len(self.borrowed) >= _MOST_BORROWED:
            return self
        return replace(self, borrowed=(*self.borrowed, Borrowed(fun, user, at)))

    def vouches_for(self, load: Mapping[str, Any]) -> bool:
        """Tell whether ``load``, with or without ``Minions``, is the published one."""
        return self.load == digest(load)


def function_name(load: Mapping[str, Any]) -> str:
    """Return the function of a load or a return for people, cut if it is too long for a name."""
    fun = load.get("fun")
    return (",".join(map(str, fun)) if isinstance(fun, (list, tuple)) else str(fun))[:_LONGEST_NAME]


def _moment(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"it was published at {value!r}")
    return float(value)


def _borrowed_in(value: Any) -> Iterator[Borrowed]:
    for item in value if isinstance(value, (list, tuple)) else ():
        with contextlib.suppress(TypeError, ValueError):
            fun, user, at = item
            yield Borrowed(str(fun), str(user), _moment(at))


def ids_in(value: Any) -> set[str]:
    """Return the valid minion ids in what should be a list of them."""
    if value is None or not isinstance(value, (list, tuple, set, frozenset)):
        return set()
    return {item for item in value if isinstance(item, str) and plain(item) is not None}


def digest(load: Mapping[str, Any]) -> str:
    """Return the digest of a load as it is read back. It is the same for every driver."""
    return _hashed(
        _text({name: value for name, value in load.items() if name != "Minions"} if "Minions" in load else load)
    )


def work_of(load: Mapping[str, Any]) -> str:
    """Return the digest of a load or return that has nothing but its functions and arguments."""
    fun, arg = load.get("fun"), load.get("arg") or load.get("fun_args") or []
    return _hashed(f"{{'arg':{_text(arg)},'fun':{repr(fun) if type(fun) is str else _text(fun)}}}")


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _text(value: Any, left: int = _DEPTH) -> str:
    """
    Return a text that is the same for a value and for what a driver makes of it: drivers turn tuples into lists, bytes in
    UTF-8 into text, and integers beyond 64 bits into text.

    :param left: how many levels to walk through.
    """
    kind = type(value)
    if kind in _PLAIN:
        return repr(value)
    if kind is bytes:
        return repr(value.decode("utf-8", "surrogateescape"))
    if kind is int:
        return repr(value if -(2**63) <= value < 2**64 else str(value))
    if kind is float:
        return repr(value)
    if not left:
        return repr(salt.payload.dumps(value))
    left -= 1
    texts = []
    if kind is dict:
        for name, item in value.items():
            before = repr(name) if type(name) is str else _text(name, left)
            texts.append(f"{before}:{repr(item) if type(item) in _PLAIN else _text(item, left)}")
        texts.sort()
        return "{" + ",".join(texts) + "}"
    if kind is list or kind is tuple:
        for item in value:
            texts.append(repr(item) if type(item) in _PLAIN else _text(item, left))
        return "[" + ",".join(texts) + "]"
    other = packed.loads(salt.payload.dumps(value, use_bin_type=True))
    return repr(other) if type(other) is kind else _text(other, left + 1)
