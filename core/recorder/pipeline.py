"""
What one returner gets next, and when a record is given up.

Pure: stdlib only, no clock (time is an argument), no I/O. It must never lose a record: each is delivered, refused with a
reason, or waits.

How to tell a record that the returner refuses (poison) from a returner that is down:

* A record counts as refused when *another* one, tried after it in the same round, was taken: the returner works, so the
  record is at fault.
* It also counts as refused when the error itself blames the data (``DataError``, ``TypeError``, …). Otherwise many bad
  records in a row would look like a returner that is down, for ever.
* Any other failure says nothing about the record. After a few of them in a row the round ends. The next round tries only
  a few records, different ones each time, so that one bad record cannot hide that the returner is back. If a round had no
  success, the next one comes after a pause.

A refused record leaves the pipeline, and is to be taken again when it is due: after a pause that grows with each refusal.
Few of them are taken at a time, so that they alone cannot end a round.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
#: Seconds before the next try after a failure; each further failure doubles them, up to the longest.
_PAUSE = 1.0
_LONGEST = 10.0


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


#: Hands records over. Returns why none of them was taken, or ``{record: why}`` of those that were not.
Take: TypeAlias = Callable[[Sequence[Key]], Failure | Mapping[Key, Failure]]


@dataclasses.dataclass(frozen=True)
class Attempt:
    """The outcome of one try; ``failure`` is None when the record was taken."""

    key: Key
    failure: Failure | None = None


@dataclasses.dataclass(frozen=True)
class Refused:
    """
    A record that was refused, and has left the pipeline.

    ``due``: when to take it again; None if it is to be set aside.
    """

    key: Key
    reason: str
    tries: int
    due: float | None


@dataclasses.dataclass(frozen=True)
class _Pending:
    tries: int = 0
    in_doubt: bool = False
    has_failed: bool = False  # without being to blame

    @property
    def is_suspect(self) -> bool:
        return self.has_failed or self.tries > 0


#: One that was never tried.
_FRESH = _Pending()


class Pipeline:
    """
    One returner's way through the records. It holds only the next few.

    :param size: most records that wait.
    :param tries: how often a record may be refused before it is set aside.
    :param longest: most seconds before the next try while the returner takes nothing.
    """

    def __init__(self, size: int, tries: int = 5, longest: float = _LONGEST) -> None:
        self._size, self._tries, self._longest = size, tries, longest
        self._waiting: dict[Key, _Pending] = {}
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
    def room_for_refused(self) -> int:
        """How many more records it takes now that were refused before."""
        return max(0, STOP_AFTER - 1 - sum(record.tries > 0 for record in self._waiting.values()))

    def __len__(self) -> int:
        return len(self._waiting)

    def is_in_doubt(self, key: Key) -> bool:
        """Whether the returner may have the record already: if it can be asked, ask it before the next try."""
        return self._waiting[key].in_doubt

    def take(self, key: Key, tries: int = 0, in_doubt: bool = False) -> None:
        """
        Add a record.

        :param tries: how often it was refused before.
        :param in_doubt: it is unknown whether it was delivered, as after a restart.
        """
        self._waiting[key] = _Pending(tries, in_doubt) if tries or in_doubt else _FRESH

    def drop(self, key: Key) -> None:
        """Forget a record that is not to be delivered."""
        del self._waiting[key]

    def due(self) -> float | None:
        """Return the time of the next round, or None if there is nothing to deliver."""
        return self._not_before if self._waiting else None

    def round(self, now: float) -> tuple[Key, ...]:
        """
        Return the records to try now, in this order; none before ``due``.

        Stop the round after STOP_AFTER failures in a row that blame no record. After the round you must call ``settle``.
        """
        if now < self._not_before:
            return ()
        waiting = list(self._waiting)
        if not self.trouble or not waiting:
            return self._in_turn(waiting)
        start = self._turn % len(waiting)
        self._turn += STOP_AFTER
        return tuple((waiting[start:] + waiting[:start])[:STOP_AFTER])

    def _in_turn(self, waiting: list[Key]) -> tuple[Key, ...]:
        """
        Return records in the order of their tries: after each record that has failed before comes one that has not, as
        long as there are any.

        So records that fail again cannot end a round by themselves, and a record that is taken after them shows that
        they are at fault.
        """
        failed = [key for key in waiting if self._waiting[key].is_suspect]
        if not failed:
            return tuple(waiting)
        fresh = [key for key in waiting if not self._waiting[key].is_suspect]
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
                del self._waiting[attempt.key]
            elif attempt.failure.is_fault or index < last_taken:
                refused.append(self._refused(attempt.key, attempt.failure, now))
            else:  # the connection may have broken after the record was stored
                self._waiting[attempt.key] = _Pending(self._waiting[attempt.key].tries, in_doubt=True, has_failed=True)
        self._pace(attempts[last_taken + 1 :], last_taken >= 0, now)
        return tuple(refused)

    def _refused(self, key: Key, failure: Failure, now: float) -> Refused:
        tries = self._waiting.pop(key).tries + 1
        return Refused(key, failure.reason, tries, None if tries >= self._tries else now + _pause(tries - 1))

    def _pace(self, trailing: list[Attempt], any_taken: bool, now: float) -> None:
        blameless = [item.failure.reason for item in trailing if item.failure and not item.failure.is_fault]
        self.trouble = blameless[-1] if blameless else None
        if any_taken or not blameless:
            self._fruitless = 0
        if blameless and not any_taken:
            self._not_before = now + _pause(self._fruitless, self._longest)
            self._fruitless += 1


def _pause(fruitless: int, longest: float = _LONGEST) -> float:
    return min(_PAUSE * 2.0 ** min(fruitless, 16), longest)


def attempts_of(keys: Sequence[Key], take: Take, at_once: bool = True) -> Iterator[Attempt]:
    """
    Hand records over, in as few calls as possible or one at a time, and yield the outcome of each as soon as it is known.

    If STOP_AFTER records in a row fail alone, and no error blames the record, the returner counts as down: the remaining
    records are neither tried nor yielded. Otherwise halving a call that has failed finds the bad record.
    """
    pieces: deque[Sequence[Key]] = deque([keys] if at_once and keys else [[key] for key in keys])
    failed_alone = 0
    while pieces and failed_alone < STOP_AFTER:
        piece = pieces.popleft()
        if failed_alone and len(piece) > 1:
            # the returner may be down, and a whole piece would only take longer to show that
            pieces.appendleft(piece[1:])
            piece = piece[:1]
        found = take(piece)
        if not isinstance(found, Failure):
            failed_alone = 0
            yield from (Attempt(key, found.get(key)) for key in piece)
        elif len(piece) == 1:
            failed_alone += not found.is_fault
            yield Attempt(piece[0], found)
        else:
            pieces.extendleft(reversed(_divided(piece, found.is_fault)))


def _divided(piece: Sequence[Key], is_fault: bool) -> list[Sequence[Key]]:
    """Return the parts of a piece that failed, in the order to try them."""
    if is_fault:
        middle = len(piece) // 2
        return [piece[:middle], piece[middle:]]
    # A single record shows whether the returner works. The last one is tried first, because records that were refused
    # before lead the piece.
    rest, last = piece[:-1], piece[-1:]
    middle = (len(rest) + 1) // 2
    return [part for part in (last, rest[:middle], rest[middle:]) if part]
