"""
Until when all published jobs are settled, on disk: what was published since is looked at when the engine starts.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import formats, lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.errors import LaterVersion, StateError
from saltext.jobs.core.retry.capture import LATEST
from saltext.jobs.core.retry.store import FORMAT

log = lines.logger(__name__)

#: Its file in the engine's folder.
CHECKPOINT = "checkpoint"
#: Seconds by which a checkpoint lies in the past: longer than it takes until an engine that has started looks once more for
#: what was stored late, or what it has not found by then would lie before the checkpoint of the next start.
MARGIN = LATEST + 20.0


def read_checkpoint(path: pathlib.Path) -> tuple[float, dict[str, float]] | None:
    """
    Return what a checkpoint says: its time, and the jobs that were closed since; None where there is none.

    :raises LaterVersion: when a later version of this extension has written it.
    :raises StateError: when it is damaged.
    :raises OSError: when it cannot be read at this moment.
    """
    found = files.read_msgpack(path)
    if found is None:
        return None
    try:
        formats.check(path, formats.number_of(found), FORMAT, "nothing of the retry queue is delivered")
        return float(found["at"]), dict(found["closed"])
    except (KeyError, TypeError, ValueError) as exc:
        raise StateError(f"{path} is no checkpoint: {type(exc).__name__}: {exc}") from exc


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
        """
        Take up what the file says. Where there is none, it is written: from now on nothing is missed.

        :raises LaterVersion: when a later version has written it: this one would write over it what is not so.
        """
        try:
            found = read_checkpoint(self._path)
            if found is None:
                files.write_msgpack(self._path, self._record(self.at, {}))
            else:
                self.at, self.closed = found
        except LaterVersion:
            raise
        except OSError as exc:
            log.warning("The checkpoint cannot be written: %s", exc)
        except StateError as exc:
            log.error("The checkpoint is lost, so jobs of the past are not looked at: %s", exc)

    def write(self, at: float, closed: Mapping[str, float]) -> bool:
        """
        Advance, and return whether it is on disk.

        :param closed: the jobs that were published since and need not be looked at again, with their newest publish.
        """
        try:
            files.write_msgpack(self._path, self._record(at, closed))
        except OSError as exc:
            log.warning("The checkpoint cannot be written: %s", exc)
            return False
        self.at = at
        return True

    @staticmethod
    def _record(at: float, closed: Mapping[str, float]) -> dict[str, Any]:
        return {formats.FIELD: FORMAT, "at": at, "closed": dict(closed)}
