"""
Writes an engine's figures into a file for the textfile collector of Prometheus' node_exporter.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.metrics import Metric, of_writing, text_of, with_former
from saltext.jobs.core.quiet import Quiet

log = lines.logger(__name__)

#: Seconds between two writes of the file.
INTERVAL = 15.0


class Report:
    """
    Writes an engine's figures into a file every ``INTERVAL`` seconds.

    :param loop: the engine's tornado loop.
    :param folder: the directory that the collector reads. It must be there.
    :param engine: the engine's name.
    :param wall: returns Unix time.
    :param collect: returns the figures; called on the loop.
    """

    def __init__(
        self,
        loop: Any,
        folder: pathlib.Path,
        engine: str,
        wall: Callable[[], float],
        collect: Callable[[], Sequence[Metric]],
    ) -> None:
        self._loop, self._wall, self._collect = loop, wall, collect
        self._engine, self._path = engine, _path(folder, engine)
        self._worker, self._quiet = Worker(loop), Quiet(log)
        self._timer: Any = None

    def start(self) -> None:
        """Write the file now and every ``INTERVAL`` seconds."""
        self._timer = self._loop.call_later(INTERVAL, self.start)
        self._loop.spawn_callback(self._write)

    def close(self) -> None:
        """Write no more. The file stays, with the time of the last write in it."""
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        self._worker.close()

    async def _write(self) -> None:
        try:
            await self._worker.call(_replace, self._path, _text(self._engine, self._collect(), self._wall()))
        except Exception as exc:
            told = None if isinstance(exc, OSError) else exc
            self._quiet.error("metrics", "The metrics cannot be written to %s: %s", self._path, exc, exc_info=told)


def write_figures(folder: pathlib.Path, engine: str, figures: Iterable[Metric], now: float) -> None:
    """Write the figures of an engine that stands by. If that fails, the leader's log says so. Blocks."""
    try:
        _replace(_path(folder, engine), _text(engine, figures, now))
    except OSError as exc:
        log.debug("The metrics cannot be written: %s", exc)


def _path(folder: pathlib.Path, engine: str) -> pathlib.Path:
    return folder / f"saltext_jobs_{engine}.prom"


def _text(engine: str, figures: Iterable[Metric], now: float) -> str:
    return text_of(with_former([*figures, of_writing(engine, now)]))


def _replace(path: pathlib.Path, text: str) -> None:
    # The collector may not enter a directory that this process makes.
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {path.parent}; make it, or correct metrics_dir")
    # The collector runs as another user.
    files.write_atomic(path, text.encode(), mode=0o644)


def folder_of(metrics_dir: str) -> pathlib.Path | None:
    """Return the directory that the option names; None if it is off."""
    return pathlib.Path(os.path.expanduser(metrics_dir)) if metrics_dir else None
