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
from saltext.jobs.core.ledger.tables import LOG, OUTBOX, READERS, SITE, Execute, Tables

_OF = "reader = ? AND kind = ? AND jid = ? AND minion = ?"
_FIELDS = "kind, jid, minion, at, tries, due, why, body"
_PLACE = f"SELECT place, gaps FROM {READERS} WHERE reader = ?"
_KEEP = f"""INSERT INTO {READERS} (reader, place, gaps) VALUES (?, ?, ?)
    ON CONFLICT (reader) DO UPDATE SET place = excluded.place, gaps = excluded.gaps"""
_STATE = f"SELECT id, removed, (SELECT coalesce(max(place), 0) FROM {LOG}) FROM {SITE}"
_READ = f"SELECT place, jid, minion, body FROM {LOG} WHERE place > ? ORDER BY place LIMIT ?"
_COUNT = f"SELECT count(*) FROM (SELECT 1 FROM {LOG} WHERE place > ? LIMIT ?) AS later"
_ADD = f"INSERT INTO {OUTBOX} (reader, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_PUT = f"""INSERT INTO {OUTBOX} (reader, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (reader, kind, jid, minion) DO UPDATE SET
        at = excluded.at, tries = excluded.tries, due = excluded.due, why = excluded.why, body = excluded.body"""
_DELETE = f"DELETE FROM {OUTBOX} WHERE {_OF}"
_SELECT = f"SELECT {_FIELDS} FROM {OUTBOX} WHERE reader = ?"
_READY = f"{_SELECT} AND due <= ? ORDER BY due, at, jid, minion LIMIT ?"
_NEWEST_DEAD = f"{_SELECT} AND due IS NULL ORDER BY at DESC, jid, minion LIMIT ?"
_COUNTS = f"""SELECT count(*) FILTER (WHERE due = 0), count(*) FILTER (WHERE due > 0), count(*) FILTER (WHERE due IS NULL)
    FROM {OUTBOX} WHERE reader = ?"""
_TRIM = f"""DELETE FROM {OUTBOX} WHERE reader = ? AND due {{0}} NULL AND at <
    (SELECT at FROM {OUTBOX} WHERE reader = ? AND due {{0}} NULL ORDER BY at DESC LIMIT 1 OFFSET ?)"""
_TRIM_DEAD, _TRIM_WAITING = _TRIM.format("IS"), _TRIM.format("IS NOT")
_AGAIN = f"UPDATE {OUTBOX} SET due = 0, tries = 0 WHERE {_OF} AND due IS NULL"
_DROP = f"{_DELETE} AND due IS NULL"


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


class State(NamedTuple):
    """The log: its name, the places of the newest record that was removed and of the newest one, and its gaps."""

    name: str
    removed: int
    last: int
    gaps: int


class Counts(NamedTuple):
    """How many rows of a reader were not refused yet, are tried again, and are dead letters."""

    fresh: int
    parked: int
    dead: int


def state(tables: Tables) -> State:
    """Return the state of the log."""
    ((name, removed, last),) = tables.read(_STATE)
    return State(str(name), int(removed), max(int(last), int(removed)), tables.gaps())


def place_of(tables: Tables, reader: str) -> Place | None:
    """Return how far a reader is; None if it is a new one."""
    found = tables.read(_PLACE, (reader,))
    return Place(int(found[0][0]), int(found[0][1])) if found else None


def after(tables: Tables, place: int, most: int) -> list[tuple[int, str, str, bytes | None]]:
    """
    Return records of the log after a place, at most ``most``, with their places, jids and minions: None for one that could
    not be written, empty for one that no master of the site has written.
    """
    return [
        (int(at), jid, minion, None if body is None else tables.seal.take(bytes(body), LOG, jid, minion) or b"")
        for at, jid, minion, body in tables.read(_READ, (place, most))
    ]


def count_after(tables: Tables, place: int, most: int) -> int:
    """Return how many records of the log come after a place, at most ``most``."""
    return int(tables.read(_COUNT, (place, most))[0][0])


def keep(
    tables: Tables,
    reader: str,
    changes: Mapping[Key, Row | None],
    place: Place | None = None,
    lease: Lease | None = None,
) -> None:
    """Store rows, remove those that are None, and note how far the reader is: all of it or nothing."""

    def work(execute: Execute) -> None:
        for key, row in changes.items():
            if row is None:
                execute(_DELETE, (reader, *key))
            else:
                execute(_PUT, _values(tables, reader, row))
        if place is not None:
            execute(_KEEP, (reader, *place))

    tables.write(work, lease, durable=False)


def add(tables: Tables, reader: str, rows: Iterable[Row], lease: Lease | None = None) -> None:
    """Store rows, unless they are there."""

    def work(execute: Execute) -> None:
        for row in rows:
            execute(_ADD, _values(tables, reader, row))

    tables.write(work, lease, durable=False)


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

    def work(execute: Execute) -> dict[str, int]:
        execute(_PUT, _values(tables, watcher, known))
        gone = {}
        for reader in readers:
            for row in rows:
                execute(_ADD, _values(tables, reader, row))
            gone[reader] = int(execute(_TRIM_WAITING, (reader, reader, most - 1)).rowcount)
        return gone

    return tables.write(work, lease)


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
    values = (reader, reader, most - 1)
    return tables.write(lambda execute: int(execute(_TRIM_DEAD, values).rowcount), lease, durable=False)


def again(tables: Tables, reader: str, keys: Iterable[Key], lease: Lease | None = None) -> int:
    """Have dead letters handed over again, and return how many these were."""
    return _each(tables, _AGAIN, reader, keys, lease)


def drop(tables: Tables, reader: str, keys: Iterable[Key], lease: Lease | None = None) -> int:
    """Remove dead letters, and return how many these were."""
    return _each(tables, _DROP, reader, keys, lease)


def _each(tables: Tables, statement: str, reader: str, keys: Iterable[Key], lease: Lease | None) -> int:
    return tables.write(lambda execute: sum(int(execute(statement, (reader, *key)).rowcount) for key in keys), lease)


def _rows(tables: Tables, query: str, values: tuple[Any, ...]) -> list[Row]:
    found = []
    for kind, jid, minion, at, tries, due, why, body in tables.read(query, values):
        key = Key(kind, jid, minion)
        content = None if body is None else tables.seal.take(bytes(body), OUTBOX, values[0], *key)
        found.append(Row(key, at, tries, due, why, content))
    return found


def _values(tables: Tables, reader: str, row: Row) -> tuple[Any, ...]:
    body = None if row.body is None else tables.seal.put(row.body, OUTBOX, reader, *row.key)
    return (reader, *row.key, row.at, row.tries, row.due, row.why, body)
