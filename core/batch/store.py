"""Batches on the disk: their rows in the database, and what Salt is shown of them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from typing import Any

import msgpack
import salt.payload

from saltext.jobs.core import compat
from saltext.jobs.core.batch import native
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.summary import summary
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
    if batch.handed_over:
        asks[JOB_RETRY, requests.new_id()] = salt.payload.dumps({**request, "minions": batch.handed_over})
    batch.touched.clear()
    batch.handed_over = []
    kind = Kind.ENDED if batch.closed else Kind.OPEN
    return Change(batch.spec.jid, kind, lambda: salt.payload.dumps(batch.spec.as_dict()), row, parts, asks)


class BatchStore(Batches):
    def __init__(self, opts: Mapping[str, Any], lease: Lease | None = None) -> None:
        super().__init__(site_of(opts), lease)
        self._opts = opts

    def name(self) -> str:
        """Return the name of the database; another one has none of these batches."""
        return self._tables.name()

    def read(self, jid: str) -> Batch | None:
        """
        Return the batch of a jid, which may be anything; None if there is none. :raises StateError: if it is damaged.
        :raises OSError: if it cannot be read now.
        """
        found = self.rows(jid) if is_plain(jid) else None
        if found is None:
            return None
        spec, body, parts = found
        try:
            asked = Spec.from_dict(salt.payload.loads(spec))
            each = {minion: _unpacked(part) for minion, part in parts.items()}
            batch = Batch.of_rows(asked, _unpacked(body), each)
            summary(batch, batch.created)  # raises now if the runner or the engine would later
        except Exception as exc:  # values that are nonsense may raise anything
            raise StateError(
                f"batch {jid} in {self._tables.place} cannot be read: {type(exc).__name__}: {exc}"
            ) from exc
        return batch

    def forget(self, kind: Kind, before: float) -> list[str]:
        old = super().forget(kind, before)
        for jid in old:
            native.remove(self._opts, jid)
        return old

    # -- beside the rows ----------------------------------------------------------------------------------------------

    def show_to_salt(self, spec: Spec, created: float) -> None:
        """Show a batch to Salt 3008, which has a batch manager of its own. ``created`` is Unix time. :raises OSError:"""
        if compat.HAS_NATIVE_BATCHES:
            native.show(self._opts, spec, created)

    def keep_job(self, jid: str) -> None:
        """
        Have Salt's local_cache keep the job of an open batch: it removes a job once its ``jid`` file is old. salt_cache
        looks for open batches itself; others have no such file. :raises OSError:
        """
        if self._opts.get("master_job_cache", "local_cache") == "local_cache":
            with contextlib.suppress(FileNotFoundError):
                os.utime(native.path_of(self._opts, jid).with_name("jid"))
