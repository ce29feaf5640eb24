"""
The tables on a server: what ``core/ledger/tables.py`` asks of a database.

One database is one site of masters whose engines work as one. A master remembers in its cachedir which site it belongs to.
With another database, such as an old copy, it would take all owed jobs for done.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg

from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import Lead, Leader, Lease, leader_of
from saltext.jobs.core.errors import StateError, check_format
from saltext.jobs.core.findings import Finding, advice, fault
from saltext.jobs.core.ledger.seal import Seal
from saltext.jobs.core.ledger.tables import FORMAT, POSTGRESQL, SITE, Result, Tables, statements
from saltext.jobs.core.options.postgresql import CacheOptions, read_cache_options
from saltext.jobs.core.postgresql.connections import LONG, Connections, Patient, cache_parameters
from saltext.jobs.core.postgresql.lease import CREATE, LEASES, TableLease

#: The number of the advisory lock under which the tables are made: several masters may start at once.
_LOCK = 7305805923
#: Waits until what was committed before is as safe as the session's ``synchronous_commit`` says.
_WAIT = b"SELECT pg_logical_emit_message(true, 'saltext_jobs', '')"
_LEADER = f"SELECT leader FROM {LEASES} WHERE engine = ?"
_LEAD = f"""SELECT leader, extract(epoch FROM clock_timestamp() - nullif(alive, '-infinity'))::float8,
    extract(epoch FROM until - clock_timestamp())::float8 FROM {LEASES} WHERE engine = ? AND until > clock_timestamp()"""
# It reads a table, so that a session learns what others have committed since its transaction began.
_ARE_THERE = f"SELECT 1 FROM pg_class WHERE oid = to_regclass('{SITE}')".encode()
_SETTINGS = """SELECT name, setting FROM pg_settings
    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')"""
_REPLICAS = "SELECT count(*) FROM pg_stat_replication"
_MOST_SERVERS = 8
_SERVERS: dict[tuple[CacheOptions, pathlib.Path | None], Connections] = {}


class PostgresqlTables(Tables):
    """``durable`` is that of the server's session. If an option is not accepted, each method raises SettingsError."""

    dialect = POSTGRESQL
    is_far = True

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self.opts, self._is_site = opts, bool(opts.get("saltext_jobs_site"))
        self.seal = Seal(opts if self._is_site else None)

    @functools.cached_property
    def server(self) -> Connections:
        return server_of(self.opts, self._is_site)

    @property
    def place(self) -> str:
        return f"PostgreSQL at {self.server.place}"

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        def work(connection: Patient) -> list[tuple[Any, ...]]:
            with connection.cursor(binary=True) as cursor:
                return list(cursor.execute(_spoken(query), values).fetchall())

        return self._do(work)

    def run(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> None:
        self._do(lambda connection: connection.execute(_spoken(query), values))

    def changed(self, query: str, values: Sequence[Any] = (), durable: bool = False) -> int:
        def work(connection: Patient) -> int:
            done = connection.execute(_spoken(query), values)
            now = self.server.now
            if now.pipeline is not None:
                now.pipeline.sync()  # so that its answer is there
            return done.rowcount or (-1 if now.is_again else 0)

        return self._do(work)

    def together(self, work: Callable[[], Result], lease: Lease | None = None, durable: bool = False) -> Result:
        """
        Without ``lease``, as for the log, a statement after the transaction waits for the disk, so that the
        transaction locks the site's row only for a moment.
        """
        now = self.server.now

        def in_lead() -> Result:
            if isinstance(lease, TableLease):
                lease.renew()
            return work()

        if now.connection is not None:
            return in_lead()

        def in_one(connection: Patient) -> Result:
            now.connection = connection
            try:
                with connection.pipeline() as now.pipeline:
                    connection.execute(b"BEGIN")
                    if lease is None:
                        connection.execute(b"SET LOCAL synchronous_commit = off")
                    found = in_lead()
                    connection.execute(b"COMMIT")
                    if lease is None:
                        connection.execute(_WAIT)
                return found
            except Exception as exc:
                failed = _cause_of(exc)
            finally:
                now.connection = now.pipeline = None
            with contextlib.suppress(psycopg.Error):
                connection.rollback()
            raise failed  # here, since it must not become the cause of its own cause

        return self.server.run(in_one)

    def _do(self, work: Callable[[Patient], Result]) -> Result:
        """Call ``work`` as a part of this thread's transaction, if it is in one."""
        connection = self.server.now.connection
        return self.server.run(work) if connection is None else work(connection)

    def doubts(self) -> list[Finding]:
        """Return how the server could lose what it has confirmed."""
        told = {str(name): str(value) for name, value in self.read(_SETTINGS)}
        standbys = told["synchronous_standby_names"]
        found = [
            fault(
                "server-unsafe",
                f"{name} is off at PostgreSQL: a crash of the server can take what it has confirmed, or damage it",
                "set it to on",
            )
            for name in ("fsync", "full_page_writes", "synchronous_commit")
            if told[name] == "off"
        ]
        if standbys and told["synchronous_commit"] in ("local", "remote_write"):
            now = f"synchronous_commit is {told['synchronous_commit']} at PostgreSQL"
            found.append(fault("server-commit", f"{now}, so a failover can lose what it has confirmed", "set it to on"))
        if self.read(_REPLICAS)[0][0] and not standbys:
            why = "PostgreSQL does not wait for its replica, so a failover to it can lose the last writes"
            found.append(advice("server-replica", why, "name the replica in synchronous_standby_names"))
        return found

    def lease(self, engine: str, run: str = "") -> TableLease:
        return TableLease(self, engine, str(self.opts.get("id") or ""), run)

    def leader(self, engine: str) -> Leader | None:
        rows = self.read(_LEADER, (engine,))
        return leader_of(rows[0][0]) if rows else None

    def lead(self, engine: str) -> Lead | None:
        rows = self.read(_LEAD, (engine,))
        return Lead(leader_of(rows[0][0]), *rows[0][1:]) if rows else None


@functools.lru_cache(maxsize=300)
def _spoken(query: str) -> bytes:
    return POSTGRESQL.of(query).replace("?", "%s").encode()


def _cause_of(exc: Exception) -> BaseException:
    """Return the error of the server that has led to another one; that one itself if none has."""
    found: BaseException | None = exc
    while found is not None and not isinstance(found, psycopg.Error):
        found = found.__cause__
    return found or exc


def server_of(opts: Mapping[str, Any], is_site: bool) -> Connections:
    """
    Return this process's connections to the server of a master's options. ``is_site``: its database must be that of the
    master's site. :raises SettingsError: naming an option.
    """
    path = pathlib.Path(opts["cachedir"], "saltext_jobs", "site") if is_site else None
    options = read_cache_options(opts)
    found = _SERVERS.get((options, path))
    if found is None:
        # of several threads that are here at once, all get the first one's
        made = Connections(cache_parameters(options), options.timeout, lambda connection: _prepare(connection, path))
        found = _SERVERS.setdefault((options, path), made)
        for old in list(_SERVERS)[:-_MOST_SERVERS]:
            if ended := _SERVERS.pop(old, None):
                ended.close()
    return found


def _prepare(connection: Patient, path: pathlib.Path | None) -> None:
    """
    Make the tables if they are missing, and have the session wait for the disk.

    :raises StateError: if they are of another version or site, or the database cannot hold Salt's values.
    :raises psycopg.Error: for errors of the server.
    """
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StateError(
            f"the database has the encoding {encoding}, which cannot hold every id; make one with ENCODING 'UTF8'"
        )
    name = _name_of(connection)
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
            f"the database {connection.info.dbname} at {connection.info.host}:{connection.info.port} is another site's, "
            f"or new; if this master is to belong to it from now on, remove {path} and restart the master"
        )


def _name_of(connection: Patient) -> str:
    """Return the site's name. Missing tables are made. Raises as ``_prepare``."""

    def are_there() -> bool:
        return bool(connection.execute(_ARE_THERE).rowcount)

    if not are_there():
        with connection.waiting(LONG), connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            # A new statement sees tables that another master has made meanwhile.
            for statement in () if are_there() else (*statements(POSTGRESQL), CREATE):
                connection.execute(statement.encode())
    name, number = connection.execute(f"SELECT id, number FROM {SITE}".encode()).fetchone() or (None, None)
    check_format(f"The table {SITE}", number, FORMAT)
    return str(name)
