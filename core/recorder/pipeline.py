"""
What one returner gets next, and when a record is given up.

Pure: stdlib only, no clock (time is an argument), no I/O. It must never lose a record: each is delivered, set aside
with a reason, or waits.

How to tell a record that the returner refuses (poison) from a returner that is down:

* A record counts as refused when *another* one, tried after it in the same round, was taken: the returner works, so the
  record is at fault.
* It also counts as refused when the error itself blames the data (``DataError``, ``TypeError``, …). Otherwise many bad
  records in a row would look like a returner that is down, for ever.
* Any other failure says nothing about the record. After a few of them in a row the round ends. The next round tries only
  a few records, different ones each time, so that one bad record cannot hide that the returner is back. If a round had no
  success, the next one comes after a pause.

A refused record is parked: it takes no room from waiting records, and is tried again at growing intervals. A round tries
only a few parked records. A record is set aside after ``tries`` refusals, or at once when no more can be parked.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, TypeAlias

#: Names a record: anything that can be a key of a dict.
Key: TypeAlias = Any
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
#: Parked records that are tried in a round: fewer than STOP_AFTER, so that they alone cannot end it.
_PARKED_IN_A_ROUND = STOP_AFTER - 1
#: Seconds before the next try after a failure; each further failure doubles them, up to the longest.
_PAUSE = 1.0
_LONGEST_PAUSE = 10.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """A returner did not take a record: why, and whether the error blames the record."""

    reason: str
    is_fault: bool


def failure_of(error: BaseException) -> Failure:
    """Return what an exception of a returner means."""
    names = {kind.__name__ for kind in type(error).__mro__}
    # An OSError is about the world, although some subclasses (UnsupportedOperation) are ValueErrors too.
    is_fault = bool(names & _FAULTS) and "OSError" not in names
    return Failure(f"{type(error).__name__}: {str(error).strip()}"[:1000], is_fault)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The outcome of one try; ``failure`` is None when the record was taken."""

    key: Key
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True)
class Refused:
    """
    A record that was refused.

    ``due``: when it is tried again; None if it is to be set aside: then it has left the pipeline.
    """

    key: Key
    reason: str
    tries: int
    due: float | None


@dataclasses.dataclass
class _Pending:
    tries: int = 0
    in_doubt: bool = False
    has_failed: bool = False  # without being to blame
    not_before: float = 0.0


class Pipeline:
    """
    One returner's way through the records. It holds only the next few.

    :param size: most records that wait, and most that are parked.
    :param tries: how often a record may be refused before it is set aside.
    """

    def __init__(self, size: int, tries: int = 5) -> None:
        self._size, self._tries = size, tries
        self._waiting: dict[Key, _Pending] = {}
        self._parked: dict[Key, _Pending] = {}
        self._fruitless = 0
        self._turn = 0
        self._not_before = 0.0
        #: Why the returner is thought to be down, or None.
        self.trouble: str | None = None

    @property
    def room(self) -> int:
        """How many more records it takes now."""
        return self._size - len(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._parked)

    @property
    def parked(self) -> int:
        """How many were refused, and are tried again."""
        return len(self._parked)

    def is_in_doubt(self, key: Key) -> bool:
        """Whether the returner may have the record already: if it can be asked, ask it before the next try."""
        return (self._waiting.get(key) or self._parked[key]).in_doubt

    def take(self, key: Key, in_doubt: bool = False) -> None:
        """Add a record. :param in_doubt: it is unknown whether it was delivered, as after a restart."""
        self._waiting[key] = _Pending(in_doubt=in_doubt)

    def park(self, key: Key, tries: int, due: float) -> None:
        """Add a record that was refused before the restart: how often, and when it is tried again."""
        self._parked[key] = _Pending(tries, in_doubt=True, not_before=due)

    def drop(self, key: Key) -> None:
        """Forget a record that is not to be delivered."""
        self._remove(key)

    def due(self) -> float | None:
        """Return the time of the next round, or None if there is nothing to deliver."""
        if self._waiting:
            return self._not_before
        if not self._parked:
            return None
        return max(self._not_before, min(record.not_before for record in self._parked.values()))

    def round(self, now: float) -> tuple[Key, ...]:
        """
        Return the records to try now, in this order; none before ``due``.

        Stop the round after STOP_AFTER failures in a row that blame no record. After the round you must call ``settle``.
        """
        if now < self._not_before:
            return ()
        parked = [key for key, record in self._parked.items() if record.not_before <= now]
        ready = parked[:_PARKED_IN_A_ROUND] + list(self._waiting)
        if not self.trouble or not ready:
            return self._in_turn(ready)
        start = self._turn % len(ready)
        self._turn += STOP_AFTER
        return tuple((ready[start:] + ready[:start])[:STOP_AFTER])

    def _in_turn(self, ready: list[Key]) -> tuple[Key, ...]:
        """
        Return records in the order of their tries: after each record that has failed before comes one that has not, as
        long as there are any.

        So records that fail again cannot end a round by themselves, and a record that is taken after them shows that
        they are at fault.
        """
        failed = [key for key in ready if key in self._parked or self._waiting[key].has_failed]
        if not failed:
            return tuple(ready)
        fresh = [key for key in ready if key in self._waiting and not self._waiting[key].has_failed]
        first, second = (fresh[: len(failed)], failed) if len(fresh) > len(failed) else (failed, fresh)
        pairs = itertools.zip_longest(first, second)
        mixed = [key for pair in pairs for key in pair if key is not None]
        return (*mixed, *fresh[len(failed) :])

    def settle(self, attempts: Iterable[Attempt], now: float) -> tuple[Refused, ...]:
        """Take the outcomes of a round. Returns the records that were refused."""
        attempts = list(attempts)
        last_taken = max((index for index, attempt in enumerate(attempts) if attempt.failure is None), default=-1)
        refused: list[Refused] = []
        for index, attempt in enumerate(attempts):
            if attempt.failure is None:
                self._remove(attempt.key)
            else:
                refused += self._count(attempt.key, attempt.failure, index < last_taken, now)
        self._pace(attempts[last_taken + 1 :], last_taken >= 0, now)
        return tuple(refused)

    def _remove(self, key: Key) -> _Pending:
        return self._parked.pop(key) if key in self._parked else self._waiting.pop(key)

    def _count(self, key: Key, failure: Failure, others_taken: bool, now: float) -> list[Refused]:
        is_refusal = others_taken or failure.is_fault
        if key in self._waiting and not is_refusal:
            # the connection may have broken after the record was stored
            self._waiting[key].in_doubt = self._waiting[key].has_failed = True
            return []
        record = self._remove(key)
        record.in_doubt = record.in_doubt or not failure.is_fault
        record.tries += is_refusal
        record.not_before = now + _pause(max(0, record.tries - 1))
        if record.tries >= self._tries or len(self._parked) >= self._size:
            return [Refused(key, failure.reason, record.tries, None)]
        self._parked[key] = record  # at the end of the dict, so that the others get their turn first
        return [Refused(key, failure.reason, record.tries, record.not_before)]

    def _pace(self, trailing: list[Attempt], any_taken: bool, now: float) -> None:
        blameless = [item.failure.reason for item in trailing if item.failure and not item.failure.is_fault]
        self.trouble = blameless[-1] if blameless else None
        if any_taken or not blameless:
            self._fruitless = 0
        if blameless and not any_taken:
            self._not_before = now + _pause(self._fruitless)
            self._fruitless += 1


def _pause(fruitless: int) -> float:
    return min(_PAUSE * 2.0 ** min(fruitless, 16), _LONGEST_PAUSE)
