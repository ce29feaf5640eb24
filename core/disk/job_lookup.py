"""Finds and lists jobs by what is kept beside their records (``core/disk/job_index.py``)."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from typing import Any

import msgpack

from saltext.jobs.core.disk import packed
from saltext.jobs.core.disk.database import Database
from saltext.jobs.core.disk.job_index import LOADS, MINIONS, RETURNS, UNDATED, is_timed

FEW = 40
CHUNK = 500  # rows asked for at a time: a reader that stays in one query would keep -wal from being emptied
SOME = 5000  # rows that are removed in one transaction

_DATED = re.compile("[0-9]{8}").match
#: The oldest of what begins with a digit: in the loads and the lists of minions, and in the banks of the returns.
_FIRST_KEY = (
    "SELECT min(key) FROM records WHERE bank = (SELECT id FROM banks WHERE name = ?) AND key >= '0' AND key < ':'"
)
_FIRST_BANK = "SELECT min(name) FROM banks WHERE name >= ? || '0' AND name < ? || ':'"


class JobLookup:
    """:param database: the file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def jids(self, low: str, high: str, marks: tuple[str, str] | None = None) -> Iterator[str]:
        """
        Yield the jids of loads from ``high`` down to ``low``, both included, of those that begin with a date.

        :param marks: function and user of the loads, where not of all.
        """
        where = "fun = ? AND user = ? AND " if marks else ""
        query = f"SELECT jid FROM jobs WHERE {where}jid {{}} ? AND jid >= ? ORDER BY jid DESC LIMIT ?"
        edges = tuple(marks or ())
        # Who wants the newest wants few of them.
        rows = self._database.read(query.format("<="), (*edges, high, low, FEW))
        while rows:
            yield from (row[0] for row in rows if _DATED(row[0]))
            rows = self._database.read(query.format("<"), (*edges, rows[-1][0], low, CHUNK))

    def jids_near(self, low: str, high: str, minion: str) -> Iterator[str]:
        """As ``jids``, of the loads of all seconds in which a minion was sent a job or returned one."""
        found = self._database.read("SELECT id FROM minions WHERE name = ?", (minion,))
        if not found:
            return iter(())
        number = found[0][0]
        odd = (str(row[0]) for row in self._seconds(0, number))
        others = sorted((jid for jid in odd if _DATED(jid) and low <= jid <= high), reverse=True)
        return heapq.merge(self._timed(low, high, number), others, reverse=True)

    def _timed(self, low: str, high: str, minion: int) -> Iterator[str]:
        hour = self._hour_before(int(high[:10]) + 1 if is_timed(high) else 10**10)
        while hour and f"{hour:010d}~" >= low:
            for (second,) in self._seconds(hour, minion):
                first = f"{hour:010d}{second:04d}"
                yield from self.jids(max(low, first), min(high, f"{first}~"))
            hour = self._hour_before(hour)

    def _hour_before(self, hour: int) -> int:
        return int(self._database.read("SELECT max(hour) FROM jobs_of_minions WHERE hour < ?", (hour,))[0][0] or 0)

    def _seconds(self, hour: int, minion: int) -> list[tuple[Any, ...]]:
        query = "SELECT second FROM jobs_of_minions WHERE hour = ? AND minion = ? ORDER BY second DESC"
        return self._database.read(query, (hour, minion))

    def marks(self) -> Iterator[tuple[str, str]]:
        """Yield the different pairs of function and user of all loads: one look into the index for each."""
        # Not as one comparison of pairs: SQLite would go through all jobs of a function for it.
        same = "SELECT fun, user FROM jobs WHERE fun = ? AND user > ? ORDER BY user LIMIT 1"
        later = "SELECT fun, user FROM jobs WHERE fun > ? ORDER BY fun, user LIMIT 1"
        rows = self._database.read("SELECT fun, user FROM jobs ORDER BY fun, user LIMIT 1")
        while rows:
            yield rows[0][0], rows[0][1]
            rows = self._database.read(same, rows[0]) or self._database.read(later, rows[0][:1])

    def oldest(self, count: int) -> list[str]:
        """Return up to ``count`` jids of loads that begin with a date, oldest first."""
        found: list[str] = []
        query = f"SELECT jid FROM jobs WHERE jid > ? AND jid < ':' ORDER BY jid LIMIT {CHUNK}"
        rows = self._database.read(query, ("0",))
        while rows and len(found) < count:
            found += [row[0] for row in rows if _DATED(row[0])]
            rows = self._database.read(query, rows[-1])
        return found[:count]

    def undated(self) -> dict[str, float]:
        """Return the jids of loads that do not begin with a date, with the Unix times of their last write."""
        query = f"""SELECT jobs.jid, records.updated FROM jobs INDEXED BY jobs_undated
            CROSS JOIN records ON records.bank = (SELECT id FROM banks WHERE name = ?) AND records.key = jobs.jid
            WHERE {UNDATED.replace("jid", "jobs.jid")}"""
        return {key: at / 1000 for key, at in self._database.read(query, (LOADS,))}

    def shown(self) -> Iterator[tuple[list[str], list[list[Any] | None]]]:
        """
        Yield the jids of all loads, in order, and what is shown of each, in the same order, some at a time.

        None stands for what is shown of a job of which the load is to be read.
        """
        query = f"SELECT jid, shown FROM jobs WHERE jid > ? ORDER BY jid LIMIT {CHUNK}"
        rows = self._database.read(query, ("",))
        while rows:
            jids, values = zip(*rows, strict=True)
            if None not in values:
                # All as one list: to begin decoding costs more than most of them.
                found = packed.loads(msgpack.Packer().pack_array_header(len(values)) + b"".join(values))
            else:
                found = [None if value is None else packed.loads(value) for value in values]
            yield list(jids), found
            rows = self._database.read(query, (jids[-1],))

    def forget(self) -> int:
        """Remove some of what tells of minions' jobs in hours of which there are no loads any more; return how much."""
        # A job that is copied has its returns and minions before its load.
        firsts = [self._database.read(_FIRST_KEY, (bank,))[0][0] for bank in (LOADS, MINIONS)]
        firsts.append((self._database.read(_FIRST_BANK, (RETURNS, RETURNS))[0][0] or "")[len(RETURNS) :])
        first = min((jid for jid in firsts if jid), default="")
        kept = int(first[:10]) if is_timed(first) else int(first[:8]) * 100 if _DATED(first) else 0
        ((hour,),) = self._database.read("SELECT min(hour) FROM jobs_of_minions WHERE hour > 0")
        if hour is None or hour >= kept:
            return 0
        query = "SELECT minion FROM jobs_of_minions WHERE hour = ? ORDER BY minion LIMIT 1 OFFSET ?"
        last = self._database.read(query, (hour, SOME))
        with self._database.transaction() as sql:
            query = "DELETE FROM jobs_of_minions WHERE hour = ? AND minion <= ?"
            return sql.execute(query, (hour, last[0][0] if last else 2**62)).rowcount
