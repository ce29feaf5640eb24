"""
Who gets records: a returner, which gets what the job cache has, or people, who get notices.

It blocks: use each in one Worker of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.ledger.outbox import Key, Row
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder.pipeline import Failure, failure_of
from saltext.jobs.core.recorder.record import LOAD, RETURN, Record, entry_of, rebuilt
from saltext.jobs.core.recorder.returner import Complained, ReturnerAbsent, ReturnerModule
from saltext.jobs.core.recorder.source import Source

log = lines.logger(__name__)

#: Returns that are looked up at once, and bytes after which a round has enough.
_LOOKED_UP, _BYTES = 25, 8 << 20
#: Number of jobs whose load this returner has, as it is remembered; after a further one none is.
_LOADS = 20_000

#: Sends a notice, or raises; blocks.
Send: TypeAlias = Callable[[Mapping[str, Any]], None]
#: What is handed over for a row: none if it is not wanted, None if it cannot be read any more.
Parcel: TypeAlias = Sequence[Any] | None


class Recipient(Protocol):
    """Takes parcels. It must never take a failure for a success."""

    @property
    def at_once(self) -> bool:
        """Whether it takes all parcels of a call or none."""

    @property
    def knows(self) -> bool:
        """Whether a record that comes twice is stored once."""

    def read(self, rows: Sequence[Row]) -> dict[Key, Parcel]:
        """Return the parcels of the first of some rows, as many as memory allows."""

    def hand_over(self, parcels: Mapping[Key, Sequence[Any]], in_doubt: bool) -> Failure | Mapping[Key, Failure]:
        """
        Hand parcels over.

        :param in_doubt: whether it may have some of them already.
        :return: why none of them was taken, or why some were not.
        """


class ToReturner:
    """
    :param module: the returner.
    :param source: what the rows are about; used by this recipient alone.
    """

    def __init__(self, module: ReturnerModule, source: Source) -> None:
        self._module, self._source = module, source
        self._loads: set[str] = set()
        self._holders: dict[str, Mapping[str, Any]] = {}  # the returns that it has, of jobs of this round

    @property
    def at_once(self) -> bool:
        try:
            return self._module.takes_many
        except Exception:  # A returner that cannot be loaded fails when it gets a record.
            return False

    @property
    def knows(self) -> bool:
        return self.at_once or self._module.has("get_jid")

    def read(self, rows: Sequence[Row]) -> dict[Key, Parcel]:
        self._holders.clear()
        found: dict[Key, Parcel] = {}
        size = 0
        for start in range(0, len(rows), _LOOKED_UP):
            part = rows[start : start + _LOOKED_UP]
            returns = self._source.returns(row.key for row in part if row.key.kind == RETURN)
            found.update((row.key, self._parcel(row, returns.get(row.key, (None, 0))[0])) for row in part)
            size += sum(of for _, of in returns.values())
            if size >= _BYTES:
                break
        return found

    def _parcel(self, row: Row, data: Mapping[str, Any] | None) -> Parcel:
        kind, jid, minion = row.key
        job = self._source.job(jid)
        if not job.is_wanted or (kind == LOAD and jid in self._loads):
            return ()
        load = self._source.load(jid) if kind == LOAD or not (job.is_published or jid in self._loads) else {}
        loads = [Record(LOAD, jid, "", row.at, load)] if load else []
        if kind == LOAD:
            return loads or None
        if data is None:
            return None
        return [*loads, Record(RETURN, jid, minion, row.at, rebuilt(jid, minion, data, *job[:2]))]

    def hand_over(self, parcels: Mapping[Key, Sequence[Record]], in_doubt: bool) -> Failure | Mapping[Key, Failure]:
        refused: dict[Key, Failure] = {}
        try:
            if self.at_once:
                handed = [(key, record) for key, parcel in parcels.items() for record in parcel]
                reasons = self._module.store_many([entry_of(record) for _, record in handed])
                refused = {handed[place][0]: Failure(reason, is_fault=True) for place, reason in reasons.items()}
            else:
                for key, parcel in parcels.items():
                    if not (in_doubt and self._has(key)):
                        self._store(parcel)
        except Exception as exc:  # A returner raises whatever its client library raises.
            return _failure(exc)
        if len(self._loads) >= _LOADS:
            self._loads.clear()
        taken = (parcel for key, parcel in parcels.items() if key not in refused)
        self._loads.update(record.jid for parcel in taken for record in parcel if record.kind == LOAD)
        return refused

    def _has(self, key: Key) -> bool:
        if key.kind != RETURN or not self._module.has("get_jid"):
            return False
        if key.jid not in self._holders:
            self._holders[key.jid] = self._module.returns(key.jid)
        return key.minion in self._holders[key.jid]

    def _store(self, parcel: Sequence[Record]) -> None:
        for record in parcel:
            if record.kind == LOAD:
                self._module.store_load(record.jid, record.data)
            else:
                self._module.store_return(record.data)


class ToPeople:
    """
    :param name: for the log.
    :param keep: seconds after which a notice is given up.
    """

    at_once = knows = False

    def __init__(self, name: str, send: Send, keep: float) -> None:
        self._name, self._send, self._keep = name, send, keep
        self._quiet = Quiet(log)

    def read(self, rows: Sequence[Row]) -> dict[Key, Parcel]:
        return {row.key: self._parcel(row) for row in rows}

    def _parcel(self, row: Row) -> Parcel:
        try:
            notice = dict(salt.payload.loads(row.body or b""))
        except Exception as exc:  # msgpack raises many kinds
            self._quiet.error("row", "A notice for %s cannot be read: %s", self._name, exc)
            return None
        if time.time() - row.at <= self._keep:
            return (notice,)
        log.error("A notice for %s is given up: %s", self._name, notice["text"])
        return None

    def hand_over(self, parcels: Mapping[Key, Sequence[Any]], in_doubt: bool) -> Failure | Mapping[Key, Failure]:
        try:
            for (notice,) in parcels.values():
                self._send(notice)
        except Exception as exc:
            return _failure(exc)
        return {}


def _failure(exc: Exception) -> Failure:
    if isinstance(exc, ReturnerAbsent):
        return Failure(str(exc), is_fault=False)
    return failure_of(exc.__cause__ if isinstance(exc, Complained) and exc.__cause__ else exc)
