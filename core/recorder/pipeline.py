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
#: Most bytes of parked records.
PARKED_BYTES = 4 << 20
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

    number: int
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True)
class RefusedRecord:
    """Set this record aside, with the reason. It has left the pipeline."""

    number: int
    reason: str
    tries: int


@dataclasses.dataclass
class _Pending:
    size: int
    tries: int = 0
    in_doubt: bool = False
    has_failed: bool = False  # without being to blame
    not_before: float = 0.0


class Pipeline:
    """
    One returner's way through the records, which have rising numbers. It holds only the next few.

    :param size: most records that wait, and most that are parked.
    :param tries: how often a record may be refused before it is set aside.
    """

    def __init__(self, size: int, tries: int = 5) -> None:
        self._size, self._tries = size, tries
        self._waiting: dict[int, _Pending] = {}
        self._parked: dict[int, _Pending] = {}
        self._parked_bytes = 0
        self._fruitless = 0
        self._turn = 0
        self._not_before = 0.0
        #: Why the returner is thought to be down, or None.
        self.trouble: str | None = None

    @property
    def room(self) -> int:
        """How many more records it takes now."""
        return self._size - len(self._waiting)

    @property
    def pending(self) -> tuple[int, ...]:
        """The records that it holds, oldest first."""
        return tuple(sorted((*self._parked, *self._waiting))) if self._parked else tuple(self._waiting)

    @property
    def parked(self) -> int:
        """How many were refused, and are tried again."""
        return len(self._parked)

    def is_in_doubt(self, number: int) -> bool:
        """Whether the returner may have the record already: if it can be asked, ask it before the next try."""
        return (self._waiting.get(number) or self._parked[number]).in_doubt

    def take(self, number: int, size: int = 0, in_doubt: bool = False) -> None:
        """
        Add a record of ``size`` bytes.

        :param in_doubt: it is unknown whether it was delivered, as after a restart.
        """
        self._waiting[number] = _Pending(size, in_doubt=in_doubt)

    def due(self) -> float | None:
        """Return the time of the next round, or None if there is nothing to deliver."""
        if self._waiting:
            return self._not_before
        if not self._parked:
            return None
        return max(self._not_before, min(record.not_before for record in self._parked.values()))

    def round(self, now: float) -> tuple[int, ...]:
        """
        Return the records to try now, in this order; none before ``due``.

        Stop the round after STOP_AFTER failures in a row that blame no record. After the round you must call ``settle``.
        """
        if now < self._not_before:
            return ()
        parked = [number for number, record in self._parked.items() if record.not_before <= now]
        ready = parked[:_PARKED_IN_A_ROUND] + list(self._waiting)
        if not self.trouble or not ready:
            return self._in_turn(ready)
        start = self._turn % len(ready)
        self._turn += STOP_AFTER
        return tuple((ready[start:] + ready[:start])[:STOP_AFTER])

    def _in_turn(self, ready: list[int]) -> tuple[int, ...]:
        """
        Return records in the order of their tries: after each record that has failed before comes one that has not, as
        long as there are any.

        So records that fail again cannot end a round by themselves, and a record that is taken after them shows that
        they are at fault.
        """
        failed = [number for number in ready if number in self._parked or self._waiting[number].has_failed]
        if not failed:
            return tuple(ready)
        fresh = [number for number in ready if number in self._waiting and not self._waiting[number].has_failed]
        first, second = (fresh[: len(failed)], failed) if len(fresh) > len(failed) else (failed, fresh)
        pairs = itertools.zip_longest(first, second)
        mixed = [number for pair in pairs for number in pair if number is not None]
        return (*mixed, *fresh[len(failed) :])

    def settle(self, attempts: Iterable[Attempt], now: float) -> tuple[RefusedRecord, ...]:
        """Take the outcomes of a round. Returns the records to set aside."""
        attempts = list(attempts)
        last_taken = max((index for index, attempt in enumerate(attempts) if attempt.failure is None), default=-1)
        refused: list[RefusedRecord] = []
        for index, attempt in enumerate(attempts):
            if attempt.failure is None:
                self._remove(attempt.number)
            else:
                refused += self._count(attempt.number, attempt.failure, index < last_taken, now)
        self._pace(attempts[last_taken + 1 :], last_taken >= 0, now)
        return tuple(refused)

    def _remove(self, number: int) -> _Pending:
        if number in self._parked:
            self._parked_bytes -= self._parked[number].size
            return self._parked.pop(number)
        return self._waiting.pop(number)

    def _count(self, number: int, failure: Failure, others_taken: bool, now: float) -> list[RefusedRecord]:
        is_refusal = others_taken or failure.is_fault
        if number in self._waiting and not is_refusal:
            # the connection may have broken after the record was stored
            self._waiting[number].in_doubt = self._waiting[number].has_failed = True
            return []
        record = self._remove(number)
        record.in_doubt = record.in_doubt or not failure.is_fault
        record.tries += is_refusal
        record.not_before = now + _pause(max(0, record.tries - 1))
        has_place = len(self._parked) < self._size and self._parked_bytes + record.size <= PARKED_BYTES
        if record.tries >= self._tries or not has_place:
            return [RefusedRecord(number, failure.reason, record.tries)]
        self._parked[number] = record  # at the end of the dict, so that the others get their turn first
        self._parked_bytes += record.size
        return []

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
