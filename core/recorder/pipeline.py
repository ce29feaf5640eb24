"""
What one returner gets next, and when a record is given up.

Pure: stdlib only, no clock (time is an argument), no I/O. It must never lose a record: each is delivered, refused with a
reason, or waits.

How to tell a record that the returner refuses (poison) from a returner that is down:

* A record counts as refused when *another* one, tried after it in the same round, was taken: the returner works.
* So it does when the error itself blames the data (``DataError``, ``TypeError``, …). Otherwise many bad records in a row
  would look like a returner that is down, for ever.
* Any other failure says nothing about the record. After a few of them in a row the round ends. The next round tries only
  a few records, different ones each time, so that one bad record cannot hide that the returner is back. If a round had no
  success, the next one comes after a pause.

A refused record is tried again after a pause that grows with each refusal; so few in a round that they alone never end it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

#: Errors, by class name, that blame the record and not the returner. Database drivers share these names (PEP 249).
_FAULTS = {"DataError", "IntegrityError", "TypeError", "ValueError", "LookupError", "AttributeError"}
_FAULTS |= {"ArithmeticError", "RecursionError"}
#: Failures in a row after which a round ends, and records tried in a round while the returner seems to be down.
STOP_AFTER = 3
#: Refusals after which a record is given up.
TRIES = 5
#: Seconds before the next try after a failure; each further failure doubles them, up to the longest.
_PAUSE, _LONGEST = 1.0, 10.0


class Failure(NamedTuple):
    """A returner did not take a record: why, and whether the error blames the record."""

    reason: str
    is_fault: bool


def failure_of(error: BaseException) -> Failure:
    names = {kind.__name__ for kind in type(error).__mro__}
    # An OSError is about the world, although some subclasses (UnsupportedOperation) are ValueErrors too.
    is_fault = bool(names & _FAULTS) and "OSError" not in names
    return Failure(f"{type(error).__name__}: {str(error).strip()}"[:1000], is_fault)


#: What names a record.
Key: TypeAlias = Any
#: Hands records over, and raises if none was taken. Returns ``{key: why}`` of those that were refused.
Take: TypeAlias = Callable[[Sequence[Key]], Mapping[Key, str]]
#: The outcome of one try; there is no failure if the record was taken.
Attempt: TypeAlias = tuple[Key, Failure | None]


class Refusal(NamedTuple):
    """A record was refused."""

    tries: int  # how often by now
    pause: float | None  # seconds until it is to be tried again; None if it is given up
    why: str


class Pipeline:
    """
    One returner's way through its records. After ``tries`` refusals one is given up. ``longest``: seconds to the next round
    while the returner takes nothing.
    """

    def __init__(self, tries: int = TRIES, longest: float = _LONGEST) -> None:
        self._tries, self._longest = tries, longest
        self.trouble: str | None = None  # why the returner is thought to be down
        self.not_before = 0.0  # the time of the next round, as ``settle`` takes it
        self._failed = set[Key]()  # what a try has failed of, and was not to blame
        self._fruitless = self._turn = 0

    def round(self, tries: Mapping[Key, int]) -> list[Key]:
        """
        Return the records to try now, in this order, of those that wait. ``tries``: how often each was refused. Stop after
        STOP_AFTER failures in a row that blame no record. After the round you must call ``settle``.
        """
        self._failed.intersection_update(tries)
        refused = [key for key, count in tries.items() if count][: STOP_AFTER - 1]
        waiting = [*refused, *(key for key, count in tries.items() if not count)]
        if self.trouble and waiting:
            start = self._turn % len(waiting)
            self._turn += STOP_AFTER
            return (waiting[start:] + waiting[:start])[:STOP_AFTER]
        # After each record that has failed before comes one that has not, as long as there are any: if that is taken, the
        # other one is at fault, and records that fail again cannot end a round by themselves.
        failed = [key for key in waiting if tries[key] or key in self._failed]
        fresh = [key for key in waiting if not (tries[key] or key in self._failed)]
        return [key for pair in itertools.zip_longest(failed, fresh) for key in pair if key is not None]

    def settle(self, attempts: Sequence[Attempt], tries: Mapping[Key, int], now: float) -> dict[Key, Refusal]:
        """Take the outcomes of a round, and return the records that were refused. Without any, nothing is known anew."""
        if not attempts:
            return {}
        last_taken = max((index for index, (_, failure) in enumerate(attempts) if failure is None), default=-1)
        refused, self.trouble = dict[Key, Refusal](), None
        for index, (key, failure) in enumerate(attempts):
            if failure is None:
                continue
            if failure.is_fault or index < last_taken:
                count = tries[key] + 1
                pause = None if count >= self._tries else _pause(count - 1)
                refused[key] = Refusal(count, pause, failure.reason)
            else:
                self._failed.add(key)
                self.trouble = failure.reason
        if self.trouble and last_taken < 0:
            self.not_before = now + _pause(self._fruitless, self._longest)
            self._fruitless += 1
        else:
            self._fruitless = 0
        return refused


def _pause(fruitless: int, longest: float = _LONGEST) -> float:
    return min(_PAUSE * 2.0 ** min(fruitless, 16), longest)


def attempts_of(keys: Sequence[Key], take: Take, at_once: bool = True) -> Iterator[Attempt]:
    """
    Hand records over, in as few calls as possible or one at a time, and yield the outcome of each as soon as it is known.
    Halving a call that has failed finds the bad record. If STOP_AFTER records in a row fail alone, and no error blames one,
    the returner counts as down: the rest is neither tried nor yielded.
    """
    pieces: deque[Sequence[Key]] = deque([keys] if at_once and keys else [[key] for key in keys])
    failed_alone = 0
    while pieces and failed_alone < STOP_AFTER:
        piece = pieces.popleft()
        if failed_alone and len(piece) > 1:
            # the returner may be down, and a whole piece would only take longer to show that
            pieces.appendleft(piece[1:])
            piece = piece[:1]
        try:
            refused = take(piece)
        except Exception as exc:  # a returner raises whatever its client library raises
            failure = failure_of(exc)
            if len(piece) == 1:
                failed_alone += not failure.is_fault
                yield piece[0], failure
            else:
                pieces.extendleft(reversed(_divided(piece, failure.is_fault)))
            continue
        failed_alone = 0
        for key in piece:
            yield key, Failure(refused[key], is_fault=True) if key in refused else None


def _divided(piece: Sequence[Key], is_fault: bool) -> list[Sequence[Key]]:
    """Return the parts of a piece that failed, in the order to try them."""
    # A single record shows whether the returner works; the last one, since records that were refused before lead the piece.
    rest, last = (piece, piece[:0]) if is_fault else (piece[:-1], piece[-1:])
    middle = (len(rest) + 1) // 2
    return [part for part in (last, rest[:middle], rest[middle:]) if part]
