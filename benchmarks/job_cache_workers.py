"""
The cost of several workers of a master that store jobs at the same time, beside Salt's ``local_cache`` in the same run:
their CPU time divided by what they stored, and the longest wait of one of them.

    python -m benchmarks.job_cache_workers                        1, 5 and 24 workers
    TMPDIR=/dev/shm python -m benchmarks.job_cache_workers --workers 24 --rounds 3

Each worker publishes jobs for ten minions and stores what these return, as fast as it can. Its first publish and return
do not count: what a process does once is a row of ``job_cache_sizes``. The least of each figure of several rounds, in
turns, counts.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import resource
import time

from benchmarks.job_cache import LOAD, RETURN
from benchmarks.job_cache_wide import COLUMNS, least, opened

JOBS, WIDTH = 720, 10
ROWS = ("publish, ms of CPU", "return, ms of CPU", "longest wait, ms", "memory of a worker, MB")


def work(column, folder, number, count, start, answers):
    module, _ = opened(column, folder)
    first = datetime.datetime.now(datetime.timezone.utc)
    jids = [f"{first + datetime.timedelta(microseconds=at):%Y%m%d%H%M%S%f}_{number}" for at in range(count)]
    fleet = [f"web{at:04}.example.com" for at in range(WIDTH)]
    publish(module, column, f"{first:%Y%m%d%H%M%S%f}_{number}_first", fleet)
    module.returner({"jid": f"{first:%Y%m%d%H%M%S%f}_{number}_first", "id": fleet[0], **RETURN})
    found, longest = [], 0.0
    for stores in (
        [lambda jid=jid: publish(module, column, jid, fleet) for jid in jids],
        [
            lambda jid=jid, minion=minion: module.returner({"jid": jid, "id": minion, **RETURN})
            for jid in jids
            for minion in fleet
        ],
    ):
        start.wait()
        spent = time.process_time()
        for store in stores:
            began = time.monotonic()
            store()
            longest = max(longest, time.monotonic() - began)
        found.append(time.process_time() - spent)
    answers.put((*found, longest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def publish(module, column, jid, fleet):
    if column == "local":  # it makes the directory then
        module.prep_jid(passed_jid=jid)
    module.save_load(jid, {**LOAD, "jid": jid}, fleet)


def figures(column, folder, workers):
    context, count = multiprocessing.get_context("fork"), max(1, JOBS // workers)
    opened(column, folder)[0].get_load("20200101000000000000")
    start, answers = context.Barrier(workers), context.Queue()
    started = [
        context.Process(target=work, args=(column, folder, number, count, start, answers)) for number in range(workers)
    ]
    for process in started:
        process.start()
    found = list(zip(*(answers.get(timeout=600) for _ in started), strict=True))
    for process in started:
        process.join(60)
    jobs = workers * count
    return (
        sum(found[0]) / jobs * 1000,
        sum(found[1]) / jobs / WIDTH * 1000,
        max(found[2]) * 1000,
        max(found[3]),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--workers", default="1,5,24")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f}\n")
    print("| | local | sqlite | ratio |\n|---|---:|---:|---:|")
    for workers in map(int, args.workers.split(",")):
        found = least(figures, workers, rounds=args.rounds)
        for number, row in enumerate(ROWS):
            local, ours = (found[column][number] for column in COLUMNS)
            print(f"| {workers} workers: {row} | {local:.3f} | {ours:.3f} | {ours / local:.2f} |", flush=True)


if __name__ == "__main__":
    main()
