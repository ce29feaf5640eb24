"""
Up to where each reader has read the log and need not read it again, on disk: beside the segments, which stay that long.
"""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

from saltext.jobs.core import formats
from saltext.jobs.core.disk import files
from saltext.jobs.core.errors import LaterVersion, StateError
from saltext.jobs.core.log import framing

_SUFFIX = ".reader"


class Position(NamedTuple):
    """
    A place in a log. ``log``: which one; ``segment``, ``offset``: where; ``gaps``: the time of the last gap that is known,
    in nanoseconds; ``boot``: the boot of the machine, after which what was not synced may be gone.
    """

    log: str
    segment: int
    offset: int
    gaps: int
    boot: str

    @classmethod
    def from_record(cls, record: Any) -> Position:
        """Return the place that a record describes. :raises ValueError: when it describes none."""
        try:
            position = cls(**{name: record[name] for name in cls._fields})
        except (KeyError, TypeError) as exc:
            raise ValueError(f"it is no place in a log: {exc!r}") from exc
        if not all(type(number) is int and number >= 0 for number in position[1:4]):
            raise ValueError(f"it is no place in a log: {position}")
        return position


def write(folder: pathlib.Path, reader: str, position: Position) -> None:
    """Note that a reader is done with all before ``position``. :raises OSError:"""
    files.write_msgpack(folder / f"{reader}{_SUFFIX}", {formats.FIELD: framing.FORMAT, **position._asdict()})


def oldest_needed(folder: pathlib.Path, log: str) -> int | None:
    """
    Return the oldest segment that a reader still needs; None where no reader needs any. One whose place cannot be read may
    need all.

    :raises OSError: when the folder cannot be read.
    """
    needed: list[int] = []
    for path in folder.glob(f"*{_SUFFIX}"):
        try:
            found = files.read_msgpack(path)
            if found is not None:
                formats.check(path, formats.number_of(found), framing.FORMAT, "its reader begins anew")
                position = Position.from_record(found)
                needed += [position.segment] if position.log == log else []
        except (StateError, LaterVersion, OSError, ValueError):
            needed.append(0)
    return min(needed, default=None)
