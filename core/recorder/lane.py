"""
What the recorder decides: which jobs are recorded, what of a load or return may be stored, which record a returner gets
next, and when one is given up.

Pure: stdlib only, no clock (time is an argument), no I/O. It must never decide that a record is lost: it is delivered, or
set aside with a reason, or it waits.

How a record that a returner refuses (poison) is told from a returner that is down:

* A record counts as refused when *another* one, tried after it in the same round, was taken: the returner works, so it is
  the record.
* It also counts as refused when the error itself blames the data (``DataError``, ``TypeError``, …). Otherwise many bad
  records in a row would look like a returner that is down, for ever.
* Any other failure says nothing about the record. After a few in a row the round ends, and the next one comes after a
  pause and tries a few records only, other ones each time, so that one bad record can't hide that the returner is back.
* A record that was refused ``tries`` times is set aside.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
from collections.abc import Iterable
from typing import Any

#: Errors, by class name, that blame the record and not the returner. Database drivers share these names (PEP 249).
_FAULTS = frozenset(
    (
        "DataError",
        "IntegrityError",
        "TypeError",
        "ValueError",
        "LookupError",
        "AttributeError",
        "ArithmeticError",
        "RecursionError",
    )
)
#: Failures in a row after which a round ends, and records tried in a round while the returner seems to be down.
STOP_AFTER = 3
#: Seconds before the second round after a failure; each further one waits twice as long, up to the longest.
_PAUSE = 1.0
_LONGEST_PAUSE = 10.0


def is_wanted(fun: Any, include: Iterable[str], exclude: Iterable[str]) -> bool:
    """Tell whether jobs of a function are recorded. Of several functions one suffices."""
    names = [name for name in fun if isinstance(name, str)] if isinstance(fun, (list, tuple)) else [fun]
    return any(
        isinstance(name, str)
        and any(fnmatch.fnmatchcase(name, glob) for glob in include)
        and not any(fnmatch.fnmatchcase(name, glob) for glob in exclude)
        for name in names
    )


def digest(jid: str, minion: str = "") -> int:
    """Return 64 bits that stand for a minion's return of a job, or without a minion for the job's load."""
    return int.from_bytes(hashlib.blake2b(f"{jid}\0{minion}".encode(), digest_size=8).digest(), "big")


class Recent:
    """
    A bounded memory of digests: of the last ``size`` that were added at least, of twice as many at most.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._new: set[int] = set()
        self._old: set[int] = set()

    def __contains__(self, item: int) -> bool:
        return item in self._new or item in self._old

    def add(self, item: int) -> None:
        self._new.add(item)
        if len(self._new) >= self._size:
            self._new, self._old = set(), self._new

    def forget(self, item: int) -> None:
        """Make as if ``item`` had never been added."""
        self._new.discard(item)
        self._old.discard(item)


@dataclasses.dataclass(frozen=True)
class Failure:
    """A returner did not take a record: why, and whether the error blames the record."""

    reason: str
    is_fault: bool


def failure_of(error: BaseException) -> Failure:
    """Return what an exception of a returner means."""
    names = {kind.__name__ for kind in type(error).__mro__}
    # An OSError is about the world, though some of its kin (UnsupportedOperation) are ValueErrors too.
    is_fault = bool(names & _FAULTS) and "OSError" not in names
    return Failure(f"{type(error).__name__}: {str(error).strip()}"[:1000], is_fault)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What came of trying a record; ``failure`` is None when it was taken."""

    number: int
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True)
class Refused:
    """Set this record aside, with the reason. After this it is no longer the lane's."""

    number: int
    reason: str
    tries: int


@dataclasses.dataclass
class _Pending:
    tries: int = 0
    in_doubt: bool = False
    not_before: float = 0.0


class Lane:
    """
    One returner's way through the records, which have rising numbers. It holds the few that are at hand.

    :param size: records at hand at most.
    :param tries: how often a record may be refused before it is set aside.
    """

    def __init__(self, size: int, tries: int = 5) -> None:
        self._size, self._tries = size, tries
        self._pending: dict[int, _Pending] = {}
        self._fruitless = 0
        self._turn = 0
        self._not_before = 0.0
        #: Why the returner is thought to be down, or None.
        self.trouble: str | None = None

    @property
    def room(self) -> int:
        """How many more records it takes now."""
        return self._size - len(self._pending)

    @property
    def pending(self) -> tuple[int, ...]:
        """The records at hand, oldest first."""
        return tuple(self._pending)

    def is_in_doubt(self, number: int) -> bool:
        """Whether the returner may have the record already: ask it, if it can tell, before it is tried again."""
        return self._pending[number].in_doubt

    def take(self, numbers: Iterable[int], in_doubt: bool = False) -> None:
        """Add records; ``in_doubt`` after a restart, when nobody knows which of them were delivered."""
        for number in numbers:
            self._pending[number] = _Pending(in_doubt=in_doubt)

    def due(self) -> float | None:
        """Return the time of the next round, or None where there is nothing to deliver."""
        if not self._pending:
            return None
        return max(self._not_before, min(record.not_before for record in self._pending.values()))

    def round(self, now: float) -> tuple[int, ...]:
        """
        Return the records to try now, in this order; none before ``due``.

        Stop the round after STOP_AFTER failures in a row that blame no record. After it you must call ``settle``.
        """
        if now < self._not_before:
            return ()
        ready = [number for number, record in self._pending.items() if record.not_before <= now]
        if not self.trouble or not ready:
            return tuple(ready)
        start = self._turn % len(ready)
        self._turn += STOP_AFTER
        return tuple((ready[start:] + ready[:start])[:STOP_AFTER])

    def settle(self, attempts: Iterable[Attempt], now: float) -> tuple[Refused, ...]:
        """Take what came of a round. Returns the records to set aside."""
        attempts = list(attempts)
        last_taken = max((index for index, attempt in enumerate(attempts) if attempt.failure is None), default=-1)
        refused: list[Refused] = []
        for index, attempt in enumerate(attempts):
            if attempt.failure is None:
                del self._pending[attempt.number]
            else:
                refused += self._count(attempt.number, attempt.failure, index < last_taken, now)
        self._pace(attempts[last_taken + 1 :], last_taken >= 0, now)
        return tuple(refused)

    def _count(self, number: int, failure: Failure, others_taken: bool, now: float) -> list[Refused]:
        record = self._pending[number]
        # A connection that broke may have broken after the record was stored.
        record.in_doubt = record.in_doubt or not failure.is_fault
        if not (others_taken or failure.is_fault):
            return []
        record.tries += 1
        record.not_before = now + _pause(record.tries - 1)
        if record.tries < self._tries:
            return []
        del self._pending[number]
        return [Refused(number, failure.reason, record.tries)]

    def _pace(self, trailing: list[Attempt], any_taken: bool, now: float) -> None:
        blameless = [item.failure.reason for item in trailing if item.failure and not item.failure.is_fault]
        self.trouble = blameless[-1] if blameless else None
        if any_taken or not blameless:
            self._fruitless = 0
        if blameless:
            self._not_before = now + _pause(self._fruitless)
            self._fruitless += 1


def _pause(fruitless: int) -> float:
    return min(_PAUSE * 2.0 ** min(fruitless, 16), _LONGEST_PAUSE)
