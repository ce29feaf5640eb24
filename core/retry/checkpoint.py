"""
Until when all published jobs are settled, on disk: what was published since is looked at when the engine starts.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Mapping

from saltext.jobs.core.disk import files
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.retry.capture import LATEST

log = logging.getLogger(__name__)

#: Seconds by which a checkpoint lies in the past: longer than it takes until an engine that has started looks once more for
#: what was stored late, or what it has not found by then would lie before the checkpoint of the next start.
MARGIN = LATEST + 20.0


class Checkpoint:
    """
    ``at`` is the Unix time, in seconds, before which nothing needs to be looked at.

    :param path: the file.
    :param now: the present, which is the checkpoint where there is none.
    """

    def __init__(self, path: pathlib.Path, now: float) -> None:
        self._path = path
        self.at = now
        self.closed: dict[str, float] = {}

    def read(self) -> None:
        """Take up what the file says. Where there is none, it is written: from now on nothing is missed."""
        try:
            found = files.read_msgpack(self._path)
            if found is None:
                files.write_msgpack(self._path, {"at": self.at, "closed": {}})
            else:
                self.at, self.closed = float(found["at"]), dict(found["closed"])
        except OSError as exc:
            log.warning("The checkpoint cannot be written: %s", exc)
        except (StateError, KeyError, TypeError, ValueError) as exc:
            log.error("The checkpoint is lost, so jobs of the past are not looked at: %s", exc)

    def write(self, at: float, closed: Mapping[str, float]) -> bool:
        """
        Advance, and return whether it is on disk.

        :param closed: the jobs that were published since and need not be looked at again, with their newest publish.
        """
        try:
            files.write_msgpack(self._path, {"at": at, "closed": dict(closed)})
        except OSError as exc:
            log.warning("The checkpoint cannot be written: %s", exc)
            return False
        self.at = at
        return True
