"""
The format of stored data: a number, which rises when a version with another one would misread the data.

No version reads data of another format. Whoever opens a database compares the number of its tables once, first.
"""

from __future__ import annotations

from saltext.jobs.core.errors import StateError


def check(what: object, number: object, known: object) -> None:
    """
    Refuse data of another format.

    :param what: the file or table.
    :param number: its number, as it was read.
    :param known: the number that this version knows.
    :raises StateError: with what to do.
    """
    if number != known:
        raise StateError(
            f"{what} is of format {number}, and this version of saltext-jobs knows {known}: install the version that wrote "
            "it, or move it away to begin anew"
        )
