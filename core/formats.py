"""
Versions of the forms in which this extension keeps things on the disk and in the job cache.

A form's number rises when a version that knows the lower one only would misread what is written, not where a field comes
in that may be missing. The latest number stands where the form is defined (``FORMAT``). Version 0.1.0 wrote no numbers: what
has none is 1. What has a later number than is known is left as it is, whoever meets it: not acted upon, not set aside, not
written over. With the version that wrote it, it goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.errors import LaterVersion

#: Under which name a record has its number.
FIELD = "format"

_FIRST = 1


def number_of(record: Any) -> Any:
    """Return the number that a record has, as it was read; that of version 0.1.0 where it has none."""
    return record.get(FIELD, _FIRST) if isinstance(record, Mapping) else _FIRST


def check(what: object, number: Any, known: int, until: str) -> None:
    """
    Refuse what a later version of this extension has written.

    :param what: the file or record.
    :param number: as it was read.
    :param known: the latest that is known here.
    :param until: what does not happen as long as that is so.
    :raises LaterVersion: when it is a later one.
    :raises ValueError: when it is no such number.
    """
    if type(number) is not int or number < _FIRST:
        raise ValueError(f"{what} says that it is of format {number!r}, which is none")
    if number > known:
        raise LaterVersion(
            f"{what} is of format {number}, from a later version of saltext-jobs; this one knows {known}. It is left as it "
            f"is, and {until} until the later version is installed again"
        )
