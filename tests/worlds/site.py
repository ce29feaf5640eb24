"""
A site in memory (``saltext.jobs.core.site``): the real tables and their statements, in a database that forgets what is not
durable when its power is cut. What is lost is one common suffix of everything that was written.

It is given to the extension under the option ``saltext_jobs_site``.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import sqlite3
import time

from saltext.jobs.core.disk.lease import Lead, Lease, this_process
from saltext.jobs.core.errors import SiteAway
from saltext.jobs.core.ledger import records, tables
from saltext.jobs.core.ledger.requests import ANSWER

#: Seconds after which a machine has written to its disk what nobody has asked it to.
SYNCED = 30.0


@functools.cache
def _tables_in(statement):
    return frozenset(re.findall(r"saltext_jobs_\w+", statement))


class Database:
    """:param now: returns Unix time. :param name: of the site that it begins."""

    def __init__(self, now, name):
        self.sql = sqlite3.connect(":memory:", isolation_level=None)
        self.sql.create_function("world_now", 0, now)
        for statement in tables.statements(DIALECT, name):
            self.sql.execute(statement)

    def copy_to(self, other):
        self.sql.backup(other.sql)


DIALECT = tables.SQLITE._replace(now="world_now()")
ANSWERS = DIALECT.of(ANSWER)


class Disk:
    """
    What the masters of a site share.

    :param now: returns Unix time.
    :param fate: decides what a power cut takes.
    """

    def __init__(self, now=time.time, fate=None):
        self.now, self.fate = now, fate or random.Random(0)
        self.leases, self.leaders, self.beats = {}, {}, {}
        self.answered = lambda engine, request_id, reply: None  # called for each request that is answered
        self.stores = lambda: None  # called before and after a transaction of an engine; it may raise
        self._found = {}  # (query, values) -> what was found since the last write: most reads find nothing new
        self._at = None  # the time of a transaction that is carried out again
        self._names = (f"database {number}" for number in itertools.count(1))
        self.boots, self.gaps, self.is_writable = "1", 0, True
        self.begin()

    def begin(self):
        """Begin another database, as after the one in use was set aside."""
        name = next(self._names)
        self.live, self._kept = (Database(self._time, name) for _ in range(2))
        self._found.clear()
        self.pending, self._synced = [], []  # transactions that are not on the disk; statements that are, with times
        self._now_open = None  # the statements of the transaction that is open

    def _time(self):
        return self.now() if self._at is None else self._at

    @property
    def name(self):
        return self.read(tables.NAME)[0][0]

    @property
    def log(self):
        """The records of the log."""
        rows = self.read(f"SELECT jid, minion, body FROM {tables.LOG} WHERE body IS NOT NULL ORDER BY place")
        return [records.read(*row) for row in rows]

    def read(self, query, values=()):
        among = self._found.setdefault(_tables_in(query), {})
        key = (query, *values)
        found = among.get(key)
        if found is None:
            found = self.live.sql.execute(query, values).fetchall()
            if DIALECT.now not in query:
                among[key] = found
        return found

    @property
    def is_open(self):
        """Whether a transaction is open."""
        return self._now_open is not None

    def transaction(self, work, durable):
        """Carry out ``work``, whose statements are carried out by ``execute``: all of it, or nothing."""
        self._now_open = []
        self.live.sql.execute("BEGIN")
        try:
            found = work()
            self.live.sql.execute("COMMIT")
            done = self._now_open
            self.pending.append((self.now(), done))
        except BaseException:
            self.live.sql.execute("ROLLBACK")
            self._found.clear()
            raise
        finally:
            self._now_open = None
        self._keep(len(self.pending) if durable else self._count_until(self.now() - SYNCED))
        for _, (reply, engine, request_id) in (each for each in done if each[0] == ANSWERS):
            self.answered(engine, request_id, reply)
        return found

    def execute(self, statement, values=()):
        written = _tables_in(statement)
        for names in [names for names in self._found if not written.isdisjoint(names)]:
            del self._found[names]
        self._now_open.append((statement, tuple(values)))
        return self.live.sql.execute(statement, values)

    def _count_until(self, moment):
        return sum(1 for _ in itertools.takewhile(lambda each: each[0] <= moment, self.pending))

    def _keep(self, count):
        self._synced += [(at, *each) for at, statements in self.pending[:count] for each in statements]
        del self.pending[:count]

    @property
    def kept(self):
        """What is on the disk. Few worlds lose power, so it is written when it is asked for."""
        for at, statement, values in self._synced:
            self._at = at
            self._kept.sql.execute(statement, values)
        self._at, self._synced = None, []
        return self._kept

    def cut_power(self):
        """The machine loses power, and reboots."""
        self.reboot(self.fate.randint(0, len(self.pending)))

    def reboot(self, count):
        """The machine reboots, with so many of the transactions that were not on the disk yet."""
        self._keep(count)
        self.pending = []
        self.kept.copy_to(self.live)
        self._found.clear()
        self.boots = f"{self.boots}1"

    def reboot_after(self, records):
        """The same, when the log has so many records, or those that were synced."""
        ((had,),) = self.kept.sql.execute(f"SELECT count(*) FROM {tables.LOG}").fetchall()
        count = 0
        for _, statements in self.pending:
            had += sum(statement == DIALECT.append for statement, _ in statements)
            if had > records:
                break
            count += 1
        self.reboot(count)

    def lose_log(self):
        """The log's records are gone before they were read."""
        last = self.read(f"SELECT coalesce(max(place), 0) FROM {tables.LOG}")[0][0]

        def work():
            self.execute(f"INSERT INTO {tables.LOG} (place, jid, minion, mark) VALUES (?, '', '', '')", (last + 1,))
            self.execute(f"DELETE FROM {tables.LOG} WHERE place <= ?", (last,))
            self.execute(f"UPDATE {tables.SITE} SET removed = ?", (last,))

        self.transaction(work, durable=False)


class MemoryTables(tables.Tables):
    """
    :param engine: whose they are; None for those of the master's workers, and of runners.
    :param reads: whether they can be read now.
    :param master: the id of the master that has them.
    """

    dialect, place = DIALECT, "memory"

    def __init__(self, disk, engine=None, reads=lambda: True, master=""):
        self.disk, self._engine, self._reads, self._master = disk, engine, reads, master

    def read(self, query, values=()):
        if not self._reads():
            raise SiteAway("the server is away")
        return self.disk.read(DIALECT.of(query), values)

    def changed(self, query, values=(), durable=False):
        return self.together(lambda: self.disk.execute(DIALECT.of(query), values).rowcount, durable=durable)

    def together(self, work, lease=None, durable=False):
        if self.disk.is_open:
            return work()
        if not self.disk.is_writable and self._engine is None:
            raise SiteAway("the disk is full")
        if lease is not None:
            lease.check()
        if self._engine:
            self.disk.stores()
        found = self.disk.transaction(work, durable)
        if self._engine:
            self.disk.stores()
        return found

    def boot(self):
        return self.disk.boots

    def gaps(self):
        return self.disk.gaps

    def note_gap(self):
        self.disk.gaps += 1
        return True

    def lease(self, engine, run=""):
        return MemoryLease(self.disk, engine, self._master, run)

    def leader(self, engine):
        return self.disk.leaders.get(engine)

    def lead(self, engine):
        if engine not in self.disk.leases:
            return None
        return Lead(self.leader(engine), self.disk.now() - self.disk.beats[engine])


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
