"""
How far readers of the log are that hand records on, and what they still owe: records that a returner has refused, and
notices.

A reader is named by its engine and by whom it hands records to, such as ``job_recorder pgjsonb``. Its rows are named by
kind, jid and minion. All functions raise OSError when the database cannot be used now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.ledger.tables import OUTBOX, READERS, Tables

_PLACE = f"SELECT place, gaps FROM {READERS} WHERE reader = ?"
_KEEP = f"""INSERT INTO {READERS} (reader, place, gaps) VALUES (?, ?, ?)
    ON CONFLICT (reader) DO UPDATE SET place = excluded.place, gaps = excluded.gaps"""
_READY = "reader = ? AND due <= ? ORDER BY due, at, jid, minion LIMIT ?"
_NEWEST_DEAD = "reader = ? AND due IS NULL ORDER BY at DESC, jid, minion LIMIT ?"
_COUNTS = f"""SELECT count(*) FILTER (WHERE due = 0), count(*) FILTER (WHERE due > 0), count(*) FILTER (WHERE due IS NULL)
    FROM {OUTBOX} WHERE reader = ?"""
_TRIM = f"""DELETE FROM {OUTBOX} WHERE reader = ? AND due {{0}} NULL AND at <
    (SELECT at FROM {OUTBOX} WHERE reader = ? AND due {{0}} NULL ORDER BY at DESC LIMIT 1 OFFSET ?)"""
_TRIM_DEAD, _TRIM_WAITING = _TRIM.format("IS"), _TRIM.format("IS NOT")
_AGAIN = f"UPDATE {OUTBOX} SET due = 0, tries = 0 WHERE {OUTBOX.of} AND due IS NULL"
_DROP = f"DELETE FROM {OUTBOX} WHERE {OUTBOX.of} AND due IS NULL"


class Key(NamedTuple):
    """Names a row of a reader. ``minion`` is empty for what belongs to a job as a whole."""

    kind: str
    jid: str
    minion: str = ""


class Row(NamedTuple):
    """
    What is owed.

    * ``at``: since when it is there, in Unix time.
    * ``tries``: how often it was refused, and ``why``.
    * ``due``: 0 if it was not refused yet, else when it is tried again, in Unix time; None for a dead letter.
    * ``body``: its content, if it is nowhere else.
    """

    key: Key
    at: float
    tries: int = 0
    due: float | None = 0.0
    why: str = ""
    body: bytes | None = None


class Place(NamedTuple):
    """How far a reader is: the place of the last record in the log, and the gaps that it knows of."""

    place: int
    gaps: int


class Counts(NamedTuple):
    """How many rows of a reader were not refused yet, are tried again, and are dead letters."""

    fresh: int
    parked: int
    dead: int


def place_of(tables: Tables, reader: str) -> Place | None:
    """Return how far a reader is; None if it is a new one."""
    found = tables.read(_PLACE, (reader,))
    return Place(int(found[0][0]), int(found[0][1])) if found else None


def keep(
    tables: Tables,
    reader: str,
    changes: Mapping[Key, Row | None],
    place: Place | None = None,
    lease: Lease | None = None,
) -> None:
    """Store rows, remove those that are None, and note how far the reader is: all of it or nothing."""

    def work() -> None:
        OUTBOX.write(tables, {(reader, *key): None if row is None else row[1:] for key, row in changes.items()})
        if place is not None:
            tables.run(_KEEP, (reader, *place))

    tables.together(work, lease)


def add(tables: Tables, reader: str, rows: Iterable[Row], lease: Lease | None = None) -> None:
    """Store rows, unless they are there."""

    def work() -> None:
        for row in rows:
            tables.run(OUTBOX.add, OUTBOX.values(tables, (reader, *row.key), row[1:]))

    tables.together(work, lease)


def report(
    tables: Tables,
    watcher: str,
    known: Row,
    readers: Sequence[str],
    rows: Sequence[Row],
    most: int,
    lease: Lease | None = None,
) -> dict[str, int]:
    """
    Store what a watcher knows, and the rows that follow from it for some readers, unless they are there: all of it or
    nothing, and on the disk.

    :param most: rows that may wait for a reader; of more the oldest go.
    :return: how many these were, by reader.
    """

    def work() -> dict[str, int]:
        keep(tables, watcher, {known.key: known})
        gone = {}
        for reader in readers:
            add(tables, reader, rows)
            gone[reader] = _changed(tables, _TRIM_WAITING, (reader, reader, most - 1))
        return gone

    return tables.together(work, lease, durable=True)


def ready(tables: Tables, reader: str, now: float, most: int) -> list[Row]:
    """Return rows that are due: first those that were not refused yet, the oldest of them first."""
    return _rows(tables, _READY, (reader, now, most))


def dead(tables: Tables, reader: str, most: int) -> list[Row]:
    """Return the newest dead letters, oldest first."""
    return _rows(tables, _NEWEST_DEAD, (reader, most))[::-1]


def counts(tables: Tables, reader: str) -> Counts:
    """Count the rows of a reader."""
    return Counts(*map(int, tables.read(_COUNTS, (reader,))[0]))


def trim_dead(tables: Tables, reader: str, most: int, lease: Lease | None = None) -> int:
    """Remove the oldest dead letters, if there are more than ``most``, and return how many."""
    return tables.together(lambda: _changed(tables, _TRIM_DEAD, (reader, reader, most - 1)), lease)


def again(tables: Tables, reader: str, keys: Sequence[Key], lease: Lease | None = None) -> int:
    """Have dead letters handed over again, and return how many these were."""
    return _each(tables, _AGAIN, reader, keys, lease)


def drop(tables: Tables, reader: str, keys: Sequence[Key], lease: Lease | None = None) -> int:
    """Remove dead letters, and return how many these were."""
    return _each(tables, _DROP, reader, keys, lease)


def _each(tables: Tables, statement: str, reader: str, keys: Sequence[Key], lease: Lease | None) -> int:
    def work() -> int:
        return sum(_changed(tables, statement, (reader, *key)) for key in keys)

    return tables.together(work, lease, durable=True)


def _changed(tables: Tables, statement: str, values: Sequence[Any]) -> int:
    return max(0, tables.changed(statement, values))


def _rows(tables: Tables, where: str, values: tuple[Any, ...]) -> list[Row]:
    found = OUTBOX.read(tables, where, values)
    return [Row(Key(*key), at, tries, due, why, body) for _, *key, at, tries, due, why, body in found]
