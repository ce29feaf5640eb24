"""
Builds the JSON for the tables, and checks it for what PostgreSQL cannot hold, before anything is sent. A record that is not
JSON is left out, with the reason, and the others are stored. Pure except for Salt's way to decode bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import salt.utils.data

from saltext.jobs.core.functions import function_of, retcode_of

LOAD, RETURN, EVENT = "load", "return", "event"

#: An escaped NUL in JSON, which jsonb cannot hold; not an escaped backslash before ``u0000``.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def rows_of(records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], dict[int, str]]:
    """Return JSON arrays of rows, by the kind of their records, and ``{position: reason}`` of records without a row."""
    rows, refused = dict[str, dict[Any, tuple[int, dict[str, Any]]]](), dict[int, str]()
    for position, record in enumerate(records):
        try:
            name = record["jid"] if record["kind"] == LOAD else position  # a load may come twice
            rows.setdefault(record["kind"], {})[name] = position, _row(record)
        except Exception as exc:  # a minion may send anything
            refused[position] = _why(exc)
    arrays = {kind: _array(list(found.values()), refused) for kind, found in rows.items()}
    return {kind: text for kind, text in arrays.items() if text}, refused


def _array(rows: Sequence[tuple[int, dict[str, Any]]], refused: dict[int, str]) -> str:
    """Return the JSON array of rows, empty if there is none; note in ``refused`` which are left out."""
    try:
        return _checked(_encode([row for _, row in rows]))  # in half the time that it takes row by row
    except Exception:
        texts = list[str]()
    for position, row in rows:
        try:
            texts.append(_text(row))
        except Exception as exc:
            refused[position] = _why(exc)
    return f"[{','.join(texts)}]" if texts else ""


def _why(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"[:1000]


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    kind, data = record["kind"], record["data"]
    if kind == LOAD:
        return {"jid": record["jid"], "body": data}
    if kind == RETURN:
        return {
            "fun": function_of(data),
            "jid": record["jid"],
            "minion": record["minion"],
            "success": "true" if _has_succeeded(data) else "false",
            "time": record["time"],
            "body": data,
        }
    if kind == EVENT:
        return {"tag": record["tag"], "time": record["time"], "body": data}
    raise ValueError(f"a record of the kind {kind!r} is unknown")


def _has_succeeded(data: Mapping[str, Any]) -> bool:
    said = data.get("success")
    return said if isinstance(said, bool) else retcode_of(data) == 0


def _text(row: dict[str, Any]) -> str:
    try:
        text = _encode(row)
    except TypeError:
        # Bytes, or keys that JSON does not have. Salt's pgjsonb decodes everything, which takes ten times as long.
        text = _encode(salt.utils.data.decode(row, to_str=True))
    return _checked(text)


def _checked(text: str) -> str:
    if "\\u0000" in text and _NUL.search(text):
        raise ValueError("PostgreSQL's jsonb can't hold a NUL character")
    text.encode()  # raises for half a surrogate pair
    return text
