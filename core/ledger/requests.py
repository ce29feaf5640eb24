"""
The requests of runners to the engines, a row each: what is asked for, and in its place the answer. And how an engine writes
an answer together with what else it has learned.

A runner may withdraw a request until the engine takes it; from then on the engine owes an answer, even after a crash.
All methods raise OSError when the database cannot be used now.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.errors import AnotherDatabase
from saltext.jobs.core.ledger.tables import REQUESTS, Tables

#: The states of a request, in this order.
_ASKED, _TAKEN, _ANSWERED = range(3)
_OPEN = f"engine = ? AND state < {_ANSWERED} ORDER BY state DESC, {{made}}"
_TAKE = f"UPDATE {REQUESTS} SET state = {_TAKEN} WHERE {REQUESTS.of} AND state < {_ANSWERED}"
_REPLY = f"SELECT body FROM {REQUESTS} WHERE {REQUESTS.of} AND state = {_ANSWERED}"
_WITHDRAW = f"DELETE FROM {REQUESTS} WHERE {REQUESTS.of} AND state = {_ASKED}"
_FORGET = f"DELETE FROM {REQUESTS} WHERE {REQUESTS.of}"
_SWEEP = f"DELETE FROM {REQUESTS} WHERE engine = ? AND state = {_ANSWERED} AND at <= {{now}} - ?"
#: Gives the answer. Its values are the answer, the engine, and the id of the request.
ANSWER = f"UPDATE {REQUESTS} SET state = {_ANSWERED}, body = ?, at = {{now}} WHERE {REQUESTS.of}"


class Open(NamedTuple):
    """A request without an answer. ``taken``: the engine, or one before it, has taken it, and may have carried it out."""

    id: str
    taken: bool
    body: bytes


class Requests:
    """``engine``: which one they are for. ``lease``: by which this process leads; None for a runner."""

    def __init__(self, tables: Tables, engine: str, lease: Lease | None = None) -> None:
        self._tables, self._engine, self._lease = tables, engine, lease

    def add(self, request_id: str, body: bytes) -> None:
        """Make a request, durably; one that was made before stays as it is."""
        REQUESTS.add(self._tables, {(self._engine, request_id): (_ASKED, body)}, durable=True)

    def open(self) -> list[Open]:
        """Return the requests without an answer, those taken first. A body that no master has sealed is empty."""
        rows = REQUESTS.read(self._tables, _OPEN, (self._engine,))
        return [Open(name, state == _TAKEN, body or b"") for _, name, state, body in rows]

    def take(self, request_id: str) -> bool:
        """Take a request: from now on the engine owes an answer. Returns False if it was withdrawn."""
        return self._change(_TAKE, request_id)

    def answer(self, request_id: str, reply: bytes) -> None:
        """Answer a request, durably."""
        values = self._tables.seal.put(reply, *self._answered(request_id)), self._engine, request_id
        self._tables.together(lambda: self._tables.run(ANSWER, values), self._lease, durable=True)

    def reply(self, request_id: str) -> bytes | None:
        """Return the answer, or None as long as there is none."""
        found = self._tables.read(_REPLY, (self._engine, request_id))
        return self._tables.seal.take(found[0][0], *self._answered(request_id)) if found else None

    def withdraw(self, request_id: str) -> bool:
        """Remove a request that was not taken, and tell whether that succeeded."""
        return self._change(_WITHDRAW, request_id)

    def forget(self, request_id: str) -> None:
        """Remove a request whose answer has been read."""
        self._change(_FORGET, request_id)

    def sweep(self, seconds: float) -> None:
        """Remove the answers that are older than this many seconds."""
        self._tables.run(_SWEEP, (self._engine, seconds))

    def _answered(self, request_id: str) -> tuple[object, ...]:
        """Return the place for which an answer is sealed, so that it never counts as a request."""
        return REQUESTS.table, self._engine, request_id, _ANSWERED

    def _change(self, query: str, request_id: str) -> bool:
        def work() -> bool:
            return self._tables.changed(query, (self._engine, request_id)) > 0

        return work() if self._lease is None else self._tables.together(work, self._lease)


class EngineStore:
    """
    What the engine called ``engine`` keeps. ``lease``: by which this process leads; None for one that only reads. Nothing
    is written into another database than before, which would then have a part of it.
    """

    engine: str

    def __init__(self, tables: Tables, lease: Lease | None = None) -> None:
        self._tables, self._lease, self._database = tables, lease, tables.name() if lease else ""

    def write(self, changes: Any, durable: bool = True, answers: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """
        Store changes, and answers to requests by their ids, as a whole. ``durable``: they must survive a power cut. :raises
        AnotherDatabase: then the next call writes into that one.
        """

        def work() -> None:
            before, self._database = self._database, self._tables.name()
            if before not in ("", self._database):
                raise AnotherDatabase(f"{self._tables.place} is another database than before")
            self._put(changes)
            for request_id, reply in answers.items():
                Requests(self._tables, self.engine).answer(request_id, reply)

        self._tables.together(work, self._lease, durable)

    def _put(self, changes: Any) -> None:
        """Store changes, in this thread's transaction."""
        raise NotImplementedError
