"""
The requests of runners to the engines, a row each: what is asked for, and in its place the answer.

A runner may withdraw a request until the engine takes it; from then on the engine owes an answer, even after a crash.
All methods raise OSError when the database cannot be used now.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.ledger.tables import REQUESTS, Execute, Tables

#: The states of a request, in this order.
_ASKED, _TAKEN, _ANSWERED = range(3)
_OF = "engine = ? AND id = ?"
_OPEN = f"""SELECT id, state, body FROM {REQUESTS} WHERE engine = ? AND state < {_ANSWERED}
    ORDER BY state DESC, id"""
_TAKE = f"UPDATE {REQUESTS} SET state = {_TAKEN} WHERE {_OF} AND state < {_ANSWERED}"
_REPLY = f"SELECT body FROM {REQUESTS} WHERE {_OF} AND state = {_ANSWERED}"
_WITHDRAW = f"DELETE FROM {REQUESTS} WHERE {_OF} AND state = {_ASKED}"
_FORGET = f"DELETE FROM {REQUESTS} WHERE {_OF}"
_SWEEP = f"DELETE FROM {REQUESTS} WHERE engine = ? AND state = {_ANSWERED} AND at < ?"
#: Gives the answer. Its values are the answer, the engine, and the id of the request.
ANSWER = f"UPDATE {REQUESTS} SET state = {_ANSWERED}, body = ?, at = {{now}} WHERE {_OF}"


class Open(NamedTuple):
    """A request without an answer. ``taken``: the engine, or one before it, has taken it, and may have carried it out."""

    id: str
    taken: bool
    body: bytes


class Requests:
    """
    :param engine: which one they are for.
    :param lease: by which this process leads; None for a runner.
    """

    def __init__(self, tables: Tables, engine: str, lease: Lease | None = None) -> None:
        self._tables, self._engine, self._lease = tables, engine, lease
        self._seal, now = tables.seal, tables.dialect.now
        self._add = f"""INSERT INTO {REQUESTS} (id, engine, state, body, at) VALUES (?, ?, {_ASKED}, ?, {now})
            ON CONFLICT DO NOTHING"""
        self._answer = ANSWER.format(now=now)

    def add(self, request_id: str, body: bytes) -> None:
        """Make a request, durably. Requests are taken in the order of their ids."""
        self._tables.write(lambda execute: self.put(execute, request_id, body))

    def put(self, execute: Execute, request_id: str, body: bytes) -> None:
        """Make a request, as a part of a transaction. A request that was made before stays as it is."""
        execute(self._add, (request_id, self._engine, self._seal.put(body, *self._place(request_id))))
        self._tables.tell(execute, self._engine)

    def open(self) -> list[Open]:
        """Return what is not answered: first what was taken. What no master has sealed is empty."""
        rows = self._tables.read(_OPEN, (self._engine,))
        return [
            Open(name, state == _TAKEN, self._seal.take(bytes(body), *self._place(name)) or b"")
            for name, state, body in rows
        ]

    def take(self, request_id: str) -> bool:
        """Owe a request an answer. Returns False if it was withdrawn."""
        return self._change(_TAKE, request_id)

    def answer(self, request_id: str, reply: bytes) -> None:
        """Answer a request, durably."""
        values = self._seal.put(reply, *self._place(request_id), _ANSWERED), self._engine, request_id
        self._tables.write(lambda execute: execute(self._answer, values), self._lease)

    def reply(self, request_id: str) -> bytes | None:
        """Return the answer, or None as long as there is none."""
        found = self._tables.read(_REPLY, (self._engine, request_id))
        return self._seal.take(bytes(found[0][0]), *self._place(request_id), _ANSWERED) if found else None

    def withdraw(self, request_id: str) -> bool:
        """Remove a request that was not taken, and tell whether that succeeded."""
        return self._change(_WITHDRAW, request_id)

    def forget(self, request_id: str) -> None:
        """Remove a request whose answer has been read."""
        self._change(_FORGET, request_id)

    def sweep(self, before: float) -> None:
        """Remove the answers that were given before that Unix time."""
        self._tables.run(_SWEEP, (self._engine, before))

    def _place(self, request_id: str) -> tuple[str, str, str]:
        return REQUESTS, self._engine, request_id

    def _change(self, query: str, request_id: str) -> bool:
        def work(execute: Execute) -> Any:
            return execute(query, (self._engine, request_id)).rowcount

        return bool(self._tables.write(work, self._lease, durable=False))
