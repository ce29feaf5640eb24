"""
The files of all batches: their journals, and the file that Salt 3008 sees.

    batches/<jid>.journal               in the engine's folder: a batch that is not closed; the truth about it
    batches/<jid>.ended                 a batch that is closed
    batches/<jid>.journal.corrupt       a journal that could not be read
    <cachedir>/jobs/<jid_dir>/.batch.p  all that Salt 3008 sees of it; written when an engine starts or adopts it
    <cachedir>/batch_active.p           Salt 3008's index of its own batches; only read

It must never write into Salt's index: when Salt's own manager starts, it adopts every batch in there and publishes to the
minions that are left. It must never believe ``.batch.p``: Salt's manager writes anything into it that a forged event
carries. The journals are not beside ``.batch.p``, since local_cache removes a job's directory after ``keep_jobs_seconds``,
even if the batch still runs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import salt.utils.jid

from saltext.jobs.core import compat, lines
from saltext.jobs.core.batch import facts as batch_facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.summary import DRIVER, native_view, summary
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.ledger.folder import Content, Journal
from saltext.jobs.core.site import site_of
from saltext.jobs.core.store.retention import BATCHES, ENDED, OPEN, is_batch

log = lines.logger(__name__)

_ASIDE = ".journal.corrupt"
#: Seconds for which a damaged journal is kept for inspection.
KEPT_ASIDE = 30 * 86400.0


def fold(content: Content, where: str) -> Batch:
    """Return the batch of a journal's content. :raises StateError: if it does not hold a batch."""
    try:
        batch = Batch.restore(content.snapshot)
        for record in content.records:
            batch.step(*batch_facts.fact_of(record))
        summary(batch, batch.created)  # raises now if the runner or the engine would later
    except Exception as exc:  # a machine that is fed nonsense may raise anything
        raise StateError(f"{where} does not hold a batch: {type(exc).__name__}: {exc}") from exc
    return batch


def journal_name(jid: str, ended: bool = False) -> str:
    """Return the name of a batch's journal in the engine's folder."""
    return f"{BATCHES}/{jid}{ENDED if ended else OPEN}"


class BatchStore:
    """
    :param opts: the master's options.
    :param lease: that of the engine's process; a runner, which writes nothing, has none.
    """

    def __init__(self, opts: Mapping[str, Any], lease: Lease | None = None) -> None:
        self._opts, self.folder = opts, site_of(opts).folder(BATCH_MANAGER, lease)

    # -- journals -----------------------------------------------------------------------------------------------------

    def read(self, jid: str) -> Batch | None:
        """
        Return a batch of ours as it is at this moment, or None.

        :raises StateError: if its journal is damaged, or cannot be read now.
        """
        if not is_plain(jid):
            return None
        for ended in (False, True, False):  # it may end between the first look and the second
            name = journal_name(jid, ended)
            try:
                content = self.folder.journal(name).read()
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise StateError(f"{self.folder.where(name)} cannot be read: {exc}") from exc
            return fold(content, self.folder.where(name))
        return None

    def is_there(self, jid: str) -> bool:
        """
        Tell whether a batch has a journal, even one that cannot be read now. :raises OSError: if that cannot be determined.
        """
        return is_batch(site_of(self._opts), jid, OPEN, ENDED, OPEN)

    def is_open(self, jid: str) -> bool:
        """Tell whether a batch is not closed, even if it cannot be read now. :raises OSError: as ``is_there``."""
        return is_batch(site_of(self._opts), jid, OPEN)

    def is_aside(self, jid: str) -> bool:
        """Tell whether the journal of a batch was set aside. :raises OSError:"""
        return self.folder.exists(f"{BATCHES}/{jid}{_ASIDE}")

    def new_journal(self, jid: str) -> Journal:
        """Return the journal of a batch that begins."""
        return self.folder.journal(journal_name(jid))

    def open(self, jid: str) -> tuple[Batch, Journal]:
        """
        Return a batch that is not closed, with its journal to go on with.

        :raises StateError: if its journal is damaged.
        :raises OSError: if it cannot be read now: try again.
        """
        opened = self.new_journal(jid)
        content = opened.read()
        batch = fold(content, self.folder.where(journal_name(jid)))
        opened.open(content)
        return batch, opened

    def end(self, jid: str) -> None:
        """Mark a batch as closed, durably. Blocks. :raises OSError:"""
        name, ended = journal_name(jid), journal_name(jid, ended=True)
        try:
            self.folder.write(ended, self.folder.read(name), durable=True)
        except FileNotFoundError:
            if not self.folder.exists(ended):  # a former engine did this just before it lost the lead
                raise
        self.folder.remove(name)

    def discard(self, jid: str) -> None:
        """Remove the files of a refused batch, if there are any. Blocks."""
        try:
            self.folder.remove(journal_name(jid))
        except OSError as exc:
            log.error("Batch %s was refused, and its journal cannot be removed: %s", jid, exc)

    def set_aside(self, jid: str) -> str:
        """Rename a journal that cannot be read, so that no start reads it again. Returns its new place. :raises OSError:"""
        return self.folder.set_aside(journal_name(jid))

    def forget_aside(self, now: float) -> None:
        """Remove the journals that were set aside long before ``now``, in Unix time."""
        for jid in self.jids_aside():
            self._remove_old(f"{BATCHES}/{jid}{_ASIDE}", now - KEPT_ASIDE)

    def _remove_old(self, name: str, before: float) -> bool:
        """Remove a file that was written before that Unix time, and tell whether it was removed."""
        with contextlib.suppress(OSError):
            return self.folder.modified(name) < before and self.folder.remove(name)
        return False

    def jids_aside(self) -> list[str]:
        """Return the jids of batches whose journals were set aside, oldest first."""
        return self._jids(_ASIDE)

    def open_jids(self) -> list[str]:
        """Return the jids of batches that are not closed, oldest first."""
        return self._jids(OPEN)

    def ended_jids(self) -> list[str]:
        """Return the jids of closed batches, oldest first."""
        return self._jids(ENDED)

    def forget_ended(self, before: float) -> None:
        """Remove batches that were closed before that Unix time."""
        for jid in self.ended_jids():
            if self._remove_old(journal_name(jid, ended=True), before):
                with contextlib.suppress(OSError):
                    self._remove_native(jid)

    def _jids(self, suffix: str) -> list[str]:
        names = self.folder.names(BATCHES)
        return [name[len(BATCHES) + 1 : -len(suffix)] for name in names if name.endswith(suffix)]

    # -- what Salt 3008 sees ------------------------------------------------------------------------------------------

    def native_path(self, jid: str) -> pathlib.Path:
        """Return the path of a job's ``.batch.p``."""
        jobs = os.path.join(self._opts["cachedir"], "jobs")
        return pathlib.Path(salt.utils.jid.jid_dir(jid, jobs, self._opts.get("hash_type", "sha256"))) / ".batch.p"

    def write_native(self, jid: str, state: Mapping[str, Any]) -> None:
        """Replace a job's ``.batch.p``. :raises OSError:"""
        files.write_msgpack(self.native_path(jid), dict(state))

    def show_to_salt(self, spec: Spec, created: float) -> None:
        """
        Show Salt 3008, which has a batch manager of its own, that this batch needs nothing from it. :raises OSError:

        Without the file, that manager would complain about each announced batch. ``created`` is Unix time.
        """
        if compat.HAS_NATIVE_BATCHES:
            self.write_native(spec.jid, native_view(spec, created))

    def keep_job(self, jid: str) -> None:
        """
        Have Salt's local_cache keep the job of a batch that is not closed: it removes a job once the job's ``jid`` file is
        old. Other job caches have no such file, and salt_cache looks for open batches itself. :raises OSError:
        """
        if self._opts.get("master_job_cache", "local_cache") == "local_cache":
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.native_path(jid).with_name("jid"))

    def read_native(self, jid: str) -> dict[str, Any] | None:
        """Return the state of a batch of Salt 3008 or its CLI; None if there is none, or if it is unreadable or ours."""
        if not is_plain(jid) or self.is_there(jid):
            return None
        state = self._native_state(self.native_path(jid))
        return state if state and state["driver"] != DRIVER else None

    def native_states(self, limit: int) -> list[dict[str, Any]]:
        """Return the states of the ``limit`` native batches whose ``.batch.p`` was written last, the latest first."""
        found = []
        for path in pathlib.Path(self._opts["cachedir"], "jobs").glob("*/*/.batch.p"):
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime, str(path)))
        ours = {*self.open_jids(), *self.ended_jids()}
        states = (self._native_state(pathlib.Path(path)) for _, path in sorted(found, reverse=True))
        foreign = (state for state in states if state and state["driver"] != DRIVER and state["jid"] not in ours)
        return list(itertools.islice(foreign, limit))

    def native_jids(self) -> list[str]:
        """Return the jids of the batches that are active for Salt 3008; an unreadable index counts as empty."""
        try:
            jids = files.read_msgpack(pathlib.Path(self._opts["cachedir"], "batch_active.p"))
        except (StateError, OSError) as exc:
            log.warning("Salt's own batches may be missing: %s", exc)
            return []
        return [jid for jid in jids if is_plain(jid)] if isinstance(jids, (list, tuple)) else []

    def _remove_native(self, jid: str) -> None:
        """Remove a job's ``.batch.p``, and its directory if that is empty then."""
        path = self.native_path(jid)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()

    def _native_state(self, path: pathlib.Path) -> dict[str, Any] | None:
        """Return the state in a ``.batch.p``; None if it is unreadable, malformed or of another job."""
        try:
            state = files.read_msgpack(path)
        except (StateError, OSError) as exc:
            log.debug("Ignoring a file: %s", exc)
            return None
        if not _is_state(state) or self.native_path(state["jid"]) != path:
            log.debug("Ignoring %s, which is no state of a batch", path)
            return None
        return {**state, "driver": state.get("driver")}


def _is_state(state: Any) -> bool:
    """
    Tell whether this has the form of a batch state of Salt 3008's own manager or its CLI.

    The manager writes down the content of an event ``salt/batch/<jid>/new``, which any accepted minion can fire.
    """
    if not isinstance(state, Mapping):
        return False
    words = (state.get(name) for name in ("fun", "tgt_type", "driver", "user", "halted_reason"))
    times = (state.get(name) for name in ("created", "last_progress"))
    groups = [state.get(name) or () for name in ("all_minions", "pending", "active", "done", "failed")]
    return (
        is_plain(state.get("jid"))
        and all(word is None or isinstance(word, str) for word in words)
        and all(time is None or (type(time) in (int, float) and math.isfinite(time)) for time in times)
        and all(isinstance(group, (list, tuple, Mapping)) and all(map(is_plain, group)) for group in groups)
        and all(isinstance(state.get(name) or {}, Mapping) for name in ("active", "done"))
    )
