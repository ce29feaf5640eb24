"""
The rows of batches: one for each batch, and one for each minion that a batch was once to send to, or that has ended. What
their bodies mean is said in ``core/batch/state.py``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ledger.requests import EngineStore, Requests
from saltext.jobs.core.ledger.tables import BATCHES, PARTS


class Kind(int, enum.Enum):
    """What a batch is to the engine."""

    OPEN = 0  # it has not ended
    ENDED = 1
    ASIDE = 2  # its rows cannot be read


class Change(NamedTuple):
    """What has changed of a batch since it was written last."""

    jid: str
    kind: Kind
    spec: Callable[[], bytes]  # returns what is fixed when the batch is first written
    body: bytes
    parts: Mapping[str, bytes]  # by minion
    asks: Mapping[tuple[str, str], bytes] = MappingProxyType({})  # requests made with it: bodies, by engine and id


#: For what a spec is sealed.
_SPEC = "spec"
_UPDATE = f"UPDATE {BATCHES} SET kind = ?, body = ?, at = {{now}} WHERE jid = ?"
#: One statement, so that all is of one moment.
_READ = f"""SELECT '', spec, body FROM {BATCHES} WHERE jid = ? AND kind <> {Kind.ASIDE.value}
    UNION ALL SELECT minion, body, NULL FROM {PARTS} WHERE jid = ?"""
_KIND = f"SELECT kind FROM {BATCHES} WHERE jid = ?"
_OF_KIND = f"SELECT jid FROM {BATCHES} WHERE kind = ?"
_AFTER = f"SELECT jid, spec FROM {BATCHES} WHERE jid > ? AND jid <= ? AND kind <> {Kind.ASIDE.value} ORDER BY jid"
_SET_ASIDE = f"UPDATE {BATCHES} SET kind = {Kind.ASIDE.value}, at = {{now}} WHERE jid = ?"
_OLD = f"SELECT jid FROM {BATCHES} WHERE kind = ? AND at < ?"


class Batches(EngineStore):
    """
    Methods block, and raise OSError when the database cannot be used now. A batch is written as a whole at first: minions
    without a row count as not sent to.
    """

    engine = "batch_manager"

    def _put(self, changes: Iterable[Change]) -> None:
        tables = self._tables
        for jid, kind, spec, body, parts, asks in changes:
            if tables.changed(_UPDATE, (kind.value, tables.seal.put(body, BATCHES.table, jid), jid)) < 1:
                its_spec = tables.seal.put(spec(), BATCHES.table, jid, _SPEC)
                BATCHES.add(tables, {(jid,): (kind.value, its_spec, body)})
            PARTS.write(tables, {(jid, minion): (part,) for minion, part in parts.items()})
            for (engine, request_id), ask in asks.items():
                Requests(tables, engine).add(request_id, ask)

    def rows(self, jid: str) -> tuple[bytes, bytes, dict[str, bytes]] | None:
        """
        Return the spec and the body of a batch, and those of its minions; None if there is none, or if it was set aside.
        :raises StateError: when one of them was written by others than the masters.
        """

        def genuine(sealed: bytes, *place: str) -> bytes:
            found = self._tables.seal.take(sealed, *place)
            if found is None:
                raise StateError(f"a row of batch {jid} is not sealed by a master of this site")
            return found

        own, parts = None, {}
        for minion, body, more in self._tables.read(_READ, (jid, jid)):
            if minion:
                parts[minion] = genuine(body, PARTS.table, jid, minion)
            else:
                own = genuine(body, BATCHES.table, jid, _SPEC), genuine(more, BATCHES.table, jid)
        return (*own, parts) if own else None

    def kind_of(self, jid: str) -> Kind | None:
        """Return the kind of a batch, even if it cannot be read; None if there is no such batch."""
        found = self._tables.read(_KIND, (jid,))
        return Kind(found[0][0]) if found else None

    def jids(self, *kinds: Kind) -> list[str]:
        """Return the jids of the batches of some kinds, oldest first."""
        return sorted(str(row[0]) for kind in kinds for row in self._tables.read(_OF_KIND, (kind.value,)))

    def specs_after(self, jid: str, until: str) -> Iterator[tuple[str, bytes]]:
        """Yield the jids and specs of the batches after one, oldest first, without those of others than the masters."""
        for later, sealed in self._tables.read(_AFTER, (jid, until)):
            if spec := self._tables.seal.take(sealed, BATCHES.table, later, _SPEC):
                yield later, spec

    def set_aside(self, jid: str) -> None:
        """Have no engine read a batch again."""
        self._tables.together(lambda: self._tables.run(_SET_ASIDE, (jid,)), self._lease, durable=True)

    def forget(self, kind: Kind, before: float) -> list[str]:
        """Remove the batches of a kind that were last written before that Unix time, and return their jids."""
        old = [str(row[0]) for row in self._tables.read(_OLD, (kind.value, before))]

        def work() -> None:
            for jid in old:
                for rows in (PARTS, BATCHES):
                    self._tables.run(f"DELETE FROM {rows} WHERE jid = ?", (jid,))

        if old:
            self._tables.together(work, self._lease)
        return old
