"""
Versions of this extension's formats on the disk and in the job cache.

The number of a format (``FORMAT``, where the format is defined) rises when a version that knows only the lower number would
misread the data. A new optional field does not raise it. Version 0.1.0 wrote no numbers: data without a number has format 1.
Data of a later format is left as it is: not acted upon, not set aside, not overwritten. The later version goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.errors import LaterVersion

#: The key of the number in a record.
FIELD = "format"

_FIRST = 1


def number_of(record: Any) -> Any:
    """Return the number of a record, unchecked; 1 if it has none, as in version 0.1.0."""
    return record.get(FIELD, _FIRST) if isinstance(record, Mapping) else _FIRST


def check(what: object, number: Any, known: int, until: str) -> None:
    """
    Refuse data that a later version of this extension has written.

    :param what: the file or record.
    :param number: the number, as it was read.
    :param known: the latest number that this version knows.
    :param until: what the message says happens until the later version is installed again.
    :raises LaterVersion: when the number is later than ``known``.
    :raises ValueError: when it is not a valid number.
    """
    if type(number) is not int or number < _FIRST:
        raise ValueError(f"{what} has the format {number!r}; accepted is a whole number of at least {_FIRST}")
    if number > known:
        raise LaterVersion(
            f"{what} is of format {number}, from a later version of saltext-jobs; this one knows {known}. It is left as it "
            f"is, and {until} until the later version is installed again"
        )
