"""
The cost of the master's own log: CPU time of the calling process, and bytes.

    python -m benchmarks.log                       the figures
    TMPDIR=/dev/shm python -m benchmarks.log       the same without what the file system costs

The job cache's ``save_load`` and ``returner`` are measured on localfs with and without the log, in one process and in many
short turns, one after the other. The best tenth of the turns counts: other work on the machine makes the others dearer, and
spoils a long turn nearly always.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import resource
import tempfile

from benchmarks.job_cache import LOAD, RETURN, jids, options
from saltext.jobs.core.log.records import publish_of, return_of
from saltext.jobs.core.site import site_of
from saltext.jobs.core.store.store import store_of

TURNS = 9
#: Pairs of short turns, and jobs in each; their returns are as many.
PAIRS, JOBS = 300, 20
MASTER = "here_master"


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def micros(count, work):
    """CPU time of one of ``count`` pieces of work, in microseconds."""
    before = cpu()
    for number in range(count):
        work(number)
    return (cpu() - before) / count * 1e6


def alone(folder, count):
    """The log by itself: appending a return, and a publish; their bytes; and reading."""
    site = site_of({"cachedir": str(folder), "id": MASTER})
    writer = site.log_writer()
    said = {**RETURN, "fun": "state.apply"}
    names = jids(count, 0)
    writer.append(return_of(names[0], "web0", said))
    reader = site.log()
    reader.read()

    def size():
        return sum(path.stat().st_size for path in folder.rglob("*.sqlite*"))

    before = size()
    appended = micros(count, lambda n: writer.append(return_of(names[n], "web1234.example.com", said)))
    between = size()
    two = ["web1.example.com", "web2.example.com"]
    published = micros(count, lambda n: writer.append(publish_of(names[n], LOAD, two)))
    bytes_of_return, bytes_of_publish = (between - before) / count, (size() - between) / count
    begin, found = cpu(), 0
    while True:
        news = reader.read()
        found += len(news.records)
        if not news.more:
            break
    assert found == 2 * count
    read = (cpu() - begin) / found * 1e6
    return appended, bytes_of_return, published, bytes_of_publish, read


def whole(folder, pairs):
    """``save_load`` and ``returner`` of the job cache: without the log, and with it."""
    module = importlib.import_module("saltext.jobs.returners.salt_cache")
    module.__opts__ = options(folder, id=MASTER, master_job_cache="salt_cache", cache="localfs")
    store = store_of(module.__opts__)
    log, figures = store.log, {False: [], True: []}
    names = jids(2 * pairs * JOBS, 0)
    for pair in range(pairs):
        for with_log in (False, True) if pair % 2 else (True, False):
            store.log = log if with_log else None
            mine, names = names[:JOBS], names[JOBS:]

            def save(n, mine=mine):
                module.save_load(mine[n], {**LOAD, "jid": mine[n]}, ["a", "b"])

            def give(n, mine=mine):
                module.returner({**RETURN, "jid": mine[n // 15], "id": f"web{n % 15}", "fun": "state.apply"})

            figures[with_log].append((micros(JOBS, save), micros(JOBS, give)))
    return [[sorted(turns)[pairs // 10] for turns in zip(*figures[way], strict=True)] for way in (False, True)]


def main():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    words.add_argument("--records", type=int, default=3000)
    count = words.parse_args().records
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        without, with_log = whole(pathlib.Path(second), min(count, PAIRS))
        rows = [alone(pathlib.Path(first, str(turn)), count) for turn in range(TURNS)]
    appended, size, published, publish_size, read = map(min, zip(*rows, strict=True))
    print(f"save_load    {without[0]:6.1f} µs without the log, {with_log[0]:6.1f} µs with it")
    print(f"returner     {without[1]:6.1f} µs without the log, {with_log[1]:6.1f} µs with it")
    print(f"a return     {appended:6.1f} µs, {size:.0f} bytes")
    print(f"a publish    {published:6.1f} µs, {publish_size:.0f} bytes")
    print(f"reading one  {read:6.1f} µs")


if __name__ == "__main__":
    main()
