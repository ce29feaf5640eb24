"""
The format of stored data: one number, which rises when a version with another one would misread the data.

No version reads data of another format. Whoever opens data compares the number once, before anything else: an engine that of
its folder (``core/engine/process.py``), a database that of its tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.errors import LaterVersion

#: The format of all files of the engines, of the log and of the banks ``job_retry/…``.
FORMAT = 1
#: The key of the number in a record.
FIELD = "format"

_FIRST = 1


def number_of(record: Any) -> Any:
    """Return the number of a record, unchecked; 1 if it has none."""
    return record.get(FIELD, _FIRST) if isinstance(record, Mapping) else _FIRST


def check(what: object, number: object, known: object = FORMAT, _until: str = "") -> None:
    """
    Refuse data of another format.

    :param what: the file, folder or table.
    :param number: its number, as it was read.
    :param known: the number that this version knows.
    :raises StateError: with what to do.
    """
    if number != known:
        raise LaterVersion(
            f"{what} is of format {number}, and this version of saltext-jobs knows {known}: install the version that wrote "
            "it, or move it away to begin anew"
        )
