"""
Reads the logs of all masters that share a cachedir as one log: each in its own order, and all together by their clocks.

It must never treat a log that appears or goes away as an empty one: it reports a gap.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Mapping

from saltext.jobs.core import lines
from saltext.jobs.core.log import segments
from saltext.jobs.core.log.checkpoints import Position
from saltext.jobs.core.log.reader import News, Reader
from saltext.jobs.core.log.records import Record
from saltext.jobs.core.log.segments import NAME, folder_of
from saltext.jobs.core.quiet import Quiet

log = lines.logger(__name__)


def shares(cachedir: str | os.PathLike[str], master: str) -> bool:
    """Tell whether the master with this id writes its log into this cachedir."""
    return bool(master) and (folder_of(cachedir, master) / NAME).exists()


def masters_of(cachedir: str | os.PathLike[str]) -> list[str]:
    """Return the names of the folders of the masters that write their logs into this cachedir."""
    return sorted(path.parent.name for path in folder_of(cachedir, "").parent.glob(f"*/{NAME}"))


class LogOfAll:
    """
    Behaves as a Reader.

    :param cachedir: where the logs are.
    :param master: the id of the master whose engine reads.
    :param positions: where to begin, by the names of the logs' folders. A log without one is read from its end, with a gap.
    """

    def __init__(
        self, cachedir: str | os.PathLike[str], master: str, positions: Mapping[str, Position] | None = None
    ) -> None:
        self._own = folder_of(cachedir, master)
        self._root = self._own.parent
        self._begin = dict(positions or {})
        self._readers = {self._own.name: Reader(self._own, self._begin.pop(self._own.name, None))}
        self._synced: dict[str, int] = {}  # by the same names: the segment up to which the log is durable
        self._quiet = Quiet(log)

    @property
    def there(self) -> bool:
        """Whether there was a log at the last look."""
        return any(reader.there for reader in self._readers.values())

    @property
    def positions(self) -> dict[str, Position]:
        """``Reader.position`` of each log; empty if there is no log."""
        found = {name: reader.position for name, reader in self._readers.items()}
        return {name: position for name, position in found.items() if position is not None}

    def read(self) -> News:
        """Return what was appended since, or a part of it. :raises OSError: when no log can be read at this moment."""
        self._look_for_logs()
        found: list[list[Record]] = []
        gaps, more, trouble = [], False, list[OSError]()
        for name, reader in list(self._readers.items()):
            try:
                news = reader.read()
            except OSError as exc:
                trouble.append(exc)
                self._quiet.error(name, "The log of the master %s cannot be read now, trying again: %s", name, exc)
                continue
            found.append(news.records)
            gaps += [f"of {name}: {news.gap}"] if news.gap else []
            more = more or news.more
            # As long as its folder is there, a new log may be made in it.
            if not reader.there and name != self._own.name and not (self._root / name).exists():
                self._readers.pop(name).close()
        if trouble and not found:
            raise trouble[0]
        records = found[0] if len(found) == 1 else list(heapq.merge(*found, key=lambda record: record.at))
        return News(records, "; ".join(gaps), more)

    def sync(self, positions: Mapping[str, Position]) -> None:
        """Make all before ``positions`` durable. It blocks; any thread may call it. :raises OSError:"""
        for name, position in positions.items():
            first = self._synced.get(name, 0)
            # The numbers of a log that was made anew begin again.
            segments.sync(self._root / name, first if first <= position.segment else 0, position.segment)
            self._synced[name] = position.segment

    def look(self) -> Callable[[], bool]:
        """Return a function that tells whether ``read`` has all that was appended before this call. It always has."""
        return lambda: True

    def close(self) -> None:
        """Release the files."""
        for reader in self._readers.values():
            reader.close()

    def _look_for_logs(self) -> None:
        """Begin to read new logs. The folder is listed each time, since its modification time is too coarse to show them."""
        try:
            names = [name for name in os.listdir(self._root) if name not in self._readers and not name.startswith(".")]
        except OSError:
            return  # there is no log yet, or the next read lists the folder again
        for name in names:
            if (self._root / name / NAME).exists():
                self._readers[name] = Reader(self._root / name, self._begin.pop(name, None), is_own=False)
