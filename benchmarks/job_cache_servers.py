"""
What the job cache costs with each driver, those on servers too, beside Salt's own local_cache and pgjsonb, all in one run.

    python -m benchmarks.job_cache_servers                     1,000 jobs for ten minions, the table in Markdown
    python -m benchmarks.job_cache_servers --jobs 5000 --columns postgresql,mysql

For each call: milliseconds of CPU of the calling process and of the server, round trips, and kB on the wire in both
directions, counted by a relay of its own between the two. The servers are started for the run; they do not wait for
their disk (fsync=off), because waiting is not CPU time. Every column is filled by its own calls. Nothing here may touch
another server.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import multiprocessing
import os
import pathlib
import selectors
import shutil
import socket
import sys
import tempfile
import time

import psutil
import salt.loader
import salt.version

from benchmarks.job_cache import LOAD, RETURN, options
from saltext.jobs.core.store.retention import sweep
from saltext.jobs.core.store.search import Query, search
from saltext.jobs.core.store.store import store_of
from tests.functional.cache_servers import etcd_server, free_port, mysql_server, postgresql_server, redis_server
from tests.postgresql import PostgreSQL

COLUMNS = ("local", "localfs", "sqlite", "redis", "etcd", "mysql", "postgresql", "pgjsonb")
SERVERS = {"redis": redis_server, "etcd": etcd_server, "mysql": mysql_server}
WIDE = 1000
LOOKUPS = 3  # by the runner, which loads all modules each time


class Relay:
    """Relays and counts the traffic between a client and a server, in a process of its own."""

    def __init__(self, port):
        self.port = free_port()
        # round trips (turns from the server's word to the client's), and bytes
        self._counts = multiprocessing.Array("q", 2)
        self._process = multiprocessing.get_context("fork").Process(target=self._run, args=(port,), daemon=True)
        self._process.start()
        time.sleep(0.2)

    def counts(self):
        return list(self._counts)

    def stop(self):
        self._process.kill()
        self._process.join()

    def _run(self, port):
        chosen, listener = selectors.DefaultSelector(), socket.create_server(("127.0.0.1", self.port))
        chosen.register(listener, selectors.EVENT_READ, None)
        while True:
            for key, _ in chosen.select():
                if key.data is None:
                    self._accept(chosen, listener, port)
                elif not self._pass_on(key):
                    for end in (key.fileobj, key.data["to"]):
                        with contextlib.suppress(KeyError, ValueError):
                            chosen.unregister(end)
                        end.close()

    @staticmethod
    def _accept(chosen, listener, port):
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        talk = {"last": "server"}
        for end, other, name in ((client, server, "client"), (server, client, "server")):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            chosen.register(end, selectors.EVENT_READ, {"to": other, "who": name, "talk": talk})

    def _pass_on(self, key):
        try:
            data = key.fileobj.recv(1 << 18)
            key.data["to"].sendall(data)
        except OSError:
            return False
        talk, who = key.data["talk"], key.data["who"]
        self._counts[1] += len(data)
        self._counts[0] += who == "client" and talk["last"] == "server"
        talk["last"] = who
        return bool(data)


class Column:
    """One job cache, on a server or without one."""

    def __init__(self, name, folder):
        self.name, more, self._server, self.relay = name, {}, None, None
        folder.mkdir()
        returner = "salt_cache"
        if name in ("local", "pgjsonb"):
            returner = {"local": "local_cache"}.get(name, name)
        if name == "sqlite":
            more = {"cache": name}
        if name == "pgjsonb":
            self._server = PostgreSQL("fsync=off")
            self.relay = Relay(self._server.port)
            more = {**self._server.options, "returner.pgjsonb.port": self.relay.port}
        if name == "postgresql":
            self._server = postgresql_server(folder)
            self.relay = Relay(self._server.options["postgresql.port"])
            more = {**self._server.make_database("bench"), "postgresql.port": self.relay.port}
        if name in SERVERS:
            self._server = SERVERS[name](folder).start()
            port = "cache.redis.port" if name == "redis" else f"{name}.port"
            self.relay = Relay(self._server.options[port])
            more = {**self._server.options, port: self.relay.port}
        own = {"master_job_cache": returner, "keep_jobs_seconds": 86400, "id": "m_master", "cache": "localfs"}
        self.opts = options(folder, **{**own, **more})
        self._loaded, self._returner = salt.loader.returners(self.opts, {}), returner
        self._runners = salt.loader.runner(self.opts)

    def call(self, function, *args, **kwargs):
        return self._loaded[f"{self._returner}.{function}"](*args, **kwargs)

    def look_up(self, jid):
        """Have the runner look a job up."""
        return self._runners["jobs.lookup_jid"](jid)

    @property
    def store(self):
        return store_of(self.opts) if self._returner == "salt_cache" else None

    def server_seconds(self):
        """CPU time of all processes of the server."""
        if self._server is None:
            return 0.0
        server = self._server.server if self.name == "postgresql" else self._server
        parent, total = psutil.Process(server.process.pid), 0.0
        for process in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user * (process == parent)
        return total

    def stop(self):
        if self.relay is not None:
            self.relay.stop()
        if self._server is not None:
            (
                self._server.server.remove
                if self.name == "postgresql"
                else getattr(self._server, "remove", self._server.stop)
            )()


def measured(column, work, calls):
    """Milliseconds of the caller and of the server, round trips and kB, per call."""
    before = column.relay.counts() if column.relay else [0, 0]
    server, began = column.server_seconds(), time.process_time()
    work()
    own, served = time.process_time() - began, column.server_seconds() - server
    time.sleep(0.05 if column.relay else 0)
    after = column.relay.counts() if column.relay else [0, 0]
    trips, size = (new - old for new, old in zip(after, before, strict=True))
    return own * 1000 / calls, served * 1000 / calls, trips / calls, size / 1000 / calls


def figures(column, count):
    begin = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=2)
    jids = [f"{begin + datetime.timedelta(milliseconds=100 * number):%Y%m%d%H%M%S%f}" for number in range(count)]
    wide = f"{begin - datetime.timedelta(hours=1):%Y%m%d%H%M%S%f}"
    minions, many = [f"web{number}" for number in range(10)], [f"web{number}" for number in range(WIDE)]

    def save(jid, names):
        column.call("prep_jid", passed_jid=jid)
        column.call("save_load", jid, {**LOAD, "jid": jid}, minions=names)

    def give_back(jid, names):
        for name in names:
            column.call("returner", {"jid": jid, "id": name, "fun": LOAD["fun"], "fun_args": LOAD["arg"], **RETURN})

    save("20200101000000000000", minions)  # the first call connects, and makes tables
    found = {}
    found["publish to 10"] = measured(column, lambda: [save(jid, minions) for jid in jids], count)
    found["return"] = measured(column, lambda: [give_back(jid, minions) for jid in jids], 10 * count)
    others = [f"{wide[:-2]}{number}" for number in range(10, 30)]
    save(wide, many)
    found[f"publish to {WIDE:,}"] = measured(column, lambda: [save(jid, many) for jid in others], len(others))
    give_back(wide, many)
    jids = jids[:100]
    found["get_load"] = measured(column, lambda: [column.call("get_load", jid) for jid in jids], len(jids))
    found["get_jid of 10"] = measured(column, lambda: [column.call("get_jid", jid) for jid in jids], len(jids))
    found[f"get_jid of {WIDE:,}"] = measured(column, lambda: column.call("get_jid", wide), 1)
    for width, jid in ((10, jids[0]), (WIDE, wide)):
        row = f"jobs.lookup_jid of {width:,}"
        found[row] = measured(column, lambda jid=jid: [column.look_up(jid) for _ in range(LOOKUPS)], LOOKUPS)
    found[f"get_jids of {count:,}"] = measured(column, lambda: column.call("get_jids"), 1)
    if column.name != "pgjsonb":
        found["get_jids_filter(20)"] = measured(column, lambda: column.call("get_jids_filter", 20), 1)
    if column.store is not None:
        for name, query in {
            "function": Query(fun=("state.*",)),
            "minion": Query(minion="web3"),
            "minion, one job": Query(minion=f"web{WIDE - 1}"),
            "failed, none": Query(outcome="failed"),
        }.items():
            found[f"search by {name}"] = measured(column, lambda query=query: search(column.store, query), 1)
        found["sweep, nothing to do"] = measured(column, lambda: sweep(column.store, 86400, time.time()), 1)
        later = time.time() + 2 * 86400
        found["removal of a job"] = measured(column, lambda: sweep(column.store, 86400, later), count + 2 + len(others))
    return found


def table(found):
    rows = list(dict.fromkeys(row for column in found.values() for row in column))
    print("\nms of CPU of the caller + of the server (round trips; kB on the wire)\n")
    print(f"| | {' | '.join(found)} |\n|---|{'---:|' * len(found)}")
    for row in rows:
        cells = []
        for column in found.values():
            if row not in column:
                cells.append("")
                continue
            own, served, trips, size = column[row]
            cells.append(f"{own:,.2f}" + (f" + {served:,.2f} ({trips:,.0f}; {size:,.1f})" if trips or size else ""))
        print(f"| {row} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--columns", default=",".join(COLUMNS))
    args = parser.parse_args()
    root = pathlib.Path(tempfile.mkdtemp(prefix="bench-"))
    print(f"Salt {salt.version.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    found = {}
    try:
        for name in args.columns.split(","):
            column = Column(name, root / name)
            try:
                found[name] = figures(column, args.jobs)
            finally:
                column.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    table(found)


if __name__ == "__main__":
    main()
