"""Batches on the disk: their rows in the database, and what Salt is shown of them."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import msgpack
import salt.payload
import salt.utils.jid

from saltext.jobs.core import compat
from saltext.jobs.core.batch.member import Outcome
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.batch.summary import DRIVER, summary
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.ledger.batches import Batches, Change, Kind
from saltext.jobs.core.site import site_of

#: Seconds for which the rows of a batch that cannot be read are kept for inspection.
KEPT_ASIDE = 30 * 86400.0

#: Packs any text that a library gives as a reason, and any number that a minion gives as a retcode.
_packed = functools.partial(msgpack.packb, default=str, unicode_errors="surrogatepass")
_unpacked = functools.partial(msgpack.unpackb, strict_map_key=False, unicode_errors="surrogatepass")


def change_of(batch: Batch) -> Change:
    """Return what has changed of a batch since the last call, with the request to the retry queue to take minions over."""
    row, parts = _packed(batch.row()), {minion: _packed(batch.members[minion].row()) for minion in batch.touched}
    asks, request = {}, {"do": "enqueue", "batch": True, "jid": batch.spec.jid, "reason": "away when its batch ended"}
    handed = sorted(minion for minion in batch.touched if batch.members[minion].ended is Outcome.QUEUED)
    if handed:
        asks[JOB_RETRY, requests.new_id()] = salt.payload.dumps({**request, "minions": handed})
    batch.touched.clear()
    kind = Kind.ENDED if batch.closed else Kind.OPEN
    return Change(batch.spec.jid, kind, lambda: salt.payload.dumps(batch.spec.as_dict()), row, parts, asks)


def path_of(opts: Mapping[str, Any], jid: str) -> pathlib.Path:
    """Return the file with all that Salt 3008 knows of a batch."""
    jobs = os.path.join(opts["cachedir"], "jobs")
    return pathlib.Path(salt.utils.jid.jid_dir(jid, jobs, opts.get("hash_type", "sha256"))) / ".batch.p"


class BatchStore(Batches):
    def __init__(self, opts: Mapping[str, Any], lease: Lease | None = None) -> None:
        super().__init__(site_of(opts), lease)
        self._opts = opts

    def read(self, jid: str) -> Batch | None:
        """
        Return the batch of a jid, which may be anything; None if there is none. :raises StateError: if it is damaged, or was
        set aside. :raises OSError: if it cannot be read now.
        """
        found = self.rows(jid) if is_plain(jid) else None
        if found is None:
            if is_plain(jid) and self.kind_of(jid) is Kind.ASIDE:
                told = "is a batch that cannot be read and was set aside; jobs.lookup_jid shows what returned"
                raise StateError(f"{jid} {told}")
            return None
        spec, body, parts = found
        try:
            asked = Spec.from_dict(salt.payload.loads(spec))
            each = {minion: _unpacked(part) for minion, part in parts.items()}
            batch = Batch.of_rows(asked, _unpacked(body), each)
            summary(batch, batch.created)  # raises now if the runner or the engine would later
        except Exception as exc:  # values that are nonsense may raise anything
            raise StateError(f"batch {jid} in {self._tables.place} cannot be read: {exc!r}") from exc
        return batch

    def forget(self, kind: Kind, before: float) -> list[str]:
        old = super().forget(kind, before)
        for jid in old:
            path = path_of(self._opts, jid)
            with contextlib.suppress(OSError):  # its directory may have more
                path.unlink(missing_ok=True)
                path.parent.rmdir()
        return old

    # -- beside the rows ----------------------------------------------------------------------------------------------

    def show_to_salt(self, spec: Spec, created: float) -> None:
        """
        Show Salt 3008 that this batch (``created``: Unix time) needs nothing from its own manager, which complains about an
        announced one without such a file. It names no minion and is halted, so that manager has nothing to publish, to time
        out or to announce. :raises OSError:
        """
        if not compat.HAS_NATIVE_BATCHES:
            return
        same = ("jid", "fun", "tgt", "tgt_type", "batch_wait", "timeout", "gather_job_timeout", "ret", "user")
        state = {
            **{name: getattr(spec, name) for name in same},
            **{name: [] for name in ("arg", "all_minions", "pending", "wait")},
            **{name: {} for name in ("kwargs", "active", "done", "failed")},
            "batch_size": spec.stages[-1].size,
            "failhard": False,
            "driver": DRIVER,
            "created": created,
            "last_progress": created,
            "halted": True,
            "halted_reason": "driven by the batch_manager engine of saltext-jobs: see salt-run batch.status",
        }
        files.write_atomic(path_of(self._opts, spec.jid), salt.payload.dumps(state))

    def keep_job(self, jid: str) -> None:
        """
        Have Salt's local_cache keep the job of an open batch: it removes a job once its ``jid`` file is old. salt_cache
        looks for open batches itself; others have no such file. :raises OSError:
        """
        if self._opts.get("master_job_cache", "local_cache") == "local_cache":
            with contextlib.suppress(FileNotFoundError):
                os.utime(path_of(self._opts, jid).with_name("jid"))
