"""
Two masters share their cachedir, and the one whose engine drives the batches is frozen at each step in turn, just after it
has looked whether it still leads. The other one takes over; then the first one wakes and goes on.
"""

from __future__ import annotations

import dataclasses

import pytest

from saltext.jobs.core.batch.shell import BatchShell
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.errors import PublishFailed
from saltext.jobs.core.master import events
from saltext.jobs.core.site import FileSite
from tests.batches import journals
from tests.unit.batch.bench import spec
from tests.unit.batch.shell_bench import FakeMinion, ShellBench


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


class Watched(Lease):
    """A lease whose process may be frozen at each look, just after it."""

    def look(self):
        super().check()

    def check(self):
        self.look()
        self.freeze()

    def freeze(self):
        pass


class Publishing:
    """A Publisher of one engine, which looks before each publish, and whose master's worker does so again."""

    def __init__(self, master, lease):
        self._master, self.lease = master, lease

    def __getattr__(self, name):
        return getattr(self._master, name)

    async def publish(self, *args, **options):
        for check in (self.lease.check, self.lease.look):
            try:
                check()
            except OSError as exc:
                raise PublishFailed(str(exc), certain=True) from exc
        return await self._master.publish(*args, **options)


class TwoMasters(ShellBench):
    """:param frozen_at: at which look of the first engine the second one takes over."""

    def __init__(self, root, frozen_at, **more):
        super().__init__(root, **more)
        self.path, self.left, self.second = FileSite(self.opts).lock_path(BATCH_MANAGER), frozen_at, None
        self.buses, self.lost = Buses(self.bus, self.virtual.loop), []

    def engine(self, name):
        lease = Watched(self.path, name)
        assert lease.take()
        lease.on_lost = lambda: self.lost.append(name)
        if name == "one":
            lease.freeze = self.freeze
        publisher = Publishing(self.master, lease)
        store, inbox = BatchStore(self.opts, lease), requests.Inbox(self.opts, BATCH_MANAGER, lease)
        files_of = {"store": store, "inbox": inbox}
        return {"bus": self.buses, "publisher": publisher, "is_takeover": lease.is_takeover, **files_of}

    def start(self, **ports):
        super().start(**self.engine("one"), **ports)

    def begin(self, batch):
        asked = {"do": "start", "spec": spec(sorted(self.master.minions), batch, fun="state.apply").as_dict()}
        files.write_msgpack(self.path.parent / "requests" / "1.request", asked)
        self.bus.deliver(events.wake_tag(BATCH_MANAGER), {})

    def freeze(self):
        self.left -= 1
        if self.left == 0:
            self.path.unlink()
            self.former = self.shell
            self.shell = BatchShell(dataclasses.replace(self.ports(), **self.engine("two")), self.settings)
            self.shell.start()


@pytest.mark.parametrize("frozen_at", range(1, 41))
def test_at_whatever_step_the_leader_is_frozen_each_minion_runs_the_job_once_and_never_too_many_at_once(
    tmp_path, frozen_at
):
    minions = [FakeMinion(name, seconds=3.0) for name in "abcdef"]
    with TwoMasters(tmp_path, frozen_at, minions=minions) as bench:
        bench.begin("2")
        batch = bench.end()
        assert bench.run(60.0, lambda: not bench.shell.live), (
            "its journal may still be there, where the first one froze"
        )
        assert bench.states() == dict.fromkeys("abcdef", "completed")
        assert [len(minion.begun) for minion in minions] == [1] * 6
        assert bench.master.most <= 2
        assert batch.finished
        assert sorted(path.name for path in journals(bench.store).iterdir()) == [f"{batch.spec.jid}.ended"]
