"""
Appends to the log, in each of the master's processes. Each record takes one ``write``, which waits neither for another
process nor for the disk.

It must never prevent a publish or a return: a record that cannot be written is marked as a gap.
``core/log/segments.py`` says how processes stay out of each other's way.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading

from saltext.jobs.core import lines
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.log import framing, segments
from saltext.jobs.core.log.checkpoints import oldest_needed
from saltext.jobs.core.log.records import Record
from saltext.jobs.core.quiet import Quiet

log = lines.logger(__name__)

#: Bytes of all segments by default.
SIZE = 128 << 20
#: How many of the newest segments always stay, for readers that lag.
_LEAST = 4


class Writer:
    """
    :param folder: where the log is.
    :param size: bytes of all segments; beyond it the oldest are removed, even if a reader needs them.
    :param length: bytes of a segment of a new log.
    """

    def __init__(self, folder: pathlib.Path, size: int = SIZE, length: int = segments.LENGTH) -> None:
        self._folder, self._size, self._length = folder, size, length
        self._lock = threading.Lock()
        self._pack = framing.packer()
        self._known = segments.LogIdentity("", 0)
        self._number = 0
        self._handle = -1
        self._unmarked = False  # a record is missing, and the gap could not be marked for readers
        self._quiet = Quiet(log)

    def append(self, record: Record) -> bool:
        """Append a record. Returns whether that succeeded; if not, the log has a gap."""
        with self._lock:
            try:
                if self._unmarked:
                    self._mark()
                self._write(self._pack(record.fields()))
                return True
            except (OSError, StateError, ValueError) as exc:
                self._close()
                self._quiet.error(
                    "append", "A record of the log could not be written, so the engines read the job cache: %s", exc
                )
                self._unmarked = True
                with contextlib.suppress(OSError):
                    self._mark()
                return False

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            self._close()

    def __del__(self) -> None:
        self._close()

    def _mark(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # the log was removed: the next record begins another
            segments.mark_gap(self._folder)
        self._unmarked = False

    def _write(self, data: bytes) -> None:
        while True:
            handle = self._handle
            if handle < 0 or not os.fstat(handle).st_nlink:
                handle = self._open()
            if (written := os.write(handle, data)) != len(data):
                raise OSError(f"only {written} of {len(data)} bytes were written: is the disk full?")
            if os.lseek(handle, 0, os.SEEK_CUR) - written < self._known.length:
                return
            self._go_on()

    def _open(self) -> int:
        """Open the newest segment of the log that is there now, and return its descriptor."""
        self._close()
        self._known = segments.ensure(self._folder, self._length)
        self._take(0)
        return self._handle

    def _go_on(self) -> None:
        """Go on with the next segment, because this one is full."""
        try:
            self._take(self._number)
        except FileNotFoundError:  # the log was removed, with everything in it
            self._open()

    def _take(self, beyond: int) -> None:
        number, handle, is_new = segments.open_newest(self._folder, self._known, beyond)
        self._close()
        self._number, self._handle = number, handle
        if is_new:
            self._remove_old()

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _remove_old(self) -> None:
        """Remove the segments that all readers are past, and the oldest ones beyond ``size``."""
        try:
            there = segments.numbers(self._folder)
            needed = oldest_needed(self._folder, self._known.log)
            size = sum(segments.path_of(self._folder, number).stat().st_size for number in there)
            for number in there[:-_LEAST]:
                path = segments.path_of(self._folder, number)
                if needed is not None and number >= needed and size <= self._size:
                    break
                size -= path.stat().st_size
                path.unlink()
        except FileNotFoundError:
            pass  # another process is removing them as well
        except OSError as exc:
            self._quiet.error("old", "Old segments of the log cannot be removed: %s", exc)
