"""
The cost of several workers of a master that store jobs at the same time, beside Salt's ``local_cache`` in the same run:
their CPU time divided by what they stored, and the longest wait of one of them.

    python -m benchmarks.job_cache_workers                        1, 5 and 24 workers
    TMPDIR=/dev/shm python -m benchmarks.job_cache_workers --workers 24 --rounds 3

Each worker publishes jobs for ten minions and stores what these return, as fast as it can. For the CPU time it stores a
certain number of jobs. For the longest wait it goes on for a certain time, because no wait can be longer than the run.
Its first publish and return do not count: ``job_cache_sizes`` has a row for what a process does once. The columns take
turns over several rounds, and the least of each figure counts. "SQLite alone" stores the same records in one table, in a
transaction for each call, and waits for others as SQLite itself does: our code cannot be cheaper than that.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import multiprocessing
import os
import resource
import sqlite3
import time

import salt.payload

from benchmarks.job_cache import LOAD, RETURN
from benchmarks.job_cache_wide import COLUMNS, least, opened

ALONE = "SQLite alone"
WIDTH = 10
ROWS = ("publish, ms of CPU", "return, ms of CPU", "longest wait in {seconds:g} s, ms", "memory of a worker, MB")


class Alone:
    def __init__(self, folder):
        self._sql = sqlite3.connect(f"{folder}/alone.sqlite", timeout=600, isolation_level=None)
        self._sql.execute("PRAGMA synchronous=NORMAL")

    def make(self):
        self._sql.execute("PRAGMA journal_mode=WAL")
        self._sql.execute("CREATE TABLE records (bank TEXT, key TEXT, value BLOB, UNIQUE (bank, key))")
        self._sql.close()  # before the workers are forked

    def save_load(self, jid, load, minions):
        self._store(("loads", jid, load), ("minions", jid, minions), ("published", jid, {"at": 1.0, "load": 32 * "0"}))

    def returner(self, answer):
        self._store((answer["jid"], answer["id"], {name: answer[name] for name in RETURN}))

    def _store(self, *rows):
        self._sql.execute("BEGIN IMMEDIATE")
        rows = [(bank, key, salt.payload.dumps(value)) for bank, key, value in rows]
        self._sql.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)
        self._sql.execute("COMMIT")


def work(column, folder, number, count, seconds, start, answers):
    module = Alone(folder) if column == ALONE else opened(column, folder)[0]
    first = datetime.datetime.now(datetime.timezone.utc)
    fleet = [f"web{at:04}.example.com" for at in range(WIDTH)]

    def jid(at):
        return f"{first + datetime.timedelta(microseconds=at):%Y%m%d%H%M%S%f}_{number}"

    def stores_of(at):
        yield lambda: publish(module, column, jid(at), fleet)
        yield from (lambda minion=minion: answer(module, jid(at), minion) for minion in fleet)

    for store in stores_of(0):
        store()
    found = []
    for stores in (
        [lambda at=at: publish(module, column, jid(at), fleet) for at in range(1, count + 1)],
        [
            lambda at=at, minion=minion: answer(module, jid(at), minion)
            for at in range(1, count + 1)
            for minion in fleet
        ],
    ):
        start.wait()
        spent = time.process_time()
        for store in stores:
            store()
        found.append(time.process_time() - spent)
    start.wait()
    longest, end = 0.0, time.monotonic() + seconds
    for store in itertools.chain.from_iterable(map(stores_of, itertools.count(count + 1))):
        began = time.monotonic()
        if began > end:
            break
        store()
        longest = max(longest, time.monotonic() - began)
    answers.put((*found, longest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def answer(module, jid, minion):
    module.returner({"jid": jid, "id": minion, **RETURN})


def publish(module, column, jid, fleet):
    if column == "local":  # it makes the directory then
        module.prep_jid(passed_jid=jid)
    module.save_load(jid, {**LOAD, "jid": jid}, fleet)


def figures(column, folder, workers, jobs, seconds):
    context, count = multiprocessing.get_context("fork"), max(1, jobs // workers)
    if column == ALONE:
        Alone(folder).make()
    else:
        opened(column, folder)[0].get_load("20200101000000000000")
    start, answers = context.Barrier(workers), context.Queue()
    started = [
        context.Process(target=work, args=(column, folder, number, count, seconds, start, answers))
        for number in range(workers)
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
    parser.add_argument("--jobs", type=int, default=720, help="of all workers, for CPU time (720)")
    parser.add_argument("--seconds", type=float, default=4.0, help="for the longest wait (4)")
    args = parser.parse_args()
    print(f"load of the machine: {os.getloadavg()[0]:.1f}\n")
    print("| | local | SQLite alone | sqlite | ratio |\n|---|---:|---:|---:|---:|")
    for workers in map(int, args.workers.split(",")):
        found = least(figures, workers, args.jobs, args.seconds, rounds=args.rounds, columns=(*COLUMNS, ALONE))
        for number, row in enumerate(row.format(seconds=args.seconds) for row in ROWS):
            local, ours, alone = (figures[number] for figures in found.values())
            cells = f"{local:.3f} | {alone:.3f} | {ours:.3f} | {ours / local:.2f}"
            print(f"| {workers} workers: {row} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
