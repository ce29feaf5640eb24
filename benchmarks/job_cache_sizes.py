"""
What the job cache costs as it grows: CPU time at 1,000, 10,000, 100,000 and 1,000,000 jobs of ten returns.

    python -m benchmarks.job_cache_sizes                                  all sizes, a table of each
    python -m benchmarks.job_cache_sizes --sizes 1000,10000 --columns sqlite,local

The columns are those of ``benchmarks/job_cache.py``. The jobs are spread over ten days, each for ten of a fleet of
2,000 minions; one in 10,000 has a function, and one in 10,000 a minion, that no other job has. The searches look for
that function and that minion, over a day. Existing jobs are written in bulk, in the layout that the returner reads,
which is not measured; measured calls go through the returner. Drawing needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import datetime
import functools
import itertools
import multiprocessing
import os
import random
import shutil
import sqlite3
import tempfile
import time

import salt.payload
import salt.utils.jid

from benchmarks.job_cache import LOAD, RETURN, RETURNERS, disk, options, returner
from saltext.jobs.core.ledger.jobs import mark_of
from saltext.jobs.core.ledger.tables import VALUES
from saltext.jobs.core.store import search
from saltext.jobs.core.store.records import digest
from saltext.jobs.core.store.store import store_of

FLEET = [f"web{number:04}.example.com" for number in range(2000)]
RETURNS, RARE, DAYS = 10, 10_000, 10
WRITES = 200
ROWS = (
    "save_load",
    "returner",
    "get_jids",
    "get_jids_filter(20)",
    "search by function, over a day",
    "search by minion, over a day",
    "get_jid of 5,000 returns",
    "clean_old_jobs, nothing to do",
    "first clean_old_jobs, with a check of the file",
    "removal of a job of ten returns",
    "first call of a process",
    "of that, SQLite alone",
    "bytes a job",
    "bytes, as a multiple of all values and keys",
    "files and directories a job",
)
#: How a removal affects other processes, with sqlite.
BESIDE = {
    "longest transaction of the removal": "ms of CPU",
    "transactions that a writer waited for, at most": "",
    "… in the slowest hundredth, at least": "",
    "longest wait of a writer": "ms on the clock",
    "wait in the slowest hundredth, at least": "ms on the clock",
}


def jobs(count, days_ago, days):
    """Yield (jid, load, minions) of jobs, evenly spread over some days from some days ago."""
    chance = random.Random(count)
    first = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=days_ago)
    step = datetime.timedelta(days=days) / count
    for number in range(count):
        jid = f"{first + number * step:%Y%m%d%H%M%S%f}"
        is_rare = count >= 1000 and number % min(RARE, count // 10) == 0
        minions = sorted([*chance.sample(FLEET, RETURNS - is_rare), *(["db1"] if is_rare else [])])
        yield jid, {**LOAD, "jid": jid, "fun": "state.highstate" if is_rare else "state.apply"}, minions


def fill(column, folder, own, found, age=0.0):
    """Write jobs in bulk; returns their bytes as msgpack, with keys and the names of banks."""
    if column == "sqlite":
        return fill_sqlite(own, found, age)
    taken, then = 0, time.time() - age
    for jid, load, minions in found:
        values = {"loads": load, "minions": minions, "published": {"at": then, "by": "m_master", "load": digest(load)}}
        if column == "local":
            home = salt.utils.jid.jid_dir(jid, f"{folder}/jobs", "sha256")
            files = {f"{home}/jid": jid.encode(), f"{home}/.load.p": salt.payload.dumps(load)}
            files[f"{home}/.minions.p"] = salt.payload.dumps(minions)
            files.update({f"{home}/{name}/return.p": salt.payload.dumps(RETURN) for name in minions})
        else:
            home = f"{folder}/jobs/returns/{jid}"
            wanted = {name: value for name, value in values.items() if name != "published" or column == "ours"}
            files = {f"{folder}/jobs/{name}/{jid}.p": salt.payload.dumps(value) for name, value in wanted.items()}
            files.update({f"{home}/{name}.p": salt.payload.dumps(RETURN) for name in minions})
        for parent in {os.path.dirname(name) for name in files}:
            os.makedirs(parent, exist_ok=True)
        for name, data in files.items():
            with open(name, "wb") as stream:
                stream.write(data)
            taken += len(data)
            if age:
                os.utime(name, (then, then))
        if age and os.path.isdir(home):
            os.utime(home, (then, then))
    return taken


def fill_sqlite(own, found, age):
    tables = store_of(own).driver.tables
    taken, at, record = 0, time.time() - age, salt.payload.dumps(RETURN)
    put = f"INSERT INTO {VALUES} (bank, key, updated, value, mark) VALUES (?, ?, ?, ?, ?)"
    while some := list(itertools.islice(found, 2000)):
        with tables.database.transaction():
            for jid, load, minions in some:
                vouch = {"at": time.time() - age, "by": "m_master", "load": digest(load)}
                values = {"jobs/loads": load, "jobs/minions": minions, "jobs/published": vouch}
                rows = [(bank, jid, at, salt.payload.dumps(its), mark_of(bank, its)) for bank, its in values.items()]
                rows += [(f"jobs/returns/{jid}", minion, at, record, None) for minion in minions]
                for row in rows:
                    tables.run(put, row)
                taken += sum(len(row[1]) + len(row[3]) for row in rows) + len(jid) * RETURNS
    return taken


def cpu(call, repeat=1):
    """Milliseconds of CPU of a call; the best of several."""
    best = float("inf")
    for _ in range(repeat):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return best * 1000


def each(calls, parts=10):
    """Milliseconds of CPU of one of many calls. The least of several parts counts: other processes on the CPU only add."""
    size = max(1, len(calls) // parts)
    chunks = [calls[start : start + size] for start in range(0, len(calls) - size + 1, size)]
    return min(cpu(lambda chunk=chunk: [call() for call in chunk]) for chunk in chunks) / size


def sqlite_alone(path):
    """What SQLite itself takes to open a file that is there, and to look for one record."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute(f"SELECT value FROM {VALUES} WHERE bank = '' AND key = ''").fetchall()


def figures(column, size, folder, file_returns):
    own = options(folder, **({"cache": "sqlite"} if column == "sqlite" else {}), keep_jobs_seconds=40 * 86400)
    found = {"returns a job": RETURNS if column == "sqlite" else file_returns}
    taken = fill(
        column,
        folder,
        own,
        (job if column == "sqlite" else (*job[:2], job[2][-file_returns:]) for job in jobs(size, DAYS, DAYS)),
    )
    filled = disk(folder)
    found["bytes a job"], found["files and directories a job"] = (part / size for part in filled)
    if column == "sqlite":
        found["bytes, as a multiple of all values and keys"] = filled[0] / taken
    module = returner(RETURNERS[column], own)
    found["first call of a process"] = min(
        in_process(lambda: cpu(lambda: module.get_load("20200101000000000000"))) for _ in range(5)
    )
    if column == "sqlite":
        found["of that, SQLite alone"] = min(
            in_process(lambda: cpu(lambda: sqlite_alone(f"{folder}/cache.sqlite"))) for _ in range(5)
        )
    found["first clean_old_jobs, with a check of the file"] = cpu(module.clean_old_jobs)
    found["clean_old_jobs, nothing to do"] = cpu(module.clean_old_jobs, 3)
    found["get_jids"] = cpu(module.get_jids, 3)
    found["get_jids_filter(20)"] = cpu(lambda: module.get_jids_filter(20), 3)
    new = list(jobs(WRITES, 0.001, 0.0001))
    if column == "local":
        for jid, _, _ in new:
            module.prep_jid(passed_jid=jid)
    found["save_load"] = each([functools.partial(module.save_load, *job) for job in new])
    answers = [{"jid": jid, "id": name, **RETURN} for jid, _, minions in new for name in minions]
    found["returner"] = each([functools.partial(module.returner, answer) for answer in answers])
    ((big, load, _),) = jobs(1, 0.002, 0.0001)
    if column == "local":
        module.prep_jid(passed_jid=big)
    module.save_load(big, load, [f"n{number}" for number in range(5000)])
    for number in range(5000):
        module.returner({"jid": big, "id": f"n{number}", **RETURN})
    found["get_jid of 5,000 returns"] = cpu(lambda: module.get_jid(big), 3)
    if column in ("ours", "sqlite"):
        store, day = store_of(own), time.time() - 86400
        queries = {"function": {"fun": ("state.high*",)}, "minion": {"minion": "db1"}}
        for name, query in queries.items():
            wanted = search.Query(start_time=day, **query)
            found[f"search by {name}, over a day"] = cpu(lambda wanted=wanted: search.search(store, wanted), 3)
    found.update(removal(column, size, folder, own, module, file_returns))
    return found


def removal(column, size, folder, own, module, file_returns):
    """Remove half as many old jobs as there are jobs, up to 50,000."""
    count = min(50_000, size // 2)
    old = ((*job[:2], job[2][-(RETURNS if column == "sqlite" else file_returns) :]) for job in jobs(count, 60, 5))
    fill(column, folder, own, old, age=55 * 86400)
    found = {}
    if column != "sqlite":
        found["removal of a job of ten returns"] = cpu(module.clean_old_jobs) / count
        return found
    with writer_beside(own) as waited:
        spent, held = transactions_of(module.clean_old_jobs, store_of(own).file.tables.database)
        waits = waited()
    found["removal of a job of ten returns"] = spent / count
    found["longest transaction of the removal"] = max(taken for taken, _ in held) * 1000
    ends = [end for _, end in held]
    missed = sorted(bisect.bisect(ends, end) - bisect.bisect(ends, begin) for begin, end in waits)
    times = sorted(end - begin for begin, end in waits)
    hundredth = -max(1, len(waits) // 100)
    found["transactions that a writer waited for, at most"] = missed[-1]
    found["… in the slowest hundredth, at least"] = missed[hundredth]
    found["longest wait of a writer"] = times[-1] * 1000
    found["wait in the slowest hundredth, at least"] = times[hundredth] * 1000
    return found


def transactions_of(call, database):
    """
    Return the ms of CPU of a call and, for each of its transactions in a database, for how many seconds of CPU it held the
    file, at most, and when it ended.
    """
    held, began = [], []

    class Timed(sqlite3.Connection):
        def execute(self, statement, *values):
            try:
                return super().execute(statement, *values)
            finally:
                if statement.startswith("BEGIN"):
                    began[:] = [time.thread_time()]
                elif statement == "COMMIT" and began:
                    held.append((time.thread_time() - began.pop(), time.monotonic()))

    connect = sqlite3.connect
    database.close()  # so that the call opens it
    sqlite3.connect = functools.partial(connect, factory=Timed)
    try:
        return cpu(call), held
    finally:
        sqlite3.connect = connect


@contextlib.contextmanager
def writer_beside(own):
    """Another process that stores something every few milliseconds; yields what asks when each store began and ended."""
    context = multiprocessing.get_context("fork")
    stop, answers = context.Event(), context.Queue()

    def write():
        driver, waits = store_of({**own}).driver, []
        for number in itertools.count():
            began = time.monotonic()
            driver.store("beside", str(number % 100), {"x": "y" * 400})
            waits.append((began, time.monotonic()))
            if stop.wait(0.005):
                break
        answers.put(waits)

    process = context.Process(target=write)
    process.start()

    def waited():
        stop.set()
        return answers.get(timeout=60)

    try:
        yield waited
    finally:
        stop.set()
        process.join(60)


def in_process(call):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=lambda: answers.put(call()))
    process.start()
    found = answers.get(timeout=600)
    process.join(60)
    return found


def table(size, found, note):
    print(f"\n{size:,} jobs, milliseconds of CPU{note}\n")
    print("| | " + " | ".join(found) + " |\n|---|" + "---:|" * len(found))
    for row in ROWS:
        cells = [f"{values[row]:,.2f}" if row in values else "" for values in found.values()]
        if any(cells):
            print(f"| {row} | " + " | ".join(cells) + " |", flush=True)
    for row, unit in BESIDE.items() if BESIDE.keys() <= found.get("sqlite", {}).keys() else ():
        print(f"{row}: {found['sqlite'][row]:,.1f} {unit}".rstrip(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--sizes", default="1000,10000,100000,1000000")
    parser.add_argument("--columns", default=",".join(RETURNERS))
    parser.add_argument(
        "--file-returns", type=int, default=RETURNS, help="returns of each job in the columns with files"
    )
    args = parser.parse_args()
    for size in map(int, args.sizes.split(",")):
        found = {}
        for column in args.columns.split(","):
            root = tempfile.mkdtemp(prefix="bench-")
            try:
                found[column] = figures(column, size, root, args.file_returns)
            finally:
                shutil.rmtree(root, ignore_errors=True)
        table(size, found, f", {args.file_returns} returns a job in the columns with files")


if __name__ == "__main__":
    main()
