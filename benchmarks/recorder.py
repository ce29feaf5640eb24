"""
What recording costs: python -m benchmarks.recorder [--returns N] [--outage SECONDS] [--cache NAME] [--postgresql]

A job cache and its log are filled, which is not measured. Then the recorder's own path (read the log, look the returns up,
deliver, note the place) runs in this process against a returner that costs nothing. For comparison it then runs what Salt
does in a master worker for the same returns (``store_job`` with ``local_cache``). CPU time, not wall time. Then an outage of
the returner, for its memory. With --postgresql, instead: N returns into a real server that this starts, by ``pgjsonb_bulk``
and, in the same run, by Salt's own ``pgjsonb``; the CPU time of the server counts too.

It must never touch a running master or server: everything is in a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import resource
import tempfile
import time
from unittest import mock

import psutil
import salt.config
import salt.loader
import salt.minion
import salt.utils.job

from saltext.jobs.core import compat
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.options import read_settings
from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.recorder.consumer import Consumer, outbox_of
from saltext.jobs.core.recorder.recipients import ToReturner
from saltext.jobs.core.recorder.returner import ReturnerModule
from saltext.jobs.core.site import site_of
from tests.postgresql import PostgreSQL

#: Returns a second of a fleet, for the outage.
RATE = 200


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

    takes_loads = True

    def has(self, function):
        return function == "get_jid"

    def returns(self, jid):
        return {}


class Rig:
    """A job cache with its log, and a recorder for one returner."""

    def __init__(self, folder, cache, name="none", **options):
        opts = salt.config.master_config(None)
        opts.update(cachedir=str(folder), conf_file=str(folder / "master"), root_dir=str(folder), grains={}, id="bench")
        self.opts = {**opts, "master_job_cache": "salt_cache", "cache": cache, "sock_dir": str(folder), **options}
        self.loop = compat.new_loop()
        settings = read_settings(RecorderSettings, JOB_RECORDER, {"returners": [name]})
        self.returner = FreeReturner() if name == "none" else ReturnerModule(self.opts, name)
        tables, recipient = site_of(self.opts), ToReturner(self.returner, self.opts, settings)
        tables.open()
        begin = Position(tables.name(), 0, tables.gaps(), tables.boot())  # a new one would begin at the end
        outbox = outbox_of(tables, name)
        outbox.add([], begin)
        self.consumer = Consumer(self.loop, name, recipient, outbox)
        self._salt_cache = salt.loader.returners(self.opts, {})

    def fill(self, count):
        """Store returns as a master's workers do."""
        jid = ""
        for data in returns_of(count):
            if data["jid"] != jid:
                jid = data["jid"]
                load = {"jid": jid, "fun": "state.apply", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "root"}
                self._salt_cache["salt_cache.save_load"](jid, load, minions=["minion-0"])
            self._salt_cache["salt_cache.returner"](dict(data))

    def until(self, condition):
        """Let the recorder work until a condition holds."""

        async def work():
            while not condition():
                await compat.sleep(0.005)

        self.loop.run_sync(work)

    def run(self):
        self.loop.spawn_callback(self.consumer.run)

    def close(self):
        self.consumer.close()


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


def measure_ours(folder, cache, count):
    rig = Rig(folder, cache)
    rig.fill(count)
    rig.run()
    begin, started = cpu(), time.monotonic()
    rig.until(lambda: rig.returner.taken >= count)
    used, wall = cpu() - begin, time.monotonic() - started
    rig.close()
    return {
        f"CPU per return, log to returner ({cache})": f"{used / count * 1e6:.0f} us",
        f"returns per second by the clock ({cache})": f"{count / wall:.0f}",
    }


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


def measure_outage(folder, cache, seconds):
    rig = Rig(folder, cache)
    rig.returner.is_down = True
    rig.fill(RATE * seconds)
    rig.run()
    before, begin = resident(), cpu()
    rig.loop.run_sync(lambda: compat.sleep(seconds))
    figures = {
        f"memory after {seconds} s of outage, {RATE * seconds} returns waiting": f"+{resident() - before:.1f} MB",
        "share of one CPU during it": f"{(cpu() - begin) / seconds * 100:.1f} %",
    }
    rig.returner.is_down = False
    back = time.monotonic()
    rig.until(lambda: rig.returner.taken >= RATE * seconds)
    figures["all delivered after it came back"] = f"{time.monotonic() - back:.1f} s"
    begin = cpu()
    rig.loop.run_sync(lambda: compat.sleep(seconds))
    figures["share of one CPU while nothing comes"] = f"{(cpu() - begin) / seconds * 100:.2f} %"
    rig.close()
    return figures


def measure_postgresql(folder, server, returner, cache, count):
    """Deliver what is in the log already."""
    server.clear()
    if returner == "pgjsonb":
        server.make_tables()
    (folder / returner).mkdir()
    rig = Rig(folder / returner, cache, returner, **server.options)
    rig.fill(count)
    rig.run()
    begin, at_server, started = cpu(), server_cpu(server), time.monotonic()
    rig.until(lambda: rig.consumer.delivered >= count + count // 100)
    wall = time.monotonic() - started
    ours, its = (cpu() - begin) / count, (server_cpu(server) - at_server) / count
    rig.close()
    ((rows,),) = server.execute("SELECT count(*) FROM salt_returns")
    return {
        f"{returner}: CPU per return, recorder + server": f"{ours * 1e6:.0f} + {its * 1e6:.0f} us",
        f"{returner}: returns per second of CPU time of two cores": f"{2 / (ours + its):.0f}",
        f"{returner}: returns per second by the clock, in this run": f"{count / wall:.0f}",
        f"{returner}: rows": str(rows),
    }


def server_cpu(server):
    """CPU time of all processes of a server, those that have ended too."""
    times = [psutil.Process(server.process.pid).cpu_times()]
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            times.append(child.cpu_times())
    return times[0].children_user + times[0].children_system + sum(one.user + one.system for one in times)


def in_postgresql(folder, cache, count):
    server = PostgreSQL("fsync=on", "shared_buffers=128MB")
    try:
        few = min(count, 1000)
        return {
            **measure_postgresql(folder, server, "pgjsonb_bulk", cache, count),
            **measure_postgresql(folder, server, "pgjsonb", cache, few),
        }
    finally:
        server.remove()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--returns", type=int, default=20_000)
    parser.add_argument("--outage", type=int, default=60)
    parser.add_argument("--cache", default="sqlite")
    parser.add_argument("--postgresql", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sj-bench-") as name:
        folder = pathlib.Path(name)
        for part in ("ours", "salt", "outage"):
            (folder / part).mkdir()
        if options.postgresql:
            figures = in_postgresql(folder, options.cache, options.returns)
        else:
            figures = {
                # First, before this process has used memory for anything else.
                **measure_outage(folder / "outage", options.cache, options.outage),
                **measure_ours(folder / "ours", options.cache, options.returns),
                **measure_salt(folder / "salt", min(options.returns, 2000)),
            }
    for what, value in figures.items():
        print(f"{what:60} {value}")


if __name__ == "__main__":
    main()
