"""
The cost of a site in PostgreSQL, beside one in SQLite: CPU time of this process and of the server, wall time, and how
many facts of a batch become durable in a second.

    python -m benchmarks.site                      in the temporary folder; the server syncs (fsync is on)
    python -m benchmarks.site --records 200        a short look

A server is started for it on a free port. Both forms are measured in turns, and the least of several turns counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import resource
import tempfile
import time

import psutil

from saltext.jobs.core.ledger.batches import Batches, Change, Kind
from saltext.jobs.core.ledger.log import Writer
from saltext.jobs.core.ledger.records import Returned
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.site import site_of
from tests.postgresql import PostgreSQL

TURNS = 3
ENGINE = "batch_manager"
SHARED = "postgresql"
ALONE, TOGETHER = "a durable return of a batch", "50 durable returns of a batch"
BODY, PART = b"x" * 2000, b"x" * 40


class Meter:
    """CPU seconds of this process, and of a server with its children."""

    def __init__(self, server):
        self._server = psutil.Process(server.process.pid)

    def now(self):
        used = resource.getrusage(resource.RUSAGE_SELF)
        own = used.ru_utime + used.ru_stime
        spent = 0.0
        for process in (self._server, *self._server.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                spent += sum(process.cpu_times()[:2])
        return own, spent, time.perf_counter()

    def each(self, count, work):
        """Milliseconds (CPU of this process, CPU of the server, wall time) of one of ``count`` pieces of work."""
        before = self.now()
        for number in range(count):
            work(number)
        return tuple((after - was) / count * 1e3 for was, after in zip(before, self.now(), strict=True))


def works(site, count):
    """``{name: (how often, work)}`` of what the engines and the master do."""
    lease = site.lease(ENGINE)
    assert lease.take()
    requests, writer = Requests(site, ENGINE, lease), Writer(site)

    def durable(returns):
        parts = {f"web{number:04}.example.com": PART for number in range(returns)}
        Batches(site, lease).write([Change("20260101000000000000", Kind.OPEN, lambda: b"", BODY, parts)])

    yield {
        "a look whether it leads": (20 * count, lambda number: lease.check()),
        ALONE: (count, lambda number: durable(1)),
        TOGETHER: (max(1, count // 10), lambda number: durable(50)),
        "a record of the log": (
            count,
            lambda number: writer.append(Returned(f"{number:020d}", "web1234.example.com", "state.apply", 0, 1.0)),
        ),
        "a request, made, taken and answered": (count, lambda number: ask(requests, number)),
        "who leads, asked by a publish": (count, lambda number: site.leader(ENGINE)),
    }
    lease.release()


def ask(requests, number):
    name = f"{number:020d}"
    requests.add(name, b"x" * 200)
    assert requests.take(name)
    requests.answer(name, b"x" * 200)
    requests.forget(name)


def measure(count):
    server = PostgreSQL("shared_buffers=64MB")
    try:
        meter, found = Meter(server), {}
        options = {
            "master_job_cache": "salt_cache",
            "cache": SHARED,
            "postgresql.host": "127.0.0.1",
            "postgresql.port": server.port,
            "postgresql.db": "postgres",
        }
        for _ in range(TURNS):
            for form in (None, SHARED):
                with tempfile.TemporaryDirectory(prefix="sj-site-") as folder:
                    cachedir = pathlib.Path(folder)
                    (cachedir / "master.pem").write_bytes(b"the key of the masters")
                    its = {"cachedir": str(cachedir), "pki_dir": str(cachedir), "id": "one"}
                    site = site_of({**options, **its, "saltext_jobs_site": form})
                    for made in works(site, count):
                        for name, (often, work) in made.items():
                            spent = meter.each(often, work)
                            best = found.setdefault(name, {}).get(form, spent)
                            found[name][form] = min(best, spent)
        return found
    finally:
        server.remove()


def sync_of_the_disk(count=100):
    """Return how many milliseconds a small write to the temporary folder takes to become durable."""
    with tempfile.TemporaryFile(buffering=0) as file:
        began = time.perf_counter()
        for _ in range(count):
            file.write(b"x" * 100)
            os.fdatasync(file.fileno())
        return (time.perf_counter() - began) / count * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--records", type=int, default=1000)
    found = measure(parser.parse_args().records)
    print("| | SQLite: CPU, wall | PostgreSQL: CPU here, of the server, wall |\n|---|---|---|")
    for name, spent in found.items():
        (own, _, wall), (theirs, server, long) = spent[None], spent[SHARED]
        print(f"| {name} | {own:.3f} ms, {wall:.3f} | {theirs:.3f} ms, {server:.3f}, {long:.3f} |")
    print("\n| facts that become durable in a second | SQLite | PostgreSQL |\n|---|---|---|")
    for name, each in ((ALONE, 1), (TOGETHER, 50)):
        rates = [f"{each * 1e3 / found[name][form][-1]:,.0f}" for form in (None, SHARED)]
        print(f"| {name} | {' | '.join(rates)} |")
    print(f"\nA sync of this disk alone takes {sync_of_the_disk():.3f} ms.")


if __name__ == "__main__":
    main()
