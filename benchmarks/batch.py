"""
What a batch costs, side by side with Salt 3008's own batch manager, in one run: CPU seconds of this process, bytes handed
to write(2), publishes. Never wall time.

    .venv/bin/python -m benchmarks.batch [--quick]

Both sides run their real code on real files in a temporary directory. Only the bus and the network are left out: events
go directly to the function that Salt's loop calls with them, and simulated minions return each publish at once.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import pathlib
import shutil
import tempfile
import time

import salt.config
import salt.payload

import benchmarks
from benchmarks.batch_ports import ports_of, spec_of
from saltext.jobs.core import compat
from saltext.jobs.core.batch.shell import BatchShell
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.ledger.records import return_of
from saltext.jobs.core.options.engines import BatchSettings
from saltext.jobs.core.store import records
from saltext.jobs.core.store.store import store_of

try:
    import salt.utils.batch_manager
    import salt.utils.batch_state
except ImportError:
    benchmarks.end_without("a batch manager of its own, with which benchmarks.batch compares")

#: A return's payload, in bytes.
PAYLOAD = 450


def jid_of(number: int) -> str:
    return f"2026051610{number:010d}"


def minions_of(count: int) -> list[str]:
    return [f"minion-{number:05d}.example.org" for number in range(count)]


def return_event(jid: str, minion: str, payload: int = PAYLOAD) -> dict:
    return {
        "tag": f"salt/job/{jid}/ret/{minion}",
        "data": {
            "jid": jid,
            "id": minion,
            "fun": "state.apply",
            "fun_args": [],
            "return": "x" * payload,
            "retcode": 0,
            "success": True,
            "cmd": "_return",
            "_stamp": "2026-05-16T10:11:12.131415",
        },
    }


def store_returns(opts, jid: str, minions, payload: int = PAYLOAD) -> None:
    """Store what the master's workers would store in the job cache: this is not measured."""
    store = store_of(opts)
    for minion in minions:
        store.store(f"{records.RETURNS}/{jid}", minion, {"return": "x" * payload, "retcode": 0, "success": True})


def log_returns(opts, events) -> None:
    """Append what the master's workers would append to the log: this is not measured either."""
    writer = store_of(opts).log
    for event in events:
        data = event["data"]
        writer.append(return_of(data["jid"], data["id"], data, asked=data.get("fun") == "test.ping"))


def raw(event: dict) -> bytes:
    return event["tag"].encode() + b"\n\n" + salt.payload.dumps(event["data"], use_bin_type=True)


class Meter:
    """CPU seconds, and bytes given to write(2), between entering and leaving."""

    _cpu = _written = 0.0

    def __enter__(self):
        self._written = self._bytes()
        self._cpu = time.process_time()
        return self

    def __exit__(self, *_):
        self.cpu = time.process_time() - self._cpu
        self.written = self._bytes() - self._written

    def leave_out(self, cpu, written):
        """Subtract a cost from the count."""
        self._cpu += cpu
        self._written += written

    @staticmethod
    def _bytes() -> int:
        lines = pathlib.Path("/proc/self/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["wchar"])


@contextlib.contextmanager
def master_opts():
    root = pathlib.Path(tempfile.mkdtemp(prefix="sj-bench-"))
    opts = dict(salt.config.DEFAULT_MASTER_OPTS)
    opts.update(
        root_dir=str(root),
        cachedir=str(root / "cache"),
        sock_dir=str(root / "sock"),
        pki_dir=str(root / "pki"),
        conf_file=str(root / "master"),
        extension_modules=str(root / "extmods"),
        id="bench_master",
        master_job_cache="salt_cache",
        __role="master",
    )
    (root / "cache").mkdir(parents=True)
    try:
        yield opts
    finally:
        shutil.rmtree(root, ignore_errors=True)


def accept(opts, minions):
    """Make the minions' keys accepted ones."""
    folder = pathlib.Path(opts["pki_dir"], "minions")
    folder.mkdir(parents=True, exist_ok=True)
    for minion in minions:
        (folder / minion).touch()


class Native:
    """Salt 3008's own manager."""

    def __init__(self, opts):
        self.manager = salt.utils.batch_manager.BatchManager(opts)
        self.manager.output = salt.utils.batch_output.EventOutput(opts, self)
        self.manager.local = self
        self.manager.opts = opts
        self.opts, self.publishes, self.queue, self.meter = opts, 0, [], Meter()

    def fire_event(self, data, tag):  # stands for the bus
        return True

    def run_job(self, tgt, jid, **_):  # stands for LocalClient and the minions
        self.publishes += 1
        self.queue += [return_event(jid, minion) for minion in tgt]
        return {"jid": jid, "minions": tgt}

    def add(self, jid, minions, size):
        job = {"fun": "state.apply", "batch": str(size), "tgt": "*", "timeout": 3600}
        state = salt.utils.batch_state.create_batch_state(job, minions, jid, driver="master")
        salt.utils.batch_state.write_batch_state(jid, state, self.opts)
        self.manager._adopt(jid)
        self.manager._progress_one(jid, {})

    def take(self, event):
        """What the manager's loop does for each event."""
        self.manager._handle_event(event)
        self.manager._tick()

    def drain(self, jid):
        while self.queue:
            self.take(self.queue.pop(0))


class Bus:
    """Stands for the bus."""

    def __init__(self):
        self.listeners = []

    def listen(self, listener, on_ready=None):
        self.listeners.append(listener)
        on_ready()

    def fire(self, tag, data):
        pass

    def take(self, event):
        """What a real one does with each event."""
        end = event.find(b"\n\n")
        tag = event[:end].decode("utf-8", "replace")
        if wanted := [listener for listener in self.listeners if listener.wants(tag)]:
            data = salt.payload.loads(event[end + 2 :], encoding="utf-8")
            for listener in wanted:
                listener.handle(tag, data)

    def close(self):
        pass


class Master:
    """Stands for LocalClient and minions that return at once."""

    def __init__(self):
        self.publishes, self.queue = 0, []

    async def publish(self, fun, arg, tgt, tgt_type="list", *, jid, **_):
        self.publishes += 1
        self.queue += [return_event(jid, minion) for minion in tgt]
        return frozenset(tgt)

    def close(self):
        pass


class Inbox(Service):
    """Holds the requests of the benchmark."""

    waiting, unanswered = (), 0

    def taken(self):
        waiting, self.waiting = self.waiting, ()
        return iter(waiting)

    def reply(self, request_id, reply):
        if "error" in reply:
            raise RuntimeError(reply["error"])
        self.unanswered -= 1


class Ours:
    """
    The batch_manager engine without its sockets. With ``logged`` the master keeps a log; else returns are looked up.
    """

    def __init__(self, opts, logged=True):
        self.opts, self.logged, self.meter = opts, logged, Meter()
        if logged:
            log_returns(opts, [return_event("20260101000000000000", "first")])
        self.loop = compat.new_loop()
        self.master, self.bus = Master(), Bus()
        self.inbox = Inbox(opts, BATCH_MANAGER, self.loop)
        ports = ports_of(opts, self.loop, bus=self.bus, publisher=self.master, service=self.inbox, logged=logged)
        self.shell = BatchShell(ports, BatchSettings())
        self.shell.start()

    @property
    def publishes(self):
        return self.master.publishes

    def add(self, jid, minions, size):
        with Meter() as keys:
            accept(self.opts, minions)
        self.meter.leave_out(keys.cpu, keys.written)
        spec = spec_of(jid, minions, size, presence="none", timeout=3600.0)
        self.inbox.waiting = [("bench", {"do": "start", "spec": spec.as_dict()})]
        self.inbox.unanswered = 1
        self.inbox.take()
        self.settle()

    def settle(self):
        """Let the loop do everything that is due."""

        async def until_published():
            while self.inbox.unanswered:
                await compat.sleep(0.005)
            while any(live.batch.publishing or live.batch.goes_on_at < math.inf for live in self.shell.live.values()):
                await compat.sleep(0.005)

        self.loop.run_sync(until_published)

    async def take_all(self, events):
        for event in self.sent(events):
            self.bus.take(event)

    def sent(self, events):
        """
        What the master's workers make of returns (records of the log, and events), without counting it in ``meter``.
        """
        with Meter() as workers:
            if self.logged:
                log_returns(self.opts, [event for event in events if event["data"]["jid"] in self.shell.live])
            raws = [raw(event) for event in events]
        self.meter.leave_out(workers.cpu, workers.written)
        return raws

    def take(self, events):
        self.loop.run_sync(lambda: self.take_all(events))

    def take_returns(self, jid, events):
        """Take returns, some at a time as they come from a real bus, until each of them counts."""

        async def until_counted():
            left = len(self.shell.live[jid].batch.flights) - len(events)
            for first in range(0, len(events), 50):
                await self.take_all(events[first : first + 50])
                await compat.sleep(0)
            while jid in self.shell.live and len(self.shell.live[jid].batch.flights) > left:
                await compat.sleep(0.005)

        self.loop.run_sync(until_counted)

    def drain(self, jid):
        async def until_ended():
            while jid in self.shell.live:
                events, self.master.queue = self.master.queue, []
                await self.take_all(events)
                await compat.sleep(0.005)

        self.loop.run_sync(until_ended)

    def close(self):
        self.shell.close()


def per_return(fleet: int, native_samples: int, our_samples: int, payload: int = PAYLOAD, logged: bool = True):
    """CPU and bytes of one return, for a batch with one sub-batch of all minions."""
    minions = minions_of(fleet)
    with master_opts() as opts:
        native = Native(opts)
        native.add(jid_of(1), minions, fleet)
        events = [return_event(jid_of(1), minion, payload) for minion in minions[:native_samples]]
        with Meter() as theirs:
            for event in events:
                native.take(event)
    with master_opts() as opts:
        store_returns(opts, jid_of(1), minions, payload)
        ours = Ours(opts, logged)
        ours.add(jid_of(1), minions, fleet)
        heard = [return_event(jid_of(1), minion, payload) for minion in minions[:our_samples]]
        with ours.meter as mine:
            ours.take_returns(jid_of(1), heard)
        ours.close()
    count = len(events), len(heard)
    return (theirs.cpu / count[0], theirs.written / count[0]), (mine.cpu / count[1], mine.written / count[1])


def per_unrelated_event(batches: int, fleet: int, native_samples: int, our_samples: int):
    """CPU of one event that belongs to no batch, with many batches active."""
    event = return_event("20260101000000000000", "stranger")
    minions = minions_of(fleet)
    with master_opts() as opts:
        native = Native(opts)
        for number in range(batches):
            native.add(jid_of(number), minions, 10)
        with Meter() as theirs:
            for _ in range(native_samples):
                native.take(event)
    with master_opts() as opts:
        ours = Ours(opts)
        for number in range(batches):
            ours.add(jid_of(number), minions, 10)
        with ours.meter as mine:
            ours.take([event] * our_samples)
        ours.close()
    return theirs.cpu / native_samples, mine.cpu / our_samples


def whole_run(fleet: int, size: int):
    """CPU, bytes and publishes of a whole batch whose minions return at once."""
    minions = minions_of(fleet)
    results = []
    for side in (Native, Ours):
        with master_opts() as opts:
            if side is Ours:
                store_returns(opts, jid_of(1), minions)
            manager = side(opts)
            with manager.meter as meter:
                manager.add(jid_of(1), minions, size)
                manager.drain(jid_of(1))
            results.append((meter.cpu, meter.written, manager.publishes))
            if side is Ours:
                manager.close()
    return results


def idle(seconds: float):
    """CPU of an idle engine on a real master, as a share of one core, with that of Salt's own manager beside it."""
    import psutil

    from demo.fleet import Fleet

    with Fleet() as fleet:
        fleet.start_master()
        processes = {}
        for process in psutil.process_iter(["cmdline"]):
            words = " ".join(process.info["cmdline"] or ())
            if str(fleet.root) in words and ("batch_manager" in words or "BatchManager" in words):
                processes["ours" if "batch_manager" in words else "native"] = process
        before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
        time.sleep(seconds)
        after = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
    return {name: (after[name] - before[name]) / seconds for name in after}


def shown(figure: float, unit: str) -> str:
    """A figure with its unit, with three decimals if they mean something."""
    text = f"{figure:,.0f}" if figure >= 1000 or figure == int(figure) else f"{figure:,.3f}"
    return f"{text} {unit}".rstrip()


def row(what: str, theirs: float, mine: float, unit: str) -> None:
    ratio = theirs / mine if mine else float("inf")
    print(f"| {what} | {shown(theirs, unit)} | {shown(mine, unit)} | {ratio:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--quick", action="store_true", help="smaller samples")
    quick = parser.parse_args().quick
    print("| what | Salt 3008 | saltext-jobs | ratio |\n|---|---:|---:|---:|")
    for fleet in (1_000, 10_000, 50_000):
        native_samples = max(3, (30_000 if quick else 300_000) // fleet)
        theirs, mine = per_return(fleet, min(native_samples, fleet), fleet)
        row(f"CPU per return, {fleet:,} minions", theirs[0] * 1e3, mine[0] * 1e3, "ms")
        row(f"bytes per return, {fleet:,} minions", theirs[1], mine[1], "B")
    theirs, mine = per_return(10_000, 5 if quick else 20, 10_000, logged=False)
    row("CPU per return, 10,000 minions, without a log", theirs[0] * 1e3, mine[0] * 1e3, "ms")
    theirs, mine = per_return(10_000, 5 if quick else 20, 10_000, payload=2_000)
    row("CPU per return of 2 kB, 10,000 minions", theirs[0] * 1e3, mine[0] * 1e3, "ms")
    other = per_unrelated_event(100, 1_000, 3 if quick else 10, 20_000)
    row("CPU per unrelated event, 100 batches of 1,000", other[0] * 1e3, other[1] * 1e3, "ms")
    if not quick:
        theirs, mine = whole_run(5_000, 250)
        row("CPU, 5,000 minions at size 250", theirs[0], mine[0], "s")
        row("bytes, 5,000 minions at size 250", theirs[1] / 1e6, mine[1] / 1e6, "MB")
        row("publishes, 5,000 minions at size 250", theirs[2], mine[2], "")
        shares = idle(60)
        print(f"\nIdle for a minute: Salt's own {shares.get('native', 0):.2%} of a core, ours {shares['ours']:.2%}.")


if __name__ == "__main__":
    main()
