"""
What the job cache costs, side by side with Salt's own: CPU time of the calling process, all in one run.

    python benchmarks/job_cache.py                        100,000 jobs on localfs and redis, the table in Markdown
    python benchmarks/job_cache.py --jobs 5000 --drivers localfs
    TMPDIR=/dev/shm python benchmarks/job_cache.py        the same without what the file system costs

``native`` is the ``salt_cache`` of Salt 3008 and ``local`` Salt's ``local_cache``; the columns are there where Salt has
them. Every returner gets jobs of its own in a directory of its own, written beforehand in the layout that it reads.
Redis is started for the run, from ``redis-server`` on the PATH, and its own CPU time is not counted; how often it is
asked is. Nothing here may read or write the job cache of a master.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import salt.config
import salt.payload
import salt.utils.jid
import salt.version

WRITES = 300  # jobs stored, and as many returns, of 15 minions for each of 20 jobs, for one figure
MINIONS = ["web1", "web2"]
LOAD = {"fun": "state.apply", "arg": ["web"], "tgt": "web*", "tgt_type": "glob", "user": "root", "ret": ""}
LOAD["kwargs"] = {"delimiter": ":", "show_timeout": True, "metadata": {"ticket": "OPS-1"}}
RETURN = {"return": {"changes": "x" * 400}, "retcode": 0, "success": True}
WANTED = {"save_load": 4, "returner": 4, "get_jid": 1, "get_jids": 1, "get_jids_filter(20)": 50}
WANTED.update({"first clean_old_jobs": "", "clean_old_jobs": 20})


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


# -- jobs that are there beforehand ---------------------------------------------------------------------------


def fill_banks(folder, names, big, returns, published):
    """The banks as localfs keeps them, with one return a job, and the job ``big`` with ``returns``."""
    banks = {"loads": salt.payload.dumps({**LOAD, "jid": names[0]}), "minions": salt.payload.dumps(MINIONS)}
    if published:
        banks["published"] = salt.payload.dumps({"at": time.time(), "by": "m_master"})
    for bank, value in banks.items():
        os.makedirs(f"{folder}/jobs/{bank}")
        for jid in [*names, big]:
            pathlib.Path(f"{folder}/jobs/{bank}/{jid}.p").write_bytes(value)
    record = salt.payload.dumps(RETURN)
    for jid in names:
        os.makedirs(f"{folder}/jobs/returns/{jid}")
        pathlib.Path(f"{folder}/jobs/returns/{jid}/web1.p").write_bytes(record)
    os.makedirs(f"{folder}/jobs/returns/{big}")
    for number in range(returns):
        pathlib.Path(f"{folder}/jobs/returns/{big}/web{number}.p").write_bytes(record)


def fill_local_cache(folder, names, big, returns):
    load, minions, record = (salt.payload.dumps(value) for value in ({**LOAD, "jid": ""}, MINIONS, RETURN))
    for jid in [*names, big]:
        home = salt.utils.jid.jid_dir(jid, f"{folder}/jobs", "sha256")
        os.makedirs(f"{home}/web1")
        load = salt.payload.dumps({**LOAD, "jid": jid})
        for name, value in (("jid", jid.encode()), (".load.p", load), (".minions.p", minions)):
            pathlib.Path(f"{home}/{name}").write_bytes(value)
        pathlib.Path(f"{home}/web1/return.p").write_bytes(record)
    home = salt.utils.jid.jid_dir(big, f"{folder}/jobs", "sha256")
    for number in range(returns):
        os.makedirs(f"{home}/web{number}", exist_ok=True)
        pathlib.Path(f"{home}/web{number}/return.p").write_bytes(record)


def fill_redis(port, names, big, returns):
    """The hashes that Salt 3008's driver keeps, in bulk."""
    import redis

    client = redis.Redis(port=port)
    stamp, record = salt.payload.dumps(int(time.time())), salt.payload.dumps(RETURN)

    def bank(name, keys, value):
        client.zadd("$BANKS_", {f"$KEYS_{name}/": 0})
        for start in range(0, len(keys), 10_000):
            part = keys[start : start + 10_000]
            client.hset(f"$KEYS_{name}/", mapping=dict.fromkeys(part, value))
            client.hset(f"$TSTAMP_{name}/", mapping=dict.fromkeys(part, stamp))

    bank("jobs/loads", [*names, big], salt.payload.dumps({**LOAD, "jid": big}))
    bank("jobs/minions", [*names, big], salt.payload.dumps(MINIONS))
    bank("jobs/published", [*names, big], salt.payload.dumps({"at": time.time(), "by": "m_master"}))
    bank(f"jobs/returns/{big}", [f"web{number}" for number in range(returns)], record)


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
    """Seconds of CPU, the better of two runs for what can be repeated, and round trips, of one call."""
    best = None
    for _ in range(repeat):
        sent, began = trips.count, time.process_time()
        calls = call()
        spent = ((time.process_time() - began) / calls, (trips.count - sent) / calls)
        best = min(best or spent, spent)
    return best


def figures(module, new, big, trips):
    """``{operation: (seconds, round trips)}`` of one returner."""

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
        each(
            lambda jid, number: module.prep_jid(passed_jid=jid)
        )  # makes the directory, for which the others have no need
    save(new[0], 0)  # the first call loads the driver, once in the life of a process
    return {
        "first clean_old_jobs": measure(lambda: one("clean_old_jobs"), trips),
        "clean_old_jobs": measure(lambda: one("clean_old_jobs"), trips),
        "get_jids_filter(20)": measure(lambda: one("get_jids_filter", 20), trips, 2),
        "get_jids": measure(lambda: one("get_jids"), trips, 2),
        "get_jid": measure(lambda: one("get_jid", big), trips, 2),
        "save_load": measure(lambda: each(save), trips),
        "returner": measure(lambda: each(give_back), trips),
    }


def compare(driver, args, root, trips):
    names, (big,) = jids(args.jobs, -12), jids(1, -11)
    found, more = {}, {}
    server = contextlib.nullcontext()
    if driver == "redis":
        server = redis_server(root)
    with server as port:
        if driver == "redis":
            more = {"cache": "redis", "cache.redis.port": port}
            fill_redis(port, names, big, args.returns)
        for column, name in RETURNERS.items():
            folder = root / driver / column
            folder.mkdir(parents=True)
            if column == "native" and salt.version.__saltstack_version__.major < 3008:
                continue
            if column == "local":
                if driver == "redis":
                    continue
                fill_local_cache(folder, names, big, args.returns)
            elif driver == "localfs":
                fill_banks(folder, names, big, args.returns, published=column == "ours")
            new = jids(WRITES + 1, {"native": -0.2, "ours": -0.1}.get(column, -0.3))
            found[column] = figures(returner(name, options(folder, **more)), new, big, trips)
            shutil.rmtree(folder)
    return found


RETURNERS = {
    "local": "salt.returners.local_cache",
    "native": "salt.returners.salt_cache",
    "ours": "saltext.jobs.returners.salt_cache",
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
    """Markdown: milliseconds of CPU per call, and round trips where there are any."""
    columns = [column for column in RETURNERS if column in found]
    print(f"\n{driver}, {args.jobs:,} jobs, milliseconds of CPU per call (round trips)\n")
    print("| | " + " | ".join(columns) + " | native / ours | wanted |")
    print("|---|" + "---:|" * (len(columns) + 2))
    for operation, wanted in WANTED.items():
        shown = (
            operation.replace("get_jid", f"get_jid of {args.returns:,} returns")
            if operation == "get_jid"
            else operation
        )
        cells = []
        for column in columns:
            seconds, trips = found[column][operation]
            cells.append(f"{seconds * 1000:,.2f}" + (f" ({trips:,.0f})" if trips else ""))
        ratio = found["native"][operation][0] / found["ours"][operation][0] if "native" in found else None
        cells.append("" if ratio is None else f"{ratio:,.1f}")
        print(f"| {shown} | " + " | ".join(cells) + f" | {wanted} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--returns", type=int, default=5_000, help="returns of the one large job")
    parser.add_argument("--drivers", default="localfs,redis")
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
