"""
The connections of one process to one PostgreSQL server: a few for all of its threads, each lent to one at a time.

A connection is never used or closed in a forked child of the process that opened it: the server would end the parent's
session. Every wait has an end: the kernel of a frozen server still acknowledges what it gets, but no answer comes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import select
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

import psycopg
import psycopg.conninfo

from saltext.jobs.core.errors import RowRefused, SettingsError, SiteAway, StateError
from saltext.jobs.core.options.postgresql import CacheOptions, Server

Result = TypeVar("Result")

#: Connections of the parent process. They are kept, so that they are never closed here.
_LEFT: list[Any] = []
_POOLS: weakref.WeakSet[Connections] = weakref.WeakSet()
#: When this process last gave up waiting for a server, by the server's ``place``; for _SOON seconds it then tries only once.
_GIVEN_UP: dict[str, float] = {}
_SOON = 30.0
#: Until when this process does not try to connect to a server, by its ``place``, since a try got no answer.
_SILENT: dict[str, float] = {}
#: Seconds that making the tables may take, and after which the server gives up a statement by itself.
LONG = 60.0
#: Most connections of one process.
_MOST = 4
#: Seconds between two tries to connect.
RETRY_SECONDS = 0.2
#: Tries for a statement that clashes with others, and seconds between them.
_CLASHES, _PAUSE = 6, 0.02
_SSL = ("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl")
#: The events for ``poll`` by what a generator of psycopg waits for (1: to read, 2: to write).
_EVENTS = {1: select.POLLIN, 2: select.POLLOUT, 3: select.POLLIN | select.POLLOUT}
#: What an operator can do about an error.
_LOST = "check that the server runs and that this machine may reach it"
#: libpq has no code for a refused login; the word "FATAL" in its message tells. Some languages have another word.
_CLOSED = "check the options postgresql.*, and on the server the user, the database, pg_hba.conf and max_connections"
_CLASH = "other sessions change the same rows at the same time"
_BUSY = "look at its load, its locks (pg_stat_activity) and max_connections"
#: The same, by how the error's SQLSTATE begins; the first that fits counts. All others blame the record.
_ADVICE = (
    (("08", "57P"), _LOST),
    (("40",), _CLASH),
    (("53100", "53200", "58"), "make room on its disk"),
    (("53", "55", "57014"), _BUSY),
    (("25006", "28", "3D", "3F", "42501", "42P01"), "check the options postgresql.* and the rights of that user there"),
)


class NoAnswer(psycopg.OperationalError):  # type: ignore[misc]
    """The server is connected and does not answer."""


def _advice_about(exc: BaseException) -> str | None:
    """Return what to do about an error; None if the server will never take the record."""
    if isinstance(exc, NoAnswer):
        return _BUSY
    state = (exc.sqlstate or "") if isinstance(exc, psycopg.Error) else ""
    if not state and isinstance(exc, (psycopg.OperationalError, psycopg.InterfaceError)):
        return _LOST
    return next((advice for states, advice in _ADVICE if state.startswith(states)), None)


def parameters(server: Server) -> dict[str, Any]:
    """Return the parameters for libpq of a server's options."""
    found = {"host": server.host, "port": server.port, "user": server.user, "dbname": server.db}
    found.update({name: getattr(server, name) for name in _SSL if getattr(server, name)})
    if server.password:
        found["password"] = server.password
    return {**found, "connect_timeout": max(2, int(server.connect_timeout)), "client_encoding": "UTF8"}


def cache_parameters(options: CacheOptions) -> dict[str, Any]:
    """As ``parameters``, for ``cache: postgresql``."""
    found = parameters(options)
    try:
        found.update(psycopg.conninfo.conninfo_to_dict(options.dsn))
    except psycopg.Error:  # libpq's message repeats its input, with the password in it
        raise SettingsError("postgresql.dsn is no connection string that libpq understands") from None
    settings = {
        # a statement that was given up must not overwrite newer data later
        "lock_timeout": int(options.timeout * 1000),
        "statement_timeout": int(max(options.timeout, LONG) * 1000),
        # a process that is frozen in a transaction keeps others waiting for at most this long
        "idle_in_transaction_session_timeout": int(options.timeout * 2000),
    }
    own = " ".join(f"-c {name}={value}" for name, value in settings.items())
    found["options"] = f"{found.get('options', '')} {own}".strip()
    # A firewall may silently drop a connection that is idle for long.
    more = {"keepalives_idle": 60, "tcp_user_timeout": int(options.timeout * 600), "application_name": "salt cache"}
    return {**more, **found}


class Patient(psycopg.Connection[tuple[Any, ...]]):  # type: ignore[misc]
    """A connection that closes after ``patience`` seconds without an answer."""

    patience = 5.0

    def wait(self, gen: Generator[Any, Any, Result], *args: Any, **kwargs: Any) -> Result:
        """As in psycopg, but not for ever. :raises NoAnswer: when nothing came or could be sent for ``patience`` seconds."""
        try:
            wanted = next(gen)
            handle, poller = self.pgconn.socket, select.poll()
            while True:
                poller.register(handle, _EVENTS[int(wanted)])
                found = poller.poll(self.patience * 1000)
                if not found:
                    gen.close()
                    self.close()
                    raise NoAnswer(f"no answer within {self.patience:g} seconds")
                events = found[0][1]
                is_over = events & (select.POLLERR | select.POLLHUP | select.POLLNVAL)
                ready = int(wanted) if is_over else (events & select.POLLIN and 1) | (events & select.POLLOUT and 2)
                wanted = gen.send(ready)
        except StopIteration as exc:
            result: Result = exc.value
            return result

    @contextlib.contextmanager
    def waiting(self, seconds: float) -> Iterator[None]:
        """Raise ``patience`` to ``seconds`` for the block."""
        patience, self.patience = self.patience, max(seconds, self.patience)
        try:
            yield
        finally:
            self.patience = patience


class Current(threading.local):
    """What a thread does: the connection of the transaction that it is in, and what collects its statements."""

    connection: Patient | None = None
    pipeline: psycopg.Pipeline | None = None
    is_again = False  # it was tried before, and perhaps carried out


class Connections:
    """
    ``parameters`` are those for psycopg; ``timeout``: seconds without an answer after which the server counts as away;
    ``prepare`` prepares each new connection.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        timeout: float,
        prepare: Callable[[Patient], None] = lambda connection: None,
    ) -> None:
        self._parameters, self._timeout, self._prepare = parameters, timeout, prepare
        self._longest = float(parameters["connect_timeout"])  # seconds for which it tries to connect
        self.now = Current()
        self._begin()
        _POOLS.add(self)

    def _begin(self) -> None:
        self._idle: list[Patient] = []  # the connections that are not in use, the one that was used last at the end
        self._places = threading.Semaphore(_MOST)
        self._pid = os.getpid()  # last: another thread of a forked process must not take the connections of its parent

    @property
    def place(self) -> str:
        """The server and the database, for people."""
        found = self._parameters
        return f"{found.get('host')}:{found.get('port')}, database {found.get('dbname')}, user {found.get('user')}"

    def run(self, work: Callable[[Patient], Result]) -> Result:
        """
        Call ``work`` with a connection; again after a clash with others, if the server has closed the connection meanwhile,
        and while the server is being restarted.

        :raises SiteAway: if the server cannot do it now; it may have been done. No message contains a password.
        :raises RowRefused: if it never will.
        """
        clashes, losses, began = 0, 0, time.monotonic()
        until = began + (0.0 if began - _GIVEN_UP.get(self.place, -_SOON) < _SOON else self._longest)
        while True:
            self.now.is_again = bool(clashes or losses)
            try:
                with self.lend() as connection:
                    return work(connection)
            except StateError as exc:
                raise SiteAway(str(exc)) from exc
            except (psycopg.Error, UnicodeError) as exc:
                advice = _advice_about(exc)
                if advice is _LOST:
                    self.close()  # the server may have closed the idle ones meanwhile
                    losses += 1
                    if losses == 1 or time.monotonic() < until:
                        time.sleep(0.0 if losses == 1 else RETRY_SECONDS)
                        continue
                    _GIVEN_UP[self.place] = time.monotonic()
                clashes += advice is _CLASH
                if advice is _CLASH and clashes <= _CLASHES:
                    time.sleep(_PAUSE * clashes * random.uniform(0.5, 1.5))
                    continue
                raise self._told(exc, advice) from exc

    def _told(self, exc: BaseException, advice: str | None) -> SiteAway:
        reason = " ".join(str(exc).split())[:500] or type(exc).__name__
        if advice is None:
            return RowRefused(f"PostgreSQL at {self.place} refuses it: {reason}")
        advice = _CLOSED if advice is _LOST and "FATAL" in reason else advice
        return SiteAway(f"PostgreSQL at {self.place} cannot be used: {reason}; {advice}")

    @contextlib.contextmanager
    def lend(self) -> Iterator[Patient]:
        """Lend a connection, which the server may have closed meanwhile. :raises psycopg.Error: when none is available."""
        if self._pid != os.getpid():
            _LEFT.append(self._idle)
            self._begin()
        idle, places, connection, is_whole = self._idle, self._places, None, False
        if not places.acquire(timeout=self._timeout):
            raise NoAnswer(f"all {_MOST} connections of this process are in use")
        try:
            with contextlib.suppress(IndexError):
                connection = idle.pop()
            connection = connection or self._opened()
            try:
                yield connection
                is_whole = True
            except psycopg.Error:
                is_whole = True  # if it cannot be used again, it is closed when it is given back
                raise
        finally:
            # after any other end of the block an answer may still come
            if connection is not None:
                is_idle = connection.pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
                if not is_whole or not is_idle:
                    connection.close()
                if not connection.closed:
                    idle.append(connection)
            places.release()

    def _opened(self) -> Patient:
        began = time.monotonic()
        if began < _SILENT.get(self.place, began):
            raise psycopg.OperationalError(f"it gave no answer for {self._longest:g} seconds")
        try:
            connection: Patient = Patient.connect(autocommit=True, **self._parameters)
        except psycopg.OperationalError:
            if (ended := time.monotonic()) - began >= self._longest:
                _SILENT[self.place] = ended + self._longest  # the next calls would wait as long, one after the other
            raise
        connection.patience = self._timeout
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close the connections that are not in use."""
        with contextlib.suppress(IndexError):
            while self._pid == os.getpid():
                self._idle.pop().close()


@atexit.register
def _close_all() -> None:
    for pool in list(_POOLS):
        pool.close()
