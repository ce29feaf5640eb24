"""What the recorder hands to returners: loads, returns and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import salt.payload

from saltext.jobs.core.ledger.outbox import Key, Row
from saltext.jobs.core.master.events import retcode_of

LOAD, RETURN, EVENT = "load", "ret", "event"


class Record(NamedTuple):
    """
    One record for a returner: a load (``minion`` is empty), a return, or an event (``jid`` and ``minion`` are empty).

    :param at: Unix time: of the publish, of the return, or when the event was heard.
    :param data: the load; the return, in the form of its event; the data of the event.
    :param tag: that of the event.
    """

    kind: str
    jid: str
    minion: str
    at: float
    data: dict[str, Any]
    tag: str = ""


def entry_of(record: Record) -> dict[str, Any]:
    """Return a record as ``store_many`` of a returner takes it: see ``returners/pgjsonb_bulk.py``."""
    if record.kind == EVENT:
        return {"kind": "event", "time": record.at, "tag": record.tag, "data": record.data}
    entry = {"kind": "load", "time": record.at, "jid": record.jid, "data": record.data}
    return entry if record.kind == LOAD else {**entry, "kind": "return", "minion": record.minion}


def event_row(number: str, at: float, tag: str, data: Mapping[str, Any]) -> Row:
    """Return the row of an event. :param number: names it among all events. :raises Exception: if it cannot be packed."""
    return Row(Key(EVENT, number), at, body=bytes(salt.payload.dumps((tag, data), use_bin_type=True)))


def event_in(row: Row) -> Record:
    """Return the event of a row. :raises Exception: of many kinds, if it is damaged."""
    tag, data = salt.payload.loads(row.body or b"", encoding="utf-8")
    return Record(EVENT, "", "", row.at, dict(data), str(tag))


def summary_of(row: Row) -> dict[str, Any]:
    """Return what is shown of a dead letter: job and minion, or the tag, but not the content."""
    kind, jid, minion = row.key
    shown: dict[str, Any] = {"jid": jid, "minion": minion}
    if kind == EVENT:
        try:
            shown = {"tag": event_in(row).tag}
        except Exception as exc:  # Salt and msgpack raise many kinds
            shown = {"tag": f"unreadable: {exc}"[:200]}
    more = {"reason": row.why, "tries": row.tries, "time": row.at}
    return {"name": name_of(row.key), "kind": kind, **shown, **more}


def name_of(key: Key) -> str:
    """Return how people name a dead letter."""
    return "/".join(part for part in key if part)


def rebuilt(jid: str, minion: str, data: Mapping[str, Any], fun: Any, arguments: Any) -> dict[str, Any]:
    """Return the data of a return's event, from the return in the job cache and what its job runs."""
    return {
        "cmd": "_return",
        "fun": fun,
        "fun_args": arguments,
        "retcode": 0,
        "success": retcode_of(data) == 0,
        **data,
        "id": minion,
        "jid": jid,
    }
