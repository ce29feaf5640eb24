"""
A leading engine hands over in each phase of a batch, with a request that is made just then. The next one goes on: nothing
runs twice, never too many at once, and the request is answered once.
"""

from __future__ import annotations

import dataclasses
import datetime
import pathlib

import pytest

from saltext.jobs.core import compat
from saltext.jobs.core.batch.shell import BatchShell
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.masters import SETTLE
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.master import events
from saltext.jobs.core.site import FileSite, read_msgpack, write_msgpack
from tests.database import replies_in
from tests.unit.batch.bench import BEGIN, spec
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench

APPROVE = {"kind": "approve", "fun": "", "arg": [], "kwargs": {}}
LIMIT = 2


def utc(after):
    return f"{datetime.datetime.fromtimestamp(BEGIN + after, datetime.timezone.utc):%H:%M}"


class Buses:
    """What is on the bus of one master is on those of all."""

    def __init__(self, bus, loop):
        self._bus, self._loop, self.listeners, self.fired = bus, loop, [], bus.fired

    def listen(self, listener, on_ready=None):
        self.listeners.append(listener)
        if self not in self._bus.listeners:
            self._bus.tell_too(self)
        self._loop.add_callback(on_ready)

    def wants(self, tag):
        return any(listener.wants(tag) for listener in self.listeners)

    def handle(self, tag, data):
        for listener in self.listeners:
            if listener.wants(tag):
                listener.handle(tag, data)

    def fire(self, tag, data):
        self._bus.fire(tag, data)

    def close(self):
        pass


class Settling:
    """As a Publisher: nothing is sent once it settles, and it has settled once nothing is under way."""

    def __init__(self, master):
        self._master, self._under_way, self._is_settling = master, 0, False

    def __getattr__(self, name):
        return getattr(self._master, name)

    async def publish(self, *args, **options):
        if self._is_settling:
            await compat.Future()
        self._under_way += 1
        try:
            return await self._master.publish(*args, **options)
        finally:
            self._under_way -= 1

    async def settle(self):
        self._is_settling = True
        while self._under_way:
            await compat.sleep(0.02)


class HandingOver(ShellBench):
    """Has an engine that leads, another one that stands by, and a request that a runner leaves as a file."""

    def __init__(self, root, **more):
        super().__init__(root, **more)
        self.buses = Buses(self.bus, self.virtual.loop)
        self.folder = FileSite(self.opts).folder(BATCH_MANAGER)

    def engine(self, name):
        self.lease = FileSite({**self.opts, "id": name}).lease(BATCH_MANAGER)
        assert self.lease.take()
        return {
            "bus": self.buses,
            "publisher": Settling(self.master),
            "is_takeover": self.lease.is_takeover,
            "store": BatchStore(self.opts, self.lease),
            "inbox": requests.Inbox(self.opts, BATCH_MANAGER, self.lease),
        }

    def start(self, **ports):
        super().start(**self.engine("one"), **ports)

    def request(self, name, do, state="request", **values):
        write_msgpack(self.folder, f"requests/{name}.{state}", {"do": do, "user": "ann", **values})

    def wake(self):
        self.bus.deliver(events.wake_tag(BATCH_MANAGER), {})

    def answers(self):
        """``{name of a request: what was answered}``."""
        return {pathlib.PurePath(name).stem: read_msgpack(self.folder, name) for name in replies_in(self.folder)}

    def begin_with(self, batch=str(LIMIT), **options):
        self.asked = spec(sorted(self.master.minions), batch, fun="state.apply", **options).as_dict()
        self.request("start", "start", spec=self.asked)
        self.wake()

    def hand_over(self):
        """As ``core/engine/masters.py`` has it done: the loop stops once all is durable, or after a while."""
        former, settled = self.shell, []

        async def settle():
            await former.settle()
            settled.append(True)

        self.virtual.loop.spawn_callback(settle)
        self.run(SETTLE, lambda: settled)
        former.close()
        self.buses.listeners.remove(former)
        self.lease.release()
        self.shell = BatchShell(dataclasses.replace(self.ports(), **self.engine("two")), self.settings)
        self.shell.start()
        self.shell.take_requests()  # a request wakes it before it hears the bus


def started(bench, **options):
    bench.begin_with(timeout=60.0, **options)
    assert bench.run(5.0, lambda: bench.shell.live and bench.batch().started)


def running(bench, **options):
    started(bench, **options)
    assert bench.run(5.0, lambda: bench.master.minions["a"].begun)


def paused(bench):
    running(bench)
    bench.request("before", "pause", jid=JID)
    bench.wake()
    assert bench.run(5.0, lambda: "before" in bench.answers())


def waiting_for_approval(bench):
    running(bench, batch="1,2", check=APPROVE)
    assert bench.run(30.0, lambda: bench.batch().checks.under_way)


def stopping(bench):
    running(bench)
    bench.request("before", "stop", jid=JID, kill=True)
    bench.wake()
    assert bench.run(5.0, lambda: bench.batch().killing)


def handing_over_to_the_queue(bench):
    bench.master.minions["f"].there = False
    bench.begin_with(presence="ping", offline="queue")
    assert bench.run(5.0, lambda: bench.shell.live)
    bench.queue_runs = False
    assert bench.run(120.0, lambda: bench.batch().to_hand_over)


#: How each phase is come to, the request that is made just then, and the one with which it goes on.
PHASES = {
    "accepted and not begun": (lambda bench: bench.begin_with(), ("pause", {}), ("resume", {})),
    "just begun": (started, ("pause", {}), ("resume", {})),
    "running": (running, ("pause", {}), ("resume", {})),
    "paused": (paused, ("resume", {}), None),
    "waiting for its window": (
        lambda bench: started(bench, window=f"{utc(3600)}-{utc(7200)}", timezone="UTC"),
        ("pause", {}),
        ("resume", {}),
    ),
    "waiting for an approval": (waiting_for_approval, ("approve", {"stage": 0}), None),
    "stopping": (stopping, ("stop", {"kill": True, "again": True}), None),
    "going to the queue": (handing_over_to_the_queue, ("pause", {}), ("resume", {})),
}


@pytest.mark.parametrize("phase", PHASES)
def test_in_whatever_phase_the_lead_is_handed_over_the_next_one_goes_on(tmp_path, phase):
    come_to, (verb, values), goes_on = PHASES[phase]
    minions = [FakeMinion(name, seconds=3.0) for name in "abcdef"]
    with HandingOver(tmp_path, minions=minions) as bench:
        come_to(bench)
        bench.request("then", verb, jid=JID, **values)
        bench.wake()
        bench.hand_over()
        assert bench.run(60.0, lambda: "then" in bench.answers()), bench.answers()
        bench.queue_runs = True
        if goes_on is not None:
            bench.request("later", goes_on[0], jid=JID, **goes_on[1])
            bench.wake()
        bench.end(4 * 3600.0)
        assert bench.folder.names("requests") == replies_in(bench.folder)
        counts = [len(minion.begun) for minion in minions]
        assert max(counts) == 1
        assert bench.master.most <= LIMIT
        if phase == "stopping":
            assert bench.batch().halted == "stop"
        else:
            there = [minion.name for minion in minions if minion.there]
            assert {name: bench.states()[name] for name in there} == dict.fromkeys(there, "completed")
            assert bench.queued == [minion.name for minion in minions if not minion.there]


def test_requests_that_were_carried_out_and_not_answered_change_nothing_though_they_wake_the_next_one_at_once(tmp_path):
    minions = [FakeMinion(name, seconds=3.0) for name in "abcdef"]
    with HandingOver(tmp_path, minions=minions) as bench:
        paused(bench)
        bench.request("again", "start", "taken", spec=bench.asked)
        bench.request("then", "pause", "taken", jid=JID)
        bench.hand_over()
        assert bench.run(60.0, lambda: {"again", "then"} <= bench.answers().keys())
        assert bench.answers()["then"] == {"value": True}
        assert bench.batch().paused
        bench.request("later", "resume", jid=JID)
        bench.wake()
        bench.end(3600.0)
        assert [len(minion.begun) for minion in minions] == [1] * len(minions)
