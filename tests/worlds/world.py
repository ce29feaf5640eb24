"""
A small world around the real engine of job retry: a master with its job cache and log, a store, a bus and minions, in memory
and in virtual time. Minions behave as Salt's do: they ignore a jid that they have seen, and forget the jids when they start.
Everything that the engine requests takes time, and it may be killed while it waits. The world records what really happened.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import inspect
import itertools
import logging
import re

import salt.payload

from saltext.jobs.core import compat
from saltext.jobs.core.engine.loop import Clock
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.proof import Returns
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.errors import JobCacheError, NoMinionMatched, PublishFailed, SiteAway
from saltext.jobs.core.functions import KILLS, function_of
from saltext.jobs.core.ledger import queue, records
from saltext.jobs.core.ledger.log import News, Writer
from saltext.jobs.core.ledger.log import Reader as Log
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.master import once
from saltext.jobs.core.master.access import Standing
from saltext.jobs.core.master.job_cache import OURS
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.effects import Ports
from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, Kind
from saltext.jobs.core.retry.reader import JobReader, job_of
from saltext.jobs.core.retry.replay import SETTLE
from saltext.jobs.core.retry.shell import MAINTENANCE, RetryShell
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.windows import next_opening
from tests.virtual_loop import VirtualLoop
from tests.worlds.site import Disk, MemoryTables

#: Unix time at which a world begins: 1,000 seconds into a Thursday.
START = 2976 * 7 * 86400.0 + 1000.0
#: Seconds from a publish to its deadline, and seconds for which a question waits.
PATIENCE, ANSWERS = 10.0, 5.0
#: Seconds that a thread takes for a call; seconds from engine to master, and from master to minion; and the longest pause
#: between two looks at the log. An event makes the engine look sooner.
DISK, LATENCY, POLL = 0.02, 0.05, 5.0
#: Seconds until Salt starts an engine that has ended.
RESTART = 5.0
#: Seconds that a thread takes for a call to a server that is down.
DOWN = 3.0
OPTS = {"id": "here_master", "master_job_cache": OURS, "timeout": PATIENCE - ANSWERS, "gather_job_timeout": ANSWERS}
#: Reasons of entries whose job must run again, or was never published.
AGAIN = ("an operator", "it was begun", "the publish was refused")


def is_sent(entry):
    """Tell whether a job is on its way to its minion, or runs there."""
    return entry.state in UNDER_WAY and entry.sent_at is not None


class Minion:
    """
    One minion: the jobs that it has seen, and those that it runs. A minion that ``keeps`` records refuses a job that it has
    begun, unless its disk was ``full`` when it began the job.
    """

    def __init__(self, up=True, cache_jobs=False):
        self.up, self.cache_jobs = up, cache_jobs
        self.seconds = None  # that its jobs take, if it differs from the others
        self.retcode = 0  # of its jobs
        self.is_stubborn = False  # its jobs do not end when they are told to terminate
        self.started_at = 0.0  # when it last fetched its pillar, by the wall clock
        self.seen, self.running, self.ran = set(), {}, set()
        self.life = 0
        self.late = None  # jobs published while it was frozen; it gets them when it wakes
        self.applies = False  # it runs states of its own, as of its schedule: Salt refuses others meanwhile
        self.keeps, self.full, self.begun = False, False, {}  # by jid: when it began a job, as recorded

    def has_kept(self, jid):
        """Return its answer to ``saltutil.find_cached_job``."""
        found = {}
        if (self.cache_jobs or self.keeps) and jid in self.ran and jid not in self.running:
            found = {"jid": jid, "return": True, "retcode": 0}
        if self.keeps:
            state = "interrupted" if jid in self.begun else "never"
            state = "begun" if jid in self.running else "ended" if found else "unknown" if self.full else state
            found[once.NAME] = {"state": state, "recorded_for": 1e9, "at": self.begun.get(jid)}
        return found or ({} if self.cache_jobs else "you may need to enable cache_jobs")


class Life:
    """
    The loop of one engine process. Once the process is killed, its pending calls are dropped; while it is frozen, they wait.
    """

    def __init__(self, world, touched):
        self.world, self.loop, self.alive, self._touched = world, world.virtual.loop, True, touched
        self.waits, self._wakes_at = set(), 0.0

    def freeze(self, seconds):
        """The process stands still, in front of what it does next."""
        self._wakes_at = self.world.virtual.steady() + seconds

    @property
    def sleep(self):
        """Seconds until the process goes on."""
        return self._wakes_at and max(0.0, self._wakes_at - self.world.virtual.steady())

    def call_later(self, delay, call, *args):
        timers = []
        timers.append(self.loop.call_later(delay, self._due, timers, call, *args))
        return timers

    def add_callback(self, call, *args):
        self.loop.add_callback(self._call, call, *args)

    def spawn_callback(self, call, *args):
        self.loop.spawn_callback(self._call, call, *args)

    def remove_timeout(self, timers):
        for timer in timers:
            self.loop.remove_timeout(timer)

    def _due(self, timers, call, *args):
        if not self.sleep:
            return self._call(call, *args)
        timers[:] = [self.loop.call_later(self.sleep, self._due, timers, call, *args)]
        return None

    def _call(self, call, *args):
        if self.sleep:
            self.call_later(self.sleep, call, *args)
            return None
        if self.alive:
            return call(*args)
        for unbegun in filter(asyncio.iscoroutine, args):
            unbegun.close()  # else Python warns that nobody awaits it
        return None

    def _end(self, over):
        if self.alive:
            self.waits.discard(over)
            over.set_result(None)

    async def wait(self, seconds):
        """Let some time pass. Never return if the process is killed meanwhile."""
        over = compat.Future()
        self.waits.add(over)
        self.loop.call_later(seconds, self._end, over)
        await over
        self._touched()
        while self.sleep and self.alive:
            await self.wait(self.sleep)
        if not self.alive:
            never = compat.Future()
            self.waits.add(never)
            await never


class Worker:
    """A thread: it makes calls to a server, and each takes a moment, or some seconds while the server is down."""

    def __init__(self, life, is_up):
        self._life, self._is_up = life, is_up

    async def call(self, function, *args):
        await self._life.wait(DISK if self._is_up() else DOWN)
        made = function(*args)
        return await made if inspect.isawaitable(made) else made

    def close(self):
        pass


class Bus:
    """The master's event bus, as one engine hears it."""

    gaps = 0
    lag = 0.0

    def __init__(self, life):
        self._life, self.listeners = life, []

    def listen(self, listener, on_ready):
        self.listeners.append(listener)
        self._life.add_callback(on_ready)

    def hear(self, tag, data):
        """An event comes."""
        if self._life.sleep:
            self._life.add_callback(self.hear, tag, data)
            return
        for listener in self.listeners:
            if listener.wants(tag):
                listener.handle(tag, data)

    def lose(self):
        """Events were lost."""
        for listener in self.listeners:
            self._life.add_callback(listener.on_gap)

    def fire(self, tag, data):
        self._life.world.fired.append((tag, data))

    def close(self):
        self.listeners = []


class Publisher:
    """The engine's publisher: the master gets a publish a moment later, and answers a moment after that."""

    def __init__(self, life):
        self._life, self._world = life, life.world

    def new_jid(self):
        return f"question-{next(self._world.count)}"

    async def publish(
        self, fun, arg, tgt, tgt_type="list", *, jid, question=False, kept=False, once=None, timeout=15.0, **more
    ):
        self._world.publishes += 1
        named = re.findall(r"L@(\S+)", tgt) if tgt_type == "compound" else tgt
        names = frozenset(name for several in named for name in several.split(","))
        if not question:
            self._world.wants_publish(jid, names)

        async def taken():
            if question:
                found = self._world.matched(names)
                self._world.ask(fun, arg, jid, found, kept)
                return found
            found = await self._world.take_publish(self._life, jid, names, once or {})
            self._world.start_events.append(more.get("natively", True))
            await self._life.wait(3 * LATENCY)
            return found

        return await self._world.reach_worker(self._life, taken, timeout)

    def close(self):
        pass


class JobCache:
    """The master's job cache, in memory."""

    keeps_first_load = True

    def __init__(self, world):
        self._world = world

    def _there(self):
        if not self._world.cache_up:
            raise JobCacheError("the job cache is down")
        return self._world

    def publishes(self, jid):
        world = self._there()
        if jid not in world.recorded:
            return []
        load, minions = world.kept[jid], sorted(world.named[jid])
        found = records.publish_of(jid, load, minions, records.JOB_CACHE, sent=False, fresh=False)
        return [found._replace(at=at) for at in dict.fromkeys(world.recorded[jid])]

    def published_since(self, since):
        world = self._there()
        return [jid for jid, (_, last) in world.recorded.items() if since <= last]

    def returned(self, jid, minions):
        world = self._there()
        return {name: world.retcode_of(name, jid) for name in minions if (name, jid) in world.cached}

    def keep_load(self, jid, load, minions):
        self._world.take_load(load, minions, sent=False, fresh=True)
        self._there()

    def store_kept(self, jid, fun, returns):
        for name in returns:
            self._world.store_return(name, jid)


class Reader(JobReader):
    """The world decides which minions have a key."""

    def __init__(self, world):
        super().__init__(OPTS, world.returns_from(JobCache(world)), RetryStore(world.site).done, access=world)
        self._world = world

    async def read(self, jid):
        found = super().read(jid)
        await self._world.life.wait(self._world.stall)
        return found

    def keys(self, fresh=False):
        names = frozenset(self._world.minions) - self._world.keyless
        return names - self._world.barred, names


class Store(RetryStore):
    """Tells the world which entries the engine has stored."""

    def __init__(self, world):
        super().__init__(MemoryTables(world.disk, JOB_RETRY), world.lease)
        self._world = world

    def write(self, changes, *more):
        super().write(changes, *more)
        for key, record in changes.items():
            if key.kind is Kind.ENTRY and record is not None:
                self._world.has_stored(key.minion, key.jid, record)


class Tail(Log):
    """Reads the master's log for one engine."""

    def __init__(self, life, begin):
        super().__init__(life.world.site, begin)
        self._life = life

    def read(self):
        if not self._life.alive:
            return News([], "", False)
        world, news = self._life.world, super().read()
        world.reads(news.records)
        return news


class Errors(logging.Handler):
    """Collects errors with a traceback: they were not foreseen."""

    def __init__(self, world):
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record):
        if record.exc_info:
            self._world.broken.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


#: The latest worlds. The loops of older ones are closed.
LIVING = collections.deque()


class World:
    """The engine under test, and everything around it."""

    opts = OPTS
    start_at = START
    maintenance = MAINTENANCE  # seconds between two writes of the cursor

    def __init__(self, minions=("a", "b", "c"), acks=True, duration=1.0, **options):
        while len(LIVING) >= 4:  # before the new loop: whichever was current before an old one becomes current again
            LIVING[0].close()
        self.virtual = VirtualLoop()
        self._time = Clock(self.start_at, self.virtual.steady)
        self.settle = options.pop("settle", SETTLE)
        self.settings = RetrySettings(**{"sweep": 600.0, **options})
        self.acks, self.duration = acks, duration
        self.clock_ahead = 0.0  # seconds by which the wall clock was set ahead
        self.disk = Disk(self.wall)
        self.disk.answered, self.disk.stores = self.has_answered, self._stores
        self.site = MemoryTables(self.disk, master=OPTS["id"])
        self.log_writer = Writer(self.site)
        self.opts = {**self.opts, "saltext_jobs_site": self.site}
        self.minions = {name: Minion() for name in minions}
        self.count = itertools.count()
        # The master's state and behaviour.
        self.published = {}  # jid -> (Job, targets, time of its first publish)
        self.loads, self.named, self.recorded = {}, collections.defaultdict(set), {}
        self.kept = {}  # the loads that the job cache has
        self.returned, self.cached = set(), set()  # (minion, jid) that the master has taken, and that the job cache has
        self.questions = set()  # jids of those whose answers are stored
        self.keeps_returns = True  # if False, the disk is full: returns reach the bus, and not the job cache
        self.publishing = []  # outcomes of the next publishes of jobs, as errors; empty: success
        self.forbidden = set()  # jids that the master refuses to publish
        self.barred, self.keyless = set(), set()  # minions without an accepted key, and without any
        self.denied, self.unsure = set(), set()  # users who lost a right; users whose rights cannot be determined
        self.by_id = True  # jobs are targeted by minion id
        self.unmatched = set()  # (minion, jid) whose target does not match the minion
        self.cache_up = self.store_up = self.windows_known = True
        self.log_up = True  # if False, what the log has of a job cannot be looked up
        self.stall = 0.0  # seconds for which whoever has read a job stands still
        # What has happened.
        self.killed = set()  # (minion, jid) whose process was killed
        self.signalled = collections.defaultdict(set)  # (minion, jid) -> an engine's kills that reached its process
        self.runs, self.refused = collections.Counter(), collections.Counter()
        self.published_at = []  # times of the engine's publishes of jobs
        self.start_events = []  # for each of these, whether Salt's own acknowledgement is asked for
        self.publishes = 0  # of the engine: jobs, questions and pings
        self.known = set()  # (minion, jid) that began, according to the store
        # What the engine stores, and its requests.
        self.answers = []
        self.fired = []  # the engines' events
        self.broken = []
        self.graves = []  # killed engines: kept, because their coroutines would run on if Python collected them
        self.life = self.bus = self.shell = self.lease = None
        self._is_running = False
        self._errors = Errors(self)
        for name in ("saltext.jobs.core", "tornado.application", "asyncio"):
            logging.getLogger(name).addHandler(self._errors)
        LIVING.append(self)
        self.boot()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Release the loop."""
        if self in LIVING:
            LIVING.remove(self)
            for name in ("saltext.jobs.core", "tornado.application", "asyncio"):
                logging.getLogger(name).removeHandler(self._errors)
            self.virtual.close()

    # -- the clock ----------------------------------------------------------------------------------------------------

    @property
    def now(self):
        return self._time.now()

    def wall(self):
        """Return the time of the wall clock."""
        return self.now + self.clock_ahead

    def later(self, delay, call, engine=True):
        """Call after ``delay`` seconds. A call of the engine is dropped if the engine is killed."""
        (self.life if engine and self.life else self.virtual.loop).call_later(delay, self._safely, call)

    def _safely(self, call):
        try:
            call()
        except Exception as exc:
            self.broken.append(repr(exc))

    def run(self, seconds, until=lambda: False):
        """Let time pass, at most until ``until`` is true. Return whether it is."""
        self._is_running = True
        try:
            found = self.virtual.run(seconds, lambda: bool(self.broken) or until())
        finally:
            self._is_running = False
        assert not self.broken, self.broken[0]
        return found

    def run_until(self, condition):
        """Let time pass until ``condition`` is true; fail after an hour."""
        assert condition() or self.run(3600.0, condition), "it did not come to that"

    # -- the engine ---------------------------------------------------------------------------------------------------

    @property
    def machine(self):
        return self.shell.machine if self.shell else None

    def boot(self):
        """Start the engine, and wait until it has read the store."""
        self.life = life = Life(self, self.touched)
        self.lease = self.site.lease(JOB_RETRY)
        assert self.lease.take()
        publisher, self.bus = Publisher(life), Bus(life)
        cache = JobCache(self)
        self.clock = Clock(0.0, self.virtual.steady)
        self.clock.offset = self._time.offset + self.clock_ahead  # each process starts at the wall clock's time
        ports = Ports(
            loop=life,
            bus=self.bus,
            publisher=publisher,
            questions=Questions(life, publisher, self.virtual.steady),
            cache=cache,
            returns=self.returns_from(cache),
            reader=Reader(self),
            store=Store(self),
            cache_worker=Worker(life, lambda: True),
            disk_worker=Worker(life, lambda: self.store_up),
            clock=self.clock,
            acks=self.acks,
            service=Service(self.opts, JOB_RETRY, life, self.lease, MAINTENANCE),
            log=lambda position: Tail(life, position),
            wall=self.wall,
            restart=self.starts_anew,
        )
        entries = [Entry.from_record(*key, record) for key, record in self.stored.items()]
        self.found_sent = collections.Counter(entry.minion for entry in entries if is_sent(entry))
        self.shell = RetryShell(self.opts, self.settings, ports, poll=POLL, maintenance=self.maintenance)
        self.machine.turns.settle = self.settle
        step = self.machine.step

        def recorded(fact, now):
            if not life.alive:  # the engine was killed a moment ago; its unfinished work is dropped
                return []
            self.takes(fact)
            if isinstance(fact, facts.Requested):
                self.begins(fact)
            effects = step(fact, now)
            self.hears(effects)
            self._check()
            return effects

        self.machine.step = recorded
        self.machine.queue.find_opening = self.find_opening
        self.shell.start()
        if not self._is_running:
            self.run(5.0, lambda: self.shell is None or self.shell.restored)

    def find_opening(self, *args):
        """Return when a window opens next. :raises ValueError: while windows are not known."""
        if not self.windows_known:
            raise ValueError("the zone is gone")
        return next_opening(*args)

    def takes(self, fact):
        """The engine takes a fact."""

    def begins(self, request):
        """The engine is about to carry out a request."""

    @staticmethod
    def named_by(request):
        """Return the keys of the entries that a request to enqueue a job is about; none if it names one without a key."""
        read, named = request.read, request.request.get("minions")
        is_refused = not (read.missing | read.returned).issuperset(named or ())
        minions = () if is_refused else read.missing if named is None else read.missing.intersection(named)
        return {(name, read.jid) for name in minions}

    def hears(self, effects):
        """The engine wants this done."""

    def reads(self, found):
        """The engine reads these records of the log."""

    def touched(self):
        """The engine has made a call to the outside."""

    def returns_from(self, cache):
        """What an engine looks up."""
        return Returns(MemoryTables(self.disk, reads=lambda: self.log_up), cache)

    def _stores(self):
        if not self.store_up:
            raise SiteAway("the store is down")
        self.uses_store()

    def uses_store(self):
        """The engine is about to use the store, or has just written to it."""

    def _check(self):
        total = 0
        for name, backlog in self.machine.backlogs.items():
            total += len(backlog.entries)
            sent = sum(is_sent(entry) for entry in backlog.entries.values())
            # A claim is stored before the outcomes of the minion's other jobs, and a crash may lose those.
            self.must(sent <= 1 or sent <= self.found_sent[name], f"{name} has {sent} jobs under way")
        self.must(total == self.machine.total, "the number of entries is wrong")

    def must(self, is_so, else_told):
        """Record a violation. ``run`` reports it, because the engine would survive an exception raised here."""
        if not is_so:
            self.broken.append(else_told)

    def crash(self):
        """kill -9: unstored changes are gone, and pending calls are dropped."""
        if self.life is not None:
            self.life.alive = False
            self.lease.release()
            self.graves.append((self.life, self.shell))
        self.life = self.bus = self.shell = None

    def restart(self):
        self.crash()
        self.boot()

    def starts_anew(self):
        """The engine ends by itself, and Salt starts it anew."""
        self.crash()
        self.later(RESTART, lambda: self.machine is None and self.boot(), engine=False)

    def tell(self, fact):
        """Give the engine a fact."""
        if self.shell is not None and self.shell.restored:
            self.shell.step(fact)

    def enqueue(self, jid, minions, asker=None, named=True):
        """An operator queues a job by hand."""
        user = None if asker is None else asker.as_record()
        self.request("enqueue", jid=jid, minions=list(minions) if named else None, asker=user)

    def request(self, do, **more):
        """Ask the engine for something, as a runner does."""
        self.leave(JOB_RETRY, {"do": do, **more})

    def leave(self, engine, request):
        """Leave a request for an engine. Returns the id of the request."""
        number = f"{int(self.wall() * 1e9):020d}-{next(self.count)}"
        Requests(self.site, engine).add(number, salt.payload.dumps(request))
        for service in self.services():
            service.take()
        return number

    def services(self):
        """What takes requests now."""
        return [shell.service for shell in self.shells() if shell is not None and shell.service.verbs]

    def shells(self):
        """The engines' shells; None for one that does not run."""
        return [self.shell]

    def has_answered(self, engine, request_id, reply):
        """An engine has answered a request."""
        if engine == JOB_RETRY:
            told = salt.payload.loads(reply)
            self.answers.append(told.get("value", told.get("error")))

    @property
    def requests(self):
        """The requests to the retry queue that are not answered, by their ids."""
        return {each.id: salt.payload.loads(each.body) for each in Requests(self.site, JOB_RETRY).open()}

    @contextlib.contextmanager
    def deaf(self):
        """The bus loses all events for the engine."""
        bus, self.bus = self.bus, None
        yield
        self.bus = bus

    def notice(self):
        """The engine learns that events were lost, and searches for what it missed."""
        if self.bus is not None:
            self.bus.lose()

    def lose_log(self):
        """The log is lost."""
        self.disk.lose_log()

    def reboot(self, records):
        """The master's machine reboots. The log keeps ``records`` records, and those that were synced."""
        self.disk.reboot_after(records)

    @property
    def stored(self):
        """The entries in the store: ``{(minion, jid): record}``."""
        return {(minion, jid): record for jid, minion, record in self._rows(Kind.ENTRY)}

    def _rows(self, kind):
        found = itertools.chain.from_iterable(queue.parts(self.site, kind))
        return [(jid, minion, salt.payload.loads(body)) for _, jid, minion, body in found]

    @property
    def claims(self):
        """The minions with a stored claim, by jid."""
        found = collections.defaultdict(set)
        for (minion, jid), record in self.stored.items():
            if record["state"] == "claimed":
                found[jid].add(minion)
        return found

    @property
    def notes(self):
        """What the store has of jobs besides their entries, by jid."""
        return {jid: record for jid, _, record in self._rows(Kind.WATCHED)}

    def has_stored(self, minion, jid, record):
        """An entry was stored. Note whether it says that the job began."""
        if record["state"] in ("running", "held") or record.get("begun_at"):
            self.known.add((minion, jid))
        elif any(
            why.startswith(AGAIN) or (state, why) == ("pending", "an operator has queued it")
            for _, state, why in record["history"][-2:]
        ):
            self.known.discard((minion, jid))  # the job must run again

    def forget_begun(self):
        """A power cut has taken what the engine had stored of jobs that have begun."""
        stored = self.stored
        for key in list(self.known):
            record = stored.get(key)
            if not (record and (record["state"] in ("running", "held") or record.get("begun_at"))):
                self.known.discard(key)

    # -- the master ---------------------------------------------------------------------------------------------------

    def fire(self, tag, data):
        """Put an event on the bus."""
        for bus in self.buses():
            if bus:
                bus.hear(tag, data)

    def buses(self):
        """The engines' ends of the bus."""
        return [self.bus]

    def of_publisher(self, load, minions):
        return self._standing("publisher", minions)

    def of_identity(self, who, load, minions):
        return self._standing(who.name, minions)

    def _standing(self, user, minions):
        told = [
            dict.fromkeys(minions, f"{user} is {what}") for what in ("denied", "unsure") if user in getattr(self, what)
        ]
        return Standing(*(told if user in self.denied else ({}, *told)))

    def send(self, call, engine=False):
        """A minion sends something: call when it reaches the master."""
        self.later(LATENCY, call, engine)

    def take_load(self, load, names, origin="", ends=(), sent=True, fresh=False, is_stored=True):
        """
        The master publishes: the log and the bus have it at once, the job cache has it ``lag`` seconds later. If it is not
        ``sent``, the load is only stored.
        """
        jid = load["jid"]
        record = records.publish_of(jid, load, sorted(names), origin, sent, fresh)
        self.log_writer.append(record._replace(at=self.wall()), durable=True)
        told = {name: load.get(name) for name in ("jid", "fun", "arg", "user")}
        if sent:
            self.fire(f"salt/job/{jid}/new", {**told, "minions": sorted(names)})

        self.loads.setdefault(jid, load)

        if is_stored:
            self.kept.setdefault(jid, load)
            self.named[jid].update(names)
            first, last = self.recorded.get(jid, (self.wall(), 0.0))
            self.recorded[jid] = first, max(self.wall(), last + 0.001)  # later, also if the clock was set back

    def load_of(self, jid, fun="state.apply", digest="", limits=None, nocache=False, tgt=None):
        """Return the load of a job; one with several functions has as many arguments."""
        tgt = tgt or (("*", "glob") if self.by_id else (f"job:{jid}", "grain"))
        arg = [digest or jid] if isinstance(fun, str) else [[digest or jid] for _ in fun]
        load = {"jid": jid, "fun": fun, "arg": arg, "tgt": tgt[0], "tgt_type": tgt[1], "user": "root"}
        if limits is not None:
            wishes = {name: value for name, value in dataclasses.asdict(limits).items() if value is not None}
            given = wishes.pop("given") and not wishes.pop("off")
            load["kwargs"] = {"metadata": {"job_retry": wishes if given and wishes else given}}
        if nocache:
            load.setdefault("kwargs", {})["nocache"] = True
        return load

    def publish(self, jid, targets=None, **options):
        """Publish a job as ``salt`` does. With an existing jid, a further part of the minions gets the job."""
        targets = tuple(self.minions if targets is None else targets)
        load = self.load_of(jid, **options)
        is_fresh = jid not in self.published
        job, earlier, at = self.published.get(jid, (job_of(jid, load, self.now), (), self.now))
        self.published[jid] = job, tuple(dict.fromkeys((*earlier, *targets))), at
        self.take_load(load, targets, fresh=is_fresh)
        self.deliver(jid, targets)

    def kill(self, jid, targets=None, user="root", signal=None):
        """
        Kill a job as ``salt '*' saltutil.kill_job`` does. Killed jobs return nothing. With the jid of an earlier signal, a
        further part of the minions gets that signal. Returns the jid of the signal.
        """
        targets = tuple(self.minions if targets is None else targets)
        is_fresh = signal is None
        signal = signal or f"kill-{jid or 'all'}-{next(self.count)}"
        fun, arg = ("saltutil.kill_job", [jid]) if jid else ("saltutil.kill_all_jobs", [])
        load = {"jid": signal, "fun": fun, "arg": arg, "user": user}
        self.take_load(
            {**load, "tgt": "*", "tgt_type": "glob"}, targets, ends=[jid or records.EVERY_JOB], fresh=is_fresh
        )
        for name in targets:
            running = self.minions[name].running if self.reaches(name) else {}
            for each in [each for each in running if each == (jid or each)]:
                self.end_job(name, each)
        return signal

    def end_job(self, name, jid):
        """The process of a job is killed. It returns nothing."""
        del self.minions[name].running[jid]
        self.killed.add((name, jid))

    def wants_publish(self, jid, names):
        """The engine is about to publish a job."""
        for name in sorted(names):
            self.must(name in self.claims.get(jid, ()), "published without a durable claim")
            known = (name, jid) in self.known and not self.minions[name].keeps
            self.must(not known, "published although it is known to have begun")

    async def reach_worker(self, life, taken, timeout):
        """A publish of the engine is taken by a worker of the master."""
        await life.wait(LATENCY)
        return await taken()

    async def take_publish(self, life, jid, names, once, load=None, origin=JOB_RETRY):
        """An engine publishes a job. Returns the minions that the master matches."""
        self.published_at.append(self.now)
        becomes = PublishFailed("no", True, True) if jid in self.forbidden else None
        becomes = becomes or (self.publishing.pop(0) if self.publishing else None)
        if becomes is not None and getattr(becomes, "certain", True):
            await life.wait(LATENCY)
            raise becomes
        names = self.matched(names)
        self.take_load(load or self.loads[jid], names, origin)
        if once.get("rerun"):
            for minion in (
                self.minions[name] for name in names if self.reaches(name) or self.minions[name].late is not None
            ):
                if jid not in minion.seen:  # a minion that knows the jid ignores the publish, and its record stays
                    minion.begun.pop(jid, None)
        self.deliver(jid, sorted(names), origin)
        if becomes is not None:
            raise becomes
        return names

    def matched(self, names):
        """Return those of some minions that have an accepted key. :raises NoMinionMatched: as the master, if none has."""
        if not (found := names - self.keyless - self.barred):
            raise NoMinionMatched("nobody")
        return found

    def refuse(self, times, error=None):
        """Have the master answer the next publishes with this error. If it is ``certain``, nothing is sent."""
        self.publishing += [error or PublishFailed("no", certain=True)] * times

    def store_return(self, name, jid):
        """The master takes a return."""
        fun = function_of(self.loads[jid]) if jid in self.loads else "state.apply"
        is_logged = self.log_writer.append(records.Returned(jid, name, fun, self.retcode_of(name, jid), self.wall()))
        if self.cache_up:
            self.cached.add((name, jid))
        if self.cache_up or is_logged:
            self.returned.add((name, jid))

    def forget_returns(self):
        """Return the (minion, jid) whose returns are gone from log and job cache, which the master has no more."""
        logged = {(record.minion, record.jid) for record in self.disk.log if isinstance(record, records.Returned)}
        gone = self.returned - self.cached - logged
        self.returned -= gone
        return gone

    def retcode_of(self, name, jid):
        return self.minions[name].retcode

    def hear_return(self, name, jid):
        """The bus announces a return."""
        retcode = self.retcode_of(name, jid)
        data = {"id": name, "jid": jid, "fun": "state.apply", "return": True, "retcode": retcode}
        self.fire(f"salt/job/{jid}/ret/{name}", data)

    # -- minions ------------------------------------------------------------------------------------------------------

    def ask(self, fun, arg, question, names, kept):
        """The master publishes a question; minions that are up answer."""
        if kept:
            self.questions.add(question)

        def ask(name):
            if self.reaches(name):
                value = self.answer(name, fun, arg)
                self.send(lambda: self.take_answer(name, question, fun, value))

        for name in sorted(names):
            self.later(LATENCY, lambda name=name: ask(name), engine=False)

    def answer(self, name, fun, arg):
        """Return a minion's answer."""
        minion = self.minions[name]
        if isinstance(fun, list):
            return {each: self.answer(name, each, given) for each, given in zip(fun, arg, strict=True)}
        jid = arg[0] if arg else ""
        if fun in KILLS:
            if jid not in minion.running:
                return ""
            self.signalled[name, jid] |= {fun}
            if not (minion.is_stubborn and fun == "saltutil.term_job"):
                self.end_job(name, jid)
            return f"Signal sent to job {jid} at pid 1"
        if fun == "saltutil.find_job":
            return {"jid": jid} if jid in minion.running else {}
        if fun == "saltutil.find_cached_job":
            return minion.has_kept(jid)
        if fun == "match.compound":
            return (name, jid.partition(":")[2]) not in self.unmatched
        if fun == "saltutil.running":
            own = [{"jid": "req", "fun": "state.highstate"}] if minion.applies else []
            return [*({"jid": each} for each in minion.running), *own]
        return True

    def take_answer(self, name, question, fun, value):
        """The master takes an answer."""
        if question in self.questions:
            said = records.return_of(question, name, {"fun": fun, "return": value}, asked=True)
            self.log_writer.append(said._replace(at=self.wall()))
        data = {"id": name, "jid": question, "fun": fun, "return": value, "retcode": 0}
        self.fire(f"salt/job/{question}/ret/{name}", data)

    def reaches(self, name):
        """Whether the master reaches a minion: it is up, and its key is accepted."""
        return self.minions[name].up and name not in self.keyless and name not in self.barred

    def deliver(self, jid, names, origin=""):
        """What was published reaches minions. ``origin``: the engine that has published it, if one has."""
        for name in names:
            minion = self.minions[name]
            if minion.late is not None:
                minion.late.append(jid)
            if not self.reaches(name) or jid in minion.seen:
                continue
            self.must((name, jid) not in self.returned, f"{name} runs {jid} again, and has returned it")
            self.must(jid not in minion.running, "begun although an earlier life of the minion still runs it")
            minion.seen.add(jid)
            if minion.keeps and jid in minion.begun:
                self.refused[name, jid] += 1
                continue
            if not minion.full:
                minion.begun[jid] = self.wall()
            self.runs[name, jid] += 1
            minion.running[jid] = origin
            self.has_begun(name, jid, origin)
            life, seconds = minion.life, self.duration if minion.seconds is None else minion.seconds
            if self.acks:
                self.send(lambda name=name: self.acknowledge(name, jid))
            self.later(seconds, lambda name=name, life=life: self.finish(name, jid, life), engine=False)

    def has_begun(self, name, jid, origin):
        """A minion has begun a job."""

    def acknowledge(self, name, jid):
        """The bus announces that a minion has begun a job."""
        self.fire(f"salt/job/{jid}/start/{name}", {"id": name, "jid": jid})

    def finish(self, name, jid, life):
        minion = self.minions[name]
        if minion.life != life or (name, jid) in self.killed:
            return
        minion.running.pop(jid, None)
        minion.ran.add(jid)
        self.send(lambda: self.take_return(name, jid))

    def take_return(self, name, jid):
        """The master takes a return."""
        if self.keeps_returns:
            self.store_return(name, jid)
        self.hear_return(name, jid)

    def stop(self, *names):
        """kill -9 of minions."""
        for minion in map(self.minions.__getitem__, names):
            minion.up, minion.seen, minion.running, minion.late = False, set(), {}, None
            minion.life += 1

    def let_miss(self, name, jid, run=30, **options):
        """Stop a minion, publish a job, and let time pass."""
        self.stop(name)
        self.publish(jid, **options)
        self.run(run)

    def start(self, name):
        """Start a minion; one that is up restarts."""
        self.stop(name)
        self.revive(name)

    def revive(self, name):
        """Start a minion whose jobs live on without it (systemd's ``KillMode=process``)."""
        minion = self.minions[name]
        minion.up, minion.seen, minion.late = True, set(), None
        if self.reaches(name):
            minion.started_at = self.wall()
            self.send(lambda: self.fire(f"salt/minion/{name}/start", {"id": name}))

    def freeze(self, name):
        """A minion is frozen: it answers nothing."""
        self.minions[name].up, self.minions[name].late = False, []

    def wake(self, name):
        """A frozen minion goes on, and gets what was published meanwhile. It sends no start event."""
        minion = self.minions[name]
        if minion.late is not None:
            late, minion.late, minion.up = minion.late, None, True
            for jid in late:
                self.deliver(jid, (name,))

    # -- what tests look at -------------------------------------------------------------------------------------------

    def state(self, name, jid):
        """The state of an entry, or None."""
        entry = self.machine.entry(name, jid)
        return entry.state if entry else None

    def told(self, jid):
        """The events about a job that is owed: (minion, kind)."""
        parts = [tag.split("/") for tag, _ in self.fired if tag.startswith("salt/job_retry/")]
        return [(minion, kind) for _, _, minion, its_jid, kind in parts if its_jid == jid]


class Misfortunes:
    """What befalls a world. Its ``random``, whose seed is that of the world, decides."""

    KINDS = ()  # what happens; a kind that is listed twice happens twice as often
    LONGEST = 300.0  # the most seconds until the next thing happens

    def act(self):
        """Do one random thing, and let some time pass."""
        choice = self.random.choice
        getattr(self, f"do_{choice(self.KINDS)}")()
        self.run(choice([0.01, 0.2, 1.0, 5.0, 15.0, 60.0, self.LONGEST]) * self.random.random())

    def _name(self):
        return self.random.choice(sorted(self.minions))

    def _some(self):
        return tuple(name for name in self.minions if self.random.random() < 0.6) or tuple(self.minions)[:1]

    def is_lost(self):
        """Whether a genuine event is lost. If it is, the missing beat shows that soon."""
        lost = self.random.random() < self.lossy
        if lost:
            self.later(self.random.uniform(0.1, 6.0), self.notice)
        return lost

    def out_of_sight(self, name):
        """No engine can know what a minion does from now on."""

    def do_gap(self):
        self.notice()

    def do_stop_minion(self):
        self.stop(self._name())

    def do_freeze(self):
        """A minion is frozen for a while."""
        name = self._name()
        if self.minions[name].up:
            self.out_of_sight(name)
            self.freeze(name)
            end = self.ends_a_frost()
            wait = self.random.uniform(1, 90)
            self.later(wait, lambda: self.minions[name].late is not None and end(name), engine=False)

    def ends_a_frost(self):
        """Return what a frozen minion does next."""
        return self.wake

    def do_unplug(self):
        """A minion loses its connection for a while, and keeps running its jobs."""
        name = self._name()
        minion = self.minions[name]
        if minion.up:
            self.out_of_sight(name)
            minion.up = False
            self.later(self.random.uniform(1, 90), lambda life=minion.life: self._plug_in(minion, life), engine=False)

    @staticmethod
    def _plug_in(minion, life):
        minion.up |= minion.life == life and minion.late is None  # else it starts, or wakes, in its own time

    def do_process(self):
        """The process of a job dies, and nothing is returned."""
        for name, minion in self.minions.items():
            for jid in list(minion.running):
                if self.random.random() < 0.5:
                    self.process_dies(name, jid)

    def process_dies(self, name, jid):
        self.end_job(name, jid)

    def finish(self, name, jid, life):
        """A job that no longer runs returns nothing. A killed job that was started again returns."""
        if jid in self.minions[name].running:
            self.killed.discard((name, jid))
            super().finish(name, jid, life)
