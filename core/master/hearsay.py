"""
Returns that were announced on the event bus, until the job cache has them.

An event is hearsay, because every accepted minion can fire one in another's name. Returns in the job cache are proof,
because the master stored them. One look-up serves all returns that were announced meanwhile: ``Hearsay`` says when it is
due, and for which minions; ``Search`` makes it. None of this is stored: after a crash all minions in flight are looked
for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Seconds after which the job cache should have a return: the master fires the event before it stores the return.
STORED = 0.03
#: Seconds between two look-ups: PAUSE, or SPARING times as long as the last look-up took if that is more, and at most
#: LONGEST_PAUSE. So a slow job cache spends at most a fifth of its time on the look-ups of one job, unless one takes
#: longer than LONGEST_PAUSE / SPARING.
PAUSE = 0.03
SPARING = 4.0
LONGEST_PAUSE = 5.0
#: Seconds before each further look for a return that the job cache did not have. After the last one the event counts as
#: forged. The third look is for mmap_cache, which may hide another process's write for a quarter of a second.
AGAIN = (0.1, 0.15, 0.5, 1.0, 3.0)
#: Seconds before another look-up after one that failed.
AFTER_FAILURE = 5.0
#: Seconds between two looks for a minion while forged events in its name keep coming.
DOUBTED = 5.0
#: Most minions in one look-up. Up to this number returns are read one by one; for more, all returns would be read.
MOST = 200


class Hearsay:
    """
    The announced returns of one job, or answers to one question. At most one look-up is under way. Pure: the time is an
    argument.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, float] = {}  # minions whose returns must be looked for, and from when on
        self._in_vain: dict[str, int] = {}  # vain looks, for minions whose return was not found yet
        self._first: float | None = None  # when the first look is due
        self._not_before = 0.0
        self._looking = False

    def heard(self, minion: str, now: float) -> None:
        """A return of ``minion`` was announced on the bus."""
        if minion not in self._waiting:
            self._look_at(minion, now + (DOUBTED if minion in self._in_vain else STORED))

    @property
    def next_due(self) -> float | None:
        """When the next look-up is due, by the clock of ``now``; None if none is, or one is under way."""
        return None if self._looking or self._first is None else max(self._first, self._not_before)

    def take(self, now: float) -> tuple[str, ...]:
        """Begin a look-up: return the minions to look for. After this you must call ``looked`` or ``failed``."""
        due = [minion for minion, at in self._waiting.items() if at <= now]
        self._looking = True
        return tuple(due[:MOST])

    def looked(self, asked: Collection[str], found: Collection[str], now: float, took: float) -> list[str]:
        """
        A look-up is over. Return the minions that are dropped until they are announced again.

        :param found: the minions of ``asked`` whose return is in the job cache, or is no longer needed.
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
        """Return the minions that must still be looked for."""
        return list(self._waiting)

    def _look_at(self, minion: str, at: float) -> None:
        self._waiting[minion] = at
        self._first = at if self._first is None else min(self._first, at)

    def _end(self, not_before: float, over: Collection[str]) -> None:
        self._looking, self._not_before = False, not_before
        for minion in over:
            self._waiting.pop(minion, None)
        self._first = min(self._waiting.values(), default=None)


class Search(Generic[T]):
    """
    Looks for the announced returns of one job, or answers to one question.

    :param loop: the engine's tornado loop.
    :param now: returns seconds that only ever rise.
    :param wanted: tells whether the return of a minion is still wanted.
    :param read: gets minions, and returns ``{minion: return}`` for those whose return is there.
    :param found: gets what ``read`` returned, unless it is empty.
    :param failed: gets what ``read`` raised; ``read`` is called again later.
    :param doubted: gets the minions whose returns are not looked for any more until they are announced again.
    """

    def __init__(
        self,
        loop: Any,
        now: Callable[[], float],
        wanted: Callable[[str], bool],
        read: Callable[[list[str]], Awaitable[Mapping[str, T]]],
        found: Callable[[Mapping[str, T]], None],
        failed: Callable[[Exception], None],
        doubted: Callable[[list[str]], None] = lambda minions: None,
    ) -> None:
        self._loop, self._now, self._wanted, self._read = loop, now, wanted, read
        self._found, self._failed, self._doubted = found, failed, doubted
        self._hearsay = Hearsay()
        self._timer: Any = None
        self._due: float | None = None
        self._closed = False

    def heard(self, minion: str) -> None:
        """A return of ``minion`` was announced on the bus."""
        self._hearsay.heard(minion, self._now())
        self._plan()

    def minions(self) -> list[str]:
        """Return the minions that must still be looked for."""
        return self._hearsay.minions()

    def close(self) -> None:
        """Begin no more look-ups. The result of one that is under way is still told."""
        self._closed = True
        self._stop()

    def _plan(self) -> None:
        due = self._hearsay.next_due
        if due == self._due or self._closed:
            return
        self._stop()
        if due is not None:
            self._due, self._timer = due, self._loop.call_later(max(0.0, due - self._now()), self._begin)

    def _stop(self) -> None:
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
        self._due = self._timer = None

    def _begin(self) -> None:
        due, self._due, self._timer = self._due, None, None
        if due is not None and due > self._now():  # a loop may wake a moment early
            self._plan()
        else:
            self._loop.spawn_callback(self._look)

    async def _look(self) -> None:
        began = self._now()
        asked = self._hearsay.take(began)
        wanted = list(filter(self._wanted, asked))
        try:
            found = await self._read(wanted) if wanted else {}
        except Exception as exc:
            self._hearsay.failed(asked, self._now() + AFTER_FAILURE)
            self._failed(exc)
        else:
            now = self._now()
            doubted = self._hearsay.looked(asked, found.keys() | set(asked).difference(wanted), now, now - began)
            if doubted:
                self._doubted(doubted)
            if found:
                self._found(found)
        self._plan()
