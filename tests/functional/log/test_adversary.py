"""
An adversary that kills writers, freezes them, fills the disk, writes garbage and removes what is old, while readers that
restart from their checkpoints read. Each writer reports through its own pipe what it has appended: that is the truth.
"""

from __future__ import annotations

import collections
import multiprocessing
import os
import random
import signal
import time

import pytest

from saltext.jobs.core.log import checkpoints, records, segments
from saltext.jobs.core.log.reader import Reader
from saltext.jobs.core.log.writer import Writer
from tests.faults import full_disk

FORK = multiprocessing.get_context("fork")
SECONDS = float(os.environ.get("SALTEXT_JOBS_LOG_ADVERSARY", "4"))
#: Seconds of the attacks that are made each time.
SHORT = min(SECONDS, 1.0)
#: Records that each reader must have read.
ENOUGH = 100


def write(folder, name, seed, truth, fills):
    """Append, and report what was appended and when the append ended. If it ``fills``, the disk is full now and then."""
    rng, writer, number = random.Random(seed), Writer(folder, size=1 << 30), 0
    while True:
        record = records.Returned(str(number), name, "f" * rng.choice((1, 40, 40, 40, 3000)), 0, True, time.monotonic())
        if fills and rng.random() < 0.01:
            try:
                size = segments.path_of(folder, segments.numbers(folder)[-1]).stat().st_size
            except (OSError, IndexError):
                size = 0
            with full_disk(size + rng.randrange(60)):
                is_there = writer.append(record)
        else:
            is_there = writer.append(record)
        if is_there:
            truth.write(f"{number} {time.monotonic()}\n".encode())
        number += 1
        if rng.random() < 0.05:
            time.sleep(rng.random() / 100)
        if rng.random() < 0.01:
            writer.close()


class Told:
    """A reader that dies and begins again at its last checkpoint."""

    def __init__(self, folder, name):
        self._folder, self._name, self.found, self.gap_at = folder, name, [], 0.0
        self._kept, self._kept_gap = 0, 0.0
        self._reader, self._place = Reader(folder), None
        self.read()
        self.checkpoint()

    def read(self):
        news = self._reader.read()
        self.found += [(record.minion, int(record.jid), record.at) for record in news.records]
        if news.gap:
            self.gap_at = time.monotonic()
        return news

    def checkpoint(self):
        if self._reader.position is not None:
            self._place = self._reader.position
            checkpoints.write(self._folder, self._name, self._place)
            self._kept, self._kept_gap = len(self.found), self.gap_at

    def restart(self):
        self._reader.close()
        self._reader = Reader(self._folder, self._place)
        del self.found[self._kept :]
        self.gap_at = self._kept_gap


@pytest.mark.parametrize(
    "seed, seconds",
    [*((seed, SHORT) for seed in range(4)), *(pytest.param(seed, SECONDS, marks=pytest.mark.slow) for seed in (4, 5))],
)
def test_whatever_happens_each_record_is_read_once_or_a_gap_is_reported(tmp_path, seed, seconds):
    loses = seed % 2 == 1  # whether records are lost too; if not, none that was appended may be missing, gap or not
    rng, folder = random.Random(seed), segments.folder_of(tmp_path, "m")
    first = Writer(folder, size=1 << 30, length=rng.choice((1500, 30_000)))
    first.append(records.Returned("0", "first", "f", 0, True, 0.0))
    readers = [Told(folder, f"reader{number}") for number in range(2)]
    writers, truth, names = {}, {}, iter(range(10_000))

    def begin():
        name = f"w{next(names)}"
        truth[name] = tmp_path / f"{name}.truth"
        process = FORK.Process(target=run, args=(folder, name, rng.random(), truth[name], loses), daemon=True)
        process.start()
        writers[name] = process

    def run(folder, name, seed, path, fills):
        with open(path, "wb", buffering=0) as stream:
            write(folder, name, seed, stream, fills)

    for _ in range(4):
        begin()
    end = time.monotonic() + seconds
    # A busy machine takes longer until there is enough to judge.
    while time.monotonic() < end or min(len(reader.found) for reader in readers) <= ENOUGH:
        time.sleep(rng.random() / 20)
        name = rng.choice(sorted(writers))
        what = rng.random()
        if what < 0.1:
            os.kill(writers[name].pid, signal.SIGKILL)
            writers.pop(name).join()
            begin()
        elif what < 0.3:
            os.kill(writers[name].pid, rng.choice((signal.SIGSTOP, signal.SIGCONT)))
        elif what < 0.35 and loses:
            with open(segments.path_of(folder, segments.numbers(folder)[-1]), "ab") as stream:
                stream.write(rng.choice((bytes(rng.randrange(300)), b"\xc1\xc1\xc1\x01" * 9, rng.randbytes(200))))
        for reader in readers:
            if rng.random() < 0.7:
                reader.read()
            if rng.random() < 0.2:
                reader.checkpoint()
            if rng.random() < 0.1:
                reader.restart()
    for process in writers.values():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    first.append(records.Returned("1", "first", "f", 0, True, 0.0))  # what was cut off before it is damage now
    for reader in readers:
        while reader.read().more:
            pass
        check(reader, truth, loses)
    first.close()


def check(reader, truth, loses):
    by_writer = collections.defaultdict(list)
    for name, number, _ in reader.found:
        by_writer[name].append(number)
    total = 0
    for name, path in truth.items():
        seen = by_writer[name]
        assert seen == sorted(set(seen)), "once, and in the writer's order"
        there = set(seen)
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        for line in lines:
            number, at = line.split()
            if float(at) > reader.gap_at or not loses:
                assert int(number) in there
        total += len(seen)
        appended = {int(line.split()[0]) for line in lines}
        # A killed writer may not have reported its last record.
        assert len(there - appended) <= 1, "nothing is read that was not written"
    assert total > ENOUGH
