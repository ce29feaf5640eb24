"""Finds jobs by the index beside their records, which ``core/sqlite/job_index.py`` describes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import salt.payload

from saltext.jobs.core.banks import LOADS, MINIONS
from saltext.jobs.core.disk import job_lookup
from saltext.jobs.core.disk.job_lookup import FEW, MANY, is_dated, parts
from saltext.jobs.core.disk.job_summary import JobTally, tally_of
from saltext.jobs.core.sqlite import stored
from saltext.jobs.core.sqlite.database import Database
from saltext.jobs.core.sqlite.job_index import RETURNS, UNTIMED

_OF = "bank = (SELECT id FROM banks WHERE name = ?)"


class JobLookup(job_lookup.JobLookup):
    """:param database: the file."""

    def __init__(self, database: Database) -> None:
        self._read = database.read
        super().__init__(database.read, "jobs", ("failures", "jid", ""), "?")

    def jids_near(self, low: str, high: str, minion: str) -> Iterator[str]:
        found, size = self.jids(low, high), FEW
        while part := list(itertools.islice(found, size)):
            near = self._with_minion(part, minion)
            yield from (jid for jid in part if jid in near)
            size = MANY

    def _with_minion(self, jids: Sequence[str], minion: str) -> set[str]:
        name = salt.payload.dumps(minion, use_bin_type=True)  # as it stands in a list: its length, then the name
        holding: dict[bytes, bool] = {}
        found: set[str] = set()
        for jid, listed in self._lists(jids):
            if listed not in holding:  # jobs are often for the same minions
                with contextlib.suppress(ValueError):  # it is damaged
                    holding[listed] = name in stored.serialized(listed)
            if holding.get(listed):
                found.add(jid)
        query = f"""SELECT banks.name FROM banks JOIN records ON records.bank = banks.id AND records.key = ?
            WHERE banks.name IN ({_marks(jids)})"""
        rows = self._read(query, (minion, *(f"{RETURNS}{jid}" for jid in jids)))
        return found.union(str(row[0])[len(RETURNS) :] for row in rows)

    def _lists(self, jids: Sequence[str]) -> list[Any]:
        """Return those of some jids with a list of minions, and the list as it is stored."""
        query = f"SELECT key, value FROM records WHERE {_OF} AND key IN ({_marks(jids)})"
        return self._read(query, (MINIONS, *jids))

    def tallies(self, jids: Sequence[str], minion: str | None) -> dict[str, JobTally]:
        found, known = dict[str, JobTally](), dict[bytes, frozenset[str]]()
        for part in parts(jids):
            lists = dict(self._lists(part))
            for jid in part:
                data = lists.get(jid, b"\x90")  # an empty list
                if data not in known:
                    try:
                        known[data] = frozenset(name for name in stored.loads(data) if isinstance(name, str))
                    except Exception:  # msgpack raises many kinds for a broken value
                        continue
                returned = self._read(f"SELECT key FROM records WHERE {_OF}", (f"{RETURNS}{jid}",))
                failed = self._read("SELECT minion FROM failures WHERE jid = ?", (jid,))
                found[jid] = tally_of(known[data], {row[0] for row in returned}, {row[0] for row in failed}, minion)
        return found

    def marks(self) -> list[tuple[str, str]]:
        # The index leads from each pair to the next, past all jobs with that pair.
        found: list[tuple[str, str]] = []
        query = "SELECT fun, usr FROM jobs {} ORDER BY fun, usr LIMIT 1"
        rows = self._read(query.format(""))
        while rows:
            found += [(fun, user) for fun, user in rows]
            rows = self._read(query.format("WHERE fun = ? AND usr > ?"), found[-1])
            rows = rows or self._read(query.format("WHERE fun > ?"), found[-1][:1])
        return found

    def undated(self) -> dict[str, float]:
        query = f"""SELECT jobs.jid, records.updated FROM jobs INDEXED BY jobs_untimed
            CROSS JOIN records ON records.bank = (SELECT id FROM banks WHERE name = ?) AND records.key = jobs.jid
            WHERE {UNTIMED.replace("jid", "jobs.jid")}"""
        return {key: at / 1000 for key, at in self._read(query, (LOADS,)) if not is_dated(key)}


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))
