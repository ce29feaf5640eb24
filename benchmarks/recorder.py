"""
What recording costs: python -m benchmarks.recorder [--returns N] [--outage SECONDS] [--postgresql | --bus]

The recorder's own path (take in, spool, read, deliver) runs in this process against a returner that costs nothing. For
comparison it then runs what Salt does in a master worker for the same returns (``store_job`` with ``local_cache``). CPU
time, not wall time. Then an outage of the returner at 200 returns a second, for its memory. With --postgresql, instead:
a spool of N returns into a real server that this starts, by ``pgjsonb_bulk`` and, in the same run, by Salt's own
``pgjsonb``; the CPU time of the server counts too.

With --bus, instead: the whole way, from Salt's own publisher through its socket, the spool and the disk to a returner
that costs nothing, --rate events a second for --seconds; then the same through Salt's own client. CPU time of this
process; losses are counted, and there must be none.

It must never touch a running master or server: everything is in a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import pathlib
import resource
import tempfile
import time
from unittest import mock

import psutil
import salt.config
import salt.minion
import salt.utils.event
import salt.utils.jid
import salt.utils.job

from saltext.jobs.core import compat
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.recorder.catch_up import CatchUp
from saltext.jobs.core.recorder.consumer import Consumer
from saltext.jobs.core.recorder.files import Seen
from saltext.jobs.core.recorder.intake import Intake
from saltext.jobs.core.recorder.record import RETURN, Record, packed
from saltext.jobs.core.recorder.returner import ReturnerModule
from saltext.jobs.core.recorder.shell import Ports, RecorderShell
from saltext.jobs.core.recorder.spool import Spool
from saltext.jobs.core.settings import RecorderSettings, read_settings
from tests.event_bus import event_bus
from tests.postgresql import PostgreSQL

RATE = 200
#: Processes that fire events. Salt takes 500 us of CPU to fire one.
_FIRING = 2


class FreeReturner:
    """A returner that takes everything at no cost, or is down."""

    def __init__(self):
        self.is_down = False
        self.taken = 0

    def store_return(self, ret):
        if self.is_down:
            raise ConnectionError("down")
        self.taken += 1

    def store_load(self, jid, load):
        if self.is_down:
            raise ConnectionError("down")

    takes_many = False

    def has(self, function):
        return False

    def returns(self, jid):
        return {}

    def load(self, jid):
        return {"jid": jid, "fun": "state.apply", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "root"}


class Rig:
    """The recorder without the bus."""

    def __init__(self, folder):
        self.loop = compat.new_loop()
        self.settings = settings = read_settings(RecorderSettings, JOB_RECORDER, {"returners": ["none"]})
        clock = Clock()
        self.disk, self.returner = Worker(self.loop), FreeReturner()
        self.spool = spool = Spool(folder / "spool", settings.spool_max_bytes)
        seen = Seen(folder / "seen", settings.catch_up)
        self.intake = Intake(settings, clock, spool, seen, self.returner, self.disk)
        self.consumer = Consumer(
            self.loop, clock, "none", self.returner, spool, folder / "none", settings.spool_max_bytes
        )

    async def flush(self):
        if (await self.intake.flush()).stored:
            self.consumer.kick()

    def run(self, work):
        self.loop.spawn_callback(self.consumer.run)
        self.loop.run_sync(work)

    def close(self):
        self.consumer.close()
        self.disk.close()


def returns_of(count, minions=100, size=450):
    jids = [str(20260516101112000000 + number) for number in range(count // minions + 1)]
    for number in range(count):
        yield {
            "cmd": "_return",
            "id": f"minion-{number % minions}",
            "jid": jids[number // minions],
            "fun": "state.apply",
            "fun_args": [],
            "return": {"changes": "x" * size},
            "retcode": 0,
            "success": True,
        }


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident():
    """Resident memory of this process now, in MB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def measure_ours(folder, count):
    rig = Rig(folder)
    figures = {}

    async def work():
        begin, started = cpu(), time.monotonic()
        for number, data in enumerate(returns_of(count)):
            rig.intake.accept(data["jid"], data["id"], data)
            if number % 500 == 499:
                await rig.flush()
        await rig.flush()
        while rig.returner.taken < count:
            await compat.sleep(0.01)
        figures["CPU per return, in to out"] = f"{(cpu() - begin) / count * 1e6:.0f} us"
        figures["returns per second, in to out"] = f"{count / (time.monotonic() - started):.0f}"

    rig.run(work)
    rig.close()
    return figures


def measure_salt(folder, count):
    opts = salt.config.master_config(None)
    opts.update(cachedir=str(folder), conf_file=str(folder / "master"), root_dir=str(folder), pki_dir=str(folder))
    opts["master_job_cache"] = "local_cache"
    with salt.minion.MasterMinion(opts, states=False, rend=False) as mminion:
        data = list(returns_of(count))
        for jid in sorted({item["jid"] for item in data}):
            load = {"jid": jid, "fun": "state.apply", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "root"}
            mminion.returners["local_cache.prep_jid"](passed_jid=jid)
            mminion.returners["local_cache.save_load"](jid, load, minions=["minion-0"])
        salt.utils.job.store_job(opts, dict(data[0]), mminion=mminion)
        begin = cpu()
        for load in data[1:]:
            salt.utils.job.store_job(opts, load, event=mock.Mock(), mminion=mminion)
        return {"CPU per return, store_job with local_cache": f"{(cpu() - begin) / (count - 1) * 1e6:.0f} us"}


def measure_outage(folder, seconds):
    rig = Rig(folder)
    rig.returner.is_down = True
    figures = {}

    async def work():
        data = returns_of(RATE * seconds)
        before, begin = resident(), cpu()
        for _ in range(seconds * 2):
            for _ in range(RATE // 2):
                item = next(data)
                rig.intake.accept(item["jid"], item["id"], item)
            await rig.flush()
            await compat.sleep(0.5)
        figures[f"memory after {seconds} s of outage at {RATE}/s"] = f"+{resident() - before:.1f} MB"
        figures["share of one CPU during it"] = f"{(cpu() - begin) / seconds * 100:.1f} %"
        rig.returner.is_down = False
        back = time.monotonic()
        while rig.returner.taken < RATE * seconds:
            await compat.sleep(0.01)
        figures["all delivered after it came back"] = f"{time.monotonic() - back:.1f} s"

    rig.run(work)
    rig.close()
    return figures


class PostgresRig(Rig):
    """A spool, and a real returner behind it."""

    def __init__(self, folder, returner, options):
        super().__init__(folder)
        opts = salt.config.master_config(None)
        opts.update(cachedir=str(folder), conf_file=str(folder / "master"), root_dir=str(folder), grains={}, **options)
        settings = read_settings(RecorderSettings, JOB_RECORDER, {"returners": [returner]})
        module = ReturnerModule(opts, returner)
        self.spool = Spool(folder / "pg-spool", settings.spool_max_bytes)
        self.consumer = Consumer(
            self.loop, Clock(), returner, module, self.spool, folder / returner, settings.spool_max_bytes
        )


def measure_postgresql(folder, server, returner, count):
    """Deliver a spool that is there already."""
    server.clear()
    if returner == "pgjsonb":
        server.make_tables()
    (folder / returner).mkdir()
    rig = PostgresRig(folder / returner, returner, {**server.options, "id": "bench"})
    figures = {}

    async def work():
        data = [packed(Record(RETURN, item["jid"], item["id"], item), time.time()) for item in returns_of(count)]
        for start in range(0, count, 1000):
            rig.spool.append(data[start : start + 1000])
        rig.consumer.kick()
        begin, at_server, started = cpu(), server_cpu(server), time.monotonic()
        while rig.consumer.delivered < count:
            await compat.sleep(0.02)
        wall = time.monotonic() - started
        ours, its = (cpu() - begin) / count, (server_cpu(server) - at_server) / count
        figures[f"{returner}: CPU per return, recorder + server"] = f"{ours * 1e6:.0f} + {its * 1e6:.0f} us"
        figures[f"{returner}: returns per second of CPU time of two cores"] = f"{2 / (ours + its):.0f}"
        figures[f"{returner}: returns per second by the clock, in this run"] = f"{count / wall:.0f}"

    rig.run(work)
    rig.close()
    ((rows,),) = server.execute("SELECT count(*) FROM salt_returns")
    assert rows == count, f"{rows} rows for {count} returns"
    return figures


def server_cpu(server):
    """CPU time of all processes of a server, those that have ended too."""
    times = [psutil.Process(server.process.pid).cpu_times()]
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            times.append(child.cpu_times())
    return times[0].children_user + times[0].children_system + sum(one.user + one.system for one in times)


def in_postgresql(folder, count):
    server = PostgreSQL("fsync=on", "shared_buffers=128MB")
    try:
        few = min(count, 1000)
        return {
            **measure_postgresql(folder, server, "pgjsonb_bulk", count),
            **measure_postgresql(folder, server, "pgjsonb", few),
        }
    finally:
        server.remove()


class NoJobs:
    """An empty job cache."""

    def jids_since(self, since):
        return {}

    def returns(self, jid):
        return {}


def measure_bus(folder, options, is_direct):
    opts = salt.config.master_config(None)
    opts.update(
        cachedir=str(folder), sock_dir=str(folder), root_dir=str(folder), id="bench", conf_file=str(folder / "m")
    )
    count = options.rate * options.seconds
    context = multiprocessing.get_context("spawn")
    go = context.Event()
    firing = [context.Process(target=fire, args=(opts, options.rate, count, part, go)) for part in range(_FIRING)]
    with event_bus(folder):
        for process in firing:
            process.start()
        return heard(folder, opts, is_direct, count, firing, go)


def heard(folder, opts, is_direct, count, firing, go):
    rig = Rig(folder)
    seen = Seen(folder / "seen", 3600.0)
    catch_up = CatchUp(rig.loop, Clock(), rig.intake, seen, rig.disk, NoJobs(), True, 0)
    bus = Bus(opts, rig.loop, JOB_RECORDER, is_direct)
    inbox, consumers = Inbox(opts, JOB_RECORDER), [rig.consumer]
    shell = RecorderShell(
        Ports(rig.loop, Clock(), bus, inbox, rig.disk, rig.spool, seen, rig.intake, catch_up, consumers), rig.settings
    )
    figures = {}

    async def work():
        shell.start()
        while not bus.is_heard:
            await compat.sleep(0.05)
        begin, started = cpu(), time.monotonic()
        go.set()
        while any(process.is_alive() for process in firing):
            await compat.sleep(0.1)
        fired, last = time.monotonic() - started, -1
        while last < rig.intake.accepted:
            last = rig.intake.accepted
            await compat.sleep(2.0)
        way = "straight" if is_direct else "through Salt's own client"
        figures[f"{way}: CPU per event, bus to returner"] = f"{(cpu() - begin) / count * 1e6:.0f} us"
        figures[f"{way}: events fired a second, for {fired:.0f} s"] = f"{count / fired:.0f}"
        lost = f"{count - rig.intake.accepted}; not delivered {rig.intake.accepted - rig.returner.taken}"
        figures[f"{way}: lost, of {count}"] = lost

    rig.loop.run_sync(work)
    shell.close()
    rig.loop.close(all_fds=True)
    return figures


def fire(opts, rate, count, part, go):
    """Fire one part of the events of returns at a steady rate, in its own process, once it is told to."""
    loop = compat.new_loop()
    event = salt.utils.event.get_event(
        "master", opts["sock_dir"], opts=opts, listen=False, io_loop=loop, keep_loop=True
    )

    async def work():
        started = time.monotonic()
        for number, data in itertools.islice(enumerate(returns_of(count, size=250)), part, None, _FIRING):
            await event.fire_event_async(data, f"salt/job/{data['jid']}/ret/{data['id']}")
            if number // _FIRING % 20 == 0:
                await compat.sleep(max(0.0, started + number / rate - time.monotonic()))

    go.wait()
    loop.run_sync(work)
    event.destroy()


def on_the_bus(folder, options):
    figures = {}
    for is_direct in (True, False):
        (folder / str(is_direct)).mkdir()
        figures.update(measure_bus(folder / str(is_direct), options, is_direct))
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--returns", type=int, default=20_000)
    parser.add_argument("--outage", type=int, default=60)
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--bus", action="store_true")
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sj-bench-") as name:
        folder = pathlib.Path(name)
        for part in ("ours", "salt", "outage"):
            (folder / part).mkdir()
        if options.postgresql:
            figures = in_postgresql(folder, options.returns)
        elif options.bus:
            figures = on_the_bus(folder, options)
        else:
            figures = {
                # First, before this process has used memory for anything else.
                **measure_outage(folder / "outage", options.outage),
                **measure_ours(folder / "ours", options.returns),
                **measure_salt(folder / "salt", min(options.returns, 2000)),
            }
    for what, value in figures.items():
        print(f"{what:60} {value}")


if __name__ == "__main__":
    main()
