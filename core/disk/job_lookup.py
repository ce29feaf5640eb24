"""Finds and lists jobs by what is kept beside their records (``core/disk/job_index.py``)."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack

from saltext.jobs.core.disk import packed
from saltext.jobs.core.disk.database import Database
from saltext.jobs.core.disk.job_index import LOADS, MINIONS, RETURNS, UNTIMED, is_timed, seconds_in, shown_mark

FEW = 40
CHUNK = 500  # rows asked for at a time: a reader that stays in one query would keep -wal from being emptied
SOME = 5000  # rows that are removed in one transaction

#: Stands for a mark that was forgotten since its load was listed; the load is gone.
_GONE = ("", "")
#: Of what is shown of a job, without metadata and with.
_LENGTHS = {3, 4}
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

    def jids(self, low: str, high: str, mark: int | None = None) -> Iterator[str]:
        """
        Yield the jids of loads from ``high`` down to ``low``, both included, of those that begin with a date.

        :param mark: the number of their mark, where not of all.
        """
        return self._down("jobs", "" if mark is None else f"mark = {int(mark)} AND ", low, high)

    def _down(self, table: str, where: str, low: str, high: str) -> Iterator[str]:
        query = f"SELECT jid FROM {table} WHERE {where}jid {{}} ? AND jid >= ? ORDER BY jid DESC LIMIT ?"
        # Who wants the newest wants few of them.
        rows = self._database.read(query.format("<="), (high, low, FEW))
        while rows:
            yield from (row[0] for row in rows if _DATED(row[0]))
            rows = self._database.read(query.format("<"), (rows[-1][0], low, CHUNK))

    def jids_near(self, low: str, high: str, minion: str) -> Iterator[str]:
        """As ``jids``, of the loads of all seconds in which a minion had a job, and of all jids that tell no second."""
        found = self._database.read("SELECT id FROM minions WHERE name = ?", (minion,))
        others = self._down("jobs INDEXED BY jobs_untimed", f"{UNTIMED} AND ", low, high)
        return heapq.merge(self._timed(low, high, found[0][0]) if found else (), others, reverse=True)

    def _timed(self, low: str, high: str, minion: int) -> Iterator[str]:
        hour = self._hour_before(int(high[:10]) + 1 if is_timed(high) else 10**10)
        query = "SELECT seconds FROM jobs_of_minions WHERE hour = ? AND minion = ?"
        while hour is not None and f"{hour:010d}~" >= low:
            for (text,) in self._database.read(query, (hour, minion)):
                for second in seconds_in(text):
                    first = f"{hour:010d}{second}"
                    yield from self.jids(max(low, first), min(high, f"{first}~"))
            hour = self._hour_before(hour)

    def _hour_before(self, hour: int) -> int | None:
        found: int | None = self._database.read("SELECT max(hour) FROM jobs_of_minions WHERE hour < ?", (hour,))[0][0]
        return found

    def marks(self) -> list[tuple[int, str, str]]:
        """Return the pairs of function and user that loads have, or had lately, each with its number before it."""
        return [(row[0], row[1], row[2]) for row in self._database.read("SELECT id, fun, user FROM marks")]

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
        query = f"""SELECT jobs.jid, records.updated FROM jobs INDEXED BY jobs_untimed
            CROSS JOIN records ON records.bank = (SELECT id FROM banks WHERE name = ?) AND records.key = jobs.jid
            WHERE {UNTIMED.replace("jid", "jobs.jid")}"""
        return {key: at / 1000 for key, at in self._database.read(query, (LOADS,)) if not _DATED(key)}

    def shown(self) -> Iterator[tuple[Sequence[str], list[tuple[str, str]], list[list[Any] | None]]]:
        """
        Yield what is shown of all loads, some at a time: their jids, in order; in the same order, their functions and users;
        and lists of arguments, target, target type and, where there is some, metadata.

        None stands for a list where the load is to be read, also since the list is damaged.
        """
        query = f"SELECT jid, mark, shown FROM jobs WHERE jid > ? ORDER BY jid LIMIT {CHUNK}"
        known: dict[int, tuple[str, str]] = {}
        rows = self._database.read(query, ("",))
        while rows:
            jids, numbers, values = zip(*rows, strict=True)
            if not known.keys() >= set(numbers):
                known = {number: shown_mark(fun, user) for number, fun, user in self.marks()}
                # Where a mark is missing the load itself tells, if it is there still.
                values = tuple(
                    value if number in known else None for number, value in zip(numbers, values, strict=True)
                )
            yield jids, [known.get(number, _GONE) for number in numbers], _decoded(values)
            rows = self._database.read(query, (jids[-1],))

    def _first_hour(self) -> int:
        """Return the hour of the oldest job of which there is anything; 0 where that is not known."""
        # A job that is copied has its returns and minions before its load.
        firsts = [self._database.read(_FIRST_KEY, (bank,))[0][0] for bank in (LOADS, MINIONS)]
        firsts.append((self._database.read(_FIRST_BANK, (RETURNS, RETURNS))[0][0] or "")[len(RETURNS) :])
        first = min((jid for jid in firsts if jid), default="")
        return int(first[:10]) if is_timed(first) else int(first[:8]) * 100 if _DATED(first) else 0

    def forget(self) -> int:
        """Remove some of what tells of minions' jobs in hours of which there are no loads any more; return how much."""
        kept = self._first_hour()
        query = "SELECT hour, minion FROM jobs_of_minions WHERE hour < ? ORDER BY hour, minion LIMIT 1 OFFSET ?"
        if not self._database.read(query, (kept, 0)):
            return self._forget_marks()
        last = self._database.read(query, (kept, SOME)) or [(kept, -1)]
        with self._database.transaction() as sql:
            if self._first_hour() < kept:
                return 0  # somebody has stored older ones meanwhile
            count = sql.execute("DELETE FROM jobs_of_minions WHERE hour < ?", last[0][:1]).rowcount
            count += sql.execute("DELETE FROM jobs_of_minions WHERE hour = ? AND minion <= ?", last[0]).rowcount
        return count

    def _forget_marks(self) -> int:
        """Remove some of the pairs of function and user that no load has any more; return how many."""
        unused = "NOT EXISTS (SELECT 1 FROM jobs WHERE mark = marks.id)"
        found = self._database.read(f"SELECT id FROM marks WHERE {unused} LIMIT {SOME}")
        if found:
            with self._database.transaction() as sql:
                sql.executemany(f"DELETE FROM marks WHERE id = ? AND {unused}", found)
        return len(found)


def _decoded(values: Sequence[bytes | None]) -> list[Any]:
    """Decode what is shown of jobs; None for what is damaged. All as one list: to begin costs more than most of them."""
    some = [value for value in values if value is not None]
    try:
        found = packed.loads(msgpack.Packer().pack_array_header(len(some)) + b"".join(some))
        if not set(map(type, found)) <= {list} or not set(map(len, found)) <= _LENGTHS:
            raise ValueError("one of them is nothing that is shown of a job")
    except Exception:  # msgpack raises many kinds for a broken value
        return [_decoded([value])[0] if value and len(values) > 1 else None for value in values]
    each = iter(found)
    return [None if value is None else next(each) for value in values] if len(some) < len(values) else found
