"""
The cost of a whole batch for the engine when its events come over Salt 3008's own bus: CPU seconds of this process.

    .venv/bin/python -m benchmarks.batch_live [MINIONS] [SIZE]

The bus is Salt's. Another process stands for the master's publisher and the minions, and fires their events: for each
minion the answer to the presence ping, the start of the job, and the return. A real publish costs about half a
millisecond of CPU more than one here; the master's workers cost the engine nothing.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time

import salt.transport
import salt.utils.event

from benchmarks.batch import accept, jid_of, log_returns, master_opts, minions_of, return_event, store_returns
from benchmarks.batch_ports import ports_of, spec_of
from saltext.jobs.core import compat
from saltext.jobs.core.batch.shell import BatchShell
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.options.engines import BatchSettings


def serve_bus(opts):
    """Be the bus, in a process of its own."""
    server = salt.transport.ipc_publish_server("master", opts)

    async def forward(load, *_):
        await server.publish_payload(load)

    server.publish_daemon(forward)


def be_the_minions(opts, jobs):
    """Fire what a master and its minions would for each job, in a process of its own."""
    bus = salt.utils.event.get_event("master", opts["sock_dir"], opts=opts, listen=False)
    for fun, jid, minions in iter(jobs.recv, None):
        bus.fire_event({"jid": jid, "fun": fun, "minions": minions, "tgt": minions}, f"salt/job/{jid}/new")
        if fun != "test.ping":
            for minion in minions:
                bus.fire_event({"id": minion, "jid": jid}, f"salt/job/{jid}/start/{minion}")
        for minion in minions:
            event = return_event(jid, minion)
            event["data"]["fun"] = fun
            bus.fire_event(event["data"], event["tag"])
            log_returns(opts, [event])


class Master:
    """Hands each publish to the process that stands for the minions."""

    def __init__(self, jobs, minions, store):
        self._jobs, self._minions, self._store, self.publishes = jobs, minions, store, 0

    def new_jid(self):
        return f"20270101{self.publishes:012d}"

    async def publish(self, fun, arg, tgt, tgt_type="list", *, jid, **_):
        self.publishes += 1
        if fun == "test.ping":
            self._store(jid)
        names = list(tgt) if tgt_type == "list" else self._minions
        self._jobs.send((fun, jid, names))
        return frozenset(names)

    def close(self):
        self._jobs.send(None)


def measure(count: int, size: int):
    """Return (CPU seconds, publishes) of one batch of ``count`` minions at ``size``."""
    minions, jid = minions_of(count), jid_of(1)
    spec = spec_of(jid, minions, size, timeout=600.0, gather_job_timeout=60.0)
    with master_opts() as opts, tempfile.TemporaryDirectory(prefix="sj-", dir="/tmp") as sockets:
        opts["sock_dir"] = sockets
        accept(opts, minions)
        store_returns(opts, jid, minions)
        log_returns(opts, [return_event("20260101000000000000", "first")])
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        others = [
            context.Process(target=serve_bus, args=(opts,), daemon=True),
            context.Process(target=be_the_minions, args=(opts, theirs), daemon=True),
        ]
        for other in others:
            other.start()
            time.sleep(2)
        loop = compat.new_loop()
        spent_on_storing = 0.0

        def store(ping_jid):
            nonlocal spent_on_storing
            before = time.process_time()
            store_returns(opts, ping_jid, minions)
            spent_on_storing += time.process_time() - before

        master = Master(ours, minions, store)
        bus = Bus(opts, loop, BATCH_MANAGER)
        ports = ports_of(opts, loop, bus=bus, publisher=master, service=Service(opts, BATCH_MANAGER, loop))
        shell = BatchShell(ports, BatchSettings(), interval=0.5)

        async def run():
            shell.start()
            await compat.sleep(3)
            before = time.process_time()
            requests.leave(opts, BATCH_MANAGER, {"do": "start", "spec": spec.as_dict()})
            while ports.store.kind_of(jid) is not Kind.ENDED:
                await compat.sleep(0.1)
            return time.process_time() - before - spent_on_storing

        spent = loop.run_sync(run, timeout=600)
        shell.close()
        for other in others:
            other.terminate()
        return spent, master.publishes


def main() -> None:
    count, size = (int(word) for word in (*sys.argv[1:], *("2000", "100")[len(sys.argv) - 1 :]))
    spent, publishes = measure(count, size)
    print(
        f"{count:,} minions at {size:,}: {spent:.2f} s, {1000 * spent / count:.3f} ms a minion, {publishes} publishes"
    )


if __name__ == "__main__":
    main()
