"""
The tables of a site, and all differences between the two databases that keep them.

=========================  =========================================================================================
``saltext_jobs_site``      one row: the site's unique name, the format of these tables, and the place in the log of the
                           newest record that was removed; in PostgreSQL also that of the newest record
``saltext_jobs_meta``      what engines keep by name: how far the log was read for a returner, what notices have reported,
                           which masters have an engine
``saltext_jobs_log``       what the masters did, in one order: a publish has no minion, a return has one, and only the first
                           return of a job by a minion is there; ``body`` is NULL where records are missing
``saltext_jobs_queue``     the retry queue, a row for each record: see ``core/retry/store.py``
``saltext_jobs_requests``  what runners ask the engines for, and the answers: see ``core/ledger/requests.py``
``saltext_jobs_outbox``    what returners and people have not got yet: see ``outbox.py``
``saltext_jobs_values``    the values of ``cache: sqlite`` or ``postgresql``: see ``core/ledger/values.py``. ``updated`` and
                           ``expires`` are in seconds of Unix time; by ``mark`` jobs are found: see ``core/ledger/jobs.py``
``saltext_jobs_batches``   the batches, and ``saltext_jobs_parts`` their minions: see ``core/ledger/batches.py``
=========================  =========================================================================================

A place in PostgreSQL's log is a time in microseconds, so a place that was lost in a crash of the server is never used again.
In SQLite a power cut takes the newest places together with everything else that was written later.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from saltext.jobs.core.disk.lease import Lead, Leader, Lease
from saltext.jobs.core.findings import Finding
from saltext.jobs.core.ledger.seal import Seal

SITE, LOG, VALUES = (f"saltext_jobs_{name}" for name in ("site", "log", "values"))
#: The format of the tables, and of the values in them: see ``errors.check_format``.
FORMAT = 16
#: Asks for the site's unique name.
NAME = f"SELECT id FROM {SITE}"
Result = TypeVar("Result")
#: Rows that one statement stores at most; and most values in one query.
_AT_ONCE, MOST = 50, 500


class Dialect(NamedTuple):
    """What statements have in braces, since databases differ in it."""

    text: str  # a type that sorts by bytes
    blob: str
    place: str  # the type of a primary key
    now: str
    # Gives (jid, minion, mark, body) the next place in the log, visible in order; a second return of a job gets none.
    append: str
    holds: str  # whether ``v.value`` contains some bytes
    lock: str  # locks the rows that a query finds
    made: str  # orders the rows of a kind that is ``timed`` as they were made

    @functools.lru_cache(500)  # noqa: B019 - two of them, for as long as the process lives
    def of(self, query: str) -> str:
        return query.format_map(self._asdict())


# One writer at a time: a place is given and becomes visible in one transaction.
SQLITE = Dialect(
    "TEXT",
    "BLOB",
    "INTEGER",
    "(julianday('now') - 2440587.5) * 86400.0",
    f"INSERT INTO {LOG} (jid, minion, mark, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
    "instr(v.value, ?) > 0",
    "",
    "rowid",
)
# The row of the site is locked to the end of the transaction.
POSTGRESQL = Dialect(
    'text COLLATE "C"',
    "bytea",
    "bigint",
    "extract(epoch FROM clock_timestamp())::float8",
    f"""WITH given AS (
        UPDATE {SITE} SET last = greatest(last + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
        RETURNING last)
    INSERT INTO {LOG} (place, jid, minion, mark, body) SELECT last, ?, ?, ?, ? FROM given ON CONFLICT DO NOTHING""",
    "position(?::bytea IN v.value) > 0",
    "FOR UPDATE",
    "at, id",
)


class Tables:
    """Statements have a ``?`` for each value, and braces as ``Dialect`` says. All raise OSError when they cannot be used."""

    dialect: Dialect
    #: Whether the database is on a server, so that a query may take long.
    is_far = False
    #: Each body is written as its ``put`` returns it, and read by its ``take``.
    seal = Seal()

    @property
    def place(self) -> str:
        """Where the tables are, for people."""
        raise NotImplementedError

    def name(self) -> str:
        """Return the site's unique name, which another database does not have."""
        return str(self.read(NAME)[0][0])

    def open(self) -> None:
        """Make sure that the database can be used. :raises StateError: if somebody must change something first."""

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""
        raise NotImplementedError

    def run(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> None:
        """Carry out one statement. :param durable: whether it must survive a power cut when this returns."""
        self.changed(query, values, durable)

    def changed(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> int:
        """As ``run``. Returns how many rows were changed; -1 if none were, but a lost first try may have changed some."""
        raise NotImplementedError

    def together(self, work: Callable[[], Result], lease: Lease | None = None, durable: bool = False) -> Result:
        """
        Call ``work``, and return what it returns. All that this thread writes in it is one transaction; within another one
        it is a part of that. It may be called again, if nothing of it was written. :raises Superseded: if the lead is lost.
        """
        raise NotImplementedError

    def give_way(self) -> None:
        """Pause after a transaction that kept others from writing for long."""

    def boot(self) -> str:
        """Return what changes when the newest records may have been lost; empty if that is noticed by the lease."""
        return ""

    def gaps(self) -> int:
        """Return a number that changes with each ``note_gap``."""
        return 0

    def note_gap(self) -> bool:
        """Note beside the database that a record is missing in the log. Returns whether that was possible."""
        return False

    # -- who leads each engine -----------------------------------------------------------------------------------------

    def lease(self, engine: str, run: str = "") -> Lease:
        """Return the lead of an engine, for this process. ``run`` changes with each start of the master; '': not known."""
        raise NotImplementedError

    def leader(self, engine: str) -> Leader | None:
        """Return the process that took the lead last, even if it has lost it; None if that is not known."""
        raise NotImplementedError

    def lead(self, engine: str) -> Lead | None:
        """Return which process leads now; None if none does."""
        raise NotImplementedError

    def folder(self, engine: str) -> pathlib.Path | None:
        """Return the directory of an engine's lock on this machine; None if there is none."""
        return None

    def doubts(self) -> list[Finding]:
        """Return what an operator should change about the database."""
        return []  # the doctors look at the disk themselves


class Rows:
    """
    A kind of rows with a body that counts only if a master of the site has written it for this very row. ``key`` are the
    columns that name a row, ``more`` its other ones, each with its type. ``timed``: ``at`` is when it was written.
    """

    def __init__(self, name: str, key: Mapping[str, str], more: Mapping[str, str] | None = None, timed: bool = False):
        self.table, self.key = f"saltext_jobs_{name}", tuple(key)
        types = {**key, **(more or {}), "body": "{blob}"}
        names, keys, at = ", ".join(types), ", ".join(key), ["at"] if timed else []
        self.of = " AND ".join(f"{column} = ?" for column in key)
        self._row = f"({marks_of(types)})"
        self._insert = f"INSERT INTO {self} ({names}) VALUES"
        new = ", ".join(f"{column} = excluded.{column}" for column in [*types, *at] if column not in key)
        self._or_update = f"ON CONFLICT ({keys}) DO UPDATE SET {new}"
        self._select = f"SELECT {names} FROM {self} WHERE "
        columns = [f"{column} {its_type}" for column, its_type in types.items()]
        columns += [f"{column} double precision NOT NULL DEFAULT ({{now}})" for column in at]
        self.create = f"CREATE TABLE {self} ({', '.join(columns)}, PRIMARY KEY ({keys}))"

    def __str__(self) -> str:
        return self.table

    def add(self, tables: Tables, rows: Mapping[Any, tuple[Any, ...]], durable: bool = False) -> None:
        """Store rows, unless they are there. ``rows``: what is in ``more``, and the body, which may be None, by key."""
        self._put(tables, rows, "ON CONFLICT DO NOTHING", durable)

    def write(self, tables: Tables, changes: Mapping[Any, tuple[Any, ...] | None]) -> None:
        """Store rows, and remove those that are None; all or none. ``changes``: what ``add`` takes."""

        def work() -> None:
            gone = [key for key, rest in changes.items() if rest is None]
            for some in parts_of(gone, _AT_ONCE):
                tables.run(f"DELETE FROM {self} WHERE {' OR '.join([f'({self.of})'] * len(some))}", _flat(some))
            self._put(tables, {key: rest for key, rest in changes.items() if rest is not None}, self._or_update)

        tables.together(work)

    def _put(self, tables: Tables, rows: Mapping[Any, tuple[Any, ...]], conflict: str, durable: bool = False) -> None:
        found = []
        for key, (*more, body) in rows.items():
            found.append((*key, *more, None if body is None else tables.seal.put(body, self.table, *key)))
        for some in parts_of(found, _AT_ONCE):
            tables.run(f"{self._insert} {', '.join([self._row] * len(some))} {conflict}", _flat(some), durable)

    def read(self, tables: Tables, where: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return rows: key, ``more``, and body, which is None if no master has written it."""
        size = len(self.key)
        return [
            (*row[:-1], None if row[-1] is None else tables.seal.take(row[-1], self.table, *row[:size]))
            for row in tables.read(self._select + where, values)
        ]


def _flat(rows: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(rows))


class Named(Rows):
    """What engines keep by name. All functions raise OSError when the database cannot be used now."""

    def __init__(self) -> None:
        super().__init__("meta", {"engine": _TEXT, "name": _TEXT}, timed=True)
        self._below = f"SELECT name, at, {{now}} - at, body FROM {self} WHERE engine = ? AND name >= ? AND name < ?"

    def keep(self, tables: Tables, engine: str, name: str, body: bytes | None) -> None:
        """Keep a value; None removes it."""
        self.write(tables, {(engine, name): None if body is None else (body,)})

    def get(self, tables: Tables, engine: str, name: str) -> bytes | None:
        """Return a value; None if there is none, or if no master of the site has written it."""
        return next((row[-1] for row in self.read(tables, self.of, (engine, name))), None)

    def below(self, tables: Tables, engine: str, group: str) -> dict[str, tuple[bytes, float, float]]:
        """
        Return the values whose names begin with ``group/``, by the rest of their names; each with the Unix time at which it
        was written, and the seconds since then.
        """
        rows = tables.read(self._below, (engine, f"{group}/", f"{group}0"))
        found = ((name, tables.seal.take(body, self.table, engine, name), at, age) for name, at, age, body in rows)
        return {name.removeprefix(f"{group}/"): (body, at, age) for name, body, at, age in found if body is not None}


def marks_of(values: Iterable[Any]) -> str:
    """Return the question marks for some values in a query."""
    return ", ".join("?" for _ in values)


def parts_of(values: Sequence[Any], most: int = MOST) -> Iterator[Sequence[Any]]:
    """Yield the values, or rows, for one statement after the other."""
    return (values[first : first + most] for first in range(0, len(values), most))


_TEXT, _INTEGER, _TIME = "{text} NOT NULL", "integer NOT NULL", "double precision NOT NULL"
META = Named()
QUEUE = Rows("queue", {"kind": _INTEGER, "jid": _TEXT, "minion": _TEXT})
REQUESTS = Rows("requests", {"engine": _TEXT, "id": _TEXT}, {"state": _INTEGER}, timed=True)
BATCHES = Rows("batches", {"jid": _TEXT}, {"kind": _INTEGER, "spec": "{blob} NOT NULL"}, timed=True)
PARTS = Rows("parts", {"jid": _TEXT, "minion": _TEXT})
OUTBOX = Rows(
    "outbox",
    {"reader": _TEXT, "kind": _TEXT, "jid": _TEXT, "minion": _TEXT},
    {"at": _TIME, "tries": _INTEGER, "due": "double precision", "why": _TEXT},
)
_STATEMENTS = (
    *(rows.create for rows in (META, QUEUE, REQUESTS, BATCHES, PARTS, OUTBOX)),
    f"CREATE INDEX {OUTBOX}_due ON {OUTBOX} (reader, due, at)",
    f"""CREATE TABLE {VALUES} (
        bank {_TEXT}, key {_TEXT}, updated {_TIME}, expires double precision, mark {{text}},
        value {{blob}} NOT NULL, PRIMARY KEY (bank, key))""",
    f"CREATE INDEX {VALUES}_expires ON {VALUES} (bank, expires) WHERE expires IS NOT NULL",
    f"CREATE INDEX {VALUES}_marks ON {VALUES} (mark, bank, key) WHERE mark IS NOT NULL",
    f"CREATE TABLE {LOG} (place {{place}} PRIMARY KEY, jid {_TEXT}, minion {_TEXT}, mark {_TEXT}, body {{blob}})",
    f"CREATE UNIQUE INDEX {LOG}_returns ON {LOG} (jid, minion) WHERE minion <> ''",
    f"CREATE INDEX {LOG}_publishes ON {LOG} (jid, place) WHERE minion = ''",
    f"CREATE INDEX {LOG}_gaps ON {LOG} (place) WHERE body IS NULL",
    f"""CREATE TABLE {SITE} (
        id {_TEXT}, number integer NOT NULL, last bigint NOT NULL DEFAULT 0, removed bigint NOT NULL DEFAULT 0)""",
)


def statements(dialect: Dialect, name: str = "") -> Iterator[str]:
    """Return the statements that make the tables of a site. ``name``: its own; by default one that no other site has."""
    begun = f"INSERT INTO {SITE} (id, number) VALUES ('{name or secrets.token_hex(16)}', {FORMAT})"
    return map(dialect.of, (*_STATEMENTS, begun))
