"""
The recorder's spool: one append-only log of records on disk, read by every returner at its own pace.

Records are numbered. The log is a series of segment files, each named by the number of its first record; a record is a
frame of length, checksum and payload. This survives:

* kill -9 at any moment: everything that append has written. A torn frame at the end is cut off.
* A power cut: everything whose append had returned, because it is on the disk by then.
* A full disk: an append that fails leaves the log as it was.
* Damage: all records except the damaged one and those that follow it in its segment. They are counted as lost.

One thread appends and trims; any thread may read. A reader must never have a whole segment in memory.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pathlib
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from saltext.jobs.core import lines
from saltext.jobs.core.disk import files

log = lines.logger(__name__)

#: Length, and the checksum of number, length and payload.
_FRAME = struct.Struct(">II")
_CHECKED = struct.Struct(">QI")
#: The ending of a segment's name, after the number of its first record.
SUFFIX = ".spool"
#: A segment is closed at this size, or at an eighth of the log's bound if that is less.
_SEGMENT_BYTES = 8 << 20
#: The longest record; a frame that claims more is damaged.
LONGEST = 1 << 30


class Spool:
    """
    :param folder: where the segments are.
    :param max_bytes: what they may take together in bytes; beyond it ``drop_oldest`` makes room.
    """

    def __init__(self, folder: pathlib.Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._segment_bytes = min(_SEGMENT_BYTES, max(max_bytes // 8, 1))
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        self._tail: io.FileIO | None = None
        self._reusable = True
        files.private_dir(folder)
        #: The number of the next record.
        self.next = 0
        self._recover()

    @property
    def first(self) -> int:
        """The number of the oldest record, or of the next one if there is none."""
        with self._lock:
            return next(iter(self._sizes), self.next)

    @property
    def size(self) -> int:
        """The bytes of the log on disk."""
        with self._lock:
            return sum(self._sizes.values())

    def append(self, payloads: Sequence[bytes]) -> None:
        """
        Add records; when this returns they are on the disk.

        :raises OSError: when they cannot be written; then none is there.
        """
        if not payloads:
            return
        data = b"".join(framed(number, payload) for number, payload in enumerate(payloads, self.next))
        tail, first = self._writable()
        size = self._sizes[first]
        try:
            write_all(tail.fileno(), data)
            os.fdatasync(tail.fileno())
        except OSError:
            self._undo(tail, size)
            raise
        with self._lock:
            self._sizes[first] = size + len(data)
            self.next += len(payloads)

    def skip_to(self, number: int) -> None:
        """Give the next record at least this number: a returner has seen the lower ones, whose file was lost."""
        if number > self.next:
            log.error("The spool %s lacks the records from %d to %d", self._folder, self.next, number - 1)
            self.next = number
            self.close()
            self._reusable = False

    def trim(self, keep_from: int) -> None:
        """Remove the segments that have only records with numbers below ``keep_from``."""
        with self._lock:
            firsts = list(self._sizes)
        for first, following in itertools.pairwise(firsts):
            if following <= keep_from:
                self._remove(first)

    def drop_oldest(self) -> bool:
        """Remove the oldest segments until the log is within its bound. Returns whether any was removed."""
        dropped = False
        while self.size > self._max_bytes and len(self._sizes) > 1:
            self._remove(self.first)
            dropped = True
        return dropped

    def tail_payloads(self) -> Iterator[bytes]:
        """Yield the payloads of the last segment: the last append is among them."""
        with self._lock:
            last = max(self._sizes, default=None)
        if last is not None:
            with self.path(last).open("rb") as stream:
                for _, payload in _frames(stream, last):
                    yield payload

    def segment_of(self, number: int) -> int | None:
        """Return the first number of the segment that has ``number``, or else of the next one; None at the end."""
        with self._lock:
            if number >= self.next:
                return None
            at_or_below = [first for first in self._sizes if first <= number]
            return max(at_or_below) if at_or_below else next(iter(self._sizes), None)

    def after(self, first: int) -> int | None:
        """Return the first number of the segment that follows the one that begins with ``first``."""
        with self._lock:
            return next((other for other in self._sizes if other > first), None)

    def path(self, first: int) -> pathlib.Path:
        return self._folder / f"{first:020d}{SUFFIX}"

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _recover(self) -> None:
        names = sorted(name for name in os.listdir(self._folder) if name.endswith(SUFFIX))
        for name in names:
            if _is_number(name[: -len(SUFFIX)]):
                self._sizes[int(name[: -len(SUFFIX)])] = (self._folder / name).stat().st_size
        if self._sizes:
            last = max(self._sizes)
            self.next = self._cut_torn_end(last)

    def _cut_torn_end(self, first: int) -> int:
        """Return the number after the last record of a segment, and cut off what follows that record."""
        following, end = first, 0
        with self.path(first).open("r+b") as stream:
            for number, _ in _frames(stream, first):
                following, end = number + 1, stream.tell()
            if end < self._sizes[first]:
                log.warning("The spool %s ends in %d torn bytes: cut off", self.path(first), self._sizes[first] - end)
                stream.truncate(end)
                self._sizes[first] = end
        return following

    def _writable(self) -> tuple[io.FileIO, int]:
        last = max(self._sizes, default=None)
        if last is None or self._sizes[last] >= self._segment_bytes or not self._reusable:
            self.close()
            last = self.next
        if self._tail is None:
            self._tail = self._open_tail(last, self._sizes.get(last, 0))
            with self._lock:
                self._sizes.setdefault(last, 0)
            self._reusable = True
        return self._tail, last

    def _open_tail(self, first: int, size: int) -> io.FileIO:
        handle = os.open(self.path(first), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            # A failed append may have left data.
            os.ftruncate(handle, size)
            files.sync_directory(self._folder)
        except OSError:
            os.close(handle)
            raise
        return io.FileIO(handle, "a")

    def _undo(self, tail: io.FileIO, size: int) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(tail.fileno(), size)
        # If that failed, the next append opens the segment again and cuts it to size.
        self.close()

    def _remove(self, first: int) -> None:
        if self._tail is not None and self.after(first) is None:
            self.close()
        with contextlib.suppress(FileNotFoundError):
            self.path(first).unlink()
        with self._lock:
            self._sizes.pop(first, None)


class Reader:
    """One returner's reading of the spool, in order. Used by one thread."""

    def __init__(self, spool: Spool, start: int) -> None:
        self._spool = spool
        #: The number of the next record to be read.
        self.next = start
        #: Records that were dropped or damaged before they could be read.
        self.lost = 0
        self._first: int | None = None
        self._stream: BinaryIO | None = None
        self._offset = 0
        self._following = 0  # the number of the record at that offset

    def read(self, count: int, max_bytes: int) -> list[tuple[int, bytes]]:
        """
        Return the next (number, payload) pairs, up to ``count`` of them and up to about ``max_bytes``.

        Numbers that are missing from the result were dropped, or damaged.
        """
        found: list[tuple[int, bytes]] = []
        size = 0
        if self.next < self._spool.first:
            self.close()
        while len(found) < count and size < max_bytes and self.next < (end := self._spool.next):
            frame = self._one()
            if frame is None:
                self._skip(end)
                continue
            number, payload = frame
            self._go_to(number)
            found.append((number, payload))
            self.next += 1
            size += len(payload)
        return found

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._first = None

    def _one(self) -> tuple[int, bytes] | None:
        """Return the next intact record of the segment at hand, or None at its end."""
        if self._stream is None and not self._open():
            return None
        assert self._stream is not None
        self._stream.seek(self._offset)
        for number, payload in _frames(self._stream, self._following):
            self._offset, self._following = self._stream.tell(), number + 1
            if number >= self.next:
                return number, payload
        return None

    def _open(self) -> bool:
        first = self._spool.segment_of(self.next)
        if first is None:
            return False
        self._first, self._following, self._offset = first, first, 0
        try:
            self._stream = self._spool.path(first).open("rb")
        except FileNotFoundError:
            return False
        self._go_to(first)
        return True

    def _skip(self, end: int) -> None:
        """Go on with the next segment, because this one cannot be read further; ``end`` is the end of the log."""
        following = self._spool.after(self._first if self._first is not None else self.next - 1)
        self.close()
        # All records below the end are on the disk, so those not found there by now are lost.
        self._go_to(end if following is None else following)

    def _go_to(self, number: int) -> None:
        if number <= self.next:
            return
        if self.next >= self._spool.first:  # else they were dropped, which the figures show
            log.error("The spool is damaged: the records from %d to %d are lost", self.next, number - 1)
        self.lost += number - self.next
        self.next = number


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def framed(number: int, payload: bytes) -> bytes:
    """Return a record as it is written in a segment."""
    return _FRAME.pack(len(payload), _checksum(number, payload)) + payload


def _checksum(number: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKED.pack(number, len(payload))))


def _frames(stream: BinaryIO, following: int) -> Iterator[tuple[int, bytes]]:
    """
    Yield (number, payload) of each frame up to the first damaged one; the stream is then at the end of that frame.

    :param following: the number of the first frame.
    """
    while (payload := _payload(stream, following)) is not None:
        yield following, payload
        following += 1


def _payload(stream: BinaryIO, number: int) -> bytes | None:
    """Return the payload of the frame that begins here, or None if it is not intact."""
    header = stream.read(_FRAME.size)
    if len(header) < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack(header)
    if not 0 < length <= LONGEST:
        return None
    payload = stream.read(length)
    return payload if checksum == _checksum(number, payload) else None


def write_all(handle: int, data: bytes) -> None:
    """Write all of ``data`` to a file descriptor. :raises OSError: when not all could be written."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
