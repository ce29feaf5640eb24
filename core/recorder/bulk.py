"""
Splits records into calls, for a returner that takes all records of a call or none.

Pure: stdlib only, no clock, no I/O. It must never let one record hold up the others. When a call fails, a single record
shows whether the returner is down. If it is not, halving finds the bad record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from saltext.jobs.core.recorder.pipeline import STOP_AFTER, Attempt, Failure, Key

#: Hands records over. Returns why none of them was taken, or ``{record: why}`` of those that were not.
Take = Callable[[Sequence[Key]], "Failure | Mapping[Key, Failure]"]


def attempts_in_bulk(keys: Sequence[Key], take: Take) -> Iterator[Attempt]:
    """
    Hand records over in as few calls as possible, and yield the outcome of each as soon as it is known.

    If STOP_AFTER records in a row fail alone, and no error blames the record, the returner counts as down: the remaining
    records are neither tried nor yielded.
    """
    pieces: deque[Sequence[Key]] = deque([keys] if keys else [])
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
