"""The tables on a server: what ``core/ledger/tables.py`` asks of a database, and the table of leases."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg

from saltext.jobs.core.disk import files
from saltext.jobs.core.errors import RowRefused, SiteAway, StateError, check_format
from saltext.jobs.core.ledger.seal import NoSeal
from saltext.jobs.core.ledger.tables import NAME, POSTGRESQL, SITE, Execute, Result, statements
from saltext.jobs.core.options.postgresql import CacheOptions, read_cache_options
from saltext.jobs.core.postgresql.connections import LONG, Connections, Patient
from saltext.jobs.core.postgresql.trouble import Rejected

#: The format of the tables: see ``errors.check_format``.
FORMAT = 6
#: One row per engine: which process leads, in which epoch, and until when. Only the server's clock decides that.
LEASES = "saltext_jobs_leases"
#: The channel on which engines are told of requests.
CHANNEL = "saltext_jobs"
#: The number of the advisory lock under which the tables are made: several masters may start at once.
_LOCK = 7305805923
#: Waits until what was committed before is as safe as the session's ``synchronous_commit`` says.
_WAIT = b"SELECT pg_logical_emit_message(true, 'saltext_jobs', '')"
_MOST_SERVERS = 8
_SERVERS: dict[tuple[CacheOptions, pathlib.Path | None], Connections] = {}
_LEASES = f"""CREATE TABLE {LEASES} (
    engine text PRIMARY KEY, session text NOT NULL, epoch bigint NOT NULL, leader bytea NOT NULL,
    until timestamptz NOT NULL, alive timestamptz NOT NULL)"""


class PostgresqlTables:
    """
    What the methods do is said in ``Tables``.

    :param server: with the tables.
    :param seal: that of the site's masters.
    """

    dialect = POSTGRESQL
    is_far = True

    def __init__(self, server: Connections, seal: NoSeal) -> None:
        self._server, self.seal = server, seal

    @property
    def place(self) -> str:
        return f"PostgreSQL at {self._server.place}"

    def name(self) -> str:
        return str(self.read(NAME)[0][0])

    def open(self) -> None:
        """Do nothing: an engine without its server waits for it."""

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        def work(connection: Patient) -> list[tuple[Any, ...]]:
            with connection.cursor(binary=True) as cursor:
                return list(cursor.execute(_of_psycopg(query), values).fetchall())

        found: list[tuple[Any, ...]] = self._do(work)
        return found

    def run(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> None:
        """``durable`` is that of the server's session."""
        self._do(lambda connection: connection.execute(_of_psycopg(query), values))

    def changed(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> int:
        tries = -1

        def work(connection: Patient) -> int:
            nonlocal tries
            tries += 1
            done = connection.execute(_of_psycopg(query), values)
            now = self._server.now
            if now.pipeline is not None:
                now.pipeline.sync()  # so that its answer is there
            return done.rowcount or (-1 if tries or now.is_again else 0)

        return int(self._do(work))

    def write(self, work: Callable[[Execute], Result], lease: Any = None, durable: bool = True) -> Result:
        """``durable`` is that of the server's session."""

        def in_lead(connection: Patient) -> Result:
            with connection.transaction():
                if lease is not None:
                    lease.renewed(connection)
                return work(lambda query, values: connection.execute(_of_psycopg(query), values))

        found: Result = asked(self._server, in_lead)
        return found

    def together(self, work: Callable[[], Result], durable: bool = False) -> Result:
        """
        ``durable`` is that of the server's session. The transaction itself does not wait for the disk, so that it locks the
        row of the site only for a moment; a statement after it does, which others can do at the same time.
        """
        now = self._server.now
        if now.connection is not None:
            return work()

        def in_one(connection: Patient) -> Result:
            now.connection = connection
            try:
                with connection.pipeline() as now.pipeline:
                    connection.execute(b"BEGIN")
                    connection.execute(b"SET LOCAL synchronous_commit = off")
                    found = work()
                    connection.execute(b"COMMIT")
                    connection.execute(_WAIT)
                return found
            except Exception as exc:
                failed = _cause_of(exc)
            finally:
                now.connection, now.pipeline, now.is_again = None, None, True
            with contextlib.suppress(psycopg.Error):
                connection.rollback()
            raise failed  # here, since it must not become the cause of its own cause

        try:
            done: Result = asked(self._server, in_one)
            return done
        finally:
            now.is_again = False

    def give_way(self) -> None:
        """Do nothing: a server has many writers at once."""

    def _do(self, work: Callable[[Patient], Any]) -> Any:
        """Carry it out as a part of this thread's transaction, if it is in one."""
        connection = self._server.now.connection
        return asked(self._server, work) if connection is None else work(connection)

    def tell(self, execute: Execute, engine: str) -> None:
        execute("SELECT pg_notify(?, ?)", (CHANNEL, engine))

    def boot(self) -> str:
        return ""

    def gaps(self) -> int:
        return 0

    def note_gap(self) -> bool:
        return False


@functools.lru_cache(maxsize=200)
def _of_psycopg(query: str) -> bytes:
    return query.replace("?", "%s").encode()


def asked(server: Connections, work: Callable[[Patient], Any]) -> Any:
    """
    Return what ``work`` returns, called with a connection.

    :raises SiteAway: if the server cannot do it now. :raises RowRefused: if it never will.
    """
    try:
        return server.run(work)
    except StateError as exc:
        raise (RowRefused if isinstance(exc, Rejected) else SiteAway)(str(exc)) from exc


def _cause_of(exc: Exception) -> BaseException:
    """Return the error of the server that has led to another one; that one itself if none has."""
    found: BaseException | None = exc
    while found is not None and not isinstance(found, psycopg.Error):
        found = found.__cause__
    return found or exc


def server_of(opts: Mapping[str, Any], is_site: bool) -> Connections:
    """
    Return this process's connections to the server that a master's options name.

    :param is_site: whether the database must be that of the master's site.
    :raises SettingsError: naming an option.
    """
    path = pathlib.Path(opts["cachedir"], "saltext_jobs", "site") if is_site else None
    options = read_cache_options(opts)
    found = _SERVERS.get((options, path))
    if found is None:
        # of several threads that are here at once, all get the first one's
        made = Connections(options, lambda connection: _prepare(connection, path))
        found = _SERVERS.setdefault((options, path), made)
        for old in list(_SERVERS)[:-_MOST_SERVERS]:
            if ended := _SERVERS.pop(old, None):
                ended.end()
    return found


def cache_of(opts: Mapping[str, Any]) -> PostgresqlTables:
    """Return the tables of ``cache: postgresql``: those of the site, if there is one."""
    return PostgresqlTables(server_of(opts, bool(opts.get("saltext_jobs_site"))), NoSeal())


def _prepare(connection: Patient, path: pathlib.Path | None) -> None:
    """
    Make the tables if they are missing, and have the session wait for the disk.

    :raises StateError: if they are of another version, or of another site, or the database cannot hold Salt's values.
    :raises psycopg.Error: for errors of the server.
    """
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StateError(
            f"the database has the encoding {encoding}, which cannot hold every id; make one with ENCODING 'UTF8'"
        )
    name = name_of(connection)
    if name is None:
        _make(connection)
        name = name_of(connection)
    # Otherwise a crash of the server would lose confirmed writes, such as what is about to be published.
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
    )
    if path is None:
        return
    try:
        known = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        files.write_atomic(path, f"{name}\n".encode())
        return
    except OSError as exc:
        raise psycopg.OperationalError(f"{path} cannot be read: {exc}") from exc
    if known != name:
        raise StateError(
            f"the database {connection.info.dbname} at {connection.info.host}:{connection.info.port} is another site's; "
            f"if this master is to belong to it from now on, remove {path} and restart the master"
        )


def name_of(connection: Patient) -> str | None:
    """Return the site's name; None if there are no tables. Raises as ``prepare``."""
    try:
        found = connection.execute(f"SELECT id, number FROM {SITE}".encode()).fetchone()
    except psycopg.errors.UndefinedTable:
        return None
    if found is None:
        return None
    check_format(f"The table {SITE}", found[1], FORMAT)
    return str(found[0])


def _make(connection: Patient) -> None:
    with connection.waiting(LONG), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        # A new statement sees tables that another master has made meanwhile.
        row = connection.execute(f"SELECT to_regclass('{SITE}') IS NOT NULL".encode()).fetchone()
        if row and row[0]:
            return
        for statement in (*statements(POSTGRESQL), _LEASES):
            connection.execute(statement.encode())
        connection.execute(f"INSERT INTO {SITE} (id, number) VALUES (%s, {FORMAT})".encode(), (uuid.uuid4().hex,))
