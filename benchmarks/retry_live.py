"""
The cost of a returning fleet for a real Salt 3008 master: its engine, and its workers, which take the minions'
messages.

    .venv/bin/python -m benchmarks.retry_live [--minions 1000] [--jobs 3] [--within 10]

A master with the job_retry engine publishes jobs while all its minions are away; then they start. The minions are those
of benchmarks/fleet: they take no CPU from the processes that are measured, and run nothing. For comparison: the cost of
the same minions when they are there, for a job that they return, and for a start without consequences.
"""

from __future__ import annotations

import argparse
import collections
import time

import benchmarks
from benchmarks.fleet.faults import drain, owe
from benchmarks.fleet.site import Site
from benchmarks.fleet.watch import difference
from demo.fleet import quiet_salt
from saltext.jobs.core import compat
from saltext.jobs.core.engine.names import JOB_RETRY

#: The kinds of processes in the figures, and their names.
KINDS = {JOB_RETRY: "engine", "workers": "workers", "publisher of events": "publisher", "router": "router"}
#: Seconds for one more look at the processes, and until a master has taken the minions' messages.
_LOOK, _TAKEN = 1.5, 3.0


def measure(site: Site, jobs: int, within: float, limit: float, rest: float):
    """
    Return the jids that all minions were owed, and CPU seconds by kind of process for three things: delivering them, a
    job whose minions are there, and a start of all minions when they are owed nothing.

    :param rest: seconds until the master is at rest after it has published.
    :raises SystemExit: when not all was delivered in ``limit`` seconds.
    """
    spent = []

    def took(since: float) -> None:
        until = time.monotonic()
        time.sleep(_LOOK)
        spent.append({kind: cpu for kind, (cpu, _) in difference(site.watch.read(), since, until).items()})

    site.script(seconds=(0.0, 0.0))
    jids = owe(site, jobs)
    time.sleep(rest)
    since = site.mark("back")
    site.crowd.start(site.names, within)
    drain(site)
    site.need(lambda: not site.queued(), 1, "all is delivered")
    took(since)
    since = site.mark("a job")
    plain = site.publish()
    site.need(lambda: site.crowd.begun(plain) == len(site.names), limit, "all have begun the job")
    time.sleep(_TAKEN)
    took(since)
    site.crowd.stop(site.names)
    since = site.mark("starts")
    site.start(within=1.0)
    time.sleep(_TAKEN)
    took(since)
    return jids, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--minions", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--within", type=float, default=10.0, help="seconds in which all minions start")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds before it is given up")
    parser.add_argument(
        "--rest", type=float, default=15.0, help="seconds until the master is at rest, before they start"
    )
    parser.add_argument("--workers", type=int, default=5, help="worker_threads of the master")
    args = parser.parse_args()
    if not compat.HAS_NATIVE_BATCHES:
        benchmarks.end_without("what the simulated minions of benchmarks/fleet sign in with")
    quiet_salt()
    with Site(args.minions, worker_threads=args.workers) as site:
        site.limit = args.limit
        jids, (delivered, plain, start) = measure(site, args.jobs, args.within, args.limit, args.rest)
        truth, sent, failed = site.crowd.report()
        back = next(at for at, what in site.marks if what == "back")
    owed = args.minions * args.jobs
    measured = ((delivered, owed), (plain, args.minions), (start, args.minions))
    for kind, name in KINDS.items():
        entry, job, sign = (1000 * cpu.get(kind, 0.0) / count for cpu, count in measured)
        print(
            f"CPU of the {name}, ms an entry: {entry:.2f} (a job whose minions are there: {job:.2f}; a start: {sign:.2f})"
        )
    print(f"messages of the minions: {dict(sent)}; failed: {dict(failed)}")
    print(f"last job begun, s after the first start: {truth.last_begun(jids) - back:.1f}")
    times = collections.Counter((run.minion, run.jid) for run in truth.runs if run.jid in jids)
    once = sum(number == 1 for number in times.values())
    print(f"entries that ran once: {once} of {owed}; more than once: {len(times) - once}")
    if once != owed or len(times) != owed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
