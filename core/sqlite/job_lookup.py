"""Finds and lists jobs by the index beside their records. ``core/sqlite/job_index.py`` says what marks and stretches are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from saltext.jobs.core.banks import LOADS, MINIONS
from saltext.jobs.core.disk.job_summary import JobTally, decoded, shown_mark, tally_of
from saltext.jobs.core.sqlite import minion_sets, stored
from saltext.jobs.core.sqlite.database import Database
from saltext.jobs.core.sqlite.job_index import RETURNS, UNTIMED, forget_numbers, ids_in, minions_of_no_job

FEW = 40  # rows read at first
CHUNK = 500  # rows read at a time: one long query would keep -wal from being emptied
SOME = 5000  # rows that one transaction removes
SOME_STRETCHES = 20  # stretches that are checked at a time
#: Least number of minions in no job that is worth a removal: after it every process reads the numbers of all minions again.
MANY_GONE = 1000

#: In place of a mark that was forgotten since its load was listed; the load is gone.
_GONE = ("", "")
_DATED = re.compile("[0-9]{8}").match
#: The "+" makes SQLite use the index in the order of the jids.
_LOADED = "+mark IS NOT NULL"


class JobLookup:
    """:param database: the file."""

    def __init__(self, database: Database) -> None:
        self._database = database
        #: The last stretch that was checked for jobs.
        self._tidied = ""
        #: Whether jobs were removed since the last search for minions that are in none.
        self._have_gone = True

    def jids(self, low: str, high: str, mark: int | None = None) -> Iterator[str]:
        """
        Yield the jids of loads that begin with a date, from ``high`` down to ``low``, both included.

        :param mark: the number of their mark; by default any.
        """
        where = _LOADED if mark is None else f"mark = {int(mark)}"
        query = f"SELECT jid FROM jobs WHERE {where} AND jid {{}} ? AND jid >= ? ORDER BY jid DESC LIMIT ?"
        # a caller that wants the newest jobs wants only a few
        rows = self._database.read(query.format("<="), (high, low, FEW))
        while rows:
            yield from (row[0] for row in rows if _DATED(row[0]))
            rows = self._database.read(query.format("<"), (rows[-1][0], low, CHUNK))

    def jids_near(self, low: str, high: str, minion: str) -> Iterator[str]:
        """As ``jids``, for jobs that are for a minion or that have its return."""
        found = self._database.read("SELECT id FROM minions WHERE name = ?", (minion,))
        if not found:
            return
        number, until = found[0][0], f"{high}\0"
        query = "SELECT first, who FROM stretches WHERE first < ? ORDER BY first DESC LIMIT ?"
        rows = self._database.read(query, (until, FEW))
        while rows:
            for first, who in rows:
                if who is None or minion_sets.may_have(who, number):
                    yield from self._of_stretch(max(low, first), until, number)
                until = first
                if first <= low:
                    return
            rows = self._database.read(query, (until, CHUNK))

    def _of_stretch(self, low: str, until: str, number: int) -> Iterator[str]:
        # Most jobs are for few minions: SQLite itself leaves out those whose list cannot have this one.
        listed, wanted = minion_sets.trace_of(number)
        query = f"""SELECT jid, who FROM jobs WHERE {_LOADED} AND who IS NOT NULL AND jid < ? AND jid >= ?
            AND (substr(who, 1, 1) IS NOT ? OR instr(who, ?)) ORDER BY jid DESC LIMIT ?"""
        rows = self._database.read(query, (until, low, listed, wanted, FEW))
        while rows:
            yield from (jid for jid, who in rows if minion_sets.may_have(who, number) and _DATED(jid))
            rows = self._database.read(query, (rows[-1][0], low, listed, wanted, CHUNK))

    def jids_failed(self, low: str, high: str) -> Iterator[str]:
        """As ``jids``, for jobs with a return that tells of a failure."""
        query = "SELECT DISTINCT jid FROM failures WHERE jid {} ? AND jid >= ? ORDER BY jid DESC LIMIT ?"
        rows = self._database.read(query.format("<="), (high, low, FEW))
        while rows:
            yield from (row[0] for row in rows if _DATED(row[0]))
            rows = self._database.read(query.format("<"), (rows[-1][0], low, CHUNK))

    def tallies(self, jids: Sequence[str], minion: str | None) -> dict[str, JobTally]:
        """
        Return the tallies of some jobs, without reading their returns. A job with a damaged row has none. A return that
        was removed while its job stays counts as missing.

        :param minion: the minion of ``of_minion``.
        """
        bank = "(SELECT id FROM banks WHERE name = ? || jobs.jid)"
        query = f"""SELECT jid, sent, who, (SELECT count(*) FROM records WHERE bank = {bank}),
            (SELECT count(*) FROM failures WHERE failures.jid = jobs.jid),
            EXISTS (SELECT 1 FROM records WHERE bank = {bank} AND key = ?),
            EXISTS (SELECT 1 FROM failures WHERE failures.jid = jobs.jid AND minion = ?)
            FROM jobs WHERE jid IN ({{}})"""
        numbers = self._database.read("SELECT id FROM minions WHERE name = ?", (minion or "",))
        found: dict[str, JobTally] = {}
        for start in range(0, len(jids), CHUNK):
            part = jids[start : start + CHUNK]
            values = (RETURNS, RETURNS, minion, minion, *part)
            for jid, sent, who, returned, failed, *own in self._database.read(
                query.format(",".join("?" * len(part))), values
            ):
                try:
                    count = 0 if who is None else minion_sets.count(who)
                    is_for = bool(numbers) and who is not None and minion_sets.has(who, numbers[0][0])
                except Exception:  # zlib has an error of its own
                    continue
                if sent and count > sent:  # minions that the job was not for have returned too
                    tally = self._tally_of_own(jid, minion)
                    if tally is not None:
                        found[jid] = tally
                    continue
                found[jid] = JobTally(
                    sent or 0, returned, failed, max(0, min(sent or 0, count - returned)), _outcomes(is_for, *own)
                )
        return found

    def _tally_of_own(self, jid: str, minion: str | None) -> JobTally | None:
        """As ``tallies``, for a job with returns of minions that it was not for. None if its own minions are not known."""
        of_bank = "bank = (SELECT id FROM banks WHERE name = ?)"
        listed = self._database.read(f"SELECT value FROM records WHERE {of_bank} AND key = ?", (MINIONS, jid))
        try:
            minions = set(ids_in(stored.loads(listed[0][0])))
        except Exception:  # the list was removed meanwhile, or is damaged: msgpack then raises many kinds
            return None
        returned = self._database.read(f"SELECT key FROM records WHERE {of_bank}", (f"{RETURNS}{jid}",))
        failed = self._database.read("SELECT minion FROM failures WHERE jid = ?", (jid,))
        return tally_of(minions, {row[0] for row in returned}, {row[0] for row in failed}, minion)

    def marks(self) -> list[tuple[int, str, str]]:
        """Return (number, function, user) for each pair of function and user that loads have, or had lately."""
        return [(row[0], row[1], row[2]) for row in self._database.read("SELECT id, fun, user FROM marks")]

    def oldest(self, count: int) -> list[str]:
        """Return up to ``count`` jids of loads that begin with a date, oldest first."""
        found: list[str] = []
        query = f"SELECT jid FROM jobs WHERE {_LOADED} AND jid > ? AND jid < ':' ORDER BY jid LIMIT {CHUNK}"
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
        query = f"SELECT jid, mark, shown FROM jobs WHERE {_LOADED} AND jid > ? ORDER BY jid LIMIT {CHUNK}"
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
        """Remove some rows of the index that only removed jobs needed; return how many."""
        return self._forget_stretches() or self._forget_marks() or self._forget_minions()

    def _forget_stretches(self) -> int:
        """Remove those of the next stretches that are empty. A new job there then belongs to the stretch before."""
        query = "SELECT first FROM stretches WHERE first > ? ORDER BY first LIMIT ?"
        rows = self._database.read(query, (self._tidied, SOME_STRETCHES))
        self._tidied = rows[-1][0] if len(rows) == SOME_STRETCHES else ""
        empty = """NOT EXISTS (SELECT 1 FROM jobs WHERE jid >= ? AND jid < coalesce(
            (SELECT min(first) FROM stretches WHERE first > ?), x''))"""  # a blob sorts after every text
        found = [3 * row for row in rows if self._database.read(f"SELECT {empty}", 2 * row)[0][0]]
        if found:
            self._have_gone = True
            with self._database.transaction() as sql:
                sql.executemany(f"DELETE FROM stretches WHERE first = ? AND {empty}", found)
        return len(found)

    def _forget_marks(self) -> int:
        """Remove some pairs of function and user that no load has any more; return how many."""
        unused = "NOT EXISTS (SELECT 1 FROM jobs WHERE mark = marks.id)"
        found = self._database.read(f"SELECT id FROM marks WHERE {unused} LIMIT {SOME}")
        if found:
            with self._database.transaction() as sql:
                sql.executemany(f"DELETE FROM marks WHERE id = ? AND {unused}", found)
        return len(found)

    def _forget_minions(self) -> int:
        """Remove the numbers of minions that are in no job any more, if they are many; return how many."""
        if not self._have_gone:
            return 0
        self._have_gone = False
        read = self._database.read
        if len(minions_of_no_job(lambda query, values: iter(read(query, values)))) < MANY_GONE:
            return 0
        with self._database.transaction() as sql:  # a publish may have named them meanwhile
            gone = minions_of_no_job(sql.execute)
            if gone:
                forget_numbers(sql, gone)
        return len(gone)


def _outcomes(is_for: bool, has_returned: bool, has_failed: bool) -> frozenset[str]:
    if has_returned:
        return frozenset(("returned", "failed") if has_failed else ("returned",))
    return frozenset(("missing",) if is_for else ())
