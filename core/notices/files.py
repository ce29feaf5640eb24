"""Where the ledger is kept: one file, which is replaced as a whole."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import salt.payload

from saltext.jobs.core import formats, lines
from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import no_fence
from saltext.jobs.core.errors import LaterVersion, StateError
from saltext.jobs.core.notices.ledger import FORMAT

log = lines.logger(__name__)


class LedgerFile:
    """
    :param folder: the engine's own.
    :param fence: raises OSError where this process must not act any more, or it is not known whether it may.
    """

    def __init__(self, folder: pathlib.Path, fence: Callable[[], None] = no_fence) -> None:
        self._path, self._fence = folder / "ledger", fence

    def read(self) -> dict[str, Any] | None:
        """
        Return what was kept, or None where nothing was. What is damaged is set aside.

        :raises LaterVersion: where a later version has written it.
        """
        try:
            record = files.read_msgpack(self._path)
            if record is None:
                return None
            if not isinstance(record, dict):
                raise StateError(f"{self._path} is damaged: it holds no mapping")
            formats.check(self._path, formats.number_of(record), FORMAT, "no notice is sent")
        except (StateError, ValueError) as exc:
            if isinstance(exc, LaterVersion):
                raise
            log.error("Notices that waited are lost: %s; it is kept as %s", exc, files.set_aside(self._path))
            return None
        return record

    def write(self, packed: bytes) -> None:
        """Keep what ``pack`` has returned. Blocks. :raises OSError:"""
        files.write_atomic(self._path, packed, durable=True, fence=self._fence)


def pack(record: dict[str, Any]) -> bytes:
    """Return the form in which a ledger is kept."""
    packed: bytes = salt.payload.dumps(record)
    return packed
