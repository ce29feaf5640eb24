"""
One question to minions, from its publish to its end: which answers count, and how long to wait for them.

An answer counts once the log has it, under the name of its authenticated sender; the bus only says that it is on its way. It
must never guess: the silence of a minion proves nothing. While the master has a backlog of messages, a minion without an
answer does not count as silent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from saltext.jobs.core import compat

#: Gets ``{minion: return value}`` of answers that count from now on.
Told = Callable[[Mapping[str, Any]], None]
#: Seconds before each of the last looks for answers that were announced on the bus.
_LAST_LOOKS = (0.0, 0.3, 2.0)
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
    not 0. ``unproven``: minions whose answer was announced on the bus, but is not in the log.
    """

    matched: frozenset[str]
    given: Mapping[str, Any]
    failed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unproven: frozenset[str] = frozenset()


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
    :param read_log: returns once the log was read to its end; None if answers on the bus count.
    :param told: gets answers as soon as they count.
    :param handed_on: what the master has forwarded to the engine, for all questions.
    """

    def __init__(
        self,
        loop: Any,
        steady: Callable[[], float],
        read_log: Callable[[], Awaitable[object]] | None,
        told: Told | None,
        handed_on: HandedOn,
    ) -> None:
        self._loop, self._steady, self._read_log, self._told, self._handed_on = loop, steady, read_log, told, handed_on
        self._published, self._earliest = 0.0, 0.0  # when published; and when its time is over (no backlog)
        self._matched: frozenset[str] | None = None
        self._given: dict[str, Any] = {}
        self._untold: dict[str, Any] = {}  # the same, until it is handed on
        self._failed: dict[str, int] = {}
        self._heard: set[str] = set()  # minions whose answers were announced on the bus
        self._over: Any = compat.Future()
        self._timer: Any = None  # for the end of its time

    def heard(self, minion: str, value: Any, retcode: int) -> None:
        """An answer was announced on the bus."""
        if self._read_log is None:
            self.answered(minion, value, retcode)
        elif self._matched is None or minion in self._matched:
            self._heard.add(minion)

    def answered(self, minion: str, value: Any, retcode: int) -> None:
        """An answer counts."""
        if self._matched is not None and minion not in self._matched:
            return
        self._given[minion] = value
        if retcode:
            self._failed[minion] = retcode
        if self._read_log is not None:
            self._handed_on.note(self._published, self._steady())
        if self._told is not None:
            if not self._untold:
                self._loop.add_callback(self._hand_on)
            self._untold[minion] = value
        self._end_if_complete()

    def _hand_on(self) -> None:
        """Hand on what was read in the log together."""
        answers, self._untold = self._untold, {}
        if answers and self._told is not None:
            self._told(answers)

    async def ask(self, publish: Awaitable[frozenset[str]], timeout: float) -> Answers:
        """
        Return the outcome, once all have answered or the time is over. Raises as ``publish``. Later answers still go to
        ``told``, until ``close``.

        :param publish: publishes the question, and returns the minions that it is for.
        """
        self._published = self._steady()
        self._matched = await publish
        self._end_if_complete()
        self._earliest = self._steady() + timeout
        self._timer = self._loop.call_later(timeout, self._end_when_quiet, timeout)
        await self._over
        for wait in _LAST_LOOKS:
            is_on_its_way = bool(self._heard & self._matched - self._given.keys())
            if self._read_log is None or self._matched <= self._given.keys() or (wait and not is_on_its_way):
                break
            await compat.sleep(wait)
            await self._read_log()
        self._hand_on()
        unproven = frozenset(self._heard - self._given.keys())
        return Answers(self._matched, dict(self._given), dict(self._failed), unproven)

    def close(self) -> None:
        """Take no more answers."""
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)

    def _end_if_complete(self) -> None:
        if self._matched is not None and self._matched <= self._given.keys():
            self._finish()

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _end_when_quiet(self, timeout: float) -> None:
        """End a question whose time is over, unless the master has a backlog."""
        wait = self._handed_on.end_of(self._published, self._earliest, timeout) - self._steady()
        if self._read_log is not None and wait > 0.0:
            self._timer = self._loop.call_later(wait, self._end_when_quiet, timeout)
        else:
            self._finish()
