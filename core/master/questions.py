"""
Questions to minions and their answers: who is there, who runs a job, who has run it, where a kill has reached it.

Each question is one publish under a fresh jid (a minion ignores a jid that it has seen). An answer counts once the log has
it, under the name of its authenticated sender; the bus only says that it is on its way. This module must never guess: while
the master has a backlog of messages, a minion without an answer does not count as silent. If the log may lack answers,
nothing is known of those without one: the question has failed, as if it was not published.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from saltext.jobs.core import compat, lines
from saltext.jobs.core.errors import PublishFailed
from saltext.jobs.core.functions import runs_states
from saltext.jobs.core.ledger.records import Record, Returned
from saltext.jobs.core.master import once
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
_RUNS, _RECORDED, _RUNNING, _MATCHES = (
    "saltutil.find_job",
    "saltutil.find_cached_job",  # minions with the executor ``job_once`` add their record
    "saltutil.running",
    "match.compound",
)


@dataclasses.dataclass(frozen=True)
class Found:
    """What was found out of the minions that were asked about a job."""

    running: frozenset[str]  # they run it
    ran: Mapping[str, Any]  # ``{minion: return data}``: they have run it and keep its return (``cache_jobs``)
    idle: frozenset[str]  # they do not know it
    silent: frozenset[str] = frozenset()  # they have not answered
    unmatched: frozenset[str] = frozenset()  # they say that the target does not match them
    unproven: frozenset[str] = frozenset()  # silent ones whose answer was on the bus, but is not in the log
    records: Mapping[str, once.Record] = dataclasses.field(default_factory=dict)  # of minions with ``job_once``
    applying: frozenset[str] = frozenset()  # they run states for some other job, and have no process for this one
    # Idle ones that run no job at all and keep neither records nor old returns: the answer holds for every other job too.
    free: frozenset[str] = frozenset()

    @property
    def answered(self) -> frozenset[str]:
        """The minions that have answered about the job."""
        return self.running | self.ran.keys() | self.idle

    def others(self, jid: str, fun: Any) -> frozenset[str]:
        """Return the minions that have run something else under a job's jid, and so ignore the job itself."""
        found = frozenset(minion for minion, data in self.ran.items() if not once.is_return_of(fun, data))
        if found:
            log.warning("Job %s: %s has run another function under its jid, for another master", jid, sorted(found))
        return found


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
        elif question.asks(minion):
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
        await self._ask("test.ping", [], minions, timeout, told, linger=timeout * _LINGER, hint=hint)

    async def call(
        self, fun: str, arg: Iterable[Any], kwarg: Mapping[str, Any], minions: Iterable[str], timeout: float, user: str
    ) -> Question:
        """Have minions run a function, and wait for their returns, which the job cache has too. Raises as ``ping``."""
        # With metadata the job cache stores the question, which is owed to nobody.
        more: dict[str, Any] = {"user": user, "kwarg": kwarg, "options": {"metadata": {"job_retry": False}}}
        return await self._ask(fun, list(arg), sorted(minions), timeout, is_job=True, **more)

    async def kill_job(
        self, jid: str, minions: Iterable[str], timeout: float, told: Callable[[tuple[str, ...]], object], gently: bool
    ) -> None:
        """Kill ``jid``, or gently terminate it; ``told`` gets those where a process got the signal. Raises as ``ping``."""

        def tell(new: Mapping[str, Any]) -> None:
            # ``saltutil.signal_job`` returns another text where no process ran, and none if the minion looked in vain.
            reached = tuple(sorted(minion for minion, value in new.items() if str(value).startswith("Signal ")))
            if reached:
                told(reached)

        await self._ask("saltutil.term_job" if gently else "saltutil.kill_job", [jid], minions, timeout, tell)

    async def find_running(self, minions: Iterable[str], timeout: float) -> dict[str, frozenset[str]]:
        """Ask minions which jobs they run: ``{minion: jids}`` of those that answered. Raises as ``ping``."""
        asked = frozenset(minions)
        answers = await self._ask(_RUNNING, [], asked, timeout)
        # The function returns a list of proc entries; anything else is an error text and no evidence.
        return {
            minion: frozenset(str(entry.get("jid")) for entry in value if isinstance(entry, Mapping))
            for minion, value in answers.given.items()
            if minion in asked and isinstance(value, list)
        }

    async def find_job(
        self,
        jid: str,
        minions: Iterable[str],
        timeout: float,
        told: Callable[[Found], object],
        target: str | None = None,
        doubted: Iterable[str] = (),
    ) -> Found:
        """
        Ask minions in one publish whether they run ``jid``, or have run it. Raises as ``ping``.

        :param told: gets answers as soon as they count; only what is found of the others is returned.
        :param target: a compound target; they are asked whether it matches them, too.
        :param doubted: those that are asked again, for records alone, if they run nothing and show none: a proxy runs a job
            of several functions, as this question is, without its executors (Salt's ``metaproxy``).
        """
        asked, heard, in_doubt = frozenset(minions), set[str](), frozenset(doubted)
        parts = {_RUNS: [jid], _RECORDED: [jid], _RUNNING: [], **({} if target is None else {_MATCHES: [target]})}
        recordless = dict[str, Any]()  # what doubted minions have answered without records

        def tell(new: Mapping[str, Any]) -> None:
            given = {minion: value for minion, value in _named(list(parts), new).items() if minion in asked}
            found = _found_in(jid, given)
            recordless.update((minion, given.pop(minion)) for minion in in_doubt & found.idle - found.records.keys())
            found = _found_in(jid, given)
            if found.answered:
                heard.update(found.answered)
                told(found)

        answers = await self._ask(list(parts), list(parts.values()), asked, timeout, tell)
        if recordless:
            said = (await self._ask(_RECORDED, [jid], recordless, timeout)).given
            for minion in recordless.keys() & said.keys():
                recordless[minion] = {**recordless[minion], _RECORDED: said[minion]}
        rest = _found_in(jid, recordless)
        return dataclasses.replace(
            rest, silent=asked - heard - rest.answered, unproven=asked & answers.announced - answers.given.keys()
        )

    async def _ask(
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
        Return the outcome, once all have answered or the time is over.

        :param linger: for how many seconds after the end late answers are told.
        :param is_job: it is a job as others, which the job cache has. Its answers say nothing about the master's backlog.
        :param hint: answers on the bus count.
        :param more: further arguments of ``Publisher.publish``.
        """
        jid, kept = self._publisher.new_jid(), self._kept and not hint
        question = self._open[jid] = Question(self._loop, self._steady, told, is_job, hint)
        asked = {"jid": jid, "question": True, "kept": kept, **more}
        wanted, failure = list(minions), None
        try:
            try:
                matched = await self._publisher.publish(fun, arg, wanted, timeout=_TAKEN, **asked)
                timeout = max(timeout, _AS_LONG * (self._steady() - question.published))
            except PublishFailed as exc:
                if exc.certain:
                    raise
                matched, failure = frozenset(wanted), exc  # the master may have published it, or publish it later
            await question.wait(matched, timeout)
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

    def __init__(self, loop: Any, steady: Callable[[], float], told: Told | None, is_job: bool, is_hint: bool) -> None:
        self._loop, self._steady, self._told = loop, steady, told
        self.is_job, self.is_hint, self.in_doubt = is_job, is_hint, False
        self.published, self.forwarded_at = steady(), -math.inf
        self.given: dict[str, Any] = {}  # by minion that answered: the return, which comes from the minion unchecked
        self.failed: dict[str, int] = {}  # by minion: the retcode of an answer, if it is not 0
        self.announced = set[str]()  # minions whose answer was announced on the bus
        self._matched: frozenset[str] | None = None  # not known until the publish has been answered
        self._untold: dict[str, Any] = {}
        self._over: Any = compat.Future()

    def asks(self, minion: str) -> bool:
        """Tell whether the question went to a minion, as far as known."""
        return self._matched is None or minion in self._matched

    @property
    def is_complete(self) -> bool:
        """Whether all have answered."""
        return self._matched is not None and self._matched <= self.given.keys()

    @property
    def awaits_announced(self) -> bool:
        """Whether an answer is on its way to the log."""
        return bool(self.announced & (self._matched or frozenset()) - self.given.keys())

    def answered(self, minion: str, value: Any, retcode: int) -> bool:
        """Take an answer; returns whether it counts."""
        if not self.asks(minion):
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

    async def wait(self, matched: frozenset[str], timeout: float) -> None:
        """Return once all have answered or the time is over. :param matched: the minions that it went to."""
        self._matched = matched
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


def _named(functions: list[str], answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return answers, which are lists in the order of the functions (``multifunc_ordered``), by function."""
    return {
        minion: dict(zip(functions, value, strict=False)) if isinstance(value, (list, tuple)) else value
        for minion, value in answers.items()
    }


def _found_in(jid: str, given: Mapping[str, Any]) -> Found:
    """Return what minions say about a job. :param given: ``{minion: {function: return}}``; all else is no evidence."""
    # The function returns the job's proc entry, or {}; anything else is an error text.
    told = {
        minion: (value[_RUNS], value.get(_RECORDED))
        for minion, value in given.items()
        if isinstance(value, dict) and isinstance(value.get(_RUNS), dict)
    }
    found = {minion: once.record_of(cached) for minion, (_, cached) in told.items()}
    records = {minion: record for minion, record in found.items() if record is not None}
    begun = {minion for minion, record in records.items() if record.state == "begun"}
    running = frozenset(minion for minion, (entry, _) in told.items() if entry or minion in begun)
    ran = {
        minion: cached
        for minion, (_, cached) in told.items()
        if minion not in running and isinstance(cached, dict) and cached.get("jid") == jid and "return" in cached
    }
    idle = frozenset(told) - running - ran.keys()
    # Only False means no: a minion may lack the function, or was not asked for it.
    unmatched = frozenset(m for m in idle if given[m].get(_MATCHES) is False)
    jobs = {m: given[m].get(_RUNNING) for m, (entry, _) in told.items() if not entry and m not in ran}
    applying = frozenset(m for m, those in jobs.items() if isinstance(those, list) and any(map(_runs_states, those)))
    free = frozenset(m for m in idle if once.keeps_nothing(told[m][1]) and jobs[m] == [])
    return Found(running, ran, idle, unmatched=unmatched, records=records, applying=applying, free=free)


def _runs_states(job: Any) -> bool:
    return isinstance(job, Mapping) and runs_states(job.get("fun"))
