"""
The format of stored data: one number, which rises when a version with another one would misread the data.

No version reads data of another format. Whoever opens data compares the number once, before anything else: an engine that of
its folder (``core/engine/process.py``), a database that of its tables.
"""

from __future__ import annotations

from saltext.jobs.core.errors import StateError

#: The format of all files of the engines, of the log and of the banks ``job_retry/…``.
FORMAT = 1
#: The key of the number in a record.
FIELD = "format"


def check(what: object, number: object, known: object = FORMAT) -> None:
    """
    Refuse data of another format.

    :param what: the file, folder or table.
    :param number: its number, as it was read.
    :param known: the number that this version knows.
    :raises StateError: with what to do.
    """
    if number != known:
        raise StateError(
            f"{what} is of format {number}, and this version of saltext-jobs knows {known}: install the version that wrote "
            "it, or move it away to begin anew"
        )
