"""
The rows of the retry queue. What they mean is in ``core/retry/store.py``; here they are a number, a jid, a minion (empty for
what belongs to a job as a whole) and bytes.

All functions raise OSError when the database cannot be used now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.ledger.tables import QUEUE, Execute, Tables

#: The kinds of a job, and of what one minion is owed of it. There may be others.
JOB, ENTRY = 1, 2
#: Rows that are read at once, and jids that are looked up at once.
_PART, _LOOKED_UP = 2000, 500
_PUT = f"""INSERT INTO {QUEUE} (kind, jid, minion, body) VALUES (?, ?, ?, ?)
    ON CONFLICT (kind, jid, minion) DO UPDATE SET body = excluded.body"""
_ADD = f"INSERT INTO {QUEUE} (kind, jid, minion, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_DELETE = f"DELETE FROM {QUEUE} WHERE kind = ? AND jid = ? AND minion = ?"
_TIDY = f"DELETE FROM {QUEUE} WHERE kind = {JOB} AND jid NOT IN (SELECT jid FROM {QUEUE} WHERE kind = {ENTRY})"
_FORGET = f"DELETE FROM {QUEUE} WHERE kind = ? AND jid < ?"
_SELECT = f"SELECT jid, minion, body FROM {QUEUE} WHERE kind = ? AND (jid, minion) > (?, ?)"
_IN_ORDER = f"ORDER BY jid, minion LIMIT {_PART}"
_JOBS = f"SELECT jid, body FROM {QUEUE} WHERE kind = {JOB} AND jid >= ? AND jid <= ?"


class Row(NamedTuple):
    """A row that was read."""

    jid: str
    minion: str
    body: bytes


def write(
    tables: Tables,
    bodies: Mapping[Any, bytes | None],
    lease: Lease | None = None,
    durable: bool = True,
) -> None:
    """
    Store rows, and remove those whose body is None; all of them or none.

    :param bodies: by kind, jid and minion.
    :param durable: whether that must survive a power cut when this returns.
    """

    def work(execute: Execute) -> None:
        for place, body in bodies.items():
            if body is None:
                execute(_DELETE, tuple(place))
            else:
                execute(_PUT, _sealed(tables, (*place, body)))

    tables.write(work, lease, durable)


def add(tables: Tables, rows: Iterable[tuple[int, str, str, bytes]]) -> int:
    """Store rows (kind, jid, minion, body) whose places are free, and return how many."""

    def work(execute: Execute) -> int:
        return sum(int(execute(_ADD, _sealed(tables, row)).rowcount) for row in rows)

    return tables.write(work)


def tidy(tables: Tables, lease: Lease | None) -> None:
    """Remove the jobs that are owed to no minion. Their first entry may be about to follow, except at an engine's start."""
    tables.write(lambda execute: execute(_TIDY, ()), lease, durable=False)


def forget(tables: Tables, kind: int, before: str, lease: Lease | None) -> None:
    """Remove the rows of a kind whose jids sort before another."""
    tables.write(lambda execute: execute(_FORGET, (kind, before)), lease, durable=False)


def parts(tables: Tables, kind: int, minion: str | None = None, jid: str | None = None) -> Iterator[list[Row]]:
    """Yield the rows of a kind, of one or all minions and of one or all jobs, ordered by jid, some at a time."""
    chosen = [(name, value) for name, value in (("jid", jid), ("minion", minion)) if value is not None]
    query = " ".join((_SELECT, *(f"AND {name} = ?" for name, _ in chosen), _IN_ORDER))
    last: tuple[str, str] | None = "", ""
    while last is not None:
        found = [Row(*row) for row in tables.read(query, (kind, *last, *(value for _, value in chosen)))]
        last = (found[-1].jid, found[-1].minion) if len(found) == _PART else None
        if rows := list(_genuine(tables, kind, found)):
            yield rows


def jobs(tables: Tables, first: str, last: str) -> dict[str, bytes]:
    """Return the bodies of the jobs from one jid to another, by jid."""
    found = (Row(jid, "", body) for jid, body in tables.read(_JOBS, (first, last)))
    return {row.jid: row.body for row in _genuine(tables, JOB, found)}


def owed(tables: Tables, jids: Iterable[str]) -> set[str]:
    """Return those of some jobs that are owed to a minion."""
    wanted, found = list(jids), set[str]()
    for start in range(0, len(wanted), _LOOKED_UP):
        part = wanted[start : start + _LOOKED_UP]
        query = f"SELECT jid FROM {QUEUE} WHERE kind = {JOB} AND jid IN ({', '.join('?' * len(part))})"
        found.update(row[0] for row in tables.read(query, part))
    return found


def _sealed(tables: Tables, row: tuple[int, str, str, bytes]) -> tuple[int, str, str, bytes]:
    kind, jid, minion, body = row
    return kind, jid, minion, tables.seal.put(body, QUEUE, int(kind), jid, minion)


def _genuine(tables: Tables, kind: int, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield what the masters of the site have written, as they wrote it."""
    for row in rows:
        body = tables.seal.take(bytes(row.body), QUEUE, int(kind), row.jid, row.minion)
        if body is not None:
            yield row._replace(body=body)
