"""
Many featherweight minions in one process of their own, and the handle by which a scenario directs them.

The process does what the minions want done (``minion.py``), loses, delays and repeats messages where the script says so, and
keeps the truth. It must never decide anything in a minion's place.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import fnmatch
import functools
import multiprocessing
import pathlib
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import salt.payload

from benchmarks.fleet import minion as minions
from benchmarks.fleet.script import Script
from benchmarks.fleet.truth import Publish, Truth
from benchmarks.fleet.wire import TIMEOUT, Refused, Wire
from demo.fleet import quiet_salt

Counts = Mapping[str, int]

#: Seconds for which a minion of Salt 3008 waits for the answer to its acknowledgement before it begins anyway.
_ACKNOWLEDGED = 60
#: Seconds from the beginning of a job to each repeat of its acknowledgement, where the executor sends it.
_REPEATS = (5, 20, 80, 320)
_QUESTIONS = ("saltutil.", "job_once.", "test.ping")
#: What a handle asks for, and waits for.
_ANSWERED = ("report", "there", "begun", "running")


class Crowd:
    """
    :param masters: the options of each master. Each minion is connected to all of them, as by ``master: [a, b]``: what
        comes from one is acknowledged and returned there.
    :param own: the folder with the minions' key. ``names``: their ids.
    :param executor: the share of them that has the executor ``job_once``, spread evenly.
    :param keeps: whether the minions keep what they return (``cache_jobs``).
    """

    def __init__(
        self,
        masters: Sequence[Mapping[str, Any]],
        own: pathlib.Path,
        names: Iterable[str],
        executor: float,
        keeps: bool = False,
    ) -> None:
        self.truth, self.script = Truth(), Script()
        self._minions = {
            name: minions.Minion(name, self.truth, int((number + 1) * executor) > int(number * executor), keeps)
            for number, name in enumerate(names)
        }
        self._wires = [Wire(opts, own) for opts in masters]
        #: For each master its key, and the minions that it has let in.
        self._keys: dict[Wire, Any] = {}
        self._let_in: dict[Wire, set[str]] = {wire: set() for wire in self._wires}
        self._wanted: collections.Counter[str] = collections.Counter()  # how often each was told to start or to stop
        self._tasks: set[asyncio.Future[Any]] = set()
        self._chance = random.Random(1)

    async def connect(self) -> None:
        for wire in self._wires:
            await wire.connect(functools.partial(self._heard, wire))
            self._keys[wire] = wire.key()

    async def close(self) -> None:
        for wire in self._wires:
            await wire.close()

    async def keep_time(self) -> None:
        """Note how late timers are, as long as the fleet runs."""
        while True:
            due = time.monotonic() + 0.5
            await asyncio.sleep(0.5)
            self.truth.lag = max(self.truth.lag, time.monotonic() - due)

    async def start(self, names: Iterable[str], within: float) -> None:
        """Start minions, evenly spread over so many seconds. Each signs in first."""
        await self._spread(names, within, self._start)

    async def stop(self, names: Iterable[str], within: float) -> None:
        """Kill minions, evenly spread over so many seconds."""
        await self._spread(names, within, lambda name: self._stop(self._minions[name]))

    async def restart(self, names: Iterable[str], within: float, away: float) -> None:
        """Kill each minion, and start it again so many seconds later, evenly spread."""
        await self._spread(names, within, lambda name: self._spawn(self._restart(name, away)))

    def report(self) -> tuple[Truth, Counts, Counts]:
        """Return the truth until now, and how many messages of each kind were sent and failed."""
        sent: collections.Counter[str] = collections.Counter()
        failed: collections.Counter[str] = collections.Counter()
        for wire in self._wires:
            sent.update(wire.sent)
            failed.update(wire.failed)
        return self.truth, sent, failed

    def there(self) -> set[str]:
        """Return the running minions."""
        return {name for name, minion in self._minions.items() if minion.there}

    def begun(self, jid: str) -> int:
        """Return how many runs of a job have begun."""
        return sum(run.jid == jid for run in self.truth.runs)

    def running(self, jids: Collection[str]) -> int:
        """Return how many runs of jobs have not ended."""
        return sum(run.end is None and run.jid in jids for run in self.truth.runs)

    def spawn(self, work: Any) -> None:
        """Do something concurrently."""
        self._spawn(work)

    @staticmethod
    async def _spread(names: Iterable[str], within: float, do: Callable[[str], Any]) -> None:
        begun, names = time.monotonic(), list(names)
        for number, name in enumerate(names):
            pause = begun + within * number / len(names) - time.monotonic()
            if pause > 0:  # else the next request would overtake this one
                await asyncio.sleep(pause)
            do(name)

    def _start(self, name: str) -> None:
        minion = self._minions[name]
        if minion.there:
            return
        self._wanted[name] += 1
        for wire in self._wires:
            self._spawn(self._sign_in(minion, wire, self._wanted[name]))

    async def _sign_in(self, minion: minions.Minion, wire: Wire, wanted: int) -> None:
        """A minion starts: it is there once one of its masters has let it in, and tells each that it has started."""
        while True:
            try:
                await wire.sign_in(minion.name)
                break
            except Refused:
                wire.failed["starts: Refused"] += 1
            await asyncio.sleep(5)
            if self._wanted[minion.name] != wanted:
                return
        await wire.subscribe(minion.name)
        if self._wanted[minion.name] == wanted:
            self._let_in[wire].add(minion.name)
            said = [minion.started()] if minion.there else minion.start(time.monotonic())
            self._perform(minion, said, wire)

    def _stop(self, minion: minions.Minion) -> None:
        self._wanted[minion.name] += 1
        minion.stop(time.monotonic())
        for wire in self._wires:
            self._let_in[wire].discard(minion.name)
            wire.unsubscribe(minion.name)

    async def _restart(self, name: str, away: float) -> None:
        self._stop(self._minions[name])
        await asyncio.sleep(away)
        self._start(name)

    # -- what is published ---------------------------------------------------------------------------------------------

    async def _heard(self, wire: Wire, load: Mapping[str, Any], by: str | None, first: bool) -> None:
        """
        Take what a master has published.

        :param by: the minion that has heard it; None for all minions. ``first``: whether it was heard for the first
            time.
        """
        fun, named, now = load["fun"], load["tgt"], time.monotonic()
        question = isinstance(fun, list) or fun.startswith(_QUESTIONS)
        listed = load["tgt_type"] == "list"
        names, size = len(named) if listed else -1, len(salt.payload.dumps(load))
        if first:
            targets = frozenset(named) if listed and not question else frozenset()
            number = self._wires.index(wire)
            self.truth.publishes.append(
                Publish(now, str(load["jid"]), str(fun), names, question, size, targets, number)
            )
        chosen = self._minions.keys() & named if listed else set(fnmatch.filter(self._minions, named))
        there = self._let_in[wire] if by is None else self._let_in[wire] & {by}
        if wire.key() != self._keys[wire]:
            self._keys[wire] = wire.key()
            for name in there:  # each minion hears this publish, and cannot read it before it has signed in again
                self._spawn(self._take_late(self._minions[name], load if name in chosen else None, wire))
            return
        for name in chosen & there:
            self._take(self._minions[name], load, wire)

    async def _take_late(self, minion: minions.Minion, load: Mapping[str, Any] | None, wire: Wire) -> None:
        try:
            await wire.sign_in(minion.name)
        except Refused:
            wire.failed["sign-ins: Refused"] += 1
        if load is not None and minion.there:
            self._take(minion, load, wire)

    def _take(self, minion: minions.Minion, load: Mapping[str, Any], wire: Wire) -> None:
        if not self._chance.random() < self.script.deaf:
            self._perform(minion, minion.take(load, time.monotonic()), wire)

    # -- what minions want done ------------------------------------------------------------------------------------------

    def _perform(self, minion: minions.Minion, effects: Iterable[minions.Effect], wire: Wire) -> None:
        """:param wire: to the master that they are due to."""
        for effect in effects:
            if isinstance(effect, minions.Send):
                self._spawn(self._send(minion, effect, wire))
            elif isinstance(effect, minions.Prepare):
                self._spawn(self._prepare(minion, effect, wire))
            elif isinstance(effect, minions.Runs):
                self._later(effect.seconds, self._end, minion, effect.jid, effect.delivery, wire)
            else:
                self._later(effect.seconds, self._die, minion, effect)

    async def _prepare(self, minion: minions.Minion, job: minions.Prepare, wire: Wire) -> None:
        told = job.acknowledgement is not None and await self._send(minion, job.acknowledgement, wire, _ACKNOWLEDGED)
        begun = minion.begin(job.jid, job.delivery, self.script, told, time.monotonic())
        if minion.executor and begun and isinstance(begun[0], minions.Send) and len(begun) > 1:
            self._spawn(self._repeat(minion, job, begun[0], wire))
        self._perform(minion, begun, wire)

    async def _repeat(
        self, minion: minions.Minion, job: minions.Prepare, acknowledgement: minions.Send, wire: Wire
    ) -> None:
        """The executor repeats that a job runs, until the master has answered."""
        begun = time.monotonic()
        for after in _REPEATS:
            await asyncio.sleep(max(0.0, begun + after - time.monotonic()))
            if not minion.runs(job.jid, job.delivery) or await self._send(minion, acknowledgement, wire):
                return

    def _end(self, minion: minions.Minion, jid: str, delivery: int, wire: Wire) -> None:
        self._perform(minion, minion.end(jid, delivery, self.script, time.monotonic()), wire)

    def _die(self, minion: minions.Minion, death: minions.Dies) -> None:
        if not minion.runs(death.jid, death.delivery):
            return
        self._stop(minion)
        if death.away is not None:
            self._later(death.away, self._start, minion.name)

    async def _send(self, minion: minions.Minion, message: minions.Send, wire: Wire, timeout: float = TIMEOUT) -> bool:
        """Send a message as the script says, unless its minion dies first. Returns whether the master has answered."""
        script, chance, life = self.script, self._chance, minion.lives
        if chance.random() < script.losing and message.what != "starts":
            wire.failed[f"{message.what}: lost on purpose"] += 1
            return False
        if script.delay:
            await asyncio.sleep(chance.uniform(0, script.delay))

        def lives() -> bool:
            return minion.there and minion.lives == life

        delivered = False
        for _ in range(1 + (chance.random() < script.repeating)):
            sent = await wire.send(minion.name, message.load, message.what, timeout, lives)
            if sent is not None and not delivered and message.run is not None:
                message.run.sent, message.run.answered = sent, time.monotonic()
            delivered = delivered or sent is not None
        return delivered

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _later(self, seconds: float, call: Callable[..., Any], *args: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, call, *args)


def serve(
    masters: Sequence[Mapping[str, Any]], own: pathlib.Path, names: list[str], executor: float, keeps: bool, pipe: Any
) -> None:
    """
    Be the fleet, in a process of its own, until ``end`` comes. Takes what ``Crowd`` does.

    :param pipe: gets ``None`` once the fleet can hear. What comes is the name of a method of Crowd, and its arguments.
    """

    async def work() -> None:
        crowd = Crowd(masters, own, names, executor, keeps)
        await crowd.connect()
        crowd.spawn(crowd.keep_time())
        pipe.send(None)
        loop = asyncio.get_running_loop()
        while True:
            verb, *args = await loop.run_in_executor(None, pipe.recv)
            if verb == "end":
                await crowd.close()
                return
            if verb in _ANSWERED:
                pipe.send(getattr(crowd, verb)(*args))
            elif verb == "script":
                crowd.script = args[0]
            else:
                crowd.spawn(getattr(crowd, verb)(*args))

    quiet_salt()
    asyncio.run(work())


class Handle:
    """The side of a scenario. Takes what ``serve`` does; returns once the fleet can hear, with no minion there."""

    def __init__(
        self,
        masters: Sequence[Mapping[str, Any]],
        own: pathlib.Path,
        names: list[str],
        executor: float,
        keeps: bool = False,
    ) -> None:
        context = multiprocessing.get_context("spawn")  # the fleet inherits neither loops nor locks
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(masters, own, names, executor, keeps, theirs), daemon=True, name="fleet"
        )
        self._process.start()
        if not self._pipe.poll(120):
            self._process.kill()
            raise SystemExit("The featherweight minions could not connect to the master within two minutes")
        self._pipe.recv()

    def script(self, script: Script) -> None:
        """Set what jobs do from now on."""
        self._pipe.send(("script", script))

    def start(self, names: Iterable[str], within: float = 1.0) -> None:
        self._pipe.send(("start", list(names), within))

    def stop(self, names: Iterable[str], within: float = 0.0) -> None:
        self._pipe.send(("stop", list(names), within))

    def restart(self, names: Iterable[str], within: float, away: float) -> None:
        self._pipe.send(("restart", list(names), within, away))

    def report(self) -> tuple[Truth, Counts, Counts]:
        return self._ask("report")

    def there(self) -> set[str]:
        return self._ask("there")

    def begun(self, jid: str) -> int:
        return self._ask("begun", jid)

    def running(self, jids: Iterable[str]) -> int:
        return self._ask("running", set(jids))

    def _ask(self, *words: Any) -> Any:
        self._pipe.send(words)
        return self._pipe.recv()

    def end(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended itself
            self._pipe.send(("end",))
        self._process.join(15)
        if self._process.is_alive():
            self._process.kill()
