"""The scenario of three masters: their leader dies, freezes or loses its database, again and again, while batches run."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.fleet import takeover, verdict
from benchmarks.fleet.faults import drain
from benchmarks.fleet.several import NAMES, Masters
from benchmarks.fleet.story import Arguments, Story
from benchmarks.fleet.takeover import AIMS, Fault
from benchmarks.fleet.verdict import Check
from benchmarks.fleet.watch import ENGINES
from demo.processes import wait_for
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY

#: The minions that take part in batches, and those that are away at first and are owed jobs.
_THERE, _AWAY = "[ab]*", "c*"
#: How many jobs each of the latter is owed; the least number of batches, and how many run at a time.
_OWED, _BATCHES, _AT_A_TIME = 5, 3, 2
#: Seconds for which slots of every other batch stay empty, so that a fault finds free ones.
_EMPTY = 3
#: Seconds to wait for the consequences of a fault, and seconds after which a killed master is started again.
_FOLLOWS, _DEAD = 45.0, 30.0
#: Seconds within which a request has its answer.
_ANSWERED = 30.0
_KILLED = "the leader killed"


def masters(site: Masters, args: Arguments) -> Story:
    """Three hot-hot masters over PostgreSQL: the leader is killed or frozen, or the database is away, in a seeded order."""
    story, course = Story(), _Course(site, args)
    there = [name for name in site.names if name[0] != "c"]
    away = [name for name in site.names if name[0] == "c"]
    site.start(there)
    site.script(seed=args.seed, seconds=(5.0, 15.0))
    since = site.mark("started")
    owed = [site.publish(_AWAY, number % len(NAMES)) for number in range(_OWED)]
    site.need(lambda: site.queued() >= _OWED * len(away), site.limit, "the jobs are owed")
    spent = site.beside.cpu()
    course.run(away)
    mended = site.mark("mended")
    site.start(away)
    site.wait(course.limits)
    drain(site)
    story.figures["what was done"] = ", ".join(f"{count} × {what}" for what, count in sorted(course.done.items()))
    story.figures["until all had come to an end, after it was mended"] = f"{time.monotonic() - mended:.0f} s"
    story.figures["CPU of PostgreSQL, since its last start"] = f"{site.beside.cpu() - spent:.1f} s"
    truth = story.batches(site, course.limits, since, there)
    story.owed(site, owed, away)
    story.checks += [_recovered(site, truth, course, there), _answered(site, course)]
    for kind in (_KILLED, "the leader frozen", "an engine killed", "the database"):
        faults = [fault for fault in course.faults if fault.what.startswith(kind)]
        found = takeover.measured(truth, faults, site.leads, course.limits, owed, BATCH_MANAGER, JOB_RETRY)
        for name, seconds in found.items():
            if seconds:
                aim = f" (aim: {AIMS[name]:.0f} s)" if kind == _KILLED else ""
                story.figures[f"{kind}: {name}"] = takeover.spread(seconds) + aim
                story.values[f"{kind}: {name}, s"] = max(seconds)
    story.figures["takeovers"] = f"{len(site.leads) - len(ENGINES)}"
    story.end(site, [*course.limits, *owed], since, args.size, each=True)
    return story


class _Course:
    """
    The faults, one after the other in an order that the seed sets, and what the operator does meanwhile.

    ``limits``: ``{jid: limit}`` of the batches; ``faults``: what was done; ``done``: how often.
    """

    def __init__(self, site: Masters, args: Arguments) -> None:
        self._site, self._args, self._chance = site, args, random.Random(args.seed)
        self.limits: dict[str, int] = {}
        self.faults: list[Fault] = []
        self.done: collections.Counter[str] = collections.Counter()
        #: The outcome of requests: answered, or why not.
        self.requests: collections.Counter[str] = collections.Counter()
        self.starts = 0
        self._asking: list[threading.Thread] = []

    def run(self, away: list[str]) -> None:
        """
        Cause all faults, and return once the last one is over and all masters run.

        :param away: the minions that come back, some with each fault.
        """
        plan: list[Callable[[], contextlib.AbstractContextManager[Any]]] = [self._killed] * self._args.kills
        plan += [*self._others()] * self._args.rounds
        self._chance.shuffle(plan)
        each = max(1, len(away) // max(1, len(plan)))
        for number, fault in enumerate(plan):
            if sum(not self._site.are_over([jid]) for jid in self.limits) < _AT_A_TIME:
                self._start_batch()
            self._site.need(self._is_settled, self._site.limit, "all masters run, engines lead, and batches go on")
            time.sleep(self._chance.uniform(1, 10))
            back = away[number * each : (number + 1) * each]
            begun = time.monotonic()
            with fault():
                at = self.faults[-1].at
                self._site.crowd.start(back)
                self._ask_meanwhile()
            self._site.need(self._site.are_led, self._site.limit, "the engines are led again")
            time.sleep(max(0.0, at + _FOLLOWS - time.monotonic()))
            # A busy machine needs longer until all is as before.
            self._site.need(self._is_settled, self._site.limit, "all is as before")
            now = time.monotonic()
            self.faults[-1] = dataclasses.replace(self.faults[-1], back=frozenset(back), until=now)
            self._site.spared.append((begun, now))
        while len(self.limits) < _BATCHES:
            self._start_batch()
        for asking in self._asking:
            asking.join()

    def _is_settled(self) -> bool:
        site = self._site
        ready = all(site.is_ready(number) for number in range(len(NAMES))) and site.are_led()
        return ready and any(site.crowd.begun(jid) for jid in self.limits)

    def _note(self, at: float, what: str, lost: frozenset[str] = frozenset()) -> None:
        self.faults.append(Fault(at, what, lost))
        self.done[what] += 1

    # -- requests --------------------------------------------------------------------------------------------------------

    def _start_batch(self) -> None:
        self.starts += 1
        with contextlib.suppress(Exception):
            wait = {"batch_wait": _EMPTY} if self.starts % 2 else {}
            jid = self._asked(lambda: self._site.batch(self._args.size, _THERE, **wait))
            self.limits[jid] = self._args.size

    def _ask_meanwhile(self) -> None:
        """Start a batch, or pause and resume one, at a time when perhaps no master leads."""
        running = [jid for jid in self.limits if not self._site.are_over([jid])]

        def pause() -> None:
            with contextlib.suppress(Exception):
                jid = running[-1]
                self._asked(lambda: self._site.ask("batch.pause", jid))
            with contextlib.suppress(Exception):
                self._asked(lambda: self._site.ask("batch.resume", jid))

        work = self._start_batch if len(self.limits) < _BATCHES or not running else None
        if work is None and self.faults[-1].what != _KILLED:  # a pause looks like a slow takeover
            work = pause
        if work is not None:
            self._asking.append(threading.Thread(target=work, daemon=True))
            self._asking[-1].start()

    def _asked(self, work: Callable[[], Any]) -> Any:
        try:
            value = work()
        except Exception as exc:
            self.requests[f"{type(exc).__name__}: {exc}"[:120]] += 1
            raise
        self.requests["answered"] += 1
        return value

    # -- faults ----------------------------------------------------------------------------------------------------------

    def _others(self) -> Iterator[Callable[[], contextlib.AbstractContextManager[Any]]]:
        for seconds in (5.0, 20.0, 120.0):
            yield lambda seconds=seconds: self._frozen(seconds)
        for engine in ENGINES:
            yield lambda engine=engine: self._engine_killed(engine)
        yield lambda: self._database("frozen", 10.0)
        yield lambda: self._database("stopped", 20.0)
        yield lambda: self._database("restarted", 0.0)

    def _leading(self) -> tuple[int, frozenset[str]]:
        """Return the leader of one engine, by turns of each, and all engines that this master leads."""
        engine = ENGINES[len(self.faults) % len(ENGINES)]
        number = self._site.leader(engine)
        if number is None:
            self._site.need(self._site.are_led, self._site.limit, "the engines are led")
            return self._leading()
        return number, self._site.led_by(number)

    @contextlib.contextmanager
    def _killed(self) -> Iterator[None]:
        number, lost = self._leading()
        at = self._site.kill(number)
        self._note(at, _KILLED, lost)
        yield
        time.sleep(max(0.0, at + _DEAD - time.monotonic()))
        self._site.start_again(number)

    @contextlib.contextmanager
    def _frozen(self, seconds: float) -> Iterator[None]:
        number, lost = self._leading()
        at = time.monotonic()
        with self._site.frozen(number):
            self._note(at, f"the leader frozen for {seconds:.0f} s", lost)
            yield
            time.sleep(max(0.0, at + seconds - time.monotonic()))

    @contextlib.contextmanager
    def _engine_killed(self, engine: str) -> Iterator[None]:
        at = time.monotonic()
        self._site.kill_engine(engine)
        self._note(at, f"an engine killed ({engine})", frozenset({engine}))
        yield

    @contextlib.contextmanager
    def _database(self, how: str, seconds: float) -> Iterator[None]:
        database, at = self._site.beside, self._site.mark(f"database {how}")
        self._note(at, f"the database {how}{f' for {seconds:.0f} s' if seconds else ''}", frozenset(ENGINES))
        with database.frozen() if how == "frozen" else _stopped(database):
            yield
            time.sleep(max(0.0, at + seconds - time.monotonic()))
        self._site.unstorable.append((at, self._site.mark("database back"), "the database was away"))


@contextlib.contextmanager
def _stopped(database: Any) -> Iterator[None]:
    database.stop()
    try:
        yield
    finally:
        database.start()


# -- the verdict -----------------------------------------------------------------------------------------------------------


def _recovered(site: Masters, truth: Any, course: _Course, names: list[str]) -> Check:
    """Judge whether a minion is reported as lost although it ran the job to its end and keeps its return."""
    lost = []
    for jid in course.limits:
        runs, states = truth.of(jid), site.ask("batch.minions", jid)
        lost += [f"{name} {jid}" for name in names if verdict.lost_though_run(states.get(name), runs.get(name, ()))]
    told = f"{len(lost)}: {', '.join(sorted(lost)[:3])}" if lost else "none"
    return Check("nothing is reported lost that ran to its end", not lost, told)


def _answered(site: Masters, course: _Course) -> Check:
    """Judge whether each request was answered once: none is left for long, and each start has made one batch."""
    asked = set(site.unanswered())  # the newest of them may be a moment old
    wait_for(lambda: asked.isdisjoint(site.unanswered()), _ANSWERED)
    left, there = asked.intersection(site.unanswered()), {row["jid"] for row in site.ask("batch.list", limit=1000)}
    known = len(course.limits)
    good = not left and known <= len(there) <= course.starts and course.limits.keys() <= there
    told = "; ".join(f"{count} {what}" for what, count in course.requests.most_common())
    told += f"; {course.starts} starts made {len(there)} batches; {len(left)} requests are left without an answer"
    return Check("each request is answered once", good, told)
