"""
Returns that the event bus has told of, until the job cache has them.

An event is hearsay: every accepted minion can fire one in another's name. What the job cache has, the master has stored, and
one look-up serves for all returns that were heard of meanwhile. This says when it is due, and for whom. Nothing of it is
kept: after a crash all minions in flight are looked for. Pure: stdlib only.
"""

from __future__ import annotations

from collections.abc import Collection

#: Seconds after which the job cache should have a return. The master fires the event before it stores the return.
STORED = 0.03
#: Least seconds between two look-ups; and how many times as long as the last one took, so that a slow job cache is busy with
#: them for a fifth of the time at most, up to the longest pause in seconds.
PAUSE = 0.03
SPARING = 4.0
LONGEST_PAUSE = 5.0
#: Seconds before each further look for a return that the job cache did not have. After the last one the event is taken to be
#: forged. The third look is for mmap_cache, which may hide what another process has stored for a quarter of a second.
AGAIN = (0.1, 0.15, 0.5, 1.0, 3.0)
#: Seconds between two looks for a minion in whose name events were forged, while they keep coming.
DOUBTED = 5.0
#: Most minions in one look-up: so many returns are read one by one, more would have all returns of the job read.
MOST = 200


class Hearsay:
    """The returns of one job, or the answers to one question. At most one look-up is under way."""

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}  # minions whose returns are to be looked for, and from when on
        self._in_vain: dict[str, int] = {}  # looks that found nothing, of minions that have not been found yet
        self._first: float | None = None  # when the first look is due
        self._not_before = 0.0
        self._looking = False

    def heard(self, minion: str, now: float) -> None:
        """The bus has told of a return of ``minion``."""
        if minion not in self._waiting:
            self._look_at(minion, now + (DOUBTED if minion in self._in_vain else STORED))

    @property
    def next_due(self) -> float | None:
        """When the next look-up is due, by the clock of ``now``; None where none is, or one is under way."""
        return None if self._looking or self._first is None else max(self._first, self._not_before)

    def take(self, now: float) -> tuple[str, ...]:
        """Begin a look-up: return the minions to be looked for. After this you must call ``looked`` or ``failed``."""
        due = [minion for minion, at in self._waiting.items() if at <= now]
        self._looking = True
        return tuple(due[:MOST])

    def looked(self, asked: Collection[str], found: Collection[str], now: float, took: float) -> list[str]:
        """
        A look-up is over. Return the minions that are not looked for any more unless they are heard of again.

        :param found: those of ``asked`` that the job cache has, or that are not waited for any more.
        :param took: seconds that it took.
        """
        self._end(now + min(max(PAUSE, SPARING * took), LONGEST_PAUSE), asked)
        doubted = []
        for minion in asked:
            if minion in found:
                self._in_vain.pop(minion, None)
                continue
            self._in_vain[minion] = looks = self._in_vain.get(minion, 0) + 1
            if looks <= len(AGAIN):
                self._look_at(minion, now + AGAIN[looks - 1])
            else:
                doubted.append(minion)
        return doubted

    def failed(self, asked: Collection[str], again: float) -> None:
        """The job cache could not be read: look again at ``again``."""
        self._end(again, ())
        for minion in asked:
            self._look_at(minion, again)

    def minions(self) -> list[str]:
        """Return the minions that are still to be looked for."""
        return list(self._waiting)

    def _look_at(self, minion: str, at: float) -> None:
        self._waiting[minion] = at
        self._first = at if self._first is None else min(self._first, at)

    def _end(self, not_before: float, over: Collection[str]) -> None:
        self._looking, self._not_before = False, not_before
        for minion in over:
            self._waiting.pop(minion, None)
        self._first = min(self._waiting.values(), default=None)
