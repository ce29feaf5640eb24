"""
Questions to minions and their answers: who is there, what runs, where a kill has reached a job. Minions are asked about a
job by ``core/delivery/asking.py``, which knows what they may answer.

Each question is one publish under a fresh jid (a minion ignores a jid that it has seen). An answer counts once the log has
it, under the name of its authenticated sender; the bus only says that it is on its way. This module must never guess: while
the master has a backlog of messages, a minion without an answer does not count as silent. If the log may lack answers,
nothing is known of those without one: the question has failed, as if it was not published.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.errors import PublishFailed
from saltext.jobs.core.ledger.records import Record, Returned
from saltext.jobs.core.master.publisher import Publisher

log = lines.logger(__name__)

#: Gets ``{minion: return}`` of answers that count from now on. Each answer is told once.
Told = Callable[[Mapping[str, Any]], object]
#: Seconds for which answers on the bus are gathered. Those in the log are told together as they are read.
_GATHERED = 0.1
#: After its timeout a ping takes late answers for this many further timeouts: a slow minion is there too.
_LINGER = 3.0
#: Seconds before each of the last looks for answers that were announced on the bus.
_LAST_LOOKS = (0.0, 0.3, 2.0)
#: A busy master forwards messages roughly in order. It has forwarded all answers to a question once no reply to it, or to
#: anything earlier, has come for the question's timeout, raised to LEAST_QUIET or cut to QUIET seconds. Minions can send
#: replies late on purpose, so the longest time of a question is a multiple of its regular time.
LEAST_QUIET, QUIET, LONGEST = 2.0, 10.0, 6.0
#: Seconds by which two known times of one publish may differ.
_SAME = 0.1
#: Seconds in which the master must take a question. If it does, answers may take this many times as long as that took.
_TAKEN, _AS_LONG = 60.0, 3.0


class Questions:
    """
    ``steady`` returns seconds that only ever rise. ``kept``: minions' answers are stored, under the names of their senders.
    ``forget`` removes a question and its answers from where other jobs are; None if they are not there.
    """

    def __init__(
        self,
        loop: Any,
        publisher: Publisher,
        steady: Callable[[], float] = time.monotonic,
        kept: bool = True,
        forget: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        self._loop, self._publisher, self._steady = loop, publisher, steady
        self._kept, self._forget = kept, forget
        self.read_on: Callable[[], Awaitable[object]] = lambda: compat.sleep(0.0)  # reads the log, if any, to its end
        self._open: dict[str, Question] = {}  # by jid, in the order of their publishes

    def wants(self, jid: str) -> bool:
        """Tell whether returns of ``jid`` are answers to an open question."""
        return jid in self._open

    def heard(self, jid: str, minion: str, value: Any, retcode: int = 0) -> None:
        """The bus tells of the return of a minion."""
        question = self._open.get(jid)
        if question is None:
            return
        if question.is_hint:
            question.answered(minion, value, retcode)
        elif minion in question.asked:
            question.announced.add(minion)

    def logged(self, record: Record) -> None:
        """Take a return in the log, if it answers a question."""
        question = self._open.get(record.jid)
        if question is not None and isinstance(record, Returned) and record.value:
            try:
                value = record.answer()
            except Exception as exc:  # the minion may have sent anything
                log.debug("The answer of %s to %s cannot be read: %s", record.minion, record.jid, exc)
                return
            if question.answered(record.minion, value, record.retcode):
                self._forwarded(question.published, question.is_job)

    def doubt(self) -> None:
        """The log may lack answers."""
        for question in self._open.values():
            question.in_doubt = not question.is_hint

    def handed_on(self, age: float) -> None:
        """The master has forwarded a reply to something that was published ``age`` seconds ago."""
        self._forwarded(self._steady() - age - _SAME)

    def _forwarded(self, published: float, is_job: bool = False) -> None:
        """Note that the master has reached replies to what was published then: those to later questions may still wait."""
        now = self._steady()
        for question in reversed(self._open.values()):
            if question.published < published:
                break
            if question.is_job == is_job:
                question.forwarded_at = now

    async def ping(self, minions: Iterable[str], timeout: float, told: Told, hint: bool = False) -> None:
        """
        Ask which minions are there. Returns after ``timeout`` seconds, or once all have answered; later answers are still
        told for a while. ``hint``: answers on the bus count, since nothing is concluded from them. Raises as
        ``Publisher.publish``; if minions may have been asked all the same, or the log may lack answers, at the end only.
        """
        await self.ask("test.ping", [], minions, timeout, told, linger=timeout * _LINGER, hint=hint)

    async def call(
        self, fun: str, arg: Iterable[Any], kwarg: Mapping[str, Any], minions: Iterable[str], timeout: float, user: str
    ) -> Question:
        """Have minions run a function, and wait for their returns, which the job cache has too. Raises as ``ping``."""
        # With metadata the job cache stores the question, which is owed to nobody.
        more: dict[str, Any] = {"user": user, "kwarg": kwarg, "options": {"metadata": {"job_retry": False}}}
        return await self.ask(fun, list(arg), sorted(minions), timeout, is_job=True, **more)

    async def kill_job(
        self, jid: str, minions: Iterable[str], timeout: float, told: Callable[[tuple[str, ...]], object], gently: bool
    ) -> None:
        """Kill ``jid``, or gently terminate it; ``told`` gets those where a process got the signal. Raises as ``ping``."""

        def tell(new: Mapping[str, Any]) -> None:
            # ``saltutil.signal_job`` returns another text where no process ran, and none if the minion looked in vain.
            reached = tuple(sorted(minion for minion, value in new.items() if str(value).startswith("Signal ")))
            if reached:
                told(reached)

        await self.ask("saltutil.term_job" if gently else "saltutil.kill_job", [jid], minions, timeout, tell)

    async def find_running(self, minions: Iterable[str], timeout: float) -> dict[str, frozenset[str]]:
        """Ask minions which jobs they run: ``{minion: jids}`` of those that answered. Raises as ``ping``."""
        answers = await self.ask("saltutil.running", [], minions, timeout)
        # The function returns a list of proc entries; anything else is an error text and no evidence.
        return {
            minion: frozenset(str(entry.get("jid")) for entry in value if isinstance(entry, Mapping))
            for minion, value in answers.given.items()
            if isinstance(value, list)
        }

    async def ask(
        self,
        fun: str | list[str],
        arg: list[Any],
        minions: Iterable[str],
        timeout: float,
        told: Told | None = None,
        linger: float = 0.0,
        is_job: bool = False,
        hint: bool = False,
        **more: Any,
    ) -> Question:
        """
        Have minions run a function, or several, and return the outcome, once all have answered or the time is over. Raises
        as ``ping``.

        :param told: gets answers as soon as they count.
        :param linger: for how many seconds after the end late answers are told.
        :param is_job: it is a job as others, which the job cache has. Its answers say nothing about the master's backlog.
        :param hint: answers on the bus count.
        :param more: further arguments of ``Publisher.publish``.
        """
        jid, kept = self._publisher.new_jid(), self._kept and not hint
        wanted, failure = list(minions), None
        question = self._open[jid] = Question(self._loop, self._steady, wanted, told, is_job, hint)
        more |= {"jid": jid, "question": True, "kept": kept}
        try:
            try:
                question.asked &= await self._publisher.publish(fun, arg, wanted, timeout=_TAKEN, **more)
                timeout = max(timeout, _AS_LONG * (self._steady() - question.published))
            except PublishFailed as exc:
                if exc.certain:
                    raise
                failure = exc  # the master may have published it, or publish it later
            await question.wait(timeout)
            if not hint:
                await self._look_last(question)
            if question.in_doubt:
                failure = failure or PublishFailed("the log cannot be read, or may lack answers")
            question.tell()
            if failure is not None and not question.is_complete:
                raise failure
        finally:
            self._loop.call_later(linger, self._close, jid, kept and not is_job)
        return question

    async def _look_last(self, question: Question) -> None:
        """Look in the log for answers that the bus has announced."""
        for wait in _LAST_LOOKS:
            if question.is_complete or (wait and not question.awaits_announced):
                return
            await compat.sleep(wait)
            await self.read_on()

    def _close(self, jid: str, is_elsewhere: bool) -> None:
        del self._open[jid]
        if is_elsewhere and self._forget is not None:
            self._loop.spawn_callback(self._forget, jid)


class Question:
    """One question, from its publish to its end: which answers count, and how long to wait for them."""

    def __init__(
        self, loop: Any, steady: Callable[[], float], minions: list[str], told: Told | None, is_job: bool, is_hint: bool
    ) -> None:
        self._loop, self._steady, self._told = loop, steady, told
        self.asked = frozenset(minions)  # those that it went to, as far as known
        self.is_job, self.is_hint, self.in_doubt = is_job, is_hint, False
        self.published, self.forwarded_at = steady(), -math.inf
        self.given: dict[str, Any] = {}  # by minion that answered: the return, which comes from the minion unchecked
        self.failed: dict[str, int] = {}  # by minion: the retcode of an answer, if it is not 0
        self.announced = set[str]()  # minions whose answer was announced on the bus
        self._untold: dict[str, Any] = {}
        self._over: Any = compat.Future()

    @property
    def is_complete(self) -> bool:
        """Whether all have answered."""
        return self.asked <= self.given.keys()

    @property
    def awaits_announced(self) -> bool:
        """Whether an answer is on its way to the log."""
        return bool(self.announced & self.asked - self.given.keys())

    def answered(self, minion: str, value: Any, retcode: int) -> bool:
        """Take an answer; returns whether it counts."""
        if minion not in self.asked:
            return False
        self.given[minion] = value
        if retcode:
            self.failed[minion] = retcode
        if self._told is not None:
            if not self._untold:
                self._loop.call_later(_GATHERED if self.is_hint else 0.0, self.tell)
            self._untold[minion] = value
        self._end_if_complete()
        return True

    def tell(self) -> None:
        answers, self._untold = self._untold, {}
        if answers and self._told is not None:
            self._told(answers)

    async def wait(self, timeout: float) -> None:
        """Return once all have answered or the time is over."""
        self._end_if_complete()
        earliest = self._steady() + timeout
        self._loop.call_later(timeout, self._end_when_quiet, earliest, timeout)
        await self._over

    def _end_if_complete(self) -> None:
        if self.is_complete and not self._over.done():
            self._over.set_result(None)

    def _end_when_quiet(self, earliest: float, timeout: float) -> None:
        """End a question whose time is over, unless the master has a backlog."""
        if self._over.done():
            return
        quiet = self.forwarded_at + max(LEAST_QUIET, min(timeout, QUIET))
        wait = min(quiet, earliest + (LONGEST - 1.0) * timeout) - self._steady()
        if wait > 0.0 and not self.is_hint:
            self._loop.call_later(wait, self._end_when_quiet, earliest, timeout)
        else:
            self._over.set_result(None)
