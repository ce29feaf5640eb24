"""
The files of a log, and the rules by which writers and readers agree on its records without a lock.

A folder has a file ``log``, with the log's name and the length of a segment, and the segments, numbered from 1. Writers
append to the newest segment, each record with one ``write``:

* **A record counts if it begins before the segment's length.** A writer whose record begins later writes it again in
  the next segment, which it makes if needed. So each record counts once, however slow its writer is: the record's place
  decides, not its time.
* **Once there is a next segment, no further record can count in this one.** A process makes the next segment only after
  it has appended beyond the length of this one. The system appends to a file in order, so all later appends begin beyond
  that length too.

A writer that cannot write a record changes the time of the file ``log``, which works even on a full disk. Before a reader
concludes from a missing record that nothing was done, it must compare that time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import secrets
import time
from typing import Any, NamedTuple

from saltext.jobs.core import formats, lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.errors import StateError

log = lines.logger(__name__)

#: Bytes of a segment, after which the next one is begun.
LENGTH = 4 << 20
#: The file that identifies the log.
NAME = "log"
#: How often to look for a log that another process is about to make, and seconds between two looks.
_TRIES, _PAUSE = 100, 0.01
_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")
_SEGMENT = re.compile(r"([0-9]{12})\.segment")


class LogIdentity(NamedTuple):
    """Identifies a log: its unique name, and the length of its segments in bytes."""

    log: str
    length: int


def folder_of(cachedir: str | os.PathLike[str], master: Any) -> pathlib.Path:
    """Return where the log of a master is, by its id."""
    name = str(master or "")
    usable = name and "/" not in name and "\0" not in name and name not in (".", "..")
    return pathlib.Path(cachedir) / "saltext_jobs" / "log" / (name if usable else "_")


def boot() -> str:
    """Return the id of this boot of the machine. Unsynced data of an earlier boot may be gone."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def path_of(folder: pathlib.Path, number: int) -> pathlib.Path:
    """Return the file of a segment."""
    return folder / f"{number:012d}.segment"


def numbers(folder: pathlib.Path) -> list[int]:
    """Return the numbers of the segments, the oldest first; none if there is no folder. :raises OSError:"""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(found[1]) for found in map(_SEGMENT.fullmatch, names) if found)


def identity(folder: pathlib.Path) -> LogIdentity | None:
    """
    Return the identity of a folder's log, or None.

    :raises StateError: when the file is damaged, or of another format.
    :raises OSError: when it cannot be read at this moment.
    """
    found = files.read_msgpack(folder / NAME)
    if found is None:
        return None
    try:
        formats.check(folder, found[formats.FIELD])
        name, length = found["log"], found["length"]
        if not isinstance(name, str) or not isinstance(length, int) or length < 1:
            raise ValueError(f"its name is {name!r} and its length {length!r}")
    except (KeyError, TypeError, ValueError) as exc:
        raise StateError(f"{folder / NAME} does not say what log it is: {exc}") from exc
    return LogIdentity(name, length)


def ensure(folder: pathlib.Path, length: int = LENGTH) -> LogIdentity:
    """
    Make a log in a folder if it has none, and return the identity of the folder's log.

    :raises OSError: when it cannot be read or made.
    :raises StateError: when something else is in its place.
    """
    for _ in range(_TRIES):
        try:
            known = identity(folder)
        except StateError:  # a power cut came before the file was on the disk
            known = None
        if known is not None:
            return known
        with files.single_holder(folder / "lock") as free:
            if free:
                _make(folder, length)
        if not free:
            time.sleep(_PAUSE)
    raise OSError(errno.EBUSY, "another process is at work on it", str(folder))


def _make(folder: pathlib.Path, length: int) -> None:
    try:
        if identity(folder) is not None:
            return
    except StateError as exc:
        log.error("The log of this master begins again: %s", exc)
    record: dict[str, Any] = {formats.FIELD: formats.FORMAT, "log": secrets.token_hex(8), "length": length}
    for number in numbers(folder):
        path_of(folder, number).unlink(missing_ok=True)  # segments of another log
    files.write_msgpack(folder / NAME, record)


def sync(folder: pathlib.Path, first: int, last: int) -> None:
    """Make what these segments hold durable: a power cut takes nothing of it. :raises OSError:"""
    for number in (number for number in numbers(folder) if first <= number <= last):
        with contextlib.suppress(FileNotFoundError):  # it was removed as an old one
            handle = os.open(path_of(folder, number), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fdatasync(handle)
            finally:
                os.close(handle)


def mark_gap(folder: pathlib.Path) -> None:
    """Tell readers that a record is missing. :raises OSError:"""
    path = folder / NAME
    before = path.stat().st_mtime_ns
    at = max(before + 1, time.time_ns())
    for later in (0, 1, 2):  # some file systems keep only whole or even seconds
        os.utime(path, ns=(at + later * 10**9,) * 2)
        if path.stat().st_mtime_ns != before:
            break


def open_newest(folder: pathlib.Path, known: LogIdentity, beyond: int) -> tuple[int, int, bool]:
    """
    Return (number, descriptor, whether it was made) of the newest segment, to append to.

    :param known: the log that the folder is expected to hold.
    :param beyond: the last segment that is known to be full; the next one is made if there is none.
    :raises OSError: also when the folder holds another log.
    :raises StateError: when it cannot be found out which log it holds.
    """
    while True:
        if identity(folder) != known:
            raise FileNotFoundError(errno.ENOENT, "the log is another one now", str(folder))
        newest = max(numbers(folder), default=0)
        # Another process may be faster: make the same segment, or remove it as an old one.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            if newest > beyond:
                return newest, os.open(path_of(folder, newest), os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW), False
            return beyond + 1, files.new_private(path_of(folder, beyond + 1), os.O_APPEND), True
