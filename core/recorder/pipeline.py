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

A refused record leaves the pipeline, and is taken again after a pause that grows with each refusal; few of them at a time,
so that they alone cannot end a round.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

#: Errors, by class name, that blame the record and not the returner. Database drivers share these names (PEP 249).
_FAULTS = {"DataError", "IntegrityError", "TypeError", "ValueError", "LookupError", "AttributeError"}
_FAULTS |= {"ArithmeticError", "RecursionError"}
#: Failures in a row after which a round ends, and records tried in a round while the returner seems to be down.
STOP_AFTER = 3
#: Seconds before the next try after a failure; each further failure doubles them, up to the longest.
_PAUSE, _LONGEST = 1.0, 10.0


@dataclasses.dataclass(eq=False)
class Item:
    """A record on its way to a returner. Times are Unix time."""

    key: Any  # anything that can be a key of a dict
    tries: int = 0  # how often it was refused
    in_doubt: bool = False  # the returner may have it already: if it can be asked, ask it before the next try
    at: float = 0.0  # since when it is there
    place: int | None = None  # where it stands in the log; None for a row of the outbox
    body: bytes | None = None  # its content, if that is nowhere else
    has_failed: bool = False  # a try has failed, and the record was not to blame
    why: str = ""  # why it was refused
    due: float | None = 0.0  # when it is to be tried again; None if it is to be set aside


class Failure(NamedTuple):
    """A returner did not take a record: why, and whether the error blames the record."""

    reason: str
    is_fault: bool


def failure_of(error: BaseException) -> Failure:
    names = {kind.__name__ for kind in type(error).__mro__}
    # An OSError is about the world, although some subclasses (UnsupportedOperation) are ValueErrors too.
    is_fault = bool(names & _FAULTS) and "OSError" not in names
    return Failure(f"{type(error).__name__}: {str(error).strip()}"[:1000], is_fault)


#: Hands records over, and raises if none was taken. Returns ``{key: why}`` of those that were refused.
Take: TypeAlias = Callable[[Sequence[Item]], Mapping[Any, str]]
#: The outcome of one try; there is no failure if the record was taken.
Attempt: TypeAlias = tuple[Item, Failure | None]


class Pipeline:
    """
    One returner's way through the records. It holds only the next few, at most ``size``. After ``tries`` refusals one is set
    aside. ``longest``: seconds to the next try while the returner takes nothing.
    """

    def __init__(self, size: int, tries: int = 5, longest: float = _LONGEST) -> None:
        self._size, self._tries, self._longest = size, tries, longest
        self.waiting: dict[Any, Item] = {}  # by key, in the order in which they came
        self.trouble: str | None = None  # why the returner is thought to be down
        self.not_before = 0.0  # the time of the next round
        self._fruitless = self._turn = 0

    @property
    def room(self) -> int:
        """How many more records it takes now."""
        return self._size - len(self.waiting)

    @property
    def room_for_refused(self) -> int:
        """How many more records it takes now that were refused before."""
        return max(0, STOP_AFTER - 1 - sum(item.tries > 0 for item in self.waiting.values()))

    def take(self, item: Item) -> None:
        """Add a record, unless there is one with this key."""
        self.waiting.setdefault(item.key, item)

    def round(self, now: float) -> list[Item]:
        """
        Return the records to try now, in this order; none before ``not_before``. Stop after STOP_AFTER failures in a row
        that blame no record. After the round you must call ``settle``.
        """
        if now < self.not_before:
            return []
        waiting = list(self.waiting.values())
        if self.trouble and waiting:
            start = self._turn % len(waiting)
            self._turn += STOP_AFTER
            return (waiting[start:] + waiting[:start])[:STOP_AFTER]
        # After each record that has failed before comes one that has not, as long as there are any: if that is taken, the
        # other one is at fault, and records that fail again cannot end a round by themselves.
        failed = [item for item in waiting if item.has_failed or item.tries]
        fresh = [item for item in waiting if not (item.has_failed or item.tries)] if failed else waiting
        return [item for pair in itertools.zip_longest(failed, fresh) for item in pair if item is not None]

    def settle(self, attempts: Sequence[Attempt], now: float) -> list[Item]:
        """Take the outcomes of a round. Returns the records that were refused, which have left the pipeline."""
        last_taken = max((index for index, (_, failure) in enumerate(attempts) if failure is None), default=-1)
        refused, trouble = list[Item](), None
        for index, (item, failure) in enumerate(attempts):
            if failure is None:
                self.waiting.pop(item.key, None)
            elif failure.is_fault or index < last_taken:
                item.tries, item.why = item.tries + 1, failure.reason
                item.due = None if item.tries >= self._tries else now + _pause(item.tries - 1)
                refused.append(self.waiting.pop(item.key))
            else:  # the connection may have broken after the record was stored
                item.in_doubt = item.has_failed = True
                trouble = failure.reason
        self.trouble = trouble
        if trouble and last_taken < 0:
            self.not_before = now + _pause(self._fruitless, self._longest)
            self._fruitless += 1
        else:
            self._fruitless = 0
        return refused


def _pause(fruitless: int, longest: float = _LONGEST) -> float:
    return min(_PAUSE * 2.0 ** min(fruitless, 16), longest)


def attempts_of(items: Sequence[Item], take: Take, at_once: bool = True) -> Iterator[Attempt]:
    """
    Hand records over, in as few calls as possible or one at a time, and yield the outcome of each as soon as it is known.
    Halving a call that has failed finds the bad record. If STOP_AFTER records in a row fail alone, and no error blames one,
    the returner counts as down: the rest is neither tried nor yielded.
    """
    pieces: deque[Sequence[Item]] = deque([items] if at_once and items else [[item] for item in items])
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
        for item in piece:
            yield item, Failure(refused[item.key], is_fault=True) if item.key in refused else None


def _divided(piece: Sequence[Item], is_fault: bool) -> list[Sequence[Item]]:
    """Return the parts of a piece that failed, in the order to try them."""
    # A single record shows whether the returner works; the last one, since records that were refused before lead the piece.
    rest, last = (piece, piece[:0]) if is_fault else (piece[:-1], piece[-1:])
    middle = (len(rest) + 1) // 2
    return [part for part in (last, rest[:middle], rest[middle:]) if part]
