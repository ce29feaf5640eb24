"""
Performs what the retry queue wants done, and reports outcomes as facts. What may block runs in a thread. It holds no policy:
the machine decides what is tried again, and when.
"""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.delivery import asking
from saltext.jobs.core.delivery.known import Answers, Evidence
from saltext.jobs.core.display.text import counted
from saltext.jobs.core.engine.process import EnginePorts
from saltext.jobs.core.engine.writer import Writer
from saltext.jobs.core.errors import NoMinionMatched, PublishFailed
from saltext.jobs.core.ledger.log import Position, Reader
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.master import events
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Key
from saltext.jobs.core.retry.machine import Retry
from saltext.jobs.core.retry.reader import JobReader, expression_of, narrowed
from saltext.jobs.core.retry.store import Changes, RetryStore

log = lines.logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ports(EnginePorts):
    reader: JobReader  # used in ``cache_worker`` only
    store: RetryStore
    log: Callable[[Position | None], Reader]  # makes a reader of the masters' logs that begins at the given place
    restart: Callable[[], object] = sys.exit  # ends the engine's process, which Salt starts anew


class Effects:
    def __init__(
        self,
        ports: Ports,
        machine: Retry,
        writer: Writer[Key, Changes],
        opts: Mapping[str, Any],
        learn: Callable[[facts.Fact], Awaitable[None]],
    ) -> None:
        """``learn`` takes each outcome."""
        self._loop, self._ports, self._machine, self._writer = ports.loop, ports, machine, writer
        self._learn, self._quiet = learn, Quiet(log)
        self._timeout, self._look = answer_time(opts), ports.cache_worker.call
        self.announced = collections.Counter[str]()  # by kind
        # Without cached data of minions a compound target matches no minion on Salt 3008, and all on earlier releases.
        self._compound = bool(opts.get("minion_data_cache", True))

    def perform(self, effect: facts.Effect) -> None:
        """Begin an effect."""
        if isinstance(effect, facts.Announce):
            self.announced[effect.kind] += 1
            payload = {name: value for name, value in vars(effect).items() if name != "kind"}
            self._ports.bus.fire(events.retry_tag(effect.minion, effect.jid, effect.kind), payload)
        elif type(effect) in FINDS:
            self._loop.spawn_callback(self._find, effect)

    async def _find(self, effect: Any, part: Awaitable[Any] | None = None) -> None:
        """Give the machine what comes of an effect, or ``part`` of it, which comes first."""
        fact: facts.Fact
        try:
            fact = facts.Done(effect, await (part or FINDS[type(effect)][1](self, effect)))
        except Exception as exc:
            its = {**vars(effect), "count": counted(len(getattr(effect, "minions", ())), "minion")}
            what = FINDS[type(effect)][0].format_map(its)
            self._quiet.warning(what, "The retry queue could not %s: %s", what, exc)
            fact = facts.Failed(effect, _outcome(effect, exc), str(exc))
        await self._learn(fact)

    # -- the job cache ------------------------------------------------------------------------------------------------

    async def _look_up(self, effect: facts.LookUp) -> facts.LookedUp:
        jid, look_up = effect.jid, self._ports.reader.look_up
        return await self._look(look_up, jid, effect.minions, self._machine.jobs[jid].load, effect.askers)

    async def _find_returns(self, effect: facts.FindReturns) -> frozenset[str]:
        return frozenset(await self._look(self._ports.returns.of, effect.jid, effect.minions))

    # -- minions ------------------------------------------------------------------------------------------------------

    async def _ask(self, effect: facts.Ask) -> Answers:
        def told(answers: Awaitable[Answers]) -> None:
            self._loop.spawn_callback(self._find, effect, answers)

        job = self._machine.jobs[effect.jid]
        # The job's own target: a minion may no longer match it.
        expression = None if job.obstacle else expression_of(job.load)
        about = asking.About(job.jid, job.load.get("fun"), job.load.get("kwargs"), job.published_at)
        return await asking.ask(self._ports, about, effect.minions, self._timeout, told, expression, effect.doubted)

    async def _publish(self, effect: facts.Publish) -> frozenset[str]:
        job = self._machine.jobs[effect.jid]
        load, options = job.load, job.load.get("kwargs")
        tgt, tgt_type = narrowed(load, effect.minions, effect.named)
        if not self._compound:  # each minion has said that the job's target matches it
            tgt, tgt_type = list(effect.minions), "list"
        matched = await self._ports.publisher.publish(
            load["fun"],
            load.get("arg") or [],
            tgt,
            tgt_type,
            jid=effect.jid,
            user=load.get("user"),
            ret=load.get("ret") or "",
            options=options if isinstance(options, Mapping) else None,
            once={"rerun": True} if effect.rerun else None,
            natively=not effect.recorded,
        )
        log.info("Replayed job %s to %s", effect.jid, counted(len(effect.minions), "minion"))
        return frozenset(effect.minions) - matched

    async def _ping(self, effect: facts.Ping) -> None:
        def told(answers: Mapping[str, Any]) -> None:
            self._loop.spawn_callback(self._learn, facts.SignOfLife(tuple(answers)))

        with contextlib.suppress(NoMinionMatched):
            await self._ports.questions.ping(effect.minions, self._timeout, told, hint=True)


def answer_time(opts: Mapping[str, Any]) -> float:
    """Return for how many seconds to wait for the answers of minions."""
    return float(opts.get("gather_job_timeout", 10))


#: What is done about effects that take time, in words for the log and in fact.
FINDS: dict[type, tuple[str, Callable[[Effects, Any], Awaitable[Any]]]] = {
    facts.Read: ("read job {jid}", lambda its, effect: its._look(its._ports.reader.read, effect.jid)),
    facts.LookUp: ("look up job {jid}", Effects._look_up),
    facts.FindReturns: ("look for returns of job {jid}", Effects._find_returns),
    facts.Ask: ("ask {count} about job {jid}", Effects._ask),
    facts.Inquire: (
        "ask {count} which jobs they run",
        lambda its, effect: its._ports.questions.find_running(effect.minions, its._timeout),
    ),
    facts.Claim: ("store claims of job {jid}", lambda its, _: its._writer.durable()),
    facts.Publish: ("replay job {jid} to {count}", Effects._publish),
    facts.Ping: ("ping {count}", Effects._ping),
    facts.CheckKeys: ("read the keys", lambda its, _: its._look(its._ports.reader.keys, True)),
}


def _outcome(effect: facts.Effect, exc: Exception) -> Evidence:
    if not isinstance(effect, facts.Publish):
        return Evidence.UNASKED
    if isinstance(exc, NoMinionMatched):
        return Evidence.MISSED
    if isinstance(exc, PublishFailed) and exc.certain:
        return Evidence.FORBIDDEN if exc.forbidden else Evidence.REFUSED
    return Evidence.UNCONFIRMED
