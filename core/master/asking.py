"""
One question to minions, from its publish until it is over: which answers count, and how long they are waited for.

Without a place where answers are kept under the names of those that sent them, they count as the bus tells of them. With
one the bus tells hearsay: an answer counts once it is there, and one look serves for all that were heard of meanwhile. It
must never guess: a minion that did not answer is silent, which is evidence of nothing, and it is not silent as long as the
master is behind with what minions have sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from saltext.jobs.core import compat, lines
from saltext.jobs.core.errors import JobCacheError
from saltext.jobs.core.master.handed_on import HandedOn
from saltext.jobs.core.master.hearsay import Hearsay

log = lines.logger(__name__)

#: What a function returned, and its retcode.
Answer = tuple[Any, int]
#: Gets ``{minion: what it answered}`` of answers that count from now on.
Told = Callable[[Mapping[str, Any]], None]
#: Seconds before the last look for answers that the bus has told of, and before one more.
_LAST_LOOKS = (0.3, 2.0)
#: Seconds before a place of answers that failed is looked at again.
_PAUSE = 5.0


@dataclasses.dataclass(frozen=True)
class Answers:
    """
    What came of a question.

    ``matched``: the minions that the master says the question went to. ``given``: ``{minion: return}`` of those that
    answered; the return is whatever the function returned, and comes from the minion itself. ``failed``: ``{minion:
    retcode}`` of those of them whose retcode is not 0. ``unproven``: those whose answer the bus has told of
    and that is not where answers are kept.
    """

    matched: frozenset[str]
    given: Mapping[str, Any]
    failed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unproven: frozenset[str] = frozenset()


class Kept(Protocol):
    """Where answers are kept under the names of those that sent them."""

    async def read(self, jid: str, minions: frozenset[str]) -> Mapping[str, Answer]:
        """Return the answers to the question ``jid`` of those of ``minions`` that have answered."""

    async def answered(self, jid: str, minions: frozenset[str]) -> frozenset[str]:
        """Return those of ``minions`` that have answered the question ``jid``, whatever it was."""

    async def forget(self, jid: str) -> None:
        """Remove the question ``jid`` and its answers. Raises nothing."""


class Question:
    """
    :param loop: the engine's tornado loop.
    :param steady: returns seconds that only ever rise.
    :param read: returns the answers of some minions that are kept; None where those count that the bus tells of.
    :param told: gets answers as soon as they count.
    :param handed_on: what the master has handed on to the engine, whoever asked for it.
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
        self._published, self._earliest = 0.0, 0.0  # when it was, and when its time is over unless the master is behind
        self._matched: frozenset[str] | None = None
        self._given: dict[str, Any] = {}
        self._failed: dict[str, int] = {}
        self._heard: set[str] = set()  # minions of whose answer the bus has told
        self._over: Any = compat.Future()
        self._hearsay = Hearsay()
        self._closed = False
        self._timer: Any = None  # of the end of its time
        self._look_timer: Any = None
        self._look_due: float | None = None

    def heard(self, minion: str, value: Any, retcode: int) -> None:
        """The bus tells of an answer."""
        if self._read is None:
            self._take({minion: (value, retcode)})
        elif minion not in self._given and (self._matched is None or minion in self._matched):
            self._heard.add(minion)
            self._hearsay.heard(minion, self._steady())
            self._plan_look()

    async def ask(self, publish: Awaitable[frozenset[str]], timeout: float) -> Answers:
        """
        Return what came of it, once all have answered or their time is over. Raises as ``publish`` and as ``read``. Later
        answers are still told, until it is closed.

        :param publish: publishes the question, and returns for whom it is.
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
        """Take no answer any more."""
        self._closed = True
        for timer in (self._timer, self._look_timer):
            if timer is not None:
                self._loop.remove_timeout(timer)

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
        """End a question whose time is over, unless the master is behind."""
        wait = self._handed_on.end_of(self._published, self._earliest, timeout) - self._steady()
        if self._read is not None and wait > 0.0:
            self._timer = self._loop.call_later(wait, self._end_when_quiet, timeout)
        else:
            self._finish()

    # -- answers that are kept -----------------------------------------------------------------------------------------

    def _plan_look(self) -> None:
        due = self._hearsay.next_due
        if due == self._look_due or self._closed:
            return
        if self._look_timer is not None:
            self._loop.remove_timeout(self._look_timer)
        self._look_due, self._look_timer = due, None
        if due is not None:
            self._look_timer = self._loop.call_later(max(0.0, due - self._steady()), self._begin_look)

    def _begin_look(self) -> None:
        self._look_due = self._look_timer = None
        self._loop.spawn_callback(self._look)

    async def _look(self) -> None:
        """Look for answers of which the bus has told."""
        began = self._steady()
        asked = self._hearsay.take(began)
        wanted = frozenset(asked) - self._given.keys()
        try:
            found = await self._read(wanted) if wanted and self._read is not None else {}
        except JobCacheError as exc:
            log.debug("Answers cannot be looked for now: %s", exc)
            self._hearsay.failed(asked, self._steady() + _PAUSE)
        else:
            now = self._steady()
            self._hearsay.looked(asked, found.keys() | (set(asked) - wanted), now, now - began)
            if not self._closed:
                self._take_new(found)
        self._plan_look()

    def _take_new(self, found: Mapping[str, Answer]) -> None:
        self._take({minion: answer for minion, answer in found.items() if minion not in self._given})

    async def _look_for_the_rest(self) -> None:
        """Take those answers too of which the bus has not told, or only now."""
        assert self._matched is not None
        left = self._matched - self._given.keys()
        if self._read is None or not left:
            return
        fresh = frozenset(self._hearsay.minions())
        for number, wait in enumerate(_LAST_LOOKS):
            if fresh:
                await compat.sleep(wait)
            self._take_new(await self._read(left))
            left = fresh = fresh & left - self._given.keys()
            if not left or number + 1 == len(_LAST_LOOKS):
                return
