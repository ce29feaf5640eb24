"""
Values in the form that they have in a database: as Salt's serializer writes them. Large values are compressed if that
saves much, because SQLite writes everything twice, to -wal and to the file; but no lists, which are searched there. Pure.
"""

from __future__ import annotations

import zlib
from typing import Any

import salt.payload

from saltext.jobs.core.disk import packed

LARGE = 32 << 10  # from this many bytes on a value may be compressed; a smaller one is written faster than compressed
SAMPLE, WORTH = 4096, 3  # how many first bytes are compressed as a test, and by what factor they must shrink
_SQUEEZED = b"\xc1"  # the first byte of a compressed value; the serializer never begins with it


def dumps(value: Any) -> bytes:
    """Return a value in the form that it has in a database."""
    data: bytes = salt.payload.dumps(value, use_bin_type=True)
    if len(data) < LARGE or type(value) is list or len(zlib.compress(data[:SAMPLE], 1)) * WORTH > SAMPLE:
        return data
    return _SQUEEZED + zlib.compress(data, 1)


def loads(data: bytes) -> Any:
    """Return the value. :raises Exception: whatever Salt raises for broken data, and ValueError."""
    if data[:1] != _SQUEEZED:
        return packed.loads(data)
    try:
        return packed.loads(zlib.decompress(data[1:]))
    except zlib.error as exc:
        raise ValueError(f"it cannot be decompressed: {exc}") from exc
