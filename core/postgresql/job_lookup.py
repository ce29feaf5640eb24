"""Finds jobs by the additional columns of the table of ``cache: postgresql``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from saltext.jobs.core.banks import LOADS, MINIONS, RETURNS
from saltext.jobs.core.disk import job_lookup
from saltext.jobs.core.disk.job_lookup import FEW, is_dated, parts
from saltext.jobs.core.disk.job_summary import JobTally
from saltext.jobs.core.postgresql.cache_tables import TABLE, UNDATED
from saltext.jobs.core.postgresql.connections import LONG

#: Jobs that the server checks for a minion in one query.
WINDOW = 4000

# in the statement, not as a parameter, so that its index is used
_OF_LOADS = f"t.bank = '{LOADS}'"
_JOBS = f"(SELECT key AS jid, fun, usr, shown FROM {TABLE} WHERE bank = '{LOADS}') AS j"
_FAILURES = f"(SELECT bank FROM {TABLE} WHERE failed) AS f"


class JobLookup(job_lookup.JobLookup):
    """:param rows: ``Banks.rows``."""

    def __init__(self, rows: Callable[..., Any]) -> None:
        super().__init__(rows, _JOBS, (_FAILURES, "bank", f"{RETURNS}/"), "%s")

    def jids_near(self, low: str, high: str, minion: str) -> Iterator[str]:
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
            ((count, last, found),) = self._rows(query.format(sign), (minion, minion, high, low, size))
            yield from (jid for jid in found or () if is_dated(jid))
            if count < size:
                return
            sign, high, size = "<", last, WINDOW

    def tallies(self, jids: Sequence[str], minion: str | None) -> dict[str, JobTally]:
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
        for part in parts(jids):
            for key, sent, returned, failed, missing, is_for, own in self._rows(query, (minion, minion, part), LONG):
                of_minion = _outcomes(bool(is_for), own) if minion is not None else frozenset()
                found[key] = JobTally(sent, returned, failed, missing, of_minion)
        return found

    def marks(self) -> list[tuple[str, str]]:
        # The index leads from each pair to the next, past all jobs with that pair.
        query = f"""WITH RECURSIVE found AS (
                (SELECT t.fun, t.usr FROM {TABLE} AS t WHERE {_OF_LOADS} ORDER BY t.fun, t.usr LIMIT 1)
                UNION ALL SELECT n.fun, n.usr FROM found CROSS JOIN LATERAL (
                    SELECT t.fun, t.usr FROM {TABLE} AS t WHERE {_OF_LOADS} AND (t.fun, t.usr) > (found.fun, found.usr)
                    ORDER BY t.fun, t.usr LIMIT 1) AS n)
            SELECT fun, usr FROM found"""
        return [(row[0], row[1]) for row in self._rows(query, (), LONG)]

    def undated(self) -> dict[str, float]:
        query = f"""SELECT t.key, extract(epoch FROM t.updated)::float8 FROM {TABLE} AS t
            WHERE {_OF_LOADS} AND {UNDATED.replace("key", "t.key", 1)}"""
        return dict(self._rows(query))


def _outcomes(is_for: bool, has_failed: bool | None) -> frozenset[str]:
    if has_failed is not None:
        return frozenset(("returned", "failed") if has_failed else ("returned",))
    return frozenset(("missing",) if is_for else ())
