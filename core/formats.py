"""
Versions of this extension's formats on the disk and in the job cache.

The number of a format (``FORMAT``, where the format is defined) rises when a version that only knows the lower one
would misread the data. A new field that may be missing does not raise it. Version 0.1.0 wrote no numbers: data without
one is 1. Data of a later format is left as it is: not acted upon, not set aside, not overwritten. The version that
wrote it goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.errors import LaterVersion

#: The key under which a record has its number.
FIELD = "format"

_FIRST = 1


def number_of(record: Any) -> Any:
    """Return the number of a record, as it was read; if it has none, that of version 0.1.0."""
    return record.get(FIELD, _FIRST) if isinstance(record, Mapping) else _FIRST


def check(what: object, number: Any, known: int, until: str) -> None:
    """
    Refuse what a later version of this extension has written.

    :param what: the file or record.
    :param number: as it was read.
    :param known: the latest that is known here.
    :param until: what stands still until then.
    :raises LaterVersion: when the number is later than ``known``.
    :raises ValueError: when it is not a valid number.
    """
    if type(number) is not int or number < _FIRST:
        raise ValueError(f"{what} says that it is of format {number!r}, which is none")
    if number > known:
        raise LaterVersion(
            f"{what} is of format {number}, from a later version of saltext-jobs; this one knows {known}. It is left as it "
            f"is, and {until} until the later version is installed again"
        )
