"""
Builds the JSON for the tables, and checks it for what PostgreSQL cannot hold, before anything is sent.

Pure except for Salt's way to decode bytes. A record that is not JSON is left out, with the reason, and the others are
stored.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import salt.utils.data

from saltext.jobs.core.returned import function_of, retcode_of

LOAD, RETURN, EVENT = "load", "return", "event"

#: An escaped NUL in JSON, which jsonb cannot hold; not an escaped backslash before ``u0000``.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@dataclasses.dataclass
class Rows:
    """JSON texts, one for each row; ``refused`` is ``{position: reason}`` of the records without a row."""

    loads: dict[str, str] = dataclasses.field(default_factory=dict)
    returns: list[str] = dataclasses.field(default_factory=list)
    events: list[str] = dataclasses.field(default_factory=list)
    refused: dict[int, str] = dataclasses.field(default_factory=dict)


def rows_of(records: Sequence[Mapping[str, Any]]) -> Rows:
    """
    Return the rows of some records.

    :param records: as ``store_many`` of the returner takes them.
    """
    rows = Rows()
    for position, record in enumerate(records):
        try:
            _add(rows, record)
        except Exception as exc:  # A minion may send anything; json raises several kinds for data that is not JSON.
            rows.refused[position] = f"{type(exc).__name__}: {exc}"[:1000]
    return rows


def _add(rows: Rows, record: Mapping[str, Any]) -> None:
    kind, data = record["kind"], record["data"]
    if kind == LOAD:
        jid = record["jid"]
        rows.loads[jid] = _text({"jid": jid, "body": data})
    elif kind == RETURN:
        row = {
            "fun": function_of(data),
            "jid": record["jid"],
            "minion": record["minion"],
            "success": "true" if _has_succeeded(data) else "false",
            "time": record["time"],
            "body": data,
        }
        rows.returns.append(_text(row))
    elif kind == EVENT:
        rows.events.append(_text({"tag": record["tag"], "time": record["time"], "body": data}))
    else:
        raise ValueError(f"a record of the kind {kind!r} is unknown")


def _has_succeeded(data: Mapping[str, Any]) -> bool:
    said = data.get("success")
    return said if isinstance(said, bool) else retcode_of(data) == 0


def _text(row: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    except TypeError:
        # Bytes, or keys that JSON does not have. Salt's pgjsonb decodes everything, which takes ten times as long.
        text = json.dumps(salt.utils.data.decode(row, to_str=True), ensure_ascii=False, allow_nan=False)
    if "\\u0000" in text and _NUL.search(text):
        raise ValueError("PostgreSQL's jsonb can't hold a NUL character")
    text.encode()  # raises for half a surrogate pair
    return text
