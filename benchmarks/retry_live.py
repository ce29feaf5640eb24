"""
What a fleet that comes back costs a real Salt 3008 master: its engine, and its workers, which take what minions send.

    .venv/bin/python -m benchmarks.retry_live [--minions 1000] [--jobs 3] [--within 10]

A master with the job_retry engine publishes jobs while all its minions are away; then they start. The minions are light
(benchmarks/light_minions.py) and take no CPU from those that are measured; transport, encryption, publishing, bus, job cache
and engine are the real ones. What the minions ran, and how often, they count themselves.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import pathlib
import time

import psutil
import salt.config

from benchmarks import light_minions
from demo.fleet import Fleet, quiet_salt
from demo.processes import wait_for

#: Part of a process's title, for each kind of process that is told of.
KINDS = {"engine": "job_retry", "workers": "MWorker-", "publisher": "EventPublisher", "router": "MWorkerQueue"}


class Meter:
    """CPU seconds of a master's processes, by kind, since it was made."""

    def __init__(self, root):
        self._processes = collections.defaultdict(list)
        for process in psutil.process_iter(["cmdline"]):
            words = " ".join(process.info["cmdline"] or ())
            if str(root) in words:
                kind = next((kind for kind, part in KINDS.items() if part in words), "others")
                self._processes[kind].append(process)
        self._before = {kind: self._spent(kind) for kind in self._processes}

    def _spent(self, kind):
        return sum(sum(process.cpu_times()[:2]) for process in self._processes[kind])

    def read(self):
        return {kind: self._spent(kind) - before for kind, before in self._before.items()}


def entries_in(opts):
    """Count the entries that are stored, without asking the engine."""
    return sum(len(names) for _, _, names in os.walk(pathlib.Path(opts["cachedir"]) / "job_retry" / "queue"))


def measure(count, jobs, within, limit=300.0):
    """
    Return the number of entries; CPU seconds by kind of process; seconds from the first start to the last run; how often
    each (minion, jid) ran; how many requests of each kind the minions sent; CPU seconds of a job whose minions are there,
    and of a start of them all when they are owed nothing.

    :raises SystemExit: when not all was delivered in ``limit`` seconds.
    """
    minions = [f"minion{n:05d}" for n in range(count)]
    with Fleet() as fleet:
        config = fleet.config("master")
        pki, cache = config / "pki", config / "cache"
        keys = light_minions.accept({"pki_dir": str(pki)}, minions)
        fleet.start_master(pki_dir=str(pki), cachedir=str(cache))
        opts = salt.config.master_config(str(config / "master"))
        ours, theirs = multiprocessing.Pipe()
        light = multiprocessing.Process(target=light_minions.serve, args=(opts, keys, minions, theirs), daemon=True)
        light.start()
        ours.recv()
        for n in range(jobs):
            fleet.publish("minion*", "state.apply", f"part{n}")
        wait_for(lambda: entries_in(opts) >= count * jobs, limit)
        time.sleep(15)  # the master is at rest; where it was slow, `salt` has published a job twice, and both are owed
        owed = entries_in(opts)
        meter, begun = Meter(fleet.root), time.monotonic()
        ours.send(within)
        done = wait_for(lambda: not entries_in(opts), limit)
        spent = meter.read()
        ours.send("report")
        runs, sent, refused = ours.recv()
        meter, returns = Meter(fleet.root), cache / "jobs" / "returns"
        plain = fleet.publish("minion*", "state.apply", "plain")
        done = done and wait_for(
            lambda: (returns / plain).exists() and len(os.listdir(returns / plain)) == count, limit
        )
        floor = meter.read()
        meter = Meter(fleet.root)
        ours.send(1.0)
        time.sleep(3 + count / 200)  # for what each sends, which nobody answers
        start = meter.read()
        ours.send("end")
        light.join(5)
    if not done or refused:
        raise SystemExit(f"not all was delivered: {len(runs)} runs, the master refused {refused[:5]}")
    times = collections.Counter((minion, jid) for minion, jid, _ in runs)
    return owed, spent, max(at for _, _, at in runs) - begun, times, sent, floor, start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--minions", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--within", type=float, default=10.0, help="seconds in which all minions start")
    args = parser.parse_args()
    quiet_salt()
    owed, spent, last, times, sent, floor, start = measure(args.minions, args.jobs, args.within)
    for kind, seconds in sorted(spent.items()):
        plain, event = 1000 * floor[kind] / args.minions, 1000 * start[kind] / args.minions
        print(
            f"CPU of the {kind}, ms an entry: {1000 * seconds / owed:.2f} (a job whose minions are there: {plain:.2f}; "
            f"a start event: {event:.2f})"
        )
    print(f"requests of the minions: {sent}")
    print(f"last job begun, s after the first start: {last:.1f}")
    once = sum(number == 1 for number in times.values())
    print(f"entries that ran once: {once} of {owed}; more than once: {len(times) - once}")
    if once != owed or len(times) != owed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
