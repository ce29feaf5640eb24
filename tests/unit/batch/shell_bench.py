"""The batch engine's shell on a bench: a simulated master, minions and a job cache, in simulated time."""

from __future__ import annotations

import dataclasses

from saltext.jobs.core import compat
from saltext.jobs.core.batch.catalog import add_late_returns
from saltext.jobs.core.batch.live import Ports
from saltext.jobs.core.batch.shell import INTERVAL, BatchShell
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.feeder import Feeder
from saltext.jobs.core.engine.loop import Clock
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.engine.proof import Returns
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.errors import JobCacheError, NoMinionMatched
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.ledger.log import Reader, Writer
from saltext.jobs.core.ledger.records import Returned, publish_of, return_of
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.options.engines import BatchSettings
from saltext.jobs.core.site import site_of
from tests.unit.batch.bench import BEGIN, spec
from tests.virtual_loop import VirtualLoop
from tests.worlds.world import Bus

JID = "20260516101112131415"
#: Seconds that an event or an answer of the master takes.
LATENCY = 0.01
#: The functions of a question about a job.
QUESTION = ["saltutil.find_job", "saltutil.find_cached_job", "saltutil.running"]


class FakeBus(Bus):
    """Hands every event to its listener, as the bus does: decoded only if it is wanted, and never raising."""

    def __init__(self, loop):
        super().__init__(loop)
        self.fired = []
        self.errors = []

    def fire(self, tag, data):
        self.fired.append((tag, data))

    def deliver(self, tag, data):
        for listener in [listener for listener in self.listeners if listener.wants(tag)]:
            try:
                listener.handle(tag, data)
            except Exception as exc:
                self.errors.append(exc)

    def kinds(self):
        """What the batches announced, except their progress."""
        kinds = [tag.rsplit("/", 1)[1] for tag, _ in self.fired]
        return [kind for kind in kinds if kind != "progress"]


@dataclasses.dataclass(eq=False)
class FakeMinion:
    """Runs jobs for ``seconds`` each and returns ``retcode``; one that is not ``there`` says nothing."""

    name: str
    seconds: float = 1.0
    retcode: int = 0
    there: bool = True
    acknowledges: bool = True
    stubborn: bool = False  # its job does not end when it is told to terminate
    started: float = 0.0  # when its process started, if that was after the beginning
    answers: dict = dataclasses.field(default_factory=dict)  # {function: (return, retcode)} of what it runs at once
    known: set = dataclasses.field(default_factory=set)  # jids that it has received since it started
    runs: dict = dataclasses.field(default_factory=dict)  # jid -> the timer of its end
    begun: list = dataclasses.field(default_factory=list)  # (jid, when)


class FakeMaster:
    """Publishes, as a Publisher: to minions that are there, and whose answers come over the bus."""

    failed = questions = 0

    def __init__(self, loop, clock, bus, minions):
        self._loop, self._clock, self._bus = loop, clock, bus
        self.minions = {minion.name: minion for minion in minions}
        self.keys = set(self.minions)
        self.published = []  # (fun, minions)
        self.cache = FakeCache()
        self.most = 0  # jobs that have run at once
        self._jids = 0

    def new_jid(self):
        self._jids += 1
        return f"20270101{self._jids:012d}"

    async def publish(self, fun, arg, tgt, tgt_type="list", *, jid, question=False, kept=False, options=None, **_):
        if kept:
            self.cache.asked.add(jid)
        if (question and options) or (kept and self.cache.log is None):
            self.cache.answered[jid] = {}
        names = sorted(self.keys) if tgt_type != "list" else list(tgt)
        matched = [name for name in names if name in self.keys]
        self.published.append((fun, tuple(names)))
        if not matched:
            raise NoMinionMatched(f"the master matched no minion with {tgt}")
        for name in matched:
            minion = self.minions[name]
            if minion.there:
                self._loop.call_later(LATENCY, self._receive, minion, fun, arg, jid)
        return frozenset(matched)

    def close(self):
        pass

    def jobs(self):
        """The minions of each publish that was no question."""
        questions = ("test.ping", "saltutil.")
        return ["".join(minions) for fun, minions in self.published if not str(fun).strip("[']").startswith(questions)]

    def restart_minion(self, name, heard=True):
        """A minion's process starts anew: its jobs and what it knew of jids are gone. ``heard``: the bus tells of it."""
        minion = self.minions[name]
        for timer in minion.runs.values():
            self._loop.remove_timeout(timer)
        minion.runs.clear()
        minion.known.clear()
        minion.there, minion.started = True, self._clock.now()
        if not heard:
            return
        self._bus.deliver(f"salt/minion/{name}/start", {"id": name})

    def _receive(self, minion, fun, arg, jid):
        if not minion.there or jid in minion.known:
            return
        minion.known.add(jid)
        if isinstance(fun, list):
            runs = {"jid": arg[0][0]} if arg[0][0] in minion.runs else {}
            answers = {QUESTION[0]: (runs, 0), **minion.answers}
            self.returns(minion, jid, fun, {name: answers.get(name, ({}, 0))[0] for name in fun})
        elif fun in minion.answers:
            self.returns(minion, jid, fun, *minion.answers[fun])
        elif fun == "test.ping":
            self.returns(minion, jid, fun, True)
        elif fun == "saltutil.find_cached_job":
            self.returns(minion, jid, fun, "you may need to enable cache_jobs")
        elif fun in ("saltutil.term_job", "saltutil.kill_job"):
            self.returns(minion, jid, fun, f"Signal sent to job {arg[0]} at pid 1" if arg[0] in minion.runs else "")
            if arg[0] in minion.runs and not (minion.stubborn and fun == "saltutil.term_job"):
                self._loop.remove_timeout(minion.runs.pop(arg[0]))
        else:
            self._run(minion, fun, jid)

    def _run(self, minion, fun, jid):
        minion.begun.append((jid, self._clock.now()))
        if minion.acknowledges:
            self._bus.deliver(f"salt/job/{jid}/start/{minion.name}", {"id": minion.name, "jid": jid})
        minion.runs[jid] = self._loop.call_later(minion.seconds, self.finish, minion, fun, jid)
        self.most = max(self.most, sum(len(each.runs) for each in self.minions.values()))

    def finish(self, minion, fun, jid):
        del minion.runs[jid]
        self.cache.store_return({"jid": jid, "id": minion.name, "fun": fun, "retcode": minion.retcode})
        self.returns(minion, jid, fun, "done", minion.retcode)

    def returns(self, minion, jid, fun, value, retcode=0):
        data = {"jid": jid, "id": minion.name, "fun": fun, "return": value, "retcode": retcode, "success": not retcode}
        self.cache.store_answer(jid, minion.name, fun, value, retcode)
        self._bus.deliver(f"salt/job/{jid}/ret/{minion.name}", data)


class FakeCache:
    """A job cache in memory."""

    keeps_first_load = True

    def __init__(self):
        self.returns, self.loads = {}, {}
        self.answered = {}  # {jid: {minion: (what it answered, retcode)}} of questions that are stored as jobs
        self.asked = set()  # jids of questions whose answers the log has, if there is one
        self.failing = False
        self.looked = []  # the minions of each look for returns or answers
        self.log = None

    def each_return(self, jid, minions):
        if self.failing:
            raise JobCacheError("the job cache is down")
        minions = list(minions)
        self.looked.append(tuple(minions))
        found = {minion: ("done", retcode) for minion, retcode in self.returns.get(jid, {}).items()}
        found |= self.answered.get(jid, {})
        for minion in minions:
            value, retcode = found.get(minion, (None, 0))
            yield minion, {"return": value, "retcode": retcode} if minion in found else None

    def returned(self, jid, minions):
        return {minion: data["retcode"] for minion, data in self.each_return(jid, minions) if data}

    async def forget(self, jid):
        self.answered.pop(jid, None)

    def store_kept(self, jid, fun, returns):
        for minion, data in returns.items():
            self.store_return({"jid": jid, "id": minion, "fun": fun, "retcode": data.get("retcode", 0)})

    def store_return(self, load):
        self.returns.setdefault(load["jid"], {}).setdefault(load["id"], load["retcode"])
        self.append(return_of(load["jid"], load["id"], load))

    def store_answer(self, jid, minion, fun, value, retcode):
        if jid in self.answered:
            self.answered[jid][minion] = value, retcode
        if jid in self.asked:
            self.append(return_of(jid, minion, {"fun": fun, "return": value, "retcode": retcode}, asked=True))

    def append(self, record):
        if self.log is not None:
            self.log.append(record)

    def keep_load(self, jid, load, minions):
        if self.failing:
            raise JobCacheError("the job cache is down")
        self.loads[jid] = load
        self.append(publish_of(jid, load, sorted(minions), sent=False))


class FakeWorker:
    """A thread that never makes its caller wait."""

    async def call(self, function, *args):
        return function(*args)

    def close(self):
        pass


class Slow(FakeWorker):
    """A thread for which everything takes three seconds."""

    async def call(self, function, *args):
        await compat.sleep(3.0)
        return function(*args)


class FakePermission:
    """The users without rights: ``{name: why}``. While it is ``failing``, it cannot tell."""

    def __init__(self):
        self.lost, self.asked, self.failing, self.unknown = {}, [], False, frozenset()

    def strangers(self, minions):
        return sorted(self.unknown.intersection(minions))

    def lacking(self, spec, minions):
        if self.failing:
            raise OSError("the server is down")
        self.asked.append((spec.owner["name"], minions))
        return self.lost.get(spec.owner["name"], "")

    def limits(self, spec):
        return dict(spec.on_behalf)


class FakeInbox:
    """Requests in memory; ``replies`` are ``{id: (answer or refuse, value)}``. While it is ``full``, it gets no reply."""

    def __init__(self):
        self.waiting, self.replies, self.full = [], {}, False


class FakeService(Service):
    """Takes the requests of a FakeInbox."""

    def __init__(self, inbox, opts, loop):
        super().__init__(opts, BATCH_MANAGER, loop, pause=5.0)
        self._inbox = inbox

    def taken(self):
        waiting, self._inbox.waiting = self._inbox.waiting, []
        return waiting

    def reply(self, request_id, reply):
        if not self._inbox.full:
            self._inbox.replies[request_id] = (
                ("answer", reply["value"]) if "value" in reply else ("refuse", reply["error"])
            )


class ShellBench:
    """
    One engine on one disk; ``restart`` ends it as SIGKILL would and starts another one.

    :param root: a directory.
    :param minions: FakeMinions, or a string with a letter for each.
    :param store: the class of the store.
    :param logged: whether the master keeps a log.
    :param unproven: why the job cache is no better evidence than events, if it is not.
    :param interval: seconds between two passes of the engine's maintenance.
    """

    logged = False

    def __init__(self, root, minions="abcd", store=BatchStore, logged=None, unproven="", interval=INTERVAL, **settings):
        minions = [FakeMinion(name) if isinstance(name, str) else name for name in minions]
        self.virtual = VirtualLoop()
        self.clock = Clock(BEGIN, self.virtual.steady)
        self.opts = {"cachedir": str(root), "id": "bench_master", "hash_type": "sha256"}
        self.site = site_of(self.opts)
        self.store, self.reader = store(self.opts), BatchStore(self.opts)  # of the engine, and of a runner
        self.settings, self.interval = BatchSettings(**settings), interval
        self.inbox = FakeInbox()
        self.bus = FakeBus(self.virtual.loop)
        self.master = FakeMaster(self.virtual.loop, self.clock, self.bus, minions)
        self.unproven = unproven
        self.logged = (self.logged if logged is None else logged) and not unproven
        if self.logged:
            self.master.cache.log = Writer(self.site)
            self.master.cache.log.append(Returned("1", "first", "test.ping", 0, 0.0))
        self.queue_runs = True
        self.master_age = 86400.0
        self.permission = FakePermission()
        self.runners = {}  # {function: (return, True or why it failed)}
        self.called = []  # (function, arguments) of the runner functions that were called
        self.shell = None
        self._requests = 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.shell.close()
        self.virtual.close()

    def ports(self):
        loop, cache, worker = self.virtual.loop, self.master.cache, FakeWorker()
        forget = None if self.logged else cache.forget
        self.questions = Questions(loop, self.master, self.virtual.steady, not self.unproven, forget)
        return Ports(
            loop=loop,
            clock=self.clock,
            wall=self.clock.now,
            bus=self.bus,
            publisher=self.master,
            questions=self.questions,
            cache=cache,
            returns=Returns(self.site, cache, is_fed=not self.logged),
            log=self.log_for,
            store=self.store,
            service=FakeService(self.inbox, self.opts, loop),
            cache_worker=worker,
            disk_worker=FakeWorker(),
            runner=self.call_runner,
            can_queue=lambda: self.queue_runs,
            permission=self.permission,
            rights_worker=FakeWorker(),
            master_age=lambda: self.master_age,
            restarted=lambda since: {name for name, when in since.items() if self.master.minions[name].started >= when},
            acks=True,
            keep=86400.0,
        )

    def log_for(self, *of_shell):
        if not self.logged:
            writer, asks, now = Writer(self.site), self.questions.wants, self.virtual.steady
            cache, worker = self.master.cache, FakeWorker()
            Feeder(self.virtual.loop, self.bus, cache, worker, writer, *of_shell, asks, self.unproven, now)
        return Reader(self.site)

    async def call_runner(self, fun, words, timeout, on_behalf):
        self.called.append((fun, tuple(words)))
        return self.runners[fun]

    @property
    def queued(self):
        """The minions that were handed over to the retry queue."""
        asked = requests.waiting(self.opts, JOB_RETRY)
        assert all(request["do"] == "enqueue" and self.master.cache.loads.get(request["jid"]) for request in asked)
        return [minion for request in asked for minion in request["minions"]]

    def start(self, **ports):
        self.shell = BatchShell(dataclasses.replace(self.ports(), **ports), self.settings, self.interval)
        self.shell.start()
        self.run(2 * LATENCY)

    def restart(self, after=0.0, **ports):
        self.shell.close()
        self.run(after)
        self.start(**ports)

    def run(self, seconds, until=lambda: False):
        return self.virtual.run(seconds, until)

    def ask(self, do, **request):
        """Leave a request as a runner does, and have the engine take it; returns its id."""
        self._requests += 1
        request_id = f"r{self._requests:04d}"
        self.inbox.waiting.append((request_id, {"do": do, **request}))
        if self.bus.listeners and self.shell.service.verbs:
            self.shell.service.take()
        return request_id

    def begin(self, minions=None, batch="2", **more):
        """Start a batch; returns its summary."""
        names = sorted(self.master.minions) if minions is None else minions
        options = {"fun": "state.apply", "publish_window": 0.1, **more}
        reply = self.ask("start", spec=spec(names, batch, **options).as_dict())
        assert self.run(1.0, lambda: reply in self.inbox.replies)
        return self.inbox.replies[reply][1]

    def batch(self, jid=JID):
        live = self.shell.live.get(jid)
        if live:
            return live.batch
        batch = self.reader.read(jid)
        if batch and batch.closed:
            add_late_returns(batch, Returns(self.site, self.master.cache, is_fed=not self.logged))
        return batch

    def has_ended(self, jid=JID):
        return self.reader.kind_of(jid) is Kind.ENDED and jid not in self.shell.live

    def times(self):
        """When each minion has begun, in seconds since the bench began; a minion that did so twice has its last time."""
        return {name: round(when - BEGIN) for name, minion in self.master.minions.items() for _, when in minion.begun}

    def kills(self):
        """The signals that were sent to minions, in their order."""
        return [fun for fun, _ in self.master.published if fun in ("saltutil.term_job", "saltutil.kill_job")]

    def reply(self, do, **request):
        """Leave a request for the batch, and return what it was answered: (answer or refuse, value)."""
        asked = self.ask(do, **{"jid": JID, "user": "ann", **request})
        assert self.run(30.0, lambda: asked in self.inbox.replies), f"{do} is not answered"
        return self.inbox.replies[asked]

    def states(self, jid=JID):
        return {minion: outcome.value for minion, outcome in self.batch(jid).outcomes.items()}

    def end(self, seconds=3600.0, jid=JID):
        """Let time pass until a batch has been closed."""
        assert self.run(seconds, lambda: self.has_ended(jid)), self.batch(jid).row()
        return self.batch(jid)
