"""
The seal of each body that a master writes to a database of which others have the password, too: PostgreSQL.

Who can write there must not command the fleet. So only a body counts that a master of this site has sealed for this very
place, with Salt's own key, which lies on the masters' disks only and which they share. The seal does not tell whether a body
is the newest one that the place has had (docs/security.md).
"""

from __future__ import annotations

import functools
import hmac
import os
from collections.abc import Iterable, Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.compat import master_key_paths
from saltext.jobs.core.errors import SiteAway
from saltext.jobs.core.lines import Quiet

log = lines.logger(__name__)

_QUIET = Quiet(log)
#: Bytes of a seal.
_SIZE = 16
_LABEL = b"saltext.jobs: rows of the site's database"


class Seal:
    """Seals with Salt's own key. ``opts``: None for a database as private as that key, where nothing is sealed."""

    def __init__(self, opts: Mapping[str, Any] | None = None) -> None:
        self._opts = opts

    @functools.cached_property
    def _paths(self) -> tuple[str, ...]:
        return master_key_paths(self._opts or {})

    def put(self, body: bytes, *place: object) -> bytes:
        """Return the sealed form of a body. ``place``: the table, and the row's key. :raises OSError: if there is no key."""
        return body if self._opts is None else self._of(body, place) + body

    def mark(self, texts: Iterable[str], *place: object) -> str:
        """Return what proves that a master has vouched for some texts here, in any order; empty if only masters write."""
        return "" if self._opts is None else self._of("\0".join(sorted(set(texts))).encode(), place).hex()

    def take(self, body: bytes, *place: object) -> bytes | None:
        """
        Return the body; None, with a line in the log, if no master sealed it for this place. :raises OSError: without a key.
        """
        if self._opts is None:
            return body
        found = body[_SIZE:]
        if hmac.compare_digest(body[:_SIZE], self._of(found, place)):
            return found
        _QUIET.error(
            place,
            "A row of the site's database is left out, since no master of this site has sealed it: %s. Someone else "
            "has written it, or the masters do not have the same key (%s)",
            " ".join(map(str, place)),
            self._paths[0],
        )
        return None

    def _of(self, body: bytes, place: tuple[object, ...]) -> bytes:
        return hmac.digest(_key(self._paths), repr(place).encode() + body, "sha256")[:_SIZE]


def _key(paths: tuple[str, ...]) -> bytes:
    trouble: OSError | None = None
    for path in paths:
        try:
            found = os.stat(path)
            return _read(path, found.st_ino, found.st_mtime_ns)
        except OSError as exc:
            trouble = trouble or exc
    raise SiteAway(f"the masters' key, which seals what is in PostgreSQL, cannot be read: {trouble}")


# A master of Salt 3008 that joins a cluster puts the cluster's key anew into its place, after engines have begun.
@functools.lru_cache(4)
def _read(path: str, _inode: int, _written: int) -> bytes:
    with open(path, "rb") as stream:
        return hmac.digest(stream.read().strip(), _LABEL, "sha256")
