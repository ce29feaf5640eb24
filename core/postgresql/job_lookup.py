"""Finds and lists jobs by the additional columns of the table of ``cache: postgresql``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from saltext.jobs.core.banks import LOADS, MINIONS, RETURNS
from saltext.jobs.core.disk.job_summary import JobTally, decoded, shown_mark
from saltext.jobs.core.postgresql.banks import Banks, parts
from saltext.jobs.core.postgresql.cache_tables import TABLE, UNDATED
from saltext.jobs.core.postgresql.connections import LONG

#: Jobs in the first query, and in later ones; and jobs that the server checks for a minion in one query.
FEW, MANY, WINDOW = 40, 1000, 4000

_DATED = re.compile("[0-9]{8}").match
# in the statement, not as a parameter, so that its index is used
_OF_LOADS = f"t.bank = '{LOADS}'"


class JobLookup:
    """:param banks: in which the jobs are."""

    def __init__(self, banks: Banks) -> None:
        self._banks = banks

    def jids(self, low: str, high: str, mark: tuple[str, str] | None = None) -> Iterator[str]:
        """
        Yield the jids of loads that begin with a date, from ``high`` down to ``low``, both included.

        :param mark: only loads of this function and user.
        """
        more, values = (" AND t.fun = %s AND t.usr = %s", mark) if mark else ("", ())
        query = f"""SELECT t.key FROM {TABLE} AS t WHERE {_OF_LOADS}{more} AND t.key {{}} %s AND t.key >= %s
            ORDER BY t.key DESC LIMIT %s"""
        # a caller that wants the newest jobs wants only a few
        rows = self._banks.rows(query.format("<="), (*values, high, low, FEW))
        while rows:
            yield from (row[0] for row in rows if _DATED(row[0]))
            rows = self._banks.rows(query.format("<"), (*values, rows[-1][0], low, MANY))

    def jids_near(self, low: str, high: str, minion: str) -> Iterator[str]:
        """As ``jids``, for jobs that are (or may be) for a minion, or that it has returned."""
        # Each job is looked up by the index, whatever size the server assumes for the table.
        meant = f"""(SELECT coalesce(%s = ANY(m.minions), true) FROM {TABLE} AS m
                WHERE m.bank = '{MINIONS}' AND m.key = w.key LIMIT 1)
            OR (SELECT true FROM {TABLE} AS r WHERE r.bank = '{RETURNS}/' || w.key AND r.key = %s LIMIT 1)"""
        query = f"""SELECT count(*), min(key), array_agg(key ORDER BY key DESC) FILTER (WHERE {meant}) FROM (
            SELECT t.key FROM {TABLE} AS t WHERE {_OF_LOADS} AND t.key {{}} %s AND t.key >= %s
            ORDER BY t.key DESC LIMIT %s) AS w"""
        sign, size = "<=", FEW
        while True:
            # Each query is short, however rare the minion is.
            ((count, last, found),) = self._banks.rows(query.format(sign), (minion, minion, high, low, size))
            yield from (jid for jid in found or () if _DATED(jid))
            if count < size:
                return
            sign, high, size = "<", last, WINDOW

    def jids_failed(self, low: str, high: str) -> Iterator[str]:
        """As ``jids``, for jobs with a failed return."""
        query = f"""SELECT DISTINCT t.bank FROM {TABLE} AS t WHERE t.failed AND t.bank {{}} %s AND t.bank >= %s
            ORDER BY t.bank DESC LIMIT %s"""
        before, low = f"{RETURNS}/{high}", f"{RETURNS}/{low}"
        sign, size, start = "<=", FEW, len(f"{RETURNS}/")
        while rows := self._banks.rows(query.format(sign), (before, low, size)):
            yield from (row[0][start:] for row in rows if _DATED(row[0][start:]))
            sign, before, size = "<", rows[-1][0], MANY

    def tallies(self, jids: Sequence[str], minion: str | None) -> dict[str, JobTally]:
        """
        Return the tallies of some jobs, without reading their returns. A job whose minions are no list of ids has none.

        :param minion: the minion that ``JobTally.of_minion`` is about; None for none.
        """
        # Missing minions are counted by the index of returns.
        query = f"""SELECT w.key, (SELECT count(DISTINCT name) FROM unnest(m.minions) AS n (name)), r.returned, r.failed,
                (SELECT count(DISTINCT name) FROM unnest(m.minions) AS n (name) WHERE NOT EXISTS (
                    SELECT FROM {TABLE} AS t WHERE t.bank = w.bank AND t.key = n.name)),
                %s::text = ANY(m.minions),
                (SELECT t.failed FROM {TABLE} AS t WHERE t.bank = w.bank AND t.key = %s::text)
            FROM (SELECT key, '{RETURNS}/' || key AS bank FROM unnest(%s::text[]) AS k (key)) AS w
            LEFT JOIN LATERAL (SELECT t.key, t.minions FROM {TABLE} AS t
                WHERE t.bank = '{MINIONS}' AND t.key = w.key LIMIT 1) AS m ON true
            CROSS JOIN LATERAL (SELECT count(*) AS returned, count(*) FILTER (WHERE t.failed) AS failed
                FROM {TABLE} AS t LEFT JOIN (SELECT DISTINCT name FROM unnest(m.minions) AS n (name)) AS n ON n.name = t.key
                WHERE t.bank = w.bank AND (n.name IS NOT NULL OR coalesce(cardinality(m.minions), 0) = 0)) AS r
            WHERE m.key IS NULL OR m.minions IS NOT NULL"""
        found = {}
        for part in parts(list(jids)):
            for key, sent, returned, failed, missing, is_for, own in self._banks.rows(
                query, (minion, minion, part), LONG
            ):
                of_minion = _outcomes(bool(is_for), own) if minion is not None else frozenset()
                found[key] = JobTally(sent, returned, failed, missing, of_minion)
        return found

    def marks(self) -> list[tuple[tuple[str, str], str, str]]:
        """Return ``((function, user), function, user)`` for each pair of these that loads have."""
        # The index leads from each pair to the next, past all jobs with that pair.
        query = f"""WITH RECURSIVE found AS (
                (SELECT t.fun, t.usr FROM {TABLE} AS t WHERE {_OF_LOADS} ORDER BY t.fun, t.usr LIMIT 1)
                UNION ALL SELECT n.fun, n.usr FROM found CROSS JOIN LATERAL (
                    SELECT t.fun, t.usr FROM {TABLE} AS t WHERE {_OF_LOADS} AND (t.fun, t.usr) > (found.fun, found.usr)
                    ORDER BY t.fun, t.usr LIMIT 1) AS n)
            SELECT fun, usr FROM found"""
        return [((row[0], row[1]), row[0], row[1]) for row in self._banks.rows(query, (), LONG)]

    def oldest(self, count: int) -> list[str]:
        """Return up to ``count`` jids of loads that begin with a date, oldest first."""
        query = f"""SELECT t.key FROM {TABLE} AS t WHERE {_OF_LOADS} AND t.key ~ '^[0-9]{{8}}'
            ORDER BY t.key LIMIT %s"""
        return [row[0] for row in self._banks.rows(query, (count,), LONG)]

    def undated(self) -> dict[str, float]:
        """Return the jids of loads that do not begin with a date, with the Unix times of their last write."""
        query = f"""SELECT t.key, extract(epoch FROM t.updated)::float8 FROM {TABLE} AS t
            WHERE {_OF_LOADS} AND {UNDATED.replace("key", "t.key", 1)}"""
        return dict(self._banks.rows(query))

    def shown(self) -> Iterator[tuple[Sequence[str], list[tuple[str, str]], list[list[Any] | None]]]:
        """
        Yield what is shown of all loads, some at a time: their jids, in order; in the same order, their functions and
        users; and lists of arguments, target, target type and any metadata.

        None in place of a list means that the load must be read: there is no list, or it is damaged.
        """
        query = f"""SELECT t.key, t.fun, t.usr, t.shown FROM {TABLE} AS t WHERE {_OF_LOADS} AND t.key > %s
            ORDER BY t.key LIMIT {MANY}"""
        rows = self._banks.rows(query, ("",))
        while rows:
            jids, functions, users, values = zip(*rows, strict=True)
            marks = [shown_mark(fun, user) for fun, user in zip(functions, users, strict=True)]
            yield jids, marks, decoded(values)
            rows = self._banks.rows(query, (jids[-1],))


def _outcomes(is_for: bool, has_failed: bool | None) -> frozenset[str]:
    if has_failed is not None:
        return frozenset(("returned", "failed") if has_failed else ("returned",))
    return frozenset(("missing",) if is_for else ())
