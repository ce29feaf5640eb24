"""
One question to minions, from its publish to its end: which answers count, and how long to wait for them.

With a place that keeps answers under the names of their authenticated senders, an answer counts once it is there; the bus
only says when to look, and one look serves all answers heard of meanwhile. Without such a place, answers on the bus
count. It must never guess: the silence of a minion proves nothing. While the master has a backlog of messages, a minion
without an answer does not count as silent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from saltext.jobs.core import compat, lines
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.master.hearsay import Search

log = lines.logger(__name__)

#: A function's return value, and its retcode.
Answer = tuple[Any, int]
#: Gets ``{minion: return value}`` of answers that count from now on.
Told = Callable[[Mapping[str, Any]], None]
#: Seconds before each of the two last looks for answers that were announced on the bus.
_LAST_LOOKS = (0.3, 2.0)
#: The master has forwarded all answers to a question once no reply to it, or to anything earlier, has come for the
#: question's timeout, raised to LEAST_QUIET or cut to QUIET seconds: a busy master may pause for seconds.
LEAST_QUIET, QUIET = 2.0, 10.0
#: The longest time of a question, as a multiple of its regular time.
LONGEST = 6.0
#: Publish times are rounded to this many seconds: receipts of one publish differ by less.
_STEP = 0.1


@dataclasses.dataclass(frozen=True)
class Answers:
    """
    The outcome of a question.

    ``matched``: the minions that the question went to, as the master says. ``given``: ``{minion: return}`` of those that
    answered; the return comes from the minion unchecked. ``failed``: ``{minion: retcode}`` of answers whose retcode is
    not 0. ``unproven``: minions whose answer was announced on the bus, but is not where answers are kept.
    """

    matched: frozenset[str]
    given: Mapping[str, Any]
    failed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unproven: frozenset[str] = frozenset()


class Place(Protocol):
    """A place that keeps answers under the names of their authenticated senders."""

    async def read(self, jid: str, minions: frozenset[str]) -> Mapping[str, Answer]:
        """Return the answers to the question ``jid`` of those of ``minions`` that have answered."""

    async def answered(self, jid: str, minions: frozenset[str]) -> frozenset[str]:
        """Return those of ``minions`` that have answered the question ``jid`` with anything."""

    async def forget(self, jid: str) -> None:
        """Remove the question ``jid`` and its answers. Raises nothing."""


class HandedOn:
    """
    What the master has forwarded to an engine lately, which tells whether it has a backlog of minions' messages.

    A busy master forwards messages roughly in order. While it still forwards replies to a question, or to an earlier
    question or job, more answers to that question may be queued there: a minion without an answer is not silent yet. A
    reply to something newer shows that the master has got further. Waiting is bounded, because minions can send things
    late on purpose. All times are seconds of one clock that only rises.
    """

    def __init__(self) -> None:
        self._most = 100
        #: For each (rounded) time of a publish, when minions were last heard about it.
        self._last: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, cause: float, now: float) -> None:
        """A message about something that was published at ``cause`` has come ``now``."""
        self._last[_step_of(cause)] = now
        if len(self._last) > self._most:
            self._last = {step: last for step, last in self._last.items() if last > now - QUIET}
            self._most = 2 * len(self._last) + 100

    def end_of(self, published: float, earliest: float, timeout: float) -> float:
        """
        Return when the minions that have not answered a question count as silent, as known now.

        :param published: when the question was published.
        :param earliest: when its time is over if there is no backlog.
        :param timeout: the seconds until then.
        """
        latest = _step_of(published)
        last = max((last for step, last in self._last.items() if step <= latest), default=-math.inf)
        return min(max(earliest, last + max(LEAST_QUIET, min(timeout, QUIET))), earliest + (LONGEST - 1.0) * timeout)


def _step_of(cause: float) -> int:
    return math.floor(cause / _STEP)


class Question:
    """
    :param loop: the engine's tornado loop.
    :param steady: returns seconds that only ever rise.
    :param read: returns the kept answers of some minions; None if answers on the bus count.
    :param told: gets answers as soon as they count.
    :param handed_on: what the master has forwarded to the engine, for all questions.
    """

    def __init__(
        self,
        loop: Any,
        steady: Callable[[], float],
        read: Callable[[frozenset[str]], Awaitable[Mapping[str, Answer]]] | None,
        told: Told | None,
        handed_on: HandedOn,
    ) -> None:
        self._loop, self._steady, self._read, self._told, self._handed_on = loop, steady, read, told, handed_on
        self._published, self._earliest = 0.0, 0.0  # when published; and when its time is over (no backlog)
        self._matched: frozenset[str] | None = None
        self._given: dict[str, Any] = {}
        self._failed: dict[str, int] = {}
        self._heard: set[str] = set()  # minions whose answers were announced on the bus
        self._over: Any = compat.Future()
        self._search = (
            None if read is None else Search(loop, steady, self._wants, self._read_some, self._take_new, _say_later)
        )
        self._closed = False
        self._timer: Any = None  # for the end of its time

    def heard(self, minion: str, value: Any, retcode: int) -> None:
        """An answer was announced on the bus."""
        if self._search is None:
            self._take({minion: (value, retcode)})
        elif self._wants(minion) and (self._matched is None or minion in self._matched):
            self._heard.add(minion)
            self._search.heard(minion)

    async def ask(self, publish: Awaitable[frozenset[str]], timeout: float) -> Answers:
        """
        Return the outcome, once all have answered or the time is over. Raises as ``publish`` and as ``read``. Later
        answers still go to ``told``, until ``close``.

        :param publish: publishes the question, and returns the minions that it is for.
        """
        self._published = self._steady()
        self._matched = await publish
        self._end_if_complete()
        self._earliest = self._steady() + timeout
        self._timer = self._loop.call_later(timeout, self._end_when_quiet, timeout)
        await self._over
        await self._look_for_the_rest()
        unproven = frozenset(self._heard - self._given.keys())
        return Answers(self._matched, dict(self._given), dict(self._failed), unproven)

    def close(self) -> None:
        """Take no more answers."""
        self._closed = True
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
        if self._search is not None:
            self._search.close()

    def _wants(self, minion: str) -> bool:
        return minion not in self._given

    def _take(self, answers: Mapping[str, Answer]) -> None:
        for minion, (value, retcode) in answers.items():
            self._given[minion] = value
            if retcode:
                self._failed[minion] = retcode
        if answers and self._read is not None:
            self._handed_on.note(self._published, self._steady())
        if answers and self._told is not None:
            self._told({minion: value for minion, (value, _) in answers.items()})
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._matched is not None and self._matched <= self._given.keys():
            self._finish()

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _end_when_quiet(self, timeout: float) -> None:
        """End a question whose time is over, unless the master has a backlog."""
        wait = self._handed_on.end_of(self._published, self._earliest, timeout) - self._steady()
        if self._read is not None and wait > 0.0:
            self._timer = self._loop.call_later(wait, self._end_when_quiet, timeout)
        else:
            self._finish()

    # -- answers that are kept -----------------------------------------------------------------------------------------

    async def _read_some(self, minions: list[str]) -> Mapping[str, Answer]:
        assert self._read is not None
        return await self._read(frozenset(minions))

    def _take_new(self, found: Mapping[str, Answer]) -> None:
        if not self._closed:
            self._take({minion: answer for minion, answer in found.items() if minion not in self._given})

    async def _look_for_the_rest(self) -> None:
        """Also take answers that were not announced on the bus, or only now."""
        assert self._matched is not None
        left = self._matched - self._given.keys()
        if self._search is None or self._read is None or not left:
            return
        fresh = frozenset(self._search.minions())
        for number, wait in enumerate(_LAST_LOOKS):
            if fresh:
                await compat.sleep(wait)
            self._take_new(await self._read(left))
            left = fresh = fresh & left - self._given.keys()
            if not left or number + 1 == len(_LAST_LOOKS):
                return


def _say_later(exc: Exception) -> None:
    told = None if isinstance(exc, JobCacheError) else exc
    log.debug("Answers cannot be looked for now: %s", exc, exc_info=told)
