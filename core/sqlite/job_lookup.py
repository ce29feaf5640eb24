"""Finds and lists jobs by the index beside their records. ``core/sqlite/job_index.py`` says what marks are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import salt.payload

from saltext.jobs.core.banks import LOADS, MINIONS
from saltext.jobs.core.disk.job_summary import JobTally, decoded, shown_mark, tally_of
from saltext.jobs.core.sqlite import stored
from saltext.jobs.core.sqlite.database import Database
from saltext.jobs.core.sqlite.job_index import RETURNS, UNTIMED

FEW = 40  # rows read at first
CHUNK = 500  # rows read at a time: one long query would keep -wal from being emptied
SOME = 5000  # rows that one transaction removes

#: In place of a mark that was forgotten since its load was listed; the load is gone.
_GONE = ("", "")
_DATED = re.compile("[0-9]{8}").match
_OF = "bank = (SELECT id FROM banks WHERE name = ?)"


class JobLookup:
    """:param database: the file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def jids(self, low: str, high: str, mark: int | None = None) -> Iterator[str]:
        """
        Yield the jids of loads that begin with a date, from ``high`` down to ``low``, both included.

        :param mark: the number of their mark; by default any.
        """
        where = "" if mark is None else f"mark = {int(mark)} AND "
        query = f"SELECT jid FROM jobs WHERE {where}jid {{}} ? AND jid >= ? ORDER BY jid DESC LIMIT ?"
        # a caller that wants the newest jobs wants only a few
        rows = self._database.read(query.format("<="), (high, low, FEW))
        while rows:
            yield from (row[0] for row in rows if _DATED(row[0]))
            rows = self._database.read(query.format("<"), (rows[-1][0], low, CHUNK))

    def jids_near(self, low: str, high: str, minion: str) -> Iterator[str]:
        """As ``jids``, for jobs that are for a minion or that have its return."""
        found, size = self.jids(low, high), FEW
        while part := list(itertools.islice(found, size)):
            near = self.with_minion(part, minion)
            yield from (jid for jid in part if jid in near)
            size = CHUNK

    def with_minion(self, jids: Sequence[str], minion: str) -> set[str]:
        """Return those of some jids whose jobs list the minion in ``jobs/minions``, or have its return."""
        name = salt.payload.dumps(minion, use_bin_type=True)  # as it stands in a list: its length, then the name
        found, holding = set[str](), dict[bytes, bool]()
        for part in _parts(jids):
            for jid, listed in self._lists(part):
                if listed not in holding:  # jobs are often for the same minions
                    holding[listed] = _holds(listed, name)
                if holding[listed]:
                    found.add(jid)
            left = [jid for jid in part if jid not in found]
            query = f"""SELECT banks.name FROM banks JOIN records ON records.bank = banks.id AND records.key = ?
                WHERE banks.name IN ({_marks(left)})"""
            rows = self._database.read(query, (minion, *(f"{RETURNS}{jid}" for jid in left)))
            found.update(str(row[0])[len(RETURNS) :] for row in rows)
        return found

    def _lists(self, jids: Sequence[str]) -> list[tuple[str, bytes]]:
        """Return those of some jids with a list of minions, and the list as it is stored."""
        query = f"SELECT key, value FROM records WHERE {_OF} AND key IN ({_marks(jids)})"
        return [(row[0], row[1]) for row in self._database.read(query, (MINIONS, *jids))]

    def jids_failed(self, low: str, high: str) -> Iterator[str]:
        """As ``jids``, for jobs with a return that tells of a failure."""
        query = "SELECT DISTINCT jid FROM failures WHERE jid {} ? AND jid >= ? ORDER BY jid DESC LIMIT ?"
        rows = self._database.read(query.format("<="), (high, low, FEW))
        while rows:
            yield from (row[0] for row in rows if _DATED(row[0]))
            rows = self._database.read(query.format("<"), (rows[-1][0], low, CHUNK))

    def tallies(self, jids: Sequence[str], minion: str | None) -> dict[str, JobTally]:
        """
        Return the tallies of some jobs, without reading their returns. A job whose list of minions is damaged has none. A
        return that was removed while its job stays counts as missing.

        :param minion: the minion of ``of_minion``.
        """
        found, known = dict[str, JobTally](), dict[bytes, frozenset[str]]()
        for part in _parts(jids):
            lists = dict(self._lists(part))
            for jid in part:
                data = lists.get(jid, b"\x90")  # an empty list
                if data not in known:
                    try:
                        known[data] = frozenset(name for name in stored.loads(data) if isinstance(name, str))
                    except Exception:  # msgpack raises many kinds for a broken value
                        continue
                returned = self._database.read(f"SELECT key FROM records WHERE {_OF}", (f"{RETURNS}{jid}",))
                failed = self._database.read("SELECT minion FROM failures WHERE jid = ?", (jid,))
                found[jid] = tally_of(known[data], {row[0] for row in returned}, {row[0] for row in failed}, minion)
        return found

    def marks(self) -> list[tuple[int, str, str]]:
        """Return (number, function, user) for each pair of function and user that loads have, or had lately."""
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
        Yield what ``jobs.list_jobs`` shows of all loads, some at a time: their jids, in order; in the same order, their
        (function, user); and for each a list of arguments, target, target type and, if there is any, metadata.

        None in place of a list says that the load must be read, for example because the list is damaged.
        """
        query = f"SELECT jid, mark, shown FROM jobs WHERE jid > ? ORDER BY jid LIMIT {CHUNK}"
        known: dict[int, tuple[str, str]] = {}
        rows = self._database.read(query, ("",))
        while rows:
            jids, numbers, values = zip(*rows, strict=True)
            if not known.keys() >= set(numbers):
                known = {number: shown_mark(fun, user) for number, fun, user in self.marks()}
                # If a mark is missing, the load itself tells, if it still exists.
                values = tuple(
                    value if number in known else None for number, value in zip(numbers, values, strict=True)
                )
            yield jids, [known.get(number, _GONE) for number in numbers], decoded(values)
            rows = self._database.read(query, (jids[-1],))

    def forget(self) -> int:
        """Remove some pairs of function and user that no load has any more; return how many."""
        unused = "NOT EXISTS (SELECT 1 FROM jobs WHERE mark = marks.id)"
        found = self._database.read(f"SELECT id FROM marks WHERE {unused} LIMIT {SOME}")
        if found:
            with self._database.transaction() as sql:
                sql.executemany(f"DELETE FROM marks WHERE id = ? AND {unused}", found)
        return len(found)


def _holds(data: bytes, part: bytes) -> bool:
    try:
        return part in stored.serialized(data)
    except ValueError:  # it is damaged
        return False


def _parts(values: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def _marks(values: Sequence[str]) -> str:
    return ",".join("?" * len(values))
