"""
A batch on disk: one append-only file that begins with a snapshot and goes on with the facts since.

It holds no policy, and must never lose a record that ``sync`` has confirmed. Each record is a length, a checksum and
msgpack, so that a tail torn by a crash is told from damage: a torn tail is cut off, since nothing was done on its account
(the intent to publish is synced before the publish); damage raises StateError.
"""

from __future__ import annotations

import os
import pathlib
import struct
import zlib
from typing import Any

import msgpack

from saltext.jobs.core.disk import files
from saltext.jobs.core.errors import StateError

_HEAD = struct.Struct("<II")


def _frame(value: Any) -> bytes:
    body: bytes = msgpack.packb(value, use_bin_type=True)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def read(path: pathlib.Path) -> tuple[Any, list[Any], int]:
    """
    Return what a journal holds: its snapshot, its records, and the length in bytes up to which it is whole.

    :raises FileNotFoundError: when there is none.
    :raises StateError: when it is damaged; the message says where.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise StateError(f"{path} cannot be read: {exc}") from exc
    values, position = [], 0
    while len(data) - position >= _HEAD.size:
        length, checksum = _HEAD.unpack_from(data, position)
        end = position + _HEAD.size + length
        body = data[position + _HEAD.size : end]
        if end > len(data):
            break
        if zlib.crc32(body) != checksum:
            if end == len(data):
                break  # the last record, written in part
            raise StateError(f"{path} is damaged at byte {position}")
        values.append(msgpack.unpackb(body, raw=False, strict_map_key=False))
        position = end
    if not values:
        raise StateError(f"{path} holds no snapshot")
    return values[0], values[1:], position


class Journal:
    """
    An open journal.

    :param path: its file; ``rewrite`` or ``open`` it before anything is appended.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.records = 0  # appended since the snapshot
        self._handle: int | None = None
        self._length = 0

    def open(self, length: int, records: int) -> None:
        """Go on with an existing file, whole up to ``length`` bytes, cutting off what is torn. :raises OSError:"""
        self._adopt(os.open(self.path, os.O_WRONLY | os.O_APPEND), length)
        os.ftruncate(self._fd, length)
        self.records = records

    def rewrite(self, snapshot: Any) -> None:
        """Replace the file by one that holds the snapshot only, durably. :raises OSError: with the old file kept."""
        data = _frame(snapshot)
        files.write_atomic(self.path, data, durable=True)
        self._adopt(os.open(self.path, os.O_WRONLY | os.O_APPEND), len(data))
        self.records = 0

    def append(self, record: Any) -> None:
        """
        Add a record; it survives this process, and after ``sync`` a power cut.

        :raises OSError: with the file as it was.
        """
        data = _frame(record)
        try:
            written = os.write(self._fd, data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes written to {self.path}: is the disk full?")
        except OSError:
            os.ftruncate(self._fd, self._length)
            raise
        self._length += len(data)
        self.records += 1

    def sync(self) -> None:
        """Make all records durable. :raises OSError: when that is not certain."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Release the file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @property
    def _fd(self) -> int:
        if self._handle is None:
            raise OSError(f"{self.path} is not open")
        return self._handle

    def _adopt(self, handle: int, length: int) -> None:
        self.close()
        self._handle, self._length = handle, length
