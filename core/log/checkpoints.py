"""
The position of each reader of the log, on disk beside the segments. Segments that a reader still needs stay.
"""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

from saltext.jobs.core.disk import files
from saltext.jobs.core.errors import StateError

_SUFFIX = ".reader"


class Position(NamedTuple):
    """
    A place in a log. ``log``: which log; ``segment``, ``offset``: where in it; ``gaps``: the time of the last known
    gap, in nanoseconds; ``boot``: the boot of the machine. A later boot may have lost unsynced data.
    """

    log: str
    segment: int
    offset: int
    gaps: int
    boot: str

    @classmethod
    def from_record(cls, record: Any) -> Position:
        """Return the place in a record. :raises ValueError: when the record is not valid."""
        try:
            position = cls(**{name: record[name] for name in cls._fields})
        except (KeyError, TypeError) as exc:
            raise ValueError(f"it is no place in a log: {exc!r}") from exc
        if not all(type(number) is int and number >= 0 for number in position[1:4]):
            raise ValueError(f"it is no place in a log: {position}")
        return position


def write(folder: pathlib.Path, reader: str, position: Position) -> None:
    """Note that a reader is done with everything before ``position``. :raises OSError:"""
    files.write_msgpack(folder / f"{reader}{_SUFFIX}", position._asdict())


def oldest_needed(folder: pathlib.Path, log: str) -> int | None:
    """
    Return the oldest segment that a reader still needs, or None. A reader whose position cannot be read may need all.

    :raises OSError: when the folder cannot be read.
    """
    needed: list[int] = []
    for path in folder.glob(f"*{_SUFFIX}"):
        try:
            found = files.read_msgpack(path)
            if found is not None:
                position = Position.from_record(found)
                needed += [position.segment] if position.log == log else []
        except (StateError, OSError, ValueError):
            needed.append(0)
    return min(needed, default=None)
