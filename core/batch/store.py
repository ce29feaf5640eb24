"""
The files of all batches: journals, the state file and the index that Salt 3008 knows.

    <cachedir>/saltext_jobs/batch_manager/batches/<jid>.journal    a batch that is not closed; the truth about it
    <cachedir>/saltext_jobs/batch_manager/batches/<jid>.ended      one that is
    <cachedir>/jobs/<jid_dir>/.batch.p                             what Salt 3008 and its tools see of it
    <cachedir>/batch_active.p                                      index of active batches, shared with Salt 3008

It must never take ``.batch.p`` for the truth: Salt 3008's manager writes into it whatever a forged event carries. The
journals are not beside it since local_cache removes a job's directory after ``keep_jobs_seconds``, under a batch that is
still running.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import salt.utils.jid

from saltext.jobs.core.batch import facts as batch_facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.summary import DRIVER
from saltext.jobs.core.disk import files, journal
from saltext.jobs.core.engine.requests import engine_dir
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ids import is_plain

log = logging.getLogger(__name__)

ENGINE = "batch_manager"
_OPEN, _ENDED = ".journal", ".ended"


def fold(content: journal.Content, path: pathlib.Path) -> Batch:
    """Return the batch that a journal's content stands for. :raises StateError: when it stands for none."""
    try:
        batch = Batch.restore(content.snapshot)
        for record in content.records:
            batch.step(*batch_facts.fact_of(record))
    except Exception as exc:  # whatever a machine may raise that is fed nonsense
        raise StateError(f"{path} does not hold a batch: {type(exc).__name__}: {exc}") from exc
    return batch


class BatchStore:
    """
    :param opts: the master's options.
    """

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self._opts = opts
        self.folder = engine_dir(opts, ENGINE) / "batches"
        self._index = pathlib.Path(opts["cachedir"]) / "batch_active.p"

    # -- journals -----------------------------------------------------------------------------------------------------

    def journal_path(self, jid: str, ended: bool = False) -> pathlib.Path:
        """Return the path of a batch's journal, whether or not there is one."""
        return self.folder / f"{jid}{_ENDED if ended else _OPEN}"

    def read(self, jid: str) -> Batch | None:
        """
        Return a batch of ours as it is at this moment, or None.

        :raises StateError: when its journal is damaged, or cannot be read at this moment.
        """
        if not is_plain(jid):
            return None
        for ended in (False, True, False):  # it may end between the first look and the second
            path = self.journal_path(jid, ended)
            try:
                content = journal.read(path)
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise StateError(f"{path} cannot be read: {exc}") from exc
            return fold(content, path)
        return None

    def open(self, jid: str) -> tuple[Batch, journal.Journal]:
        """
        Return a batch that is not closed, with its journal to go on with.

        :raises StateError: when its journal is damaged.
        :raises OSError: when it cannot be read at this moment: try again.
        """
        path = self.journal_path(jid)
        content = journal.read(path)
        batch = fold(content, path)
        opened = journal.Journal(path)
        opened.open(content)
        return batch, opened

    def end(self, jid: str) -> None:
        """Mark a batch as closed."""
        os.replace(self.journal_path(jid), self.journal_path(jid, ended=True))

    def open_jids(self) -> list[str]:
        """Return the jids of batches that are not closed, oldest first."""
        return self._jids(_OPEN)

    def ended_jids(self) -> list[str]:
        """Return the jids of closed batches, oldest first."""
        return self._jids(_ENDED)

    def forget_ended(self, before: float) -> list[str]:
        """Remove what has been closed since before that Unix time, and return the jids."""
        gone = []
        for jid in self.ended_jids():
            path = self.journal_path(jid, ended=True)
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    self.native_path(jid).unlink(missing_ok=True)
                    gone.append(jid)
        return gone

    def _jids(self, suffix: str) -> list[str]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return sorted(name[: -len(suffix)] for name in names if name.endswith(suffix) and not name.startswith("."))

    # -- what Salt 3008 sees ------------------------------------------------------------------------------------------

    def native_path(self, jid: str) -> pathlib.Path:
        """Return the path of a job's ``.batch.p``."""
        jobs = os.path.join(self._opts["cachedir"], "jobs")
        return pathlib.Path(salt.utils.jid.jid_dir(jid, jobs, self._opts.get("hash_type", "sha256"))) / ".batch.p"

    def write_native(self, jid: str, state: Mapping[str, Any]) -> tuple[int, int]:
        """Replace a job's ``.batch.p`` and return its stamp. :raises OSError:"""
        files.write_msgpack(self.native_path(jid), dict(state))
        return self.native_stamp(jid) or (0, 0)

    def native_stamp(self, jid: str) -> tuple[int, int] | None:
        """Return what changes when somebody replaces a job's ``.batch.p``: inode and time; None where it is gone."""
        try:
            stat = self.native_path(jid).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def read_native(self, jid: str) -> dict[str, Any] | None:
        """Return the content of a job's ``.batch.p``, or None where there is none or it is unreadable."""
        return _native_state(self.native_path(jid)) if is_plain(jid) else None

    def native_states(self, limit: int) -> list[dict[str, Any]]:
        """Return the content of the ``limit`` ``.batch.p`` files not of ours that were written last, the latest first."""
        found = []
        for path in pathlib.Path(self._opts["cachedir"], "jobs").glob("*/*/.batch.p"):
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime, str(path)))
        states = (_native_state(pathlib.Path(path)) for _, path in sorted(found, reverse=True))
        return list(itertools.islice((state for state in states if state and state.get("driver") != DRIVER), limit))

    def index(self) -> list[str]:
        """Return the jids in the index of active batches; what cannot be read counts as empty."""
        try:
            jids = files.read_msgpack(self._index)
        except StateError as exc:
            log.error("The index of active batches is made anew: %s", exc)
            return []
        return [jid for jid in jids if is_plain(jid)] if isinstance(jids, (list, tuple)) else []

    def converge_index(self, active: Iterable[str], closed: Iterable[str]) -> None:
        """
        Have ``active`` in the index and ``closed`` out of it; other entries are not ours.

        Salt 3008 reads, changes and writes this file without a lock, so this is done again and again. :raises OSError:
        """
        present = set(self.index())
        wanted = (present | set(active)) - set(closed)
        if wanted != present or (wanted and not self._index.exists()):
            files.write_msgpack(self._index, sorted(wanted))


def _native_state(path: pathlib.Path) -> dict[str, Any] | None:
    try:
        state = files.read_msgpack(path)
    except StateError as exc:
        log.debug("Passed over: %s", exc)
        return None
    return state if isinstance(state, dict) else None
