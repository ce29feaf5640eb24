"""
The rows of batches: one for each batch, and one for each minion that a batch was once to send to, or that has ended. What
their bodies mean is said in ``core/batch/state.py``.

All functions raise OSError when the database cannot be used now.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgpack

from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ledger import meta
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.ledger.tables import BATCHES, PARTS, Tables


class Kind(int, enum.Enum):
    """What a batch is to the engine."""

    OPEN = 0  # it has not ended
    ENDED = 1
    ASIDE = 2  # its rows cannot be read


class Change(NamedTuple):
    """
    What has changed of a batch since it was written last.

    :param spec: returns what is fixed when the batch is first written.
    :param parts: by minion.
    :param asks: the bodies of requests that are made together with the change, by engine and id.
    """

    jid: str
    kind: Kind
    spec: Callable[[], bytes]
    body: bytes
    parts: Mapping[str, bytes]
    asks: Mapping[tuple[str, str], bytes] = MappingProxyType({})


#: For what a spec is sealed.
_SPEC = "spec"
_UPDATE = f"UPDATE {BATCHES} SET kind = ?, body = ?, at = {{now}} WHERE jid = ?"
_INSERT = f"INSERT INTO {BATCHES} (kind, body, jid, spec) VALUES (?, ?, ?, ?)"
#: One statement, so that all is of one moment.
_READ = f"""SELECT '', spec, body FROM {BATCHES} WHERE jid = ? AND kind <> {Kind.ASIDE.value}
    UNION ALL SELECT minion, body, NULL FROM {PARTS} WHERE jid = ?"""
_KIND = f"SELECT kind FROM {BATCHES} WHERE jid = ?"
_OF_KIND = f"SELECT jid FROM {BATCHES} WHERE kind = ? ORDER BY jid"
_SET_ASIDE = f"UPDATE {BATCHES} SET kind = {Kind.ASIDE.value}, at = {{now}} WHERE jid = ?"
#: The place in the log up to which the open batches have taken it.
_CURSOR = "batch_manager", "cursor"
_OLD = f"SELECT jid FROM {BATCHES} WHERE kind = ? AND at < ?"


def write(
    tables: Tables,
    changes: Iterable[Change],
    lease: Lease | None = None,
    durable: bool = True,
    cursor: Position | None = None,
) -> None:
    """
    Store what has changed of batches; all of it or nothing.

    :param durable: whether that must survive a power cut when this returns.
    :param cursor: up to which place of the log that and all before it came of it; None if that is not known.
    """

    def work() -> None:
        for jid, kind, spec, body, parts, asks in changes:
            row = kind.value, tables.seal.put(body, BATCHES.table, jid), jid
            if tables.changed(_UPDATE, row) < 1:
                tables.run(_INSERT, (*row, tables.seal.put(spec(), BATCHES.table, jid, _SPEC)))
            PARTS.write(tables, {(jid, minion): (part,) for minion, part in parts.items()})
            for (engine, request_id), ask in asks.items():
                Requests(tables, engine).add(request_id, ask)
        if cursor is not None:
            meta.keep(tables, *_CURSOR, msgpack.packb(cursor._asdict()))

    tables.together(work, lease, durable)


def read(tables: Tables, jid: str) -> tuple[bytes, bytes, dict[str, bytes]] | None:
    """
    Return the spec and the body of a batch, and those of its minions; None if there is none, or if it was set aside.

    :raises StateError: when one of them was written by others than the masters.
    """

    def genuine(sealed: bytes, *place: str) -> bytes:
        found = tables.seal.take(bytes(sealed), *place)
        if found is None:
            raise StateError(f"a row of batch {jid} is not sealed by a master of this site")
        return found

    own, parts = None, {}
    for minion, body, more in tables.read(_READ, (jid, jid)):
        if minion:
            parts[str(minion)] = genuine(body, PARTS.table, jid, minion)
        else:
            own = genuine(body, BATCHES.table, jid, _SPEC), genuine(more, BATCHES.table, jid)
    return (*own, parts) if own else None


def cursor(tables: Tables) -> Position | None:
    """Return the place in the log that was written last; None if there is none that can be used."""
    body = meta.get(tables, *_CURSOR)
    with contextlib.suppress(ValueError, msgpack.UnpackException):
        return Position.from_record(msgpack.unpackb(body or b""))
    return None


def kind_of(tables: Tables, jid: str) -> Kind | None:
    """Return the kind of a batch; None if there is no such batch."""
    found = tables.read(_KIND, (jid,))
    return Kind(found[0][0]) if found else None


def jids(tables: Tables, kind: Kind) -> list[str]:
    """Return the jids of the batches of a kind, oldest first."""
    return [str(row[0]) for row in tables.read(_OF_KIND, (kind.value,))]


def set_aside(tables: Tables, jid: str, lease: Lease | None) -> None:
    """Have no engine read a batch again."""
    tables.together(lambda: tables.run(_SET_ASIDE, (jid,)), lease, durable=True)


def forget(tables: Tables, kind: Kind, before: float, lease: Lease | None) -> list[str]:
    """Remove the batches of a kind that were last written before that Unix time, and return their jids."""
    old = [str(row[0]) for row in tables.read(_OLD, (kind.value, before))]

    def work() -> None:
        for jid in old:
            for rows in (PARTS, BATCHES):
                tables.run(f"DELETE FROM {rows} WHERE jid = ?", (jid,))

    if old:
        tables.together(work, lease)
    return old
