"""The notices that have not arrived yet, as rows of the outbox, and beside them what was reported before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.names import JOB_NOTICES
from saltext.jobs.core.ledger import outbox
from saltext.jobs.core.ledger.outbox import Key, Row
from saltext.jobs.core.ledger.tables import Tables

log = lines.logger(__name__)

_NOTICE, _RECORD = "notice", Key("record", "")
#: Most rows that are read.
_MOST = 100_000


class NoticesStore:
    """
    All methods block, and raise OSError when the database cannot be used now.

    :param lease: that of the engine's process.
    """

    def __init__(self, tables: Tables, lease: Lease | None = None) -> None:
        self._tables, self._lease = tables, lease

    def read(self) -> tuple[dict[str, Any] | None, dict[str, list[dict[str, Any]]]]:
        """Return the ledger's record, None if there is none, and the notices that wait for each target, oldest first."""
        record, waiting = None, dict[str, list[dict[str, Any]]]()
        for row in outbox.fresh(self._tables, JOB_NOTICES, _MOST):
            try:
                content = dict(salt.payload.loads(row.body or b""))
            except Exception as exc:  # msgpack raises many kinds
                log.error("A notice that waited, or what was reported before, cannot be read: %s", exc)
                continue
            if row.key == _RECORD:
                record = content
            else:
                waiting.setdefault(row.key.minion, []).append(content)
        return record, waiting

    def write(self, record: Mapping[str, Any], notices: Mapping[tuple[str, str], dict[str, Any] | None]) -> None:
        """
        Keep the ledger's record and what has changed about notices; all of that or nothing.

        :param notices: by target and id; None for a notice that does not wait any more.
        """
        changes: dict[Key, Row | None] = {_RECORD: Row(_RECORD, 0.0, body=_packed(record))}
        for (target, number), notice in notices.items():
            key = Key(_NOTICE, number, target)
            changes[key] = None if notice is None else Row(key, notice["time"], body=_packed(notice))
        outbox.keep(self._tables, JOB_NOTICES, changes, lease=self._lease, durable=True)


def _packed(content: Mapping[str, Any]) -> bytes:
    packed: bytes = salt.payload.dumps(dict(content))
    return packed
