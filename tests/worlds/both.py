"""
The world with both engines in it: batches hand over to the retry queue what is away, and take it back. Both have one
master, one site, one bus and the same minions. Of their own state the world reads what a runner shows.
"""

from __future__ import annotations

import itertools

import salt.payload

from saltext.jobs.core.batch.catalog import add_late_returns
from saltext.jobs.core.batch.live import Ports
from saltext.jobs.core.batch.shell import BatchShell
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.loop import Clock
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.engine.proof import Returns
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.functions import KILLS
from saltext.jobs.core.ledger.log import News, Reader
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.options.engines import BatchSettings
from tests.worlds.world import LATENCY, MAINTENANCE, Bus, JobCache, Life, Publisher, Worker, World


class Batches(BatchStore):
    """
    Nothing is shown to Salt 3008's own manager: there is none.

    :param written: called with each change that was written.
    """

    def __init__(self, opts, lease=None, written=lambda change: None):
        super().__init__(opts, lease)
        self._written = written

    def write(self, changes, durable=True, answers=()):
        super().write(changes, durable, dict(answers))
        for change in changes:
            self._written(change)

    def show_to_salt(self, spec, created):
        pass


class Permission:
    """Everybody may do everything."""

    def strangers(self, minions):
        return []

    def lacking(self, spec, minions):
        return ""

    def limits(self, spec):
        return dict(spec.on_behalf)


class Log(Reader):
    """Tells a killed engine nothing."""

    def __init__(self, life):
        super().__init__(life.world.site)
        self._life = life

    def read(self):
        return super().read() if self._life.alive else News([], "", False)


class BatchPublisher(Publisher):
    """The publisher of the batch engine."""

    async def publish(self, fun, arg, tgt, tgt_type="list", *, jid, question=False, **more):
        if question:
            return await super().publish(fun, arg, tgt, tgt_type, jid=jid, question=True, **more)
        names = frozenset(tgt)
        self._world.wants_part(jid, names)
        await self._life.wait(LATENCY)
        load = self._world.load_of(jid, fun)
        found = await self._world.take_publish(self._life, jid, names, {}, load, BATCH_MANAGER)
        await self._life.wait(3 * LATENCY)
        return found


class Both(World):
    """A world in which the batch engine runs too."""

    def __init__(self, *args, max_in_flight=None, **options):
        self.batch_settings = BatchSettings(max_in_flight=max_in_flight)
        self.batch_life = self.batch_bus = self.batches = self.batch_lease = None
        self.handed_over = set()  # (minion, jid) that a batch has handed over to the retry queue
        self.writes = itertools.count()
        self.specs = {}  # jid -> the Spec of a batch that was asked for
        self.replies, self.told_by = {}, {}  # by the id of a request: the answer, and what to call with it
        super().__init__(*args, **options)
        self.kept_batches = Batches(self.opts)  # as a runner reads them
        self.boot_batches()

    def buses(self):
        return [self.bus, self.batch_bus]

    def shells(self):
        return [self.shell, self.batches]

    # -- the batch engine ---------------------------------------------------------------------------------------------

    def boot_batches(self):
        self.batch_life = life = Life(self, self.batches_touched)
        self.batch_lease = self.site.lease(BATCH_MANAGER)
        assert self.batch_lease.take()
        self.batch_bus, publisher = Bus(life), BatchPublisher(life)
        clock = Clock(self.wall(), self.virtual.steady)
        cache = JobCache(self)
        ports = Ports(
            loop=life,
            clock=clock,
            wall=self.wall,
            bus=self.batch_bus,
            publisher=publisher,
            questions=Questions(life, publisher, self.virtual.steady),
            cache=cache,
            returns=self.returns_from(cache),
            log=lambda *_: Log(life),
            store=Batches(self.opts, self.batch_lease, self.has_changed),
            service=Service(self.opts, BATCH_MANAGER, life, self.batch_lease, MAINTENANCE),
            cache_worker=Worker(life, lambda: True),
            disk_worker=self._worker(),
            runner=lambda fun, words, *_: self.call_runner(life, fun, words),
            can_queue=lambda: self.site.lead(JOB_RETRY) is not None,
            permission=Permission(),
            rights_worker=self._worker(),
            master_age=lambda: 86400.0,
            restarted=lambda since: {name for name, at in since.items() if self.minions[name].started_at >= at},
            acks=self.acks,
            keep=0.0,
            is_takeover=bool(self.graves),
        )
        self.batches = BatchShell(ports, self.batch_settings)
        self.batches.start()
        if not self._is_running:
            self.run(0.1)

    def _worker(self):
        return Worker(self.batch_life, lambda: True)

    def batches_touched(self):
        """The batch engine has made a call to the outside."""

    def crash_batches(self):
        """kill -9 of the batch engine."""
        if self.batch_life is not None:
            self.batch_life.alive = False
            self.batch_lease.release()
            self.graves.append((self.batch_life, self.batches))
        self.batch_life = self.batch_bus = self.batches = None

    def notice(self):
        super().notice()
        if self.batch_bus is not None:
            self.batch_bus.lose()

    async def call_runner(self, life, fun, words):
        """A runner function that a batch calls. Returns its value, and True."""
        return True, True

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask_batches(self, do, told=lambda value: None, **request):
        """Ask the batch engine for something, as a runner does. ``told`` is called with the answer; None if it refuses."""
        number = self.leave(BATCH_MANAGER, {"do": do, "user": "root", **request})
        self.told_by[number] = told
        self._hand_back(number)  # it may have been answered at once

    def has_answered(self, engine, request_id, reply):
        super().has_answered(engine, request_id, reply)
        if engine == BATCH_MANAGER:
            self.replies[request_id] = salt.payload.loads(reply).get("value")
            self._hand_back(request_id)

    def _hand_back(self, number):
        if number in self.replies and number in self.told_by:
            self.told_by.pop(number)(self.replies.pop(number))
            Requests(self.site, BATCH_MANAGER).forget(number)

    # -- batches ------------------------------------------------------------------------------------------------------

    def begin(self, jid, minions, batch="2", told=lambda value: None, **more):
        """Ask for a batch of state.apply."""
        minions = tuple(minions)
        options = {"fun": "state.apply", "arg": (), "kwargs": {}, "tgt": "*", "tgt_type": "glob", "user": "root"}
        options |= {"timeout": 10.0, "gather_job_timeout": 5.0, "publish_window": 0.1, "publish_retries": 1000}
        self.specs[jid] = spec = Spec(jid=jid, minions=minions, batch=batch, **{**options, **more})
        self.ask_batches("start", told, spec=spec.as_dict())

    def batch(self, jid):
        """A batch as a runner finds it; None if there is none."""
        batch = self.kept_batches.read(jid)
        if batch is not None and batch.closed:
            add_late_returns(batch, Returns(self.site, JobCache(self)))
        return batch

    def outcomes(self, jid):
        """``{minion: how its part ended}``."""
        return {name: outcome.value for name, outcome in self.batch(jid).outcomes.items()}

    def has_changed(self, change):
        """What has changed of a batch was written."""
        for body in change.asks.values():
            names = salt.payload.loads(body)["minions"]
            self.wants_hand_over(change.jid, names)
            self.handed_over |= {(name, change.jid) for name in names}
        if not next(self.writes) % 4:  # the check takes as long as all else that a write does
            self.rows_stand_for_the_state(change.jid)

    def rows_stand_for_the_state(self, jid):
        """Whoever reads a batch finds what the engine knows, unless that has changed since it was written."""
        live = self.batches.live.get(jid) if self.batches else None
        if live is None or live.batch.touched:
            return
        found = self.kept_batches.read(jid)
        assert found.members.keys() == live.batch.members.keys()
        for minion, member in found.members.items():
            assert member.row() == live.batch.members[minion].row(), (
                f"the row of {minion} in {jid} is not what it has become"
            )
        assert found.pending.in_order() == live.batch.pending.in_order()
        assert (+found.counts, +found.used) == (+live.batch.counts, +live.batch.used)

    def has_ended(self, jid):
        batch = self.batch(jid)
        return batch is None or batch.closed

    def retcode_of(self, name, jid):
        return self.minions[name].retcode if jid in self.specs else 0

    def ask(self, fun, arg, question, names, kept):
        """A kill is logged as any publish."""
        if isinstance(fun, str) and fun in KILLS:
            load = {"jid": question, "fun": fun, "arg": arg, "tgt": "*", "tgt_type": "glob", "user": "root"}
            self.take_load(load, names, BATCH_MANAGER, arg)
        super().ask(fun, arg, question, names, kept)

    def take_load(self, load, names, *args, **options):
        """While the job cache is away, Salt publishes, and nothing is stored."""
        super().take_load(load, names, *args, **options, is_stored=self.cache_up)

    def wants_part(self, jid, names):
        """The batch engine is about to publish a part of a batch."""

    def wants_hand_over(self, jid, names):
        """A batch is about to hand minions over to the retry queue."""

    def running(self, jid):
        """The minions that run what a batch has sent them."""
        return [name for name, minion in self.minions.items() if minion.running.get(jid) == BATCH_MANAGER]
