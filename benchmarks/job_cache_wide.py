"""
The cost of jobs for many minions, beside Salt's ``local_cache`` in the same run: CPU time and bytes written, by the
number of minions of a job, of a whole ``store_job`` in a worker, and over an hour of large jobs.

    python -m benchmarks.job_cache_wide                            10, 1,000, 10,000 and 50,000 minions, and the hour
    TMPDIR=/dev/shm python -m benchmarks.job_cache_wide --minions 10,1000
    python -m benchmarks.job_cache_wide --hour 360 --minions ''    the hour alone
    TMPDIR=/mnt python -m benchmarks.job_cache_wide --device loop0    what reaches a disk that nothing else uses

Bytes are all that the disk of ``TMPDIR`` has written once everything is on it: names and directories too, and SQLite's log
moved into the file. They are counted at ``--device``, because what a process hands to the system is only the content of
files. The jids of the hour are ten seconds apart; it takes only the time of the writing. The columns take turns, and the
least of each figure of several rounds counts: another process on the same CPU can only make a figure larger.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import os
import random
import shutil
import sqlite3
import subprocess
import tempfile
import time
from unittest import mock

import salt.minion
import salt.utils.job

from benchmarks.job_cache import LOAD, RETURN, RETURNERS, options, returner
from saltext.jobs.core.store import search
from saltext.jobs.core.store.store import store_of

COLUMNS = ("local", "sqlite")
#: Jobs for one figure, by the number of minions, and else; and the least number of returns. Jobs of ten minions have all.
JOBS = {10: 300, 1000: 100}
FEW_JOBS, RETURNS = 20, 3000
#: The disk whose bytes are counted, and the folder that must be completely on it.
DISK = {}


def written():
    if not DISK:
        return 0
    subprocess.run(["sync", "-f", DISK["folder"]], check=True)
    with open(f"/sys/class/block/{DISK['name']}/stat", encoding="ascii") as stream:
        return int(stream.read().split()[6]) * 512


def measured(call, count, folder):
    """Milliseconds of CPU and kB written by each of ``count`` calls, until all that SQLite has in its log is in the file."""
    size, began = written(), time.process_time()
    call()
    if os.path.exists(f"{folder}/cache.sqlite"):
        with contextlib.closing(sqlite3.connect(f"{folder}/cache.sqlite", isolation_level=None)) as sql:
            sql.execute("PRAGMA wal_checkpoint(RESTART)")
    return (time.process_time() - began) / count * 1000, (written() - size) / count / 1000


def jid(second):
    first = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=2)
    return f"{first + datetime.timedelta(seconds=second):%Y%m%d%H%M%S%f}"


def opened(column, folder):
    own = options(folder, id="m_master", **({"cache": "sqlite"} if column == "sqlite" else {}))
    return returner(RETURNERS[column], own), own


def published(module, column, second, minions):
    job = jid(second)
    if column == "local":  # it makes the directory then
        module.prep_jid(passed_jid=job)
    module.save_load(job, {**LOAD, "jid": job}, list(minions))
    return job


def of_width(column, folder, width, is_mixed):
    """
    Return the cost of a publish, and of a return.

    :param is_mixed: whether each job is for different minions, of a fleet that is twice as large; else all are for the
        same.
    """
    module, _ = opened(column, folder)
    chance = random.Random(width)
    fleet = [f"web{number:06}.example.com" for number in range(2 * width if is_mixed else width)]
    published(module, column, 0, fleet)
    published(module, column, 1, fleet[:width])
    count = JOBS.get(width, FEW_JOBS)
    targets = [sorted(chance.sample(fleet, width)) if is_mixed else fleet for _ in range(count)]
    jobs = []
    publish = measured(
        lambda: jobs.extend(published(module, column, 2 + at, target) for at, target in enumerate(targets)),
        count,
        folder,
    )
    answers = [
        {"jid": job, "id": minion, **RETURN}
        for job, target in zip(jobs, targets, strict=True)
        for minion in chance.sample(target, min(width, RETURNS // count))
    ]
    return publish, measured(lambda: [module.returner(answer) for answer in answers], len(answers), folder)


def stored(column, folder, width):
    """Return the cost of all that a worker does to store a return, of a job for so many minions."""
    own = options(folder, id="m_master", **({"cache": "sqlite"} if column == "sqlite" else {}))
    name = "local_cache" if column == "local" else "salt_cache"
    own.update(conf_file=f"{folder}/master", root_dir=folder, pki_dir=folder, master_job_cache=name)
    fleet, job = [f"web{number:06}.example.com" for number in range(width)], jid(0)
    loads = [{"jid": job, "id": minion, "fun": "state.apply", "fun_args": [], **RETURN} for minion in fleet[:1000]]
    with salt.minion.MasterMinion(own, states=False, rend=False) as minion:
        minion.returners[f"{name}.prep_jid"](passed_jid=job)
        minion.returners[f"{name}.save_load"](job, {**LOAD, "jid": job}, minions=fleet)
        store = functools.partial(salt.utils.job.store_job, own, event=mock.Mock(), mminion=minion)
        store(dict(loads[0]))
        return measured(lambda: [store(load) for load in loads[1:]], len(loads) - 1, folder)


def hour(column, folder, width, count):
    """
    Return the cost of a publish in the first and in the last tenth, the bytes that a publish writes on average over all,
    and the cost of a search by minion afterwards. One tenth alone may write what earlier ones have left in the log.
    """
    module, own = opened(column, folder)
    fleet = [f"web{number:06}.example.com" for number in range(width)]
    published(module, column, 0, fleet)
    part, found = max(1, count // 10), {}
    for number in range(10):
        seconds = [10 * (1 + at) for at in range(number * part, (number + 1) * part)]
        found[number] = measured(
            lambda seconds=seconds: [published(module, column, second, fleet) for second in seconds], part, folder
        )
    size = sum(part[1] for part in found.values()) / 10
    ends = [(found[number][0], size) for number in (0, 9)]
    if column == "local":
        return *ends, None
    query = search.Query(minion=fleet[width // 2])
    return *ends, measured(lambda: search.search(store_of(own), query), 1, folder)


def least(call, *args, rounds, columns=COLUMNS):
    """By columns, the least of each figure of several rounds in which the columns take turns."""
    found = [{column: in_folder(call, column, *args) for column in columns} for _ in range(rounds)]
    return {column: _least([one[column] for one in found]) for column in columns}


def _least(values):
    if isinstance(values[0], tuple):
        return tuple(map(_least, zip(*values, strict=True)))
    return None if values[0] is None else min(values)


def in_folder(call, *args):
    folder = tempfile.mkdtemp(prefix="bench-")
    try:
        return call(args[0], folder, *args[1:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def row(name, found):
    cells = []
    for which in (0, 1) if DISK else (0,):
        values = [found[column][which] for column in COLUMNS]
        cells += [f"{value:,.{3 if value < 1 else 2 if value < 100 else 0}f}" for value in values]
        cells.append(f"{values[1] / values[0]:.2f}")
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--minions", default="10,1000,10000,50000")
    parser.add_argument("--hour", type=int, default=360, help="publishes in the hour; 0 for none")
    parser.add_argument("--width", type=int, default=10_000, help="minions of each job of the hour")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", help="the disk of TMPDIR, as in /sys/class/block: count what it is given")
    args = parser.parse_args()
    if args.device:
        DISK.update(name=args.device, folder=tempfile.gettempdir())
    heads = [f"{column}, {unit} |" for unit in (("ms", "kB") if DISK else ("ms",)) for column in COLUMNS]
    heads[2:2], heads[5:5] = ["ratio |"], ["ratio |"] * bool(DISK)
    print("| |", *heads, "\n|---|" + "---:|" * len(heads))
    for width in map(int, filter(None, args.minions.split(","))):
        for is_mixed in (False, True):
            found = least(of_width, width, is_mixed, rounds=args.rounds)
            which = "others each time" if is_mixed else "the same"
            row(f"publish to {width:,}, {which}", {column: both[0] for column, both in found.items()})
            row(f"a return of them, {which}", {column: both[1] for column, both in found.items()})
        row(f"a whole store_job, of jobs for {width:,}", least(stored, width, rounds=args.rounds))
    if args.hour:
        found = least(hour, args.width, args.hour, rounds=args.rounds)
        for number, name in enumerate(("first", "last")):
            row(f"the {name} tenth of the hour", {column: both[number] for column, both in found.items()})
        print(f"\nsearch by minion after the hour: {found['sqlite'][2][0]:.1f} ms of CPU")


if __name__ == "__main__":
    main()
