"""
Batches on the disk: their rows in the database, and the file that Salt 3008 sees.

    <cachedir>/jobs/<jid_dir>/.batch.p  all that Salt 3008 sees of a batch; written when an engine starts or adopts it
    <cachedir>/batch_active.p           Salt 3008's index of its own batches; only read

It must never write into Salt's index: when Salt's own manager starts, it adopts every batch in there and publishes to the
minions that are left. It must never believe ``.batch.p``: Salt's manager writes anything into it that a forged event
carries.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgpack
import salt.payload
import salt.utils.jid

from saltext.jobs.core import compat, lines
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.summary import DRIVER, native_view, summary
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.ledger import batches
from saltext.jobs.core.ledger.batches import Change, Kind
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

#: Seconds for which the rows of a batch that cannot be read are kept for inspection.
KEPT_ASIDE = 30 * 86400.0


#: Requests to other engines: by engine and id.
Asks: TypeAlias = dict[tuple[str, str], bytes]


def ask_of(batch: Batch, minions: Sequence[str]) -> Asks:
    """Return the request that the retry queue take minions over."""
    request: dict[str, Any] = {"do": "enqueue", "batch": True, "jid": batch.spec.jid, "minions": list(minions)}
    request["reason"] = "away when its batch ended"
    return {(JOB_RETRY, requests.new_id()): salt.payload.dumps(request)}


def change_of(batch: Batch, asks: Asks | None = None) -> Change:
    """
    Return what has changed of a batch since the last call.

    :param asks: requests that are written with it; they are taken out.
    """
    asked = dict(asks or {})
    if asks:
        asks.clear()
    row, parts = _packed(batch.row()), {minion: _packed(batch.part(minion)) for minion in batch.touched}
    batch.touched.clear()
    kind = Kind.ENDED if batch.closed else Kind.OPEN
    return Change(batch.spec.jid, kind, lambda: salt.payload.dumps(batch.spec.as_dict()), row, parts, asked)


def _packed(value: Any) -> bytes:
    # A reason may hold anything that a library says, and a retcode any number that a minion says.
    body: bytes = msgpack.packb(value, default=str, unicode_errors="surrogatepass")
    return body


def _unpacked(body: bytes) -> Any:
    return msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogatepass")


class BatchStore:
    """
    :param opts: the master's options.
    :param lease: that of the engine's process; a runner, which writes nothing, has none.
    """

    def __init__(self, opts: Mapping[str, Any], lease: Lease | None = None) -> None:
        self._opts, self._lease, self._tables = opts, lease, site_of(opts).tables

    # -- rows ---------------------------------------------------------------------------------------------------------

    def where(self, jid: str = "") -> str:
        """Return how messages name a batch, or all of them."""
        return f"batch {jid} in {self._tables.place}" if jid else f"the batches in {self._tables.place}"

    def load(self, jid: str) -> Batch | None:
        """
        Return a batch of ours as it was written last, or None.

        :raises StateError: if its rows are damaged.
        :raises OSError: if they cannot be read now.
        """
        found = batches.read(self._tables, jid)
        if found is None:
            return None
        spec, body, parts = found
        try:
            asked = Spec.from_dict(salt.payload.loads(spec))
            each = {minion: _unpacked(part) for minion, part in parts.items()}
            batch = Batch.of_rows(asked, _unpacked(body), each)
            summary(batch, batch.created)  # raises now if the runner or the engine would later
        except Exception as exc:  # values that are nonsense may raise anything
            raise StateError(f"{self.where(jid)} cannot be read: {type(exc).__name__}: {exc}") from exc
        return batch

    def read(self, jid: str) -> Batch | None:
        """As ``load``, for a jid that may be anything. :raises StateError: if it is damaged, or cannot be read now."""
        try:
            return self.load(jid) if is_plain(jid) else None
        except OSError as exc:
            raise StateError(f"{self.where(jid)} cannot be read now: {exc}") from exc

    def kind_of(self, jid: str) -> Kind | None:
        """Tell what a batch of ours is, even if it cannot be read now; None if there is none. :raises OSError:"""
        return batches.kind_of(self._tables, jid)

    def jids(self, *kinds: Kind) -> list[str]:
        """Return the jids of the batches of these kinds, oldest first. :raises OSError:"""
        return sorted(jid for kind in kinds for jid in batches.jids(self._tables, kind))

    def write(self, changes: Sequence[Change], durable: bool = True, cursor: Position | None = None) -> None:
        """Store what has changed, and up to which place the log was read; all of it or nothing. Blocks. :raises OSError:"""
        batches.write(self._tables, changes, self._lease, durable, cursor)

    def cursor(self) -> Position | None:
        """Return up to which place of the log the open batches have taken it; None if that is not known, or none is open."""
        with contextlib.suppress(OSError):
            return batches.cursor(self._tables) if batches.jids(self._tables, Kind.OPEN) else None
        return None

    def set_aside(self, jid: str) -> None:
        """Have no engine read a batch again. :raises OSError:"""
        batches.set_aside(self._tables, jid, self._lease)

    def forget(self, kind: Kind, before: float) -> None:
        """Remove batches of a kind that were written last before that Unix time. :raises OSError:"""
        for jid in batches.forget(self._tables, kind, before, self._lease):
            with contextlib.suppress(OSError):
                self._remove_native(jid)

    # -- what Salt 3008 sees ------------------------------------------------------------------------------------------

    def native_path(self, jid: str) -> pathlib.Path:
        """Return the path of a job's ``.batch.p``."""
        jobs = os.path.join(self._opts["cachedir"], "jobs")
        return pathlib.Path(salt.utils.jid.jid_dir(jid, jobs, self._opts.get("hash_type", "sha256"))) / ".batch.p"

    def write_native(self, jid: str, state: Mapping[str, Any]) -> None:
        """Replace a job's ``.batch.p``. :raises OSError:"""
        files.write_atomic(self.native_path(jid), salt.payload.dumps(dict(state)))

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
        if not is_plain(jid) or self.kind_of(jid) is not None:
            return None
        state = self._native_state(self.native_path(jid))
        return state if state and state["driver"] != DRIVER else None

    def native_states(self, limit: int) -> list[dict[str, Any]]:
        """Return the states of the ``limit`` native batches whose ``.batch.p`` was written last, the latest first."""
        found = []
        for path in pathlib.Path(self._opts["cachedir"], "jobs").glob("*/*/.batch.p"):
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime, str(path)))
        ours = {*self.jids(*Kind)}
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
