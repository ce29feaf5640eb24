"""What the recorder keeps: a load, a return or an event, and its form in the spool."""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import salt.payload

from saltext.jobs.core.master.events import retcode_of

LOAD, RETURN, EVENT = "load", "ret", "event"
#: Field of a return from the job cache. It says that an event with a different return was recorded before.
REPLACES = "replaces"

_TIME = struct.Struct(">d")


@dataclasses.dataclass(frozen=True)
class Record:
    """
    What goes to a returner: a load (``minion`` is empty), a return, or an event (``jid`` and ``minion`` are empty;
    ``body`` has tag and data).

    ``to`` names the one returner that it is for; empty when it is for all.
    """

    kind: str
    jid: str
    minion: str
    body: dict[str, Any]
    to: str = ""

    @property
    def is_correction(self) -> bool:
        """Whether a different return of the same minion was recorded before, from an event."""
        return REPLACES in self.body


def packed(record: Record, now: float) -> bytes:
    """Return a record as the spool holds it, with the time at which it was taken in."""
    fields = (record.kind, record.jid, record.minion, record.body, record.to)
    return _TIME.pack(now) + bytes(salt.payload.dumps(fields, use_bin_type=True))


def taken_at(payload: bytes) -> float:
    """Return when a packed record was taken in."""
    return float(_TIME.unpack_from(payload)[0])


def unpacked(payload: bytes) -> Record:
    """Return the record. :raises Exception: when it is not a record."""
    record = Record(*salt.payload.loads(payload[_TIME.size :], encoding="utf-8"))
    if not isinstance(record.jid, str) or not isinstance(record.minion, str) or not isinstance(record.body, dict):
        raise ValueError("it is no record")
    return record


def summary_of(payload: bytes) -> dict[str, Any]:
    """Return what may be shown of a record: job and minion, without its content."""
    try:
        record = unpacked(payload)
    except Exception as exc:  # Salt and msgpack raise many kinds for an invalid record.
        return {"kind": f"unreadable: {str(exc)[:200]}"}
    if record.kind == EVENT:
        return {"kind": record.kind, "tag": record.body.get("tag")}
    return {"kind": record.kind, "jid": record.jid, "minion": record.minion}


def entry_of(record: Record, at: float) -> dict[str, Any]:
    """
    Return a record as ``store_many`` of a returner takes it: see ``returners/pgjsonb_bulk.py``.

    :param at: when it was taken in, Unix time.
    """
    if record.kind == EVENT:
        return {"kind": "event", "time": at, "tag": record.body["tag"], "data": record.body["data"]}
    if record.kind == LOAD:
        return {"kind": "load", "time": at, "jid": record.jid, "data": record.body}
    return {
        "kind": "return",
        "time": at,
        "jid": record.jid,
        "minion": record.minion,
        "replaces": record.is_correction,
        "data": record.body,
    }


def content_of(data: Mapping[str, Any]) -> bytes:
    """
    Return an 8-byte digest of what a return says, the same for its event and for its record in a job cache.

    Text and bytes count as equal, because some job caches do not tell them apart.
    """
    said = salt.payload.dumps((data.get("return"), retcode_of(data)))
    return hashlib.blake2b(said, digest_size=8).digest()
