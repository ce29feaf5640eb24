"""
Questions to minions and their answers: who is there, who runs a job, who has run it.

Each question is one publish under a fresh jid (a minion ignores a jid that it has seen). Its answers are in the log, and an
event only says that one is on its way (``asking.py``). This module must never guess: the silence of a minion proves nothing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.functions import runs_states
from saltext.jobs.core.log.records import Record, Returned
from saltext.jobs.core.master import once
from saltext.jobs.core.master.asking import Answers, HandedOn, Question, Told
from saltext.jobs.core.master.publisher import Publisher

log = lines.logger(__name__)

#: After its timeout a ping takes late answers for this many further timeouts: a slow minion is there too.
_LINGER = 3.0
#: The key of the records in answers of minions with the executor ``job_once``.
_RECORDED = "saltutil.find_cached_job"


@dataclasses.dataclass(frozen=True)
class Found:
    """
    The minions that were asked about a job.

    * ``running``: they run it.
    * ``ran``: ``{minion: return data}``; they have run it and keep its return (``cache_jobs``).
    * ``idle``: they do not know it.
    * ``silent``: they have not answered.
    * ``unmatched``: they say that the target does not match them.
    * ``unproven``: silent ones whose answer was announced on the bus, but is not in the log.
    * ``records``: the records of minions with the executor ``job_once``.
    * ``applying``: those that run states for some other job, and have no process for this one.
    * ``free``: idle ones that run no job at all and keep neither records nor old returns: their answer holds for every
      other job too.
    """

    running: frozenset[str]
    ran: Mapping[str, Any]
    idle: frozenset[str]
    silent: frozenset[str] = frozenset()
    unmatched: frozenset[str] = frozenset()
    unproven: frozenset[str] = frozenset()
    records: Mapping[str, once.Record] = dataclasses.field(default_factory=dict)
    applying: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()

    @property
    def answered(self) -> frozenset[str]:
        """The minions that have answered about the job."""
        return self.running | self.ran.keys() | self.idle


class Questions:
    """
    :param loop: the engine's tornado loop.
    :param publisher: publishes the questions.
    :param steady: returns seconds that only ever rise.
    :param kept: whether minions' answers are stored, under the names of their senders.
    :param forget: removes a question and its answers from where other jobs are; None if they are not there.
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
        #: Returns once the log was read to its end.
        self.read_log: Callable[[], Awaitable[object]] = _read_nothing
        self._open: dict[str, Question] = {}
        self._handed_on = HandedOn()

    def wants(self, jid: str) -> bool:
        """Tell whether returns of ``jid`` are answers to an open question."""
        return jid in self._open

    def heard(self, jid: str, minion: str, value: Any, retcode: int = 0) -> None:
        """The bus tells of the return of a minion."""
        question = self._open.get(jid)
        if question is not None:
            question.heard(minion, value, retcode)

    def logged(self, record: Record) -> None:
        """Take a return in the log, if it answers a question."""
        question = self._open.get(record.jid)
        if question is not None and isinstance(record, Returned) and record.value:
            try:
                value = record.answer()
            except Exception as exc:  # of many kinds
                log.debug("The answer of %s to %s cannot be read: %s", record.minion, record.jid, exc)
                return
            question.answered(record.minion, value, record.retcode)

    def handed_on(self, age: float) -> None:
        """The master has forwarded a reply to something that was published ``age`` seconds ago."""
        now = self._steady()
        self._handed_on.note(now - age, now)

    async def ping(
        self,
        tgt: Any,
        tgt_type: str,
        timeout: float,
        user: str | None = None,
        told: Callable[[str, Any], None] | None = None,
        hint: bool = False,
    ) -> Answers:
        """
        Ask which minions are there. Returns after ``timeout`` seconds, or once all have answered; later answers still go to
        ``told`` for a while. Raises as Publisher.publish.

        :param told: gets (minion, return) of each answer as soon as it counts.
        :param hint: whether answers on the bus do, since nothing is concluded from them.
        """

        linger = timeout * _LINGER if told is not None else 0.0
        told_all = _one_by_one(told)
        return await self._ask("test.ping", [], tgt, timeout, told_all, linger, hint=hint, tgt_type=tgt_type, user=user)

    async def call(
        self,
        fun: str,
        arg: Iterable[Any],
        kwarg: Mapping[str, Any],
        minions: Iterable[str],
        timeout: float,
        user: str | None = None,
    ) -> Answers:
        """
        Have minions run a function, and wait for their returns, which the job cache has too. Returns and raises as
        ``ping``.
        """
        return await self._ask(fun, list(arg), sorted(minions), timeout, user=user, kwarg=kwarg, listed=True)

    async def find_job(
        self,
        jid: str,
        minions: Iterable[str],
        timeout: float,
        told: Callable[[str, bool], None] | None = None,
    ) -> Found:
        """
        Ask minions whether they run ``jid``. Raises as ``ping``.

        :param told: gets (minion, whether it runs the job) of each answer as soon as it counts.
        """
        asked = frozenset(minions)

        def hear(minion: str, value: Any) -> None:
            if told is not None and minion in asked and isinstance(value, dict):
                told(minion, bool(value))

        answers = await self._ask("saltutil.find_job", [jid], list(asked), timeout, _one_by_one(hear))
        # The function returns the job's proc entry, or {}; anything else is an error text and no evidence.
        valid = {
            minion: value for minion, value in answers.given.items() if minion in asked and isinstance(value, dict)
        }
        running = frozenset(minion for minion, value in valid.items() if value)
        return Found(running, {}, frozenset(valid) - running, asked - frozenset(valid))

    async def find_running(self, minions: Iterable[str], timeout: float) -> dict[str, frozenset[str]]:
        """Ask minions which jobs they run: ``{minion: jids}`` of those that answered. Raises as ``find_either``."""
        asked = frozenset(minions)
        answers = await self._ask("saltutil.running", [], list(asked), timeout)
        # The function returns a list of proc entries; anything else is an error text and no evidence.
        return {
            minion: frozenset(str(entry.get("jid")) for entry in value if isinstance(entry, Mapping))
            for minion, value in answers.given.items()
            if minion in asked and isinstance(value, list)
        }

    async def find_either(
        self,
        jid: str,
        minions: Iterable[str],
        timeout: float,
        target: str | None = None,
        told: Callable[[Found], None] | None = None,
        doubted: Iterable[str] = (),
    ) -> Found:
        """
        Ask minions in one publish whether they run ``jid``, or have run it, and whether a compound target matches them.

        Returns and raises as ``ping``.

        :param doubted: minions that are asked once more, for records alone, if they run nothing and show no records: a
            proxy runs a job of several functions, as this question is, without its executors (Salt's ``metaproxy``).
        :param told: gets answers as soon as they count; only the others are then returned.
        """
        asked, heard, in_doubt = frozenset(minions), set[str](), frozenset(doubted)
        functions, arguments = ["saltutil.find_job", _RECORDED, "saltutil.running"], [[jid], [jid], []]
        if target is not None:
            functions, arguments = [*functions, "match.compound"], [*arguments, [target]]

        def named(answers: Mapping[str, Any]) -> dict[str, Any]:
            return {minion: once.by_function(functions, value) for minion, value in answers.items()}

        def read(given: Mapping[str, Any]) -> Found:
            new = {minion: value for minion, value in given.items() if minion in asked and minion not in heard}
            return _found_in(jid, new)

        def recordless(found: Found) -> frozenset[str]:
            return in_doubt & found.idle - found.records.keys()

        def tell(told_now: Mapping[str, Any]) -> None:
            given = named(told_now)
            not_yet = recordless(read(given))
            part = read({minion: value for minion, value in given.items() if minion not in not_yet})
            if told is not None and part.answered:
                heard.update(part.answered)
                told(part)

        each = tell if told is not None else None
        answers = await self._ask(functions, arguments, list(asked), timeout, each)
        given = named(answers.given)
        rest = read(given)
        if alone := recordless(rest):
            records = (await self._ask(_RECORDED, [jid], list(alone), timeout)).given
            more = {minion: {**given[minion], _RECORDED: records[minion]} for minion in alone & records.keys()}
            rest = read({**given, **more})
        return dataclasses.replace(rest, silent=asked - heard - rest.answered, unproven=answers.unproven & asked)

    async def _ask(
        self,
        fun: str | list[str],
        arg: list[Any],
        tgt: Any,
        timeout: float,
        told: Told | None = None,
        linger: float = 0.0,
        listed: bool = False,
        hint: bool = False,
        **more: Any,
    ) -> Answers:
        """
        :param more: further arguments of ``Publisher.publish``.
        :param listed: whether it is a job as others, which the job cache has. It takes its time, so the time of its answers
            says nothing about the master's backlog.
        :param hint: whether answers on the bus are believed.
        :param linger: for how many seconds after the end late answers go to ``told``.
        """
        jid, kept = self._publisher.new_jid(), self._kept and not hint

        def close() -> None:
            del self._open[jid]
            question.close()
            if kept and not listed and self._forget is not None:
                self._loop.spawn_callback(self._forget, jid)

        question = self._open[jid] = Question(
            self._loop, self._steady, None if hint else self._read_log, told, HandedOn() if listed else self._handed_on
        )
        try:
            publish = self._publisher.publish(fun, arg, tgt, jid=jid, question=True, kept=kept, listed=listed, **more)
            answers = await question.ask(publish, timeout)
        except BaseException:
            close()
            raise
        if linger:
            self._loop.call_later(linger, close)
        else:
            close()
        return answers

    async def _read_log(self) -> None:
        await self.read_log()


async def _read_nothing() -> None:
    """Do nothing: nobody reads a log."""


def _one_by_one(told: Callable[[str, Any], None] | None) -> Told | None:
    """Return a function that passes answers to ``told`` one by one."""
    if told is None:
        return None
    tell = told

    def hand_on(answers: Mapping[str, Any]) -> None:
        for minion, value in answers.items():
            tell(minion, value)

    return hand_on


def _found_in(jid: str, given: Mapping[str, Any]) -> Found:
    """Return what minions say about a job. :param given: ``{minion: {function: return}}``; all else is no evidence."""
    told = {
        minion: (value["saltutil.find_job"], value.get(_RECORDED))
        for minion, value in given.items()
        if isinstance(value, dict) and isinstance(value.get("saltutil.find_job"), dict)
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
    unmatched = frozenset(m for m in idle if given[m].get("match.compound") is False)
    jobs = {m: given[m].get("saltutil.running") for m, (entry, _) in told.items() if not entry and m not in ran}
    applying = frozenset(m for m, those in jobs.items() if isinstance(those, list) and any(map(_runs_states, those)))
    free = frozenset(m for m in idle if once.keeps_nothing(told[m][1]) and jobs[m] == [])
    return Found(running, ran, idle, unmatched=unmatched, records=records, applying=applying, free=free)


def _runs_states(job: Any) -> bool:
    return isinstance(job, Mapping) and runs_states(job.get("fun"))
