"""
What the job cache costs, side by side with Salt's own: CPU time of the calling process, all in one run.

    python benchmarks/job_cache.py                        100,000 jobs on localfs and redis, the table in Markdown
    python benchmarks/job_cache.py --jobs 5000 --drivers localfs
    TMPDIR=/dev/shm python benchmarks/job_cache.py        the same without what the file system costs

``native`` is the ``salt_cache`` of Salt 3008 and ``local`` Salt's ``local_cache``; these columns appear on releases
that have them. ``sqlite`` is ours with ``cache: sqlite``, beside ours on localfs. Every returner gets jobs of its own
in a directory of its own, written beforehand in the layout that it reads. Redis is started for the run, from
``redis-server`` on the PATH; its CPU time is not counted, its round trips are. Nothing here may read or write the job
cache of a master.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib
import os
import pathlib
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time

import salt.config
import salt.payload
import salt.utils.jid
import salt.version

from saltext.jobs.core.ledger.tables import VALUES

WRITES = 300  # jobs stored for one figure, and returns for another: 20 jobs with 15 minions each
MINIONS = ["web1", "web2"]
MANY = [f"web{number:04}.example.com" for number in range(1000)]
LOAD = {"fun": "state.apply", "arg": ["web"], "tgt": "web*", "tgt_type": "glob", "user": "root", "ret": ""}
LOAD["kwargs"] = {"delimiter": ":", "show_timeout": True, "metadata": {"ticket": "OPS-1"}}
RETURN = {"return": {"changes": "x" * 400}, "retcode": 0, "success": True}
# The aims: each other column must cost at least so many times as much as ours.
WANTED = {"save_load": 4, "returner": 4, "get_load": 1, "get_jid": 1, "get_jids": 1, "get_jids_filter(20)": 50}
WANTED.update(
    {"first clean_old_jobs": "", "clean_old_jobs": 2, "removal": 1, "search by fun": "", "search by minion": ""}
)


def jids(count, offset_hours):
    """Jids one millisecond apart; a sweep leaves them all alone."""
    first = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=offset_hours)
    return [f"{first + datetime.timedelta(milliseconds=number):%Y%m%d%H%M%S%f}" for number in range(count)]


def returner(name, opts):
    """The returner as a module of its own; the loader would give ours for both."""
    module = importlib.import_module(name)
    module.__opts__ = opts
    return module


def options(folder, **more):
    own = {"cachedir": str(folder), "pki_dir": str(folder), "extension_modules": f"{folder}/ext"}
    return {**salt.config.DEFAULT_MASTER_OPTS, **own, **more}


# -- existing jobs ---------------------------------------------------------------------------


def published(load):
    """The record that vouches for a load."""
    found = importlib.import_module("saltext.jobs.core.store.records").digest(load)
    return {"at": time.time(), "by": "m_master", "load": found}


def fill_banks(folder, names, big, returns, is_published, age=0):
    """The banks as localfs keeps them, with one return a job, and the job ``big`` with ``returns``."""
    load = {**LOAD, "jid": (names or big)[0]}
    banks = {"loads": salt.payload.dumps(load), "minions": salt.payload.dumps(MINIONS)}
    if is_published:
        banks["published"] = salt.payload.dumps(published(load))
    files = {f"{bank}/{jid}": value for bank, value in banks.items() for jid in [*names, *big]}
    record = salt.payload.dumps(RETURN)
    files.update({f"returns/{jid}/web1": record for jid in names})
    files.update({f"returns/{jid}/web{number}": record for jid in big for number in range(returns)})
    for folder_of in {os.path.dirname(name) for name in files}:
        os.makedirs(f"{folder}/jobs/{folder_of}", exist_ok=True)
    for name, value in files.items():
        pathlib.Path(f"{folder}/jobs/{name}.p").write_bytes(value)
    make_old(f"{folder}/jobs", age, names)


def make_old(folder, age, names):
    """Set the file times of some jobs back by ``age`` seconds."""
    wanted, then = set(names), time.time() - age
    for parent, folders, files in os.walk(folder) if age else ():
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            if not wanted.isdisjoint((name, name[:-2], os.path.basename(parent))) or name == "jid":
                os.utime(path, (then, then))


def fill_sqlite(opts, names, big, returns, age=0):
    """Write the file of the driver sqlite, through the store itself, in large transactions."""
    store = importlib.import_module("saltext.jobs.core.store.store").store_of(opts)
    driver, tables = store.driver, store.driver.tables

    def fill(some):
        for jid in some:
            driver.store("jobs/loads", jid, {**LOAD, "jid": jid})
            driver.store("jobs/minions", jid, MINIONS)
            driver.store("jobs/published", jid, published({**LOAD, "jid": jid}))
            for number in range(returns) if jid in big else (1,):
                driver.store(f"jobs/returns/{jid}", f"web{number}", RETURN)

    for start in range(0, len(names) + len(big), 5000):
        driver.together(lambda start=start: fill([*names, *big][start : start + 5000]))
    if age and names:
        then, span = time.time() - age, (names[0], names[-1])
        tables.run(f"UPDATE {VALUES} SET updated = ? WHERE key BETWEEN ? AND ?", (then, *span))
        of_jobs = "bank BETWEEN 'jobs/returns/' || ? AND 'jobs/returns/' || ?"
        tables.run(f"UPDATE {VALUES} SET updated = ? WHERE {of_jobs}", (then, *span))


def disk(folder):
    """The bytes of files, and the number of files and directories, without SQLite's log and shared memory."""
    taken = count = 0
    if os.path.exists(f"{folder}/cache.sqlite"):
        with contextlib.closing(sqlite3.connect(f"{folder}/cache.sqlite")) as sql:
            sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for parent, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        for name in files:
            if not name.endswith(("-wal", "-shm")):
                taken += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return taken, count


def fill_local_cache(folder, names, big, returns, age=0):
    minions, record = salt.payload.dumps(MINIONS), salt.payload.dumps(RETURN)
    then = time.time() - age
    for jid in [*names, *big]:
        home = salt.utils.jid.jid_dir(jid, f"{folder}/jobs", "sha256")
        for number in range(returns if jid in big else 1):
            os.makedirs(f"{home}/web{number}")
            pathlib.Path(f"{home}/web{number}/return.p").write_bytes(record)
        load = salt.payload.dumps({**LOAD, "jid": jid})
        for name, value in (("jid", jid.encode()), (".load.p", load), (".minions.p", minions)):
            pathlib.Path(f"{home}/{name}").write_bytes(value)
        os.utime(f"{home}/jid", (then, then))


def fill_redis(port, names, big, returns, is_published=True, age=0):
    """The hashes that Salt 3008's driver keeps, in bulk."""
    import redis

    client = redis.Redis(port=port)
    stamp, record = salt.payload.dumps(int(time.time() - age)), salt.payload.dumps(RETURN)

    def bank(name, keys, value):
        client.zadd("$BANKS_", {f"$KEYS_{name}/": 0})
        for start in range(0, len(keys), 10_000):
            part = keys[start : start + 10_000]
            client.hset(f"$KEYS_{name}/", mapping=dict.fromkeys(part, value))
            client.hset(f"$TSTAMP_{name}/", mapping=dict.fromkeys(part, stamp))

    bank("jobs/loads", [*names, *big], salt.payload.dumps({**LOAD, "jid": names[0]}))
    bank("jobs/minions", [*names, *big], salt.payload.dumps(MINIONS))
    if is_published:
        bank("jobs/published", [*names, *big], salt.payload.dumps(published({**LOAD, "jid": names[0]})))
    for jid in big:
        bank(f"jobs/returns/{jid}", [f"web{number}" for number in range(returns)], record)
    for jid in names if age else ():
        bank(f"jobs/returns/{jid}", ["web1"], record)


# -- measuring ------------------------------------------------------------------------------------------------


class Trips:
    """Counts what is sent to Redis: one request, or one pipeline of them, is one round trip."""

    def __init__(self):
        self.count = 0
        with contextlib.suppress(ImportError):
            from redis.connection import AbstractConnection

            send = AbstractConnection.send_packed_command

            def counted(connection, *args, **kwargs):
                self.count += 1
                return send(connection, *args, **kwargs)

            AbstractConnection.send_packed_command = counted


def measure(call, trips, repeat=1):
    """Seconds of CPU (the better of two runs, if it can be repeated) and round trips of one call."""
    best = None
    for _ in range(repeat):
        sent, began = trips.count, time.process_time()
        calls = call()
        spent = ((time.process_time() - began) / calls, (trips.count - sent) / calls)
        best = min(best or spent, spent)
    return best


def figures(module, new, big, trips, make_old_jobs):
    """``{operation: (seconds, round trips)}`` of one returner; ``make_old_jobs()`` stores jobs to remove and counts them."""

    def one(function, *args):
        getattr(module, function)(*args)
        return 1

    def each(function):
        for number, jid in enumerate(new[1:]):
            function(jid, number)
        return len(new) - 1

    def save(jid, number):
        module.save_load(jid, {**LOAD, "jid": jid}, MINIONS)

    def give_back(jid, number):
        module.returner({"jid": new[1 + number // 15], "id": f"web{number % 15}", **RETURN})

    if module.__name__.endswith("local_cache"):
        each(lambda jid, number: module.prep_jid(passed_jid=jid))  # makes the directory, which only this one needs

    def remove():
        module.clean_old_jobs()
        return removed

    save(new[0], 0)  # the first call loads the driver, once in the life of a process
    found = {
        "first clean_old_jobs": measure(lambda: one("clean_old_jobs"), trips),
        "clean_old_jobs": measure(lambda: one("clean_old_jobs"), trips),
        "get_jids_filter(20)": measure(lambda: one("get_jids_filter", 20), trips, 2),
        "get_jids": measure(lambda: one("get_jids"), trips, 2),
        "get_jid": measure(lambda: one("get_jid", big), trips, 2),
        "save_load": measure(lambda: each(save), trips),
        "returner": measure(lambda: each(give_back), trips),
    }
    module.save_load(new[0], {**LOAD, "jid": new[0]}, MANY)
    found["get_load"] = measure(lambda: one("get_load", new[0]), trips, 20)
    removed = make_old_jobs()
    found["removal"] = measure(remove, trips)
    if hasattr(module, "store_of"):
        find, day = importlib.import_module("saltext.jobs.core.store.search"), time.time() - 86400
        store = module.store_of(module.__opts__)
        for name, query in {"fun": {"fun": ("state.*",)}, "minion": {"minion": "web2"}}.items():
            wanted = find.Query(start_time=day, **query)
            found[f"search by {name}"] = measure(lambda wanted=wanted: bool(find.search(store, wanted)), trips, 3)
    return found


def compare(driver, args, root, trips):
    names, big, old = jids(args.jobs, -12), jids(1, -11), jids(args.jobs // 5, -60)
    found, more = {}, {}
    server = redis_server(root) if driver == "redis" else contextlib.nullcontext()
    with server as port:
        if driver == "redis":
            more = {"cache": "redis", "cache.redis.port": port}
            fill_redis(port, names, big, args.returns)
        for column, name in RETURNERS.items():
            if column not in args.columns.split(","):
                continue
            if column == "native" and salt.version.__saltstack_version__.major < 3008:
                continue
            if column in ("local", "sqlite") and driver == "redis":
                continue
            folder = root / driver / column
            folder.mkdir(parents=True)
            own = options(folder, **more, **({"cache": "sqlite"} if column == "sqlite" else {}))
            if column == "local":
                fill = functools.partial(fill_local_cache, folder)
            elif column == "sqlite":
                fill = functools.partial(fill_sqlite, own)
            elif driver == "redis":
                fill = functools.partial(fill_redis, port, is_published=column == "ours")
            else:
                fill = functools.partial(fill_banks, folder, is_published=column == "ours")
            if driver != "redis":
                fill(names, [], 0)
                found.setdefault("disk", {})[column] = [size / len(names) for size in disk(folder)]
                fill([], big, args.returns)

            def make_old_jobs(fill=fill):
                fill(old, [], 0, age=60 * 3600)
                return len(old)

            new = jids(WRITES + 1, {"native": -0.2, "ours": -0.1, "sqlite": -0.05}.get(column, -0.3))
            module = returner(name, own)
            found[column] = figures(module, new, big[0], trips, make_old_jobs)
            shutil.rmtree(folder)
    return found


RETURNERS = {
    "local": "salt.returners.local_cache",
    "native": "salt.returners.salt_cache",
    "ours": "saltext.jobs.returners.salt_cache",
    "sqlite": "saltext.jobs.returners.salt_cache",
}


@contextlib.contextmanager
def redis_server(root):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(root), "--save", ""]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()


def table(driver, found, args):
    """Markdown: milliseconds of CPU per call, and round trips, if there are any."""
    columns = [column for column in RETURNERS if column in found]
    print(f"\n{driver}, {args.jobs:,} jobs, milliseconds of CPU per call (round trips)\n")
    others = [column for column in columns if column not in ("ours", "sqlite") and "ours" in columns]
    print("| | " + " | ".join([*columns, *(f"{other} / ours" for other in others)]) + " | wanted |")
    print("|---|" + "---:|" * (len(columns) + len(others) + 1))
    for operation, wanted in WANTED.items():
        shown = {
            "get_jid": f"get_jid of {args.returns:,} returns",
            "get_load": f"get_load of a job for {len(MANY):,} minions",
            "removal": f"removal of a job, of {args.jobs // 5:,}",
        }.get(operation, operation)
        cells = []
        for column in columns:
            if operation not in found[column]:
                cells.append("")
                continue
            seconds, trips = found[column][operation]
            cells.append(f"{seconds * 1000:,.2f}" + (f" ({trips:,.0f})" if trips else ""))
        ratios = [_times(found, other, operation) for other in others]
        print(f"| {shown} | " + " | ".join([*cells, *ratios]) + f" | {wanted} |")

    for name, place in (("bytes a job", 0), ("files and directories a job", 1)) if "disk" in found else ():
        cells = [
            f"{found['disk'][column][place]:,.1f}" if place else f"{found['disk'][column][0]:,.0f}"
            for column in columns
        ]
        print(f"| {name} | " + " | ".join([*cells, *("" for _ in others)]) + " | |")


def _times(found, other, operation):
    if operation not in found[other]:
        return ""
    return f"{found[other][operation][0] / found['ours'][operation][0]:,.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--returns", type=int, default=5_000, help="returns of the one large job")
    parser.add_argument("--drivers", default="localfs,redis")
    parser.add_argument("--columns", default=",".join(RETURNERS), help="of these only")
    args = parser.parse_args()
    root = pathlib.Path(tempfile.mkdtemp(prefix="bench-"))
    print(f"Salt {salt.version.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    try:
        trips = Trips()
        for driver in args.drivers.split(","):
            table(driver, compare(driver, args, root, trips), args)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
