"""
The rows of the retry queue. What they mean is in ``core/retry/store.py``; here they are a number, a jid, a minion (empty for
what belongs to a job as a whole) and bytes. All functions raise OSError when the database cannot be used now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from saltext.jobs.core.ledger.tables import QUEUE, Tables, marks_of, parts_of

#: The kind of a job.
JOB = 1
#: Rows that are read at once.
_PART = 2000


class Row(NamedTuple):
    kind: int
    jid: str
    minion: str
    body: bytes


def parts(
    tables: Tables, kind: int, minion: str | None = None, jid: str | None = None, until: str | None = None
) -> Iterator[list[Row]]:
    """
    Yield the rows of a kind, of one or all minions and of one or all jobs, ordered by jid, some at a time. ``until``: only
    those whose jids sort before it.
    """
    conditions = ("jid = ?", jid), ("minion = ?", minion), ("jid < ?", until)
    chosen = [(condition, value) for condition, value in conditions if value is not None]
    also = "".join(f" AND {condition}" for condition, _ in chosen)
    where = f"kind = ? AND (jid, minion) > (?, ?){also} ORDER BY jid, minion LIMIT {_PART}"
    last: tuple[str, str] | None = "", ""
    while last is not None:
        found = QUEUE.read(tables, where, (int(kind), *last, *(value for _, value in chosen)))
        last = found[-1][1:3] if len(found) == _PART else None
        if rows := [Row(*row) for row in found if row[-1] is not None]:
            yield rows


def jobs(tables: Tables, first: str, last: str) -> dict[str, bytes]:
    """Return the bodies of the jobs from one jid to another, by jid."""
    found = QUEUE.read(tables, f"kind = {JOB} AND jid >= ? AND jid <= ?", (first, last))
    return {jid: body for _, jid, _, body in found if body is not None}


def owed(tables: Tables, jids: Iterable[str]) -> set[str]:
    """Return those of some jobs that are owed to a minion."""
    found = set[str]()
    for part in parts_of(list(jids)):
        query = f"SELECT jid FROM {QUEUE} WHERE kind = {JOB} AND jid IN ({marks_of(part)})"
        found.update(row[0] for row in tables.read(query, part))
    return found
