"""
A batch on disk: one append-only file that begins with a snapshot and goes on with the facts since.

It holds no policy, and must never lose a record that ``sync`` has confirmed. Each record is a length, a checksum and
msgpack, so a torn tail can be told from damage. If no whole record follows a bad place (cut off, or filled with zeros by
a power cut), the tail is torn, and is cut off. That is safe, because nothing in it was acted on yet: the intent to
publish is synced before the publish. If whole records follow, the file is damaged and StateError is raised: cutting them
off would lose what was published.

One thread appends and never waits for the disk. The calls that wait (``sync``, ``finish_rewrite``, ``close``) may be
made in one other thread. During a rewrite, records go into the old file and the new one, so both are complete.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import pathlib
import re
import struct
import threading
import zlib
from typing import Any, NamedTuple

import msgpack

from saltext.jobs.core.disk import files
from saltext.jobs.core.errors import StateError

_HEAD = struct.Struct("<II")
#: How the msgpack of a record begins: it is an array.
_RECORD = re.compile(rb"[\x90-\x9f\xdc\xdd]")
#: How Salt packs a time or a date among the arguments of a job (``salt.payload``): its msgpack type, and its form.
_TIME, _TIME_FORM = 78, "%Y%m%dT%H:%M:%S.%f"
#: A journal is rewritten when its records are larger than its snapshot by this factor …
_GROWTH = 2
#: … but not below this many bytes.
_LEAST = 256 << 10


class Content(NamedTuple):
    """The content of a journal. ``length``: of its intact part, in bytes; ``begin``: where the records begin."""

    snapshot: Any
    records: list[Any]
    length: int
    begin: int


def framed(value: Any) -> bytes:
    """Return a record in the form that it has in a journal."""
    body: bytes = msgpack.packb(value, use_bin_type=True, default=_packed_time)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _packed_time(value: Any) -> msgpack.ExtType:
    if not isinstance(value, datetime.date):
        raise TypeError(f"a {type(value).__name__} cannot be kept: {value!r:.200}")
    return msgpack.ExtType(_TIME, value.strftime(_TIME_FORM).encode())


def _time_of(kind: int, data: bytes) -> Any:
    return datetime.datetime.strptime(data.decode(), _TIME_FORM) if kind == _TIME else msgpack.ExtType(kind, data)


def _body(data: bytes, position: int) -> bytes | None:
    """Return the body of the whole record that begins at ``position``, or None."""
    if len(data) - position < _HEAD.size:
        return None
    length, checksum = _HEAD.unpack_from(data, position)
    begin = position + _HEAD.size
    # Zeros read as a record of length 0, with a valid checksum.
    if not 0 < length <= len(data) - begin:
        return None
    body = data[begin : begin + length]
    return body if zlib.crc32(body) == checksum else None


def _is_torn(data: bytes, position: int) -> bool:
    """Tell whether no whole record begins after ``position``."""
    bodies = _RECORD.finditer(data, position + 1 + _HEAD.size)
    return all(_body(data, found.start() - _HEAD.size) is None for found in bodies)


def content_of(data: bytes, where: object) -> Content:
    """
    Return the content of a journal's bytes.

    :param where: how a message names the journal.
    :raises StateError: when it is damaged; the message says where.
    """
    values, position, begin = [], 0, 0
    while (body := _body(data, position)) is not None:
        try:
            values.append(msgpack.unpackb(body, raw=False, strict_map_key=False, ext_hook=_time_of))
        except Exception as exc:  # msgpack raises many kinds
            raise StateError(f"{where} is damaged at byte {position}: {type(exc).__name__}: {exc}") from exc
        position += _HEAD.size + len(body)
        begin = begin or position
    if not _is_torn(data, position):
        raise StateError(f"{where} is damaged at byte {position}")
    if not values:
        raise StateError(f"{where} holds no snapshot")
    return Content(values[0], values[1:], position, begin)


def is_overgrown(length: int, begin: int) -> bool:
    """Tell whether it is time to rewrite a journal of ``length`` bytes, whose records begin at ``begin``."""
    return length - begin > max(_LEAST, _GROWTH * begin)


class _File:
    """An open file, the length of its intact part, and where its records begin."""

    def __init__(self, handle: int, length: int = 0, begin: int = 0) -> None:
        self.handle, self.length, self.begin = handle, length, begin

    def add(self, data: bytes) -> None:
        """:raises OSError: with the file as it was."""
        try:
            written = os.write(self.handle, data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes were written: is the disk full?")
        except OSError:
            os.ftruncate(self.handle, self.length)
            raise
        self.length += len(data)


class _Rewrite:
    """The file that will replace a journal's, its name until then, and why it lacks a record (None if it has all)."""

    def __init__(self, file: _File, temporary: str) -> None:
        self.file, self.temporary = file, temporary
        self.failure: OSError | None = None

    def add(self, data: bytes) -> bool:
        """Add a record unless one is missing already; tell whether the file has all records."""
        if self.failure is None:
            try:
                self.file.add(data)
            except OSError as exc:
                self.failure = exc
        return self.failure is None

    def discard(self) -> None:
        """Remove the file."""
        os.close(self.file.handle)
        with contextlib.suppress(OSError):
            os.unlink(self.temporary)


class Journal:
    """
    :param path: its file; ``rewrite`` or ``open`` it before anything is appended.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._lock = threading.Lock()  # guards the open files
        self._file: _File | None = None
        self._has_gap = False  # the file lacks a record: nothing is appended before it is rewritten
        self._rewrite: _Rewrite | None = None

    def read(self) -> Content:
        """
        Return what it holds.

        :raises FileNotFoundError: when there is none.
        :raises OSError: when it cannot be read at this moment; it may be whole.
        :raises StateError: when it is damaged.
        """
        return content_of(self.path.read_bytes(), self.path)

    def open(self, content: Content) -> None:
        """Go on with an existing file that holds ``content``, durably, cutting off what is torn. :raises OSError:"""
        self._file = _File(os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW), content.length, content.begin)
        os.ftruncate(self._file.handle, content.length)
        os.fdatasync(self._file.handle)

    @property
    def whole(self) -> bool:
        """Whether it has all records. If not, further ones are refused until a rewrite has begun."""
        return self._file is not None and not self._has_gap

    @property
    def behind(self) -> bool:
        """Whether records would be lost if this process ended now, without a ``sync``: never on a disk."""
        return False

    @property
    def size(self) -> int:
        """Its bytes on the disk."""
        return 0 if self._file is None else self._file.length

    @property
    def overgrown(self) -> bool:
        """Whether it is time to rewrite it: its size is bounded by a multiple of its snapshot's."""
        if self._file is None or self._rewrite is not None:
            return False
        return is_overgrown(self._file.length, self._file.begin)

    def append(self, record: Any) -> None:
        """
        Add a record. It survives this process, and after ``sync`` a power cut.

        :raises OSError: when it is written nowhere. All further records are then refused until a rewrite has begun: a
            journal must not have gaps.
        """
        data = framed(record)
        with self._lock:
            failure = self._add_to_file(data)
            if self._rewrite is not None and self._rewrite.add(data):
                failure = None
        if failure is not None:
            raise failure

    def _add_to_file(self, data: bytes) -> OSError | None:
        if self._file is None:
            return OSError(f"{self.path} is not open")
        if self._has_gap:
            return OSError(f"{self.path} lacks a record")
        try:
            self._file.add(data)
        except OSError as exc:
            self._has_gap = True
            return exc
        return None

    def begin_rewrite(self, snapshot: Any) -> None:
        """
        Begin to replace the file by one that begins with ``snapshot``, without waiting for the disk.

        After this you must call ``finish_rewrite``. :raises OSError: with the old file kept, and nothing begun.
        """
        data = framed(snapshot)
        handle, temporary = files.new_temporary(self.path)
        fresh = _File(handle, begin=len(data))
        try:
            fcntl.fcntl(handle, fcntl.F_SETFL, os.O_APPEND)
            fresh.add(data)
        except OSError:
            os.close(handle)
            os.unlink(temporary)
            raise
        with self._lock:
            self._rewrite = _Rewrite(fresh, temporary)

    def finish_rewrite(self) -> None:
        """
        Put the new file in the old one's place, durably.

        :raises OSError: and the old file stays; records that only the new file has are lost, and the journal is not
            ``whole`` then. Or the new file is in place, but lacks a record or may not outlive a power cut: the journal
            is not ``whole`` either.
        """
        rewrite = self._rewrite
        if rewrite is None:
            raise OSError(f"{self.path} is not being rewritten")
        try:
            if rewrite.failure is not None:
                raise rewrite.failure
            os.fsync(rewrite.file.handle)
            os.replace(rewrite.temporary, self.path)
        except OSError:
            with self._lock:
                self._rewrite = None
            rewrite.discard()
            raise
        with self._lock:
            old, self._file, self._rewrite = self._file, rewrite.file, None
            self._has_gap = rewrite.failure is not None  # a record was appended after the check, to the old file only
        if old is not None:
            os.close(old.handle)
        try:
            files.sync_directory(self.path.parent)
        except OSError:
            self.close()
            raise
        if self._has_gap:
            raise OSError(f"{self.path} lacks a record")

    def rewrite(self, snapshot: Any) -> None:
        """Replace the file by one that holds the snapshot only, durably. :raises OSError: as ``finish_rewrite``."""
        self.begin_rewrite(snapshot)
        self.finish_rewrite()

    def sync(self) -> None:
        """Make all records durable. Blocks. :raises OSError: when that is not certain, or this process does not lead."""
        # During a rewrite the new file is made durable before it takes the old one's place.
        if self._file is None or not self.whole:
            raise OSError(f"{self.path} lacks a record" if self._has_gap else f"{self.path} is not open")
        os.fdatasync(self._file.handle)

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            opened, self._file = self._file, None
        if opened is not None:
            os.close(opened.handle)
