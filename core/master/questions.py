"""
Questions to minions and their answers: who is there, who runs a job, who has run it.

Each question is one publish under a fresh jid (a minion ignores a jid that it has seen), and its answers are read from
the bus, or from where they are kept: then what the bus says is no more than a hint that it is time to look there. It must
never guess: a minion that did not answer is silent, which is evidence of nothing.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from saltext.jobs.core import compat
from saltext.jobs.core.master.publisher import Publisher

log = logging.getLogger(__name__)


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


@dataclasses.dataclass(frozen=True)
class Probed:
    """Of the minions that were asked about a job: those that run it, those that don't, and those that said nothing."""

    running: frozenset[str]
    idle: frozenset[str]
    silent: frozenset[str]


@dataclasses.dataclass(frozen=True)
class Found:
    """
    Of the minions that were asked about a job: those that run it, ``{minion: return data}`` of those that have run it and
    keep its return (``cache_jobs``), those that know nothing of it, and those that said nothing. ``unmatched`` are those
    that say that the target does not match them. ``unproven`` are those of the silent ones of whose answer
    the bus has told.
    """

    running: frozenset[str]
    ran: Mapping[str, Any]
    idle: frozenset[str]
    silent: frozenset[str]
    unmatched: frozenset[str] = frozenset()
    unproven: frozenset[str] = frozenset()


#: Gets the id of a minion, and what it answered.
Told = Callable[[str, Any], None]
#: Seconds before an answer that the bus has told of is looked for where it is kept, and again where it was not there.
_LOOKS = (0.3, 2.0)
#: Seconds without a further answer after which those that have not answered in time count as silent, and how many times its
#: time a question may take: a master that stores the answers of very many minions takes longer than a minion to answer.
_QUIET, _LONGEST = 2.0, 6.0


class Kept(Protocol):
    """Where answers are kept under the names of those that sent them."""

    async def read(self, jid: str, minions: frozenset[str]) -> Mapping[str, Any]:
        """Return ``{minion: its answer}`` of those of ``minions`` whose answer to the question ``jid`` is there."""

    async def forget(self, jid: str) -> None:
        """Remove the question ``jid`` and its answers. Raises nothing."""


class _Open:
    """A question that waits for answers."""

    def __init__(self, told: Told | None) -> None:
        self.told = told
        self.matched: frozenset[str] | None = None
        self.given: dict[str, Any] = {}
        self.failed: dict[str, int] = {}
        self.settled: Any = compat.Future()
        self.heard = False  # an answer has come since its time was last looked at
        self.timer: Any = None

    def settle_if_complete(self) -> None:
        if self.matched is not None and self.matched <= self.given.keys():
            self.settle()

    def settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)


class Questions:
    """
    :param loop: the engine's tornado loop.
    :param publisher: what publishes the questions.
    """

    def __init__(self, loop: Any, publisher: Publisher) -> None:
        self._loop, self._publisher = loop, publisher
        self._open: dict[str, _Open] = {}

    def wants(self, jid: str) -> bool:
        """Tell whether returns of ``jid`` are answers to an open question."""
        return jid in self._open

    def heard(self, jid: str, minion: str, value: Any, retcode: int = 0) -> None:
        """Take the return of a minion as its answer."""
        question = self._open.get(jid)
        if question is not None:
            question.given[minion] = value
            question.heard = True
            if retcode:
                question.failed[minion] = retcode
            if question.told is not None:
                question.told(minion, value)
            question.settle_if_complete()

    async def ping(
        self, tgt: Any, tgt_type: str, timeout: float, user: str | None = None, told: Told | None = None
    ) -> Answers:
        """
        Ask who is there. Returns after ``timeout`` seconds, or once all have answered. Raises as Publisher.publish.

        :param told: gets (minion, what it returned) of each answer as it comes.
        """
        return await self._ask(lambda jid: self._publisher.ping(tgt, tgt_type, ping_jid=jid, user=user), timeout, told)

    async def call(
        self,
        fun: str,
        arg: Iterable[Any],
        kwarg: Mapping[str, Any],
        minions: Iterable[str],
        timeout: float,
        user: str | None = None,
    ) -> Answers:
        """Have minions run a function, and wait for what it returns. Returns and raises as ``ping``."""
        asked, arg = sorted(minions), list(arg)
        return await self._ask(
            lambda jid: self._publisher.publish(fun, arg, asked, jid=jid, user=user, kwarg=kwarg, question=True),
            timeout,
        )

    async def find_job(
        self, jid: str, minions: Iterable[str], timeout: float, told: Callable[[str, bool], None] | None = None
    ) -> Probed:
        """
        Ask minions whether they run ``jid``. Returns and raises as ``ping``.

        :param told: gets (minion, whether it runs the job) of each answer as it comes.
        """
        asked = frozenset(minions)

        def hear(minion: str, value: Any) -> None:
            if told is not None and minion in asked and isinstance(value, dict):
                told(minion, bool(value))

        publish = self._publisher.find_job
        answers = await self._ask(lambda fresh: publish(jid, asked, probe_jid=fresh), timeout, hear)
        # The function returns the job's proc entry, or {}; anything else is an error text and no evidence.
        valid = {
            minion: value for minion, value in answers.given.items() if minion in asked and isinstance(value, dict)
        }
        running = frozenset(minion for minion, value in valid.items() if value)
        return Probed(running, frozenset(valid) - running, asked - frozenset(valid))

    async def find_running(
        self, minions: Iterable[str], timeout: float, kept: Kept | None = None
    ) -> dict[str, frozenset[str]]:
        """
        Ask minions which jobs they run: ``{minion: jids}`` of those that answered. Raises as ``find_either``.

        :param kept: as for ``find_either``.
        """
        asked = frozenset(minions)
        answers = await self._ask_for(asked, "saltutil.running", [], timeout, kept)
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
        kept: Kept | None = None,
    ) -> Found:
        """
        Ask minions in one publish whether they run ``jid``, or have run it, and whether a compound target matches them.

        Returns as ``ping``, and raises so and whatever ``kept`` raises.

        :param kept: where alone answers are believed; by default those of the bus are.
        """
        asked = frozenset(minions)
        functions, arguments = ["saltutil.find_job", "saltutil.find_cached_job"], [[jid], [jid]]
        if target is not None:
            functions, arguments = [*functions, "match.compound"], [*arguments, [target]]
        answers = await self._ask_for(asked, functions, arguments, timeout, kept)
        # A minion with multifunc_ordered answers by position.
        told = {
            minion: (_part(value, functions[0], 0), _part(value, functions[1], 1))
            for minion, value in answers.given.items()
            if minion in asked and isinstance(value, dict) and isinstance(_part(value, functions[0], 0), dict)
        }
        running = frozenset(minion for minion, (entry, _) in told.items() if entry)
        ran = {
            minion: cached
            for minion, (_, cached) in told.items()
            if minion not in running and isinstance(cached, dict) and cached.get("jid") == jid and "return" in cached
        }
        idle = frozenset(told) - running - ran.keys()
        # Only False says no: a minion may lack the function.
        unmatched = frozenset(
            m for m in idle if target is not None and _part(answers.given[m], "match.compound", 2) is False
        )
        return Found(running, ran, idle, asked - frozenset(told), unmatched, answers.unproven & asked)

    async def _ask_for(
        self, asked: frozenset[str], fun: str | list[str], arg: list[Any], timeout: float, kept: Kept | None
    ) -> Answers:
        def publish(jid: str) -> Awaitable[frozenset[str]]:
            return self._publisher.publish(fun, arg, list(asked), jid=jid, question=True, kept=kept is not None)

        return await self._ask(publish, timeout, kept=kept)

    async def _ask(
        self,
        publish: Callable[[str], Awaitable[frozenset[str]]],
        timeout: float,
        told: Told | None = None,
        kept: Kept | None = None,
    ) -> Answers:
        jid = self._publisher.new_jid()
        question = self._open[jid] = _Open(told)
        try:
            question.matched = await publish(jid)
            question.settle_if_complete()
            if kept is None:
                question.timer = self._loop.call_later(timeout, question.settle)
            else:
                until = self._loop.time() + timeout * _LONGEST
                question.timer = self._loop.call_later(timeout, self._settle_when_quiet, question, until)
            await question.settled
            self._loop.remove_timeout(question.timer)
            if kept is not None:
                given = await self._read(kept, jid, question)
                return Answers(question.matched, given, unproven=frozenset(question.given) - given.keys())
        finally:
            del self._open[jid]
        return Answers(question.matched, question.given, question.failed)

    def _settle_when_quiet(self, question: _Open, until: float) -> None:
        """End a question whose time is over, unless answers go on to come and it is not yet ``until``."""
        if question.heard and self._loop.time() < until:
            question.heard = False
            question.timer = self._loop.call_later(_QUIET, self._settle_when_quiet, question, until)
        else:
            question.settle()

    async def _read(self, kept: Kept, jid: str, question: _Open) -> Mapping[str, Any]:
        """
        Return the answers that are kept, also those that the bus has not told of.

        One that is not there yet is looked for once more: it is stored after its event, or was forged.
        """
        found: dict[str, Any] = {}
        wanted = question.matched or frozenset()
        try:
            for wait in _LOOKS if wanted else ():
                await compat.sleep(wait)
                found.update(await kept.read(jid, wanted))
                wanted = frozenset(question.given) & wanted - found.keys()
                if not wanted:
                    break
        finally:
            self._loop.spawn_callback(kept.forget, jid)
        return found


def _part(value: Mapping[Any, Any], function: str, position: int) -> Any:
    return value.get(function, value.get(position))
