"""
The tables of a site, and all differences between the two databases that keep them.

=========================  =========================================================================================
``saltext_jobs_site``      one row: the site's unique name, the format of these tables, and the place in the log of the
                           newest record that was removed; in PostgreSQL also that of the newest record
``saltext_jobs_masters``   the ids of the masters that have written to the log
``saltext_jobs_readers``   up to which place of the log each reader is done, and the gaps that it knows of
``saltext_jobs_meta``      what engines keep by name: see ``core/ledger/meta.py``; the time is in seconds of Unix time
``saltext_jobs_log``       what the masters did, in one order: a publish has no minion, a return has one, and only the first
                           return of a job by a minion is there; ``body`` is NULL where records are missing
``saltext_jobs_queue``     the retry queue, a row for each record: see ``core/retry/store.py``
``saltext_jobs_requests``  what runners ask the engines for, and the answers: see ``core/ledger/requests.py``
``saltext_jobs_outbox``    what returners and people have not got yet: see ``outbox.py``
``saltext_jobs_values``    the values of ``cache: sqlite`` or ``postgresql``: see ``core/ledger/values.py``. ``updated`` and
                           ``expires`` are in seconds of Unix time; ``failed`` is 1 for a return that tells of a failure
``saltext_jobs_jobs``      the index of the loads among them: see ``core/ledger/jobs.py``
``saltext_jobs_batches``   the batches, and ``saltext_jobs_parts`` their minions: see ``core/ledger/batches.py``
=========================  =========================================================================================

A place in PostgreSQL's log is a time in microseconds, so a place that was lost in a crash of the server is never used again.
In SQLite a power cut takes the newest places together with everything else that was written later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from saltext.jobs.core.ledger.seal import NoSeal

SITE, MASTERS, READERS, META, LOG, QUEUE, REQUESTS, OUTBOX, VALUES, JOBS, BATCHES, PARTS = (
    f"saltext_jobs_{name}"
    for name in (
        *("site", "masters", "readers", "meta", "log", "queue", "requests", "outbox", "values", "jobs"),
        *("batches", "parts"),
    )
)
#: Asks for the site's unique name.
NAME = f"SELECT id FROM {SITE}"
#: Carries out a statement, which has a question mark for each value.
Execute: TypeAlias = Callable[[str, Sequence[Any]], Any]
Result = TypeVar("Result")


class Dialect(NamedTuple):
    """
    How a database names types (``text`` sorts by bytes, ``place`` is a primary key) and the time; and ``append``, which
    gives a record (jid, minion, mark and body) the next place in the log, so that places become visible in order; a second
    return of a job by a minion gets none. ``holds`` tells whether the bytes of a column contain some others, and ``lock``
    locks the rows that a query finds.
    """

    text: str
    blob: str
    place: str
    now: str
    append: str
    holds: str
    lock: str


# One writer at a time: a place is given and becomes visible in one transaction.
SQLITE = Dialect(
    "TEXT",
    "BLOB",
    "INTEGER",
    "(julianday('now') - 2440587.5) * 86400.0",
    f"INSERT INTO {LOG} (jid, minion, mark, body) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
    "instr({}, ?) > 0",
    "",
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
    "position(?::bytea IN {}) > 0",
    "FOR UPDATE",
)


class Tables(Protocol):
    """A connection to the tables. Its methods raise OSError when the database cannot be used now."""

    dialect: Dialect
    #: Whether the database is on a server, so that a query may take long.
    is_far: bool
    #: Each body is written as its ``put`` returns it, and read by its ``take``.
    seal: NoSeal

    @property
    def place(self) -> str:
        """Where they are, for people."""

    def name(self) -> str:
        """Return the site's unique name, which another database does not have."""

    def open(self) -> None:
        """:raises StateError: if the database cannot be used before somebody changes something."""

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows that a query finds."""

    def run(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> None:
        """Carry out one statement. :param durable: whether it must survive a power cut when this returns."""

    def changed(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> int:
        """As ``run``. Returns how many rows were changed; -1 if none were, but perhaps by a first try that was lost."""

    def together(self, work: Callable[[], Result], durable: bool = False) -> Result:
        """
        Call ``work``, and return what it returns. All that this thread writes in it is one transaction; within another one
        it is a part of that. It may be called again, if nothing of it was written.
        """

    def give_way(self) -> None:
        """Pause after a transaction that kept others from writing for long."""

    def write(self, work: Callable[[Execute], Result], lease: Any = None, durable: bool = True) -> Result:
        """
        Carry out ``work`` in one transaction, and return what it returns.

        :param lease: that of the engine's process, which must still lead then. :raises Superseded: when it does not.
        """

    def tell(self, execute: Execute, engine: str) -> None:
        """Wake the engine that waits for requests, once this transaction is there."""

    def boot(self) -> str:
        """Return what changes when the newest records may have been lost; empty if that is noticed by the lease."""

    def gaps(self) -> int:
        """Return a number that changes with each ``note_gap``."""

    def note_gap(self) -> bool:
        """Note beside the database that a record is missing in the log. Returns whether that was possible."""


def statements(dialect: Dialect) -> Iterable[str]:
    """Return the statements that make the tables."""
    text, blob, place = dialect.text, dialect.blob, dialect.place
    return (
        f"CREATE TABLE {MASTERS} (id {text} PRIMARY KEY)",
        f"CREATE TABLE {READERS} (reader {text} PRIMARY KEY, place bigint NOT NULL, gaps bigint NOT NULL DEFAULT 0)",
        f"""CREATE TABLE {META} (engine {text} NOT NULL, name {text} NOT NULL, body {blob} NOT NULL,
            at double precision NOT NULL, PRIMARY KEY (engine, name))""",
        f"""CREATE TABLE {QUEUE} (kind integer NOT NULL, jid {text} NOT NULL, minion {text} NOT NULL, body {blob} NOT NULL,
            PRIMARY KEY (kind, jid, minion))""",
        f"""CREATE TABLE {REQUESTS} (
            engine {text} NOT NULL, id {text} NOT NULL, state integer NOT NULL, body {blob} NOT NULL,
            at double precision NOT NULL, PRIMARY KEY (engine, id))""",
        f"""CREATE TABLE {OUTBOX} (reader {text} NOT NULL, kind {text} NOT NULL, jid {text} NOT NULL, minion {text} NOT NULL,
            at double precision NOT NULL, tries integer NOT NULL, due double precision, why {text} NOT NULL, body {blob},
            PRIMARY KEY (reader, kind, jid, minion))""",
        f"CREATE INDEX {OUTBOX}_due ON {OUTBOX} (reader, due, at)",
        f"""CREATE TABLE {VALUES} (
            bank {text} NOT NULL, key {text} NOT NULL, updated double precision NOT NULL, expires double precision,
            failed integer, value {blob} NOT NULL, PRIMARY KEY (bank, key))""",
        f"CREATE INDEX {VALUES}_expires ON {VALUES} (bank, expires) WHERE expires IS NOT NULL",
        f"CREATE INDEX {VALUES}_failed ON {VALUES} (bank, key) WHERE failed = 1",
        f"CREATE TABLE {JOBS} (jid {text} PRIMARY KEY, mark {text} NOT NULL, dated integer NOT NULL, shown {blob})",
        f"CREATE INDEX {JOBS}_marks ON {JOBS} (mark, jid)",
        f"CREATE INDEX {JOBS}_undated ON {JOBS} (jid) WHERE dated = 0",
        f"""CREATE TABLE {BATCHES} (jid {text} PRIMARY KEY, kind integer NOT NULL, at double precision NOT NULL,
            spec {blob} NOT NULL, body {blob} NOT NULL)""",
        f"""CREATE TABLE {PARTS} (jid {text} NOT NULL, minion {text} NOT NULL, body {blob} NOT NULL,
            PRIMARY KEY (jid, minion))""",
        f"""CREATE TABLE {LOG} (
            place {place} PRIMARY KEY, jid {text} NOT NULL, minion {text} NOT NULL, mark {text} NOT NULL, body {blob})""",
        f"CREATE UNIQUE INDEX {LOG}_returns ON {LOG} (jid, minion) WHERE minion <> ''",
        f"CREATE INDEX {LOG}_publishes ON {LOG} (jid, place) WHERE minion = ''",
        f"CREATE INDEX {LOG}_gaps ON {LOG} (place) WHERE body IS NULL",
        f"""CREATE TABLE {SITE} (
            id {text} NOT NULL, number integer NOT NULL, last bigint NOT NULL DEFAULT 0,
            removed bigint NOT NULL DEFAULT 0)""",
    )
