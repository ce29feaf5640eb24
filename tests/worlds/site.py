"""
A site in memory (``saltext.jobs.core.site``), which forgets what is not durable when its power is cut: each file on its own,
at any byte of what was appended, and the last records of the log.

It is given to the extension under the option ``saltext_jobs_site``.
"""

from __future__ import annotations

import collections
import itertools
import random
import time
from typing import NamedTuple

import msgpack

from saltext.jobs.core.disk.lease import Lease, this_process
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ledger.log import News, Position
from saltext.jobs.core.log.records import Published

#: Seconds after which a machine has written to its disk what nobody has asked it to.
SYNCED = 30.0
#: Bytes of records from which on a journal is rewritten.
LARGE = 256 << 10


class File:
    """``data``: what a reader sees; ``kept``: what a power cut leaves of it at least, None for nothing."""

    def __init__(self):
        self.data, self.kept, self.at = b"", None, 0.0

    def write(self, data, durable, now):
        self.settle(now)
        self.data, self.at = data, now
        if durable:
            self.kept = data

    def settle(self, now):
        if self.at and now - self.at > SYNCED:
            self.kept = self.data

    def lose(self, fate, now):
        """Forget what is not durable, or some of it, or nothing."""
        self.settle(now)
        if self.kept is not None and self.data.startswith(self.kept):
            self.data = self.data[: fate.randint(len(self.kept), len(self.data))]
        elif fate.random() < 0.5:
            self.data = self.kept
        self.kept = self.data


class Disk:
    """
    What the masters of a site share.

    :param now: returns Unix time.
    :param fate: decides what a power cut takes.
    """

    def __init__(self, now=time.time, fate=None):
        self.now, self.fate = now, fate or random.Random(0)
        self.files = collections.defaultdict(dict)  # engine -> {name: File}
        self.leases, self.leaders, self.beats = {}, {}, {}
        self.written = lambda engine, name, data: None  # called for each file that was written
        self.names = (f"log {number}" for number in itertools.count(1))
        self.boots = "1"  # the boot id of the machine
        self.lose_log()

    @property
    def synced(self):
        """How many records of the log a power cut leaves at least: a publish is synced, with all before it."""
        return max((number for number, record in enumerate(self.log, 1) if isinstance(record, Published)), default=0)

    def lose_log(self):
        """The log is removed, and begins anew."""
        self.log, self.log_name, self.is_writable = [], next(self.names), True

    def reboot(self, records):
        """The machine reboots. The log keeps so many records, and all up to the last publish."""
        self.log, self.boots = self.log[: max(records, self.synced)], f"{self.boots}1"

    def cut_power(self):
        for files in self.files.values():
            for name, file in list(files.items()):
                file.lose(self.fate, self.now())
                if file.data is None:
                    del files[name]
        self.reboot(self.fate.randint(self.synced, len(self.log)))


class MemoryLease(Lease):
    """The lead of an engine. What a process writes that has lost it, or was killed, is refused."""

    def __init__(self, disk, engine, master, run):
        super().__init__()
        self._disk, self._engine, self._master, self._run = disk, engine, master, run

    @property
    def leads(self):
        return self._disk.leases.get(self._engine) is self

    def take(self):
        if self._disk.leases.get(self._engine):
            return False
        self.predecessor = self._disk.leaders.get(self._engine)
        epoch = 1 + (self.predecessor.epoch if self.predecessor else 0)
        self.leader = self._disk.leaders[self._engine] = this_process(epoch, self._master, self._run)
        self._disk.leases[self._engine] = self
        self.beat()
        return True

    def check(self):
        if not self.leads:
            raise OSError("this process does not lead")

    def beat(self):
        self._disk.beats[self._engine] = self._disk.now()

    def release(self):
        if self.leads:
            del self._disk.leases[self._engine]


class MemorySite:
    """
    :param master: the id of the master that sees it.
    :param disk: what it shares with the others.
    """

    patience, place = 10.0, "memory"

    def __init__(self, master, disk):
        self._master, self.disk = master, disk

    def now(self):
        return self.disk.now()

    def lease_left(self, engine):
        return None

    def doubts(self):
        return []

    def path(self, engine):
        return None

    def lease(self, engine, run=""):
        return MemoryLease(self.disk, engine, self._master, run)

    def leader(self, engine):
        return self.disk.leaders.get(engine)

    def is_led(self, engine):
        return engine in self.disk.leases

    def alive_at(self, engine):
        return self.disk.beats.get(engine)

    def folder(self, engine, lease=None):
        return MemoryFolder(self.disk, engine, lease)

    def log(self, position=None):
        return MemoryReader(self.disk, position)

    def log_writer(self, size=0):
        return MemoryWriter(self.disk)

    def shares(self, master):
        return master == self._master

    def banks(self, lease):
        return None

    def keep_log(self, reader, position):
        pass


class MemoryFolder:
    """The files of one engine."""

    def __init__(self, disk, engine, lease):
        self._disk, self._engine, self._lease = disk, engine, lease
        self._files = disk.files[engine]

    def check(self):
        if self._lease is not None:
            self._lease.check()

    def where(self, name=""):
        return f"{self._engine}/{name}"

    def file(self, name):
        if name not in self._files:
            raise FileNotFoundError(name)
        return self._files[name]

    def read(self, name):
        return self.file(name).data

    def write(self, name, data, durable=False):
        self.check()
        self._files.setdefault(name, File()).write(data, durable, self._disk.now())
        self._disk.written(self._engine, name, data)

    def names(self, below):
        return sorted(name for name in self._files if name.startswith(f"{below}/"))

    def modified(self, name):
        return self.file(name).at

    def rename(self, old, new):
        self.check()
        file = self.file(old)
        del self._files[old]
        self._files[new] = file

    def set_aside(self, name):
        if self.exists(name):
            self.rename(name, f"{name}.corrupt")
            self._files[f"{name}.corrupt"].at = self._disk.now()
        return self.where(f"{name}.corrupt")

    def remove(self, name):
        self.check()
        return self._files.pop(name, None) is not None

    def exists(self, *names):
        return any(name in self._files for name in names)

    def sweep(self, below):
        pass

    def journal(self, name):
        return MemoryJournal(self, name)


class Content(NamedTuple):
    snapshot: object
    records: list
    length: int
    begin: int


class MemoryJournal:
    """A snapshot, and records that are appended to it."""

    def __init__(self, folder, name):
        self._folder, self._name = folder, name
        self._begin, self._is_open, self._fresh = 0, False, None

    def read(self):
        data, values, ends = self._folder.read(self._name), [], []
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(data)
        while True:
            try:
                values.append(unpacker.unpack())
            except msgpack.OutOfData:  # what is torn was not acted on
                break
            ends.append(unpacker.tell())
        if not all(isinstance(value, (list, dict)) for value in values[:1]) or not values:
            raise StateError(f"{self._folder.where(self._name)} holds no snapshot")
        return Content(values[0], values[1:], ends[-1], ends[0])

    def open(self, content):
        self._write(self._folder.read(self._name)[: content.length], True)
        self._begin, self._is_open = content.begin, True

    def _write(self, data, durable):
        self._folder.write(self._name, data, durable)

    @property
    def whole(self):
        return self._is_open

    @property
    def behind(self):
        return False

    @property
    def size(self):
        return len(self._folder.read(self._name)) if self._is_open else 0

    @property
    def overgrown(self):
        return self._is_open and self._fresh is None and self.size - self._begin > LARGE

    def append(self, record):
        if not self._is_open and self._fresh is None:
            raise OSError(f"{self._name} is not open")
        data = msgpack.packb(record)
        if self._is_open:
            self._write(self._folder.read(self._name) + data, False)
        if self._fresh is not None:
            self._fresh += data

    def begin_rewrite(self, snapshot):
        self._fresh = msgpack.packb(snapshot)
        self._next = len(self._fresh)

    def finish_rewrite(self):
        if self._fresh is None:
            raise OSError(f"{self._name} is not being rewritten")
        fresh, self._fresh = self._fresh, None
        self._write(fresh, True)
        self._begin, self._is_open = self._next, True

    def rewrite(self, snapshot):
        self.begin_rewrite(snapshot)
        self.finish_rewrite()

    def sync(self):
        if not self._is_open:
            raise OSError(f"{self._name} is not open")
        self._write(self._folder.read(self._name), True)

    def close(self):
        self._is_open = False


class MemoryWriter:
    """Appends to the log."""

    def __init__(self, disk):
        self._disk = disk

    def append(self, record, durable=False):
        if self._disk.is_writable:
            self._disk.log.append(record)
        return self._disk.is_writable

    def close(self):
        pass


class MemoryReader:
    """
    Reads the log from a position, or from its end.

    :param part: most records that are read at once.
    """

    def __init__(self, disk, begin, part=10_000):
        self._disk, self.part = disk, part
        self._gap = "" if begin and begin.boot == disk.boots else "it may lack records"
        self._log, self._boot, self._offset = disk.log_name, disk.boots, 0
        if begin is None:
            self._offset = len(disk.log)
        elif not self._gap or begin.log != disk.log_name:
            self._log, self._offset = begin.log, begin.offset

    @property
    def there(self):
        return self._disk.is_writable

    @property
    def position(self):
        return Position(self._log, self._offset, 0, self._boot)

    def read(self):
        if self._log != self._disk.log_name:
            self._log, self._offset, self._gap = self._disk.log_name, 0, "it was removed"
        log, end = self._disk.log, self._offset + self.part
        found, self._offset = log[self._offset : end], min(end, len(log))
        gap, self._gap = self._gap, ""
        return News(found, gap, self._offset < len(log))

    def look(self):
        return lambda: True

    def close(self):
        pass
