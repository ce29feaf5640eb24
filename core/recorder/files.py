"""
What the recorder keeps on disk beside its spool: where each returner stands, what has been recorded, what was set aside.

None of these files waits for the disk. What a power cut takes of them means that a record is delivered again, or asked for
again, never that one is lost. It must never grow without bound: each class says what bounds it.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import io
import itertools
import logging
import os
import pathlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.spool import write_all
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.recorder.lane import digest

log = logging.getLogger(__name__)

_NUMBER = struct.Struct(">Q")


class Progress:
    """
    Where one returner stands: every record below ``base`` is done, and so are those in ``done``.

    The file is the base, and then one number for each record that is done since. Bounded by rebasing it.
    """

    def __init__(self, path: pathlib.Path, start: int) -> None:
        self._path = path
        self.done: set[int] = set()
        numbers = self._read()
        #: Whether the returner was known before.
        self.is_new = not numbers
        self.base = numbers[0] if numbers else start
        self.done.update(numbers[1:])
        self._stream: io.FileIO | None = None
        self.rebase(self.base, self.done)

    def mark(self, number: int) -> None:
        """Note that a record is done, before anything else is."""
        self.done.add(number)
        self._guarded(lambda: self._append(number))

    def rebase(self, base: int, done: Iterable[int] = ()) -> None:
        """Start anew at ``base``; of the records above it, those in ``done`` are done."""
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
        whole = len(data) - len(data) % _NUMBER.size
        return [number for (number,) in _NUMBER.iter_unpack(data[:whole])]

    def _append(self, number: int) -> None:
        if self._stream is None:
            self._rewrite()
            return
        write_all(self._stream.fileno(), _NUMBER.pack(number))

    def _rewrite(self) -> None:
        self.close()
        numbers = [self.base, *sorted(self.done)]
        files.write_atomic(self._path, b"".join(_NUMBER.pack(number) for number in numbers))
        self._stream = io.FileIO(self._path, "a")

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as exc:
            # The next write starts with a whole new file. Until then a restart would deliver these records again.
            self.close()
            log.error("%s cannot be written: %s", self._path, exc)


class Seen:
    """
    The digests of what has been recorded, for as long as the recorder may look back.

    Files of 8-byte digests, each named by the time at which it was begun. Bounded by ``keep``: eight bytes for each load
    and each return of that time.

    :param folder: where the files are.
    :param keep: seconds for which a digest is remembered at least.
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
        """Remove the files all of whose digests are older than ``keep``."""
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
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        # A torn digest would shift all that follow it.
        os.ftruncate(handle, os.fstat(handle).st_size // _NUMBER.size * _NUMBER.size)
        self._stream, self._begun = io.FileIO(handle, "a"), now

    def _paths(self) -> list[pathlib.Path]:
        names = sorted(name for name in os.listdir(self._folder) if name.endswith(".ids") and name[:-4].isdigit())
        return [self._folder / name for name in names]


class Known:
    """A fixed set of digests that takes eight bytes for each."""

    def __init__(self, digests: Iterable[int]) -> None:
        self._sorted = array.array("Q", sorted(digests))

    def __contains__(self, item: int) -> bool:
        index = bisect.bisect_left(self._sorted, item)
        return index < len(self._sorted) and self._sorted[index] == item

    def has(self, jid: str, minion: str) -> bool:
        """Tell whether a minion's return of a job is known."""
        return digest(jid, minion) in self


class Aside:
    """
    Records that a returner refused, one file each, with the reason.

    :param folder: where the files are.
    :param max_bytes: what they may take together; beyond it the oldest go.
    """

    def __init__(self, folder: pathlib.Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        files.private_dir(folder)
        self._sizes = {path.stem: path.stat().st_size for path in sorted(folder.glob("*.p"))}

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, number: int, entry: dict[str, Any]) -> int:
        """
        Keep an entry, and return how many old ones had to go for it.

        :raises OSError: when it can't be written.
        """
        # The letter keeps YAML on a command line from taking it for a number.
        path = self._folder / f"r{number:020d}.p"
        files.write_msgpack(path, entry, durable=True)
        self._sizes[path.stem] = path.stat().st_size
        gone = 0
        while sum(self._sizes.values()) > self._max_bytes and len(self._sizes) > 1:
            self.remove(min(self._sizes))
            gone += 1
        return gone

    def entries(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (name, entry), oldest first. One that can't be read is passed over with an error in the log."""
        for name in sorted(self._sizes):
            try:
                entry = files.read_msgpack(self._folder / f"{name}.p")
            except StateError as exc:
                log.error("A record that was set aside is lost: %s", exc)
                files.set_aside(self._folder / f"{name}.p")
                self._sizes.pop(name, None)
                continue
            if isinstance(entry, dict):
                yield name, entry

    def remove(self, *names: str) -> None:
        """Forget entries."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                (self._folder / f"{name}.p").unlink()
            self._sizes.pop(name, None)
