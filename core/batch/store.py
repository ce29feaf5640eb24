"""Batches on the disk: their rows in the database."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgpack
import salt.payload

from saltext.jobs.core import compat
from saltext.jobs.core.batch import native
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.summary import summary
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.ledger import batches
from saltext.jobs.core.ledger.batches import Change, Kind
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.site import site_of

#: Seconds for which the rows of a batch that cannot be read are kept for inspection.
KEPT_ASIDE = 30 * 86400.0

#: Requests to other engines: by engine and id.
Asks: TypeAlias = dict[tuple[str, str], bytes]


#: A reason may hold anything that a library says, and a retcode any number that a minion says.
_packed = functools.partial(msgpack.packb, default=str, unicode_errors="surrogatepass")
_unpacked = functools.partial(msgpack.unpackb, strict_map_key=False, unicode_errors="surrogatepass")


def ask_of(batch: Batch, minions: Sequence[str]) -> Asks:
    """Return the request that the retry queue take minions over."""
    request = {"do": "enqueue", "batch": True, "jid": batch.spec.jid, "minions": list(minions)}
    request |= {"reason": "away when its batch ended"}
    return {(JOB_RETRY, requests.new_id()): salt.payload.dumps(request)}


def change_of(batch: Batch, asks: Asks | None = None) -> Change:
    """
    Return what has changed of a batch since the last call.

    :param asks: requests that are written with it; they are taken out.
    """
    asked = dict(asks or {})
    if asks:
        asks.clear()
    row, parts = _packed(batch.row()), {minion: _packed(batch.members[minion].row()) for minion in batch.touched}
    batch.touched.clear()
    kind = Kind.ENDED if batch.closed else Kind.OPEN
    return Change(batch.spec.jid, kind, lambda: salt.payload.dumps(batch.spec.as_dict()), row, parts, asked)


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
        """Return a batch, or None. :raises StateError: if it is damaged. :raises OSError: if it cannot be read now."""
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

    def write(
        self,
        changes: Sequence[Change],
        durable: bool = True,
        cursor: Position | None = None,
        answers: Mapping[str, bytes] | None = None,
    ) -> None:
        """
        Store what has changed, up to which place the log was read, and answers to requests; all of it or nothing. Blocks.

        :raises OSError:
        """

        def work() -> None:
            batches.write(self._tables, changes, durable=durable, cursor=cursor)
            for request_id, reply in (answers or {}).items():
                Requests(self._tables, BATCH_MANAGER).answer(request_id, reply)

        self._tables.together(work, self._lease, durable)

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
            native.remove(self._opts, jid)

    # -- beside the rows ----------------------------------------------------------------------------------------------

    def show_to_salt(self, spec: Spec, created: float) -> None:
        """Show a batch to Salt 3008, which has a batch manager of its own. ``created`` is Unix time. :raises OSError:"""
        if compat.HAS_NATIVE_BATCHES:
            native.show(self._opts, spec, created)

    def keep_job(self, jid: str) -> None:
        """
        Have Salt's local_cache keep the job of a batch that is not closed: it removes a job once the job's ``jid`` file is
        old. Other job caches have no such file, and salt_cache looks for open batches itself. :raises OSError:
        """
        if self._opts.get("master_job_cache", "local_cache") == "local_cache":
            with contextlib.suppress(FileNotFoundError):
                os.utime(native.path_of(self._opts, jid).with_name("jid"))
