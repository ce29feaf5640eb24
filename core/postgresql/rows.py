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

from saltext.jobs.core.functions import function_of, retcode_of

LOAD, RETURN, EVENT = "load", "return", "event"

#: An escaped NUL in JSON, which jsonb cannot hold; not an escaped backslash before ``u0000``.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@dataclasses.dataclass
class Rows:
    """
    JSON arrays of rows, by the kind of their records; ``refused`` is ``{position: reason}`` of the records without a row.
    """

    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: dict[int, str] = dataclasses.field(default_factory=dict)


def rows_of(records: Sequence[Mapping[str, Any]]) -> Rows:
    """
    Return the rows of some records.

    :param records: as ``store_many`` of the returner takes them.
    """
    rows = Rows()
    made: dict[str, dict[Any, tuple[int, dict[str, Any]]]] = {}
    for position, record in enumerate(records):
        try:
            name = record["jid"] if record["kind"] == LOAD else position  # a load may come twice
            made.setdefault(record["kind"], {})[name] = position, _row(record)
        except Exception as exc:  # A minion may send anything.
            rows.refused[position] = _reason(exc)
    for kind, found in made.items():
        try:
            rows.texts[kind] = _text([row for _, row in found.values()])
        except Exception:  # json raises several kinds for data that is not JSON; now each row shows what it is
            texts = []
            for position, row in found.values():
                try:
                    texts.append(_decoded(row))
                except Exception as exc:
                    rows.refused[position] = _reason(exc)
            if texts:
                rows.texts[kind] = f"[{','.join(texts)}]"
    return rows


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


def _reason(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"[:1000]


def _has_succeeded(data: Mapping[str, Any]) -> bool:
    said = data.get("success")
    return said if isinstance(said, bool) else retcode_of(data) == 0


def _decoded(row: dict[str, Any]) -> str:
    try:
        return _text(row)
    except TypeError:
        # Bytes, or keys that JSON does not have. Salt's pgjsonb decodes everything, which takes ten times as long.
        return _text(salt.utils.data.decode(row, to_str=True))


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if "\\u0000" in text and _NUL.search(text):
        raise ValueError("PostgreSQL's jsonb can't hold a NUL character")
    text.encode()  # raises for half a surrogate pair
    return text
