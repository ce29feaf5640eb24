"""What the recorder hands to returners: loads and returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from saltext.jobs.core.ledger.outbox import Key, Row
from saltext.jobs.core.master.events import retcode_of

#: The kinds of rows in the outbox.
LOAD, RETURN, NOTICE = "load", "ret", "notice"


class Record(NamedTuple):
    """
    One record for a returner: a load (``minion`` is empty), or a return.

    :param at: Unix time of the publish, or of the return.
    :param data: the load; the return, in the form of its event.
    """

    kind: str
    jid: str
    minion: str
    at: float
    data: dict[str, Any]


def entry_of(record: Record) -> dict[str, Any]:
    """Return a record as ``store_many`` of a returner takes it: see ``returners/pgjsonb_bulk.py``."""
    entry = {"kind": "load", "time": record.at, "jid": record.jid, "data": record.data}
    return entry if record.kind == LOAD else {**entry, "kind": "return", "minion": record.minion}


def summary_of(row: Row) -> dict[str, Any]:
    """Return what is shown of a dead letter, which is not its content."""
    kind, jid, minion = row.key
    more = {"reason": row.why, "tries": row.tries, "time": row.at}
    return {"name": name_of(row.key), "kind": kind, "jid": jid, "minion": minion, **more}


def name_of(key: Key) -> str:
    """Return how people name a dead letter."""
    return "/".join(part for part in key if part)


def rebuilt(jid: str, minion: str, data: Mapping[str, Any], fun: Any, arguments: Any) -> dict[str, Any]:
    """Return the data of a return's event, from the return in the job cache and what its job runs."""
    found = {"cmd": "_return", "fun": fun, "fun_args": arguments, "retcode": 0, **data, "id": minion, "jid": jid}
    if "success" not in found:
        found["success"] = retcode_of(data) == 0
    return found
