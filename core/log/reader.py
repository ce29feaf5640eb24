"""
Reads the log from a position on, in order and each record once.

It depends only on the files, so it may be called at any time. It must never hide that it could not read something: it
reports a gap, and the caller must then read the job cache, once. It blocks only for the disk, and reads a part at a time.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

from saltext.jobs.core import lines
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.log import framing, records, segments
from saltext.jobs.core.log.checkpoints import Position
from saltext.jobs.core.log.segments import boot
from saltext.jobs.core.quiet import Quiet

log = lines.logger(__name__)

#: Bytes that are read at once.
PART = 256 << 10


class News(NamedTuple):
    """
    What was read. ``gap``: why records may be missing, or empty. ``more``: whether more can be read at once.
    """

    records: list[records.Record]
    gap: str
    more: bool


class Reader:
    """
    :param folder: where the log is.
    :param position: where to begin; None for the end, or the beginning if there is no log at the first look. If the log
        does not go on there (it was made again, or its machine was restarted and may have lost records), a gap is reported.
        Then reading begins early enough to miss nothing: at the start of that segment, or of the oldest one. So some
        records may be returned a second time.
    :param part: bytes that are read at once.
    """

    def __init__(self, folder: pathlib.Path, position: Position | None = None, part: int = PART) -> None:
        self._folder, self._part, self._wished = folder, part, part
        self._begin = position
        self._from_end = position is None
        self._handle = -1
        self._known: segments.LogIdentity | None = None
        self._inode = self._gaps = self._number = self._offset = 0
        self._next = ""  # the file of the next segment
        self._why = "it is not known how far it was read"
        self._gap = ""  # the gap to report
        self._is_absent = False  # there is no log, and that was reported
        self._synced = 0  # the segment up to which the log is durable
        self._quiet = Quiet(log)

    @property
    def there(self) -> bool:
        """Whether there was a log at the last look."""
        return self._handle >= 0

    @property
    def position(self) -> Position | None:
        """
        The place before which everything has been returned; None if there is no log. Before the log could be opened, it is
        the place where reading will begin.
        """
        if self._known is None or not self.there:
            return None if self._is_absent else self._begin
        return Position(self._known.log, self._number, self._offset, self._gaps, boot())

    def read(self) -> News:
        """Return what was appended since, or a part of that. :raises OSError: when it cannot be read at this moment."""
        found: list[records.Record] = []
        more = False
        if self.there or self._open():
            found, more = self._read_on()
            # Checked after the read: a writer that loses a record marks the gap before it writes the next record.
            if not self._is_same():
                self.close()
                self._why = "it was removed before it was read"
                more = self._open()
        gap, self._gap = self._gap, ""
        return News(found, gap, more)

    def sync(self, position: Position) -> None:
        """Make all before ``position`` durable. It blocks; any thread may call it. :raises OSError:"""
        # The numbers of a log that was made anew begin again.
        segments.sync(self._folder, self._synced if self._synced <= position.segment else 0, position.segment)
        self._synced = position.segment

    def look(self) -> Callable[[], bool]:
        """Begin a look at the log. Returns a function: whether ``read`` has all that was appended before ``look``."""
        return lambda: True

    def close(self) -> None:
        """Release the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    # -- where to begin -----------------------------------------------------------------------------------------------

    def _open(self) -> bool:
        """Begin at the requested place, or before it. Returns whether there is a log."""
        try:
            self._known = segments.identity(self._folder)
            there = segments.numbers(self._folder) if self._known else []
        except StateError as exc:
            self._quiet.error("identity", "The log of this master cannot be read: %s", exc)
            there = []
        if not there:
            if not self._is_absent:
                self._is_absent, self._gap = True, "it does not exist"
            return False
        status = os.stat(self._folder / segments.NAME)
        is_new = self._from_end and self._is_absent  # made since the first look, so all of it is news
        refusal = "" if is_new else self._refusal(self._begin)
        if self._begin is not None and not refusal:
            self._gaps = self._begin.gaps
            self._go_to(self._begin.segment, self._begin.offset)
        else:
            self._gaps = status.st_mtime_ns
            self._go_to(there[-1] if self._from_end and not is_new else self._first_unread(there), 0)
            if self._from_end and not is_new:
                with open(self._handle, "rb", closefd=False) as stream:
                    self._offset = framing.scan(stream.read()).end
        self._gap, self._is_absent, self._inode, self._begin = refusal, False, status.st_ino, None
        self._from_end = False
        return True

    def _first_unread(self, there: list[int]) -> int:
        """Return the newest of these segments with nothing unread before it."""
        begin = self._begin
        if begin is None or self._known is None or begin.log != self._known.log:
            return there[0]
        return max((number for number in there if number <= begin.segment), default=there[0])

    def _refusal(self, begin: Position | None) -> str:
        """Return why reading cannot begin there, or an empty text."""
        if begin is None:
            return self._why
        if self._known is None or begin.log != self._known.log:
            return "it is another log than before"
        if begin.boot != boot():
            return "the machine was restarted since it was read"
        try:
            size = segments.path_of(self._folder, begin.segment).stat().st_size
        except FileNotFoundError:
            return "it was not read for so long that older records are gone"
        return "" if begin.offset <= size else "it is shorter than before"

    def _go_to(self, number: int, offset: int) -> None:
        handle = os.open(segments.path_of(self._folder, number), os.O_RDONLY | os.O_NOFOLLOW)
        self.close()
        self._handle, self._number, self._offset = handle, number, offset
        self._next = str(segments.path_of(self._folder, number + 1))

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read_on(self) -> tuple[list[records.Record], bool]:
        data, is_final = os.pread(self._handle, self._wished, self._offset), False
        if len(data) < self._wished and os.path.exists(self._next):
            data = os.pread(self._handle, self._wished, self._offset)
            is_final = len(data) < self._wished
        is_cut = len(data) == self._wished
        piece = framing.scan(data, is_final or self._wished > framing.LONGEST)
        found = self._records_of(piece)
        self._offset += piece.end
        self._wished = self._part if piece.end or not is_cut else self._wished * 2
        if is_final and self._is_same():  # the next segment may belong to another log
            with contextlib.suppress(OSError):  # tried again the next time
                self._go_to(self._number + 1, 0)
        return found, is_cut or is_final

    def _records_of(self, piece: framing.Piece) -> list[records.Record]:
        found: list[records.Record] = []
        damaged, length = piece.damaged, self._known.length if self._known else 0
        for framed in piece.records:
            if self._offset + framed.begin >= length:
                continue  # the writer writes such a record again, in the next segment
            try:
                found.append(records.read(framed.body))
            except Exception:  # msgpack raises many kinds
                damaged += framed.end - framed.begin
        if damaged:
            self._gap = f"{damaged} bytes of it are damaged"
            self._quiet.warning(
                "damage",
                "Skipping %d bytes of segment %d of the log, which are not records",
                damaged,
                self._number,
            )
        return found

    def _is_same(self) -> bool:
        """Tell whether the files are still the whole log that was opened; also note a gap that its writer has marked."""
        try:
            status = os.stat(self._folder / segments.NAME)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # checked again at the next read
        if status.st_ino != self._inode:
            return False
        if status.st_mtime_ns != self._gaps:
            with contextlib.suppress(StateError, OSError):
                if segments.identity(self._folder) != self._known:
                    return False  # the file of another log got the inode of the former one
            self._gap, self._gaps = "a record could not be written", status.st_mtime_ns
        return bool(os.fstat(self._handle).st_nlink) or os.path.exists(self._next)
