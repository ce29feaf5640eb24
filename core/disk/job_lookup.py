"""Finds and lists jobs by the index that a database keeps beside their records, with one SQL for SQLite and PostgreSQL."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from saltext.jobs.core.disk.job_summary import JobTally, decoded, shown_mark

#: Rows read at first, and at a time later.
FEW, MANY = 40, 500
#: Most values in one query.
CHUNK = 500

is_dated = re.compile("[0-9]{8}").match


class JobLookup:
    """
    :param rows: returns the rows that a query finds.
    :param jobs: what has ``jid``, ``fun``, ``usr`` and ``shown`` of each load.
    :param failures: what has a row for each failed return; the column of the job; and what that has before the jid.
    :param mark: stands for a value in a query.
    """

    def __init__(self, rows: Callable[..., Any], jobs: str, failures: tuple[str, str, str], mark: str) -> None:
        self._rows, self._jobs, self._failures, self._mark = rows, jobs, failures, mark

    def jids(self, low: str, high: str, mark: tuple[str, str] | None = None) -> Iterator[str]:
        """
        Yield the jids of loads that begin with a date, from ``high`` down to ``low``, both included.

        :param mark: only loads of this function and user.
        """
        more = f"fun = {self._mark} AND usr = {self._mark} AND" if mark else ""
        return self._down(f"{self._jobs} WHERE {more}", "jid", "", mark or (), low, high)

    def jids_failed(self, low: str, high: str) -> Iterator[str]:
        """As ``jids``, for jobs with a return that tells of a failure."""
        there, name, before = self._failures
        return self._down(f"{there} WHERE", name, before, (), low, high)

    def _down(self, there: str, name: str, before: str, values: tuple[str, ...], low: str, high: str) -> Iterator[str]:
        query = f"""SELECT DISTINCT {name} FROM {there} {name} {{}} {self._mark} AND {name} >= {self._mark}
            ORDER BY {name} DESC LIMIT {{}}"""
        # a caller that wants the newest jobs wants only a few
        rows = self._rows(query.format("<=", FEW), (*values, f"{before}{high}", f"{before}{low}"))
        while rows:
            yield from filter(is_dated, (row[0][len(before) :] for row in rows))
            rows = self._rows(query.format("<", MANY), (*values, rows[-1][0], f"{before}{low}"))

    @abstractmethod
    def jids_near(self, low: str, high: str, minion: str) -> Iterator[str]:
        """As ``jids``, for jobs that are (or may be) for a minion, or that have its return."""

    @abstractmethod
    def tallies(self, jids: Sequence[str], minion: str | None) -> dict[str, JobTally]:
        """
        Return the tallies of some jobs, without reading their returns. A job whose list of minions is damaged has none. A
        return that was removed while its job stays counts as missing.

        :param minion: the minion of ``of_minion``.
        """

    @abstractmethod
    def marks(self) -> list[tuple[str, str]]:
        """Return each pair of function and user that loads have."""

    def oldest(self, count: int) -> list[str]:
        """Return up to ``count`` jids of loads that begin with a date, oldest first."""
        found: list[str] = []
        query = f"SELECT jid FROM {self._jobs} WHERE jid > {self._mark} AND jid < ':' ORDER BY jid LIMIT {MANY}"
        rows = self._rows(query, ("0",))
        while rows and len(found) < count:
            found += [row[0] for row in rows if is_dated(row[0])]
            rows = self._rows(query, rows[-1])
        return found[:count]

    @abstractmethod
    def undated(self) -> dict[str, float]:
        """Return the jids of loads that do not begin with a date, with the Unix times of their last write."""

    def shown(self) -> Iterator[tuple[Sequence[str], list[tuple[str, str]], list[list[Any] | None]]]:
        """
        Yield what ``jobs.list_jobs`` shows of all loads, some at a time: their jids, in order; in the same order, their
        (function, user); and for each a list of arguments, target, target type and, if there is any, metadata.

        None in place of a list says that the load must be read, for example because the list is damaged.
        """
        query = f"SELECT jid, fun, usr, shown FROM {self._jobs} WHERE jid > {self._mark} ORDER BY jid LIMIT {MANY}"
        rows = self._rows(query, ("",))
        while rows:
            jids, functions, users, values = zip(*rows, strict=True)
            yield jids, list(map(shown_mark, functions, users)), decoded(values)
            rows = self._rows(query, (jids[-1],))


def parts(values: Sequence[str]) -> Iterator[list[str]]:
    """Yield the values in lists of ``CHUNK``."""
    for start in range(0, len(values), CHUNK):
        yield list(values[start : start + CHUNK])
