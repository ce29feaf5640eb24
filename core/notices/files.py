"""The file of the ledger, which is always replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine.names import JOB_NOTICES
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.site import read_msgpack, site_of

log = lines.logger(__name__)

_NAME = "ledger"


class LedgerFile:
    """
    :param opts: the master's options.
    :param lease: that of the engine's process.
    """

    def __init__(self, opts: Mapping[str, Any], lease: Lease | None = None) -> None:
        self._folder = site_of(opts).folder(JOB_NOTICES, lease)

    def look(self) -> Any:
        """Return what was kept, or None if nothing was. Change nothing. :raises StateError: if it is damaged."""
        return read_msgpack(self._folder, _NAME)

    def read(self) -> Any:
        """Return the kept record, or None if there is none. A damaged file is set aside."""
        try:
            return self.look()
        except StateError as exc:
            log.error("Notices that waited are lost: %s; it is kept as %s", exc, self._folder.set_aside(_NAME))
            return None

    def write(self, packed: bytes) -> None:
        """Keep what ``pack`` has returned. Blocks. :raises OSError:"""
        self._folder.write(_NAME, packed, durable=True)


def pack(record: dict[str, Any]) -> bytes:
    """Return a ledger's record in the form of the file."""
    packed: bytes = salt.payload.dumps(record)
    return packed
