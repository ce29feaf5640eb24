"""
The recorder's files beside its spool: the position of each returner, what has been recorded, what was set aside.

If positions or digests are lost by a power cut or damage, records are delivered or looked up again, and none is lost.
The files must never grow without bound: each class says what bounds them.
"""

from __future__ import annotations

import array
import bisect
import io
import itertools
import os
import pathlib
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder.spool import write_all

log = lines.logger(__name__)

_NUMBER = struct.Struct(">Q")
_MARKED = struct.Struct(">QI")


class Progress:
    """
    The position of one returner: every record below ``base`` is done, and so are those in ``done``.

    The file holds the base, and the number of each record above the base that is done, each with a checksum. Rebasing
    bounds its size. A returner without a folder is new, and begins at the end of the spool. If the folder exists and
    the file is missing or unreadable, it is unknown what was delivered, so the returner begins with the oldest record.

    :param path: the file, in the returner's own folder.
    :param oldest: the number of the oldest record in the spool.
    :param end: the number of the next record.
    """

    def __init__(self, path: pathlib.Path, oldest: int, end: int) -> None:
        self._path, self._quiet = path, Quiet(log)
        #: Whether the returner is new.
        self.is_new = not path.parent.exists()
        numbers = self._read()
        #: Whether the returner existed, and its position is lost.
        self.is_lost = not numbers and not self.is_new
        if self.is_lost:
            log.error("%s is lost or damaged, so all records in the spool are delivered once more", path)
        self.base = numbers[0] if numbers else end if self.is_new else oldest
        self.done: set[int] = set(numbers[1:])
        self._stream: io.FileIO | None = None
        self.rebase(self.base, self.done)

    def mark(self, *numbers: int) -> None:
        """Note that records are done. Call it right after their delivery, before anything else."""
        self.done.update(numbers)
        self._guarded(lambda: self._append(numbers))

    def rebase(self, base: int, done: Iterable[int] = ()) -> None:
        """Start anew at ``base``; of the records above it, only those in ``done`` are done."""
        self.base, self.done = base, {number for number in done if number >= base}
        self._guarded(self._rewrite)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _read(self) -> list[int]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as exc:
            log.error("%s cannot be read: %s", self._path, exc)
            return []
        numbers: list[int] = []
        for at in range(0, len(data) - _MARKED.size + 1, _MARKED.size):
            number, checksum = _MARKED.unpack_from(data, at)
            if checksum != zlib.crc32(_NUMBER.pack(number)):
                if not numbers:
                    return []  # without a base the other numbers mean nothing
                continue
            numbers.append(number)
        return numbers

    def _append(self, numbers: Iterable[int]) -> None:
        if self._stream is None:
            self._rewrite()
            return
        write_all(self._stream.fileno(), b"".join(map(marked, numbers)))

    def _rewrite(self) -> None:
        self.close()
        numbers = [self.base, *sorted(self.done)]
        files.write_atomic(self._path, b"".join(map(marked, numbers)), durable=True)
        self._stream = io.FileIO(self._path, "a")

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as exc:
            # The next write begins a new file. Until then a restart would deliver these records again.
            self.close()
            self._quiet.error("progress", "%s cannot be written: %s", self._path, exc)


def marked(number: int) -> bytes:
    """Return a number as it is written in a progress file."""
    return _MARKED.pack(number, zlib.crc32(_NUMBER.pack(number)))


class Seen:
    """
    The digests of recorded loads and returns, for as long as the recorder may look back.

    Files of 8-byte digests, each named by the time at which it was begun. ``keep`` bounds their size: eight bytes for
    each load of that time, and sixteen for each return.

    :param folder: where the files are.
    :param keep: least seconds for which a digest is remembered.
    """

    def __init__(self, folder: pathlib.Path, keep: float) -> None:
        self._folder, self._keep = folder, keep
        self._span = max(keep / 8, 60.0)
        self._begun = 0
        self._stream: io.FileIO | None = None
        files.private_dir(folder)

    def add(self, digests: Iterable[int], now: float) -> None:
        """:raises OSError: when they can't be written."""
        data = b"".join(_NUMBER.pack(item) for item in digests)
        if not data:
            return
        if self._stream is None or now - self._begun >= self._span:
            self._begin(int(now))
        assert self._stream is not None
        write_all(self._stream.fileno(), data)

    def load(self) -> Known:
        """Return all that is remembered."""
        items: array.array[int] = array.array("Q")
        for path in self._paths():
            data = path.read_bytes()
            whole = len(data) - len(data) % _NUMBER.size
            items.extend(number for (number,) in _NUMBER.iter_unpack(data[:whole]))
        return Known(items)

    def forget_old(self, now: float) -> None:
        """Remove the files that contain only digests older than ``keep``."""
        paths = self._paths()
        for path, following in itertools.pairwise(paths):
            if int(following.stem) < now - self._keep:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _begin(self, now: int) -> None:
        self.close()
        path = self._folder / f"{now:012d}.ids"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        # A torn digest would shift all later ones.
        os.ftruncate(handle, os.fstat(handle).st_size // _NUMBER.size * _NUMBER.size)
        self._stream, self._begun = io.FileIO(handle, "a"), now

    def _paths(self) -> list[pathlib.Path]:
        names = sorted(
            name
            for name in os.listdir(self._folder)
            if name.endswith(".ids") and name.isascii() and name[:-4].isdigit()
        )
        return [self._folder / name for name in names]


class Known:
    """A fixed set of digests that takes eight bytes for each."""

    def __init__(self, digests: Iterable[int]) -> None:
        self._sorted = array.array("Q", sorted(digests))

    def __contains__(self, item: int) -> bool:
        index = bisect.bisect_left(self._sorted, item)
        return index < len(self._sorted) and self._sorted[index] == item

    def __iter__(self) -> Iterator[int]:
        return iter(self._sorted)


class Aside:
    """
    Records that a returner refused, one file each: the reason, and then the record.

    :param folder: where the files are.
    :param max_bytes: what all files together may take on the disk; beyond it the oldest go.
    """

    def __init__(self, folder: pathlib.Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        files.private_dir(folder)
        self._sizes = {path.stem: _allocated(path) for path in sorted(folder.glob("*.p"))}
        self._total = sum(self._sizes.values())

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, number: int, about: Mapping[str, Any], payload: bytes) -> int:
        """
        Keep a record with its description, and return how many old records had to go for it.

        :raises OSError: when it can't be written.
        """
        # the letter keeps YAML on a command line from reading the name as a number
        path = self._folder / f"r{number:020d}.p"
        files.write_atomic(path, salt.payload.dumps((dict(about), payload), use_bin_type=True), durable=True)
        self._forget(path.stem)
        self._sizes[path.stem] = _allocated(path)
        self._total += self._sizes[path.stem]
        gone = 0
        while self._total > self._max_bytes and len(self._sizes) > 1:
            self.remove(next(iter(self._sizes)))
            gone += 1
        return gone

    def names(self) -> list[str]:
        """Return the names of all records, oldest first."""
        return sorted(self._sizes)

    def read(self, name: str) -> tuple[dict[str, Any], bytes] | None:
        """Return the description of a record, and the record; None, and an error in the log, if it is lost."""
        if name not in self._sizes:
            return None
        path = self._folder / f"{name}.p"
        try:
            about, payload = salt.payload.loads(path.read_bytes(), encoding="utf-8")
            return dict(about), bytes(payload)
        except Exception as exc:  # Salt and msgpack raise many kinds for a broken file.
            log.error("A record that was set aside is lost: %s: %s: %s", path, type(exc).__name__, exc)
            files.set_aside(path)
            self._forget(name)
            return None

    def remove(self, *names: str) -> None:
        """Forget records."""
        for name in names:
            if name in self._sizes:
                (self._folder / f"{name}.p").unlink(missing_ok=True)
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._total -= self._sizes.pop(name, 0)


def _allocated(path: pathlib.Path) -> int:
    return path.stat().st_blocks * 512
