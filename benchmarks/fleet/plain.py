"""
What a job costs a master with this extension, beside the same master without it: CPU time of all its processes, engines too.

    python -m benchmarks.fleet.plain --minions 300 --jobs 20 --rounds 3

Each round starts each master anew, with the same featherweight minions, and publishes the same jobs to all of them, one
after the other. "plain" is Salt's ``local_cache`` without engines; the others have ``salt_cache`` over this ``cache:``,
``batch_manager`` and ``job_retry``. The masters take turns, and the median of the rounds counts. What each spends while
nothing happens is measured beside it, and taken off. It needs Salt 3008.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import salt.client
import salt.config

from benchmarks.fleet import wire
from benchmarks.fleet.crowd import Handle
from benchmarks.fleet.script import Script
from benchmarks.fleet.watch import processes_of
from demo.fleet import Fleet, quiet_salt
from demo.processes import wait_for

PLAIN = "plain"
#: Seconds for a job to come back from all, and those of rest that are measured.
_LIMIT, _REST = 600.0, 5.0


def options_of(kind: str) -> dict[str, object]:
    """Return the options of a master."""
    if kind == PLAIN:
        return {"cache": "localfs", "master_job_cache": "local_cache", "job_retry": False, "engines": []}
    return {"cache": kind}


def spent(fleet: Fleet) -> float:
    """Return the CPU seconds of the master's processes, and of those of their children that have ended."""
    return sum(sum(process.cpu_times()[:4]) for process in processes_of(fleet.root))


def cost(kind: str, count: int, jobs: int) -> float:
    """Return the CPU time of a master for one return of a job, ms."""
    with Fleet() as fleet:
        names = [f"m{number:05d}" for number in range(count)]
        home = fleet.config("master")
        own = wire.accept({"pki_dir": str(home / "pki")}, names)
        fleet.start_master(
            leads=kind != PLAIN, pki_dir=str(home / "pki"), cachedir=str(home / "cache"), **options_of(kind)
        )
        opts = salt.config.client_config(str(home / "master"))
        crowd = Handle([salt.config.master_config(str(home / "master"))], own, names, 0.0)
        try:
            crowd.script(Script(seconds=(0.1, 0.5)))
            crowd.start(names, count / 100)
            _need(lambda: len(crowd.there()) == count, "the minions are there")
            with salt.client.LocalClient(mopts=opts) as client:
                for _ in range(3):  # what a process of the master does once does not count
                    _job(client, crowd, count)
                time.sleep(_REST)
                before, begun = spent(fleet), time.monotonic()
                time.sleep(_REST)
                idle = (spent(fleet) - before) / (time.monotonic() - begun)
                before, begun = spent(fleet), time.monotonic()
                for _ in range(jobs):
                    _job(client, crowd, count)
                time.sleep(_REST)
                used = spent(fleet) - before - idle * (time.monotonic() - begun)
        finally:
            crowd.end()
    return 1000 * used / (jobs * count)


def _job(client: salt.client.LocalClient, crowd: Handle, count: int) -> None:
    jid = client.run_job("m*", "state.apply", ["featherweight"])["jid"]

    def is_over() -> bool:
        return crowd.begun(jid) == count and not crowd.running([jid])

    _need(is_over, f"all minions have run {jid}")


def _need(condition: object, what: str) -> None:
    if not wait_for(condition, _LIMIT):
        raise SystemExit(f"Not within {_LIMIT:g} s: {what}")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.plain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minions", type=int, default=300, metavar="N")
    parser.add_argument("--jobs", type=int, default=20, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument(
        "--kinds", default="sqlite,localfs", metavar="CACHE,…", help="values of `cache:` (sqlite,localfs)"
    )
    args = parser.parse_args(words)
    quiet_salt()
    kinds = (PLAIN, *args.kinds.split(","))
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind in kinds:
            found[kind].append(cost(kind, args.minions, args.jobs))
    plain = statistics.median(found[PLAIN])
    print("| master | CPU a return, ms | beside plain | rounds |\n|---|---:|---:|---|")
    for kind, costs in found.items():
        middle, each = statistics.median(costs), ", ".join(f"{value:.2f}" for value in costs)
        print(f"| {kind} | {middle:.2f} | {middle / plain:.3f} | {each} |")


if __name__ == "__main__":
    main(sys.argv[1:])
