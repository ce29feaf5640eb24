"""
Values as they stand in the file: as Salt's serializer writes them and, where they are large and that saves much, squeezed.
Whatever is written is written twice, to the log and to the file. Pure.
"""

from __future__ import annotations

import zlib
from typing import Any

import salt.payload

from saltext.jobs.core.disk import packed

LARGE = (
    32 << 10
)  # bytes from which on a value may be squeezed; what is smaller is written in less time than it is squeezed
SAMPLE, WORTH = 4096, 3  # its first bytes, and to how many times less these have to get
_SQUEEZED = b"\xc1"  # nothing that the serializer writes begins so


def dumps(value: Any) -> bytes:
    """Return a value as it is to stand in the file."""
    data: bytes = salt.payload.dumps(value, use_bin_type=True)
    if len(data) < LARGE or len(zlib.compress(data[:SAMPLE], 1)) * WORTH > SAMPLE:
        return data
    return _SQUEEZED + zlib.compress(data, 1)


def loads(data: bytes) -> Any:
    """Return the value. :raises Exception: whatever Salt raises for broken data, and ValueError."""
    return packed.loads(serialized(data))


def serialized(data: bytes) -> bytes:
    """Return a value as the serializer has written it. :raises ValueError: where what was squeezed is broken."""
    if data[:1] != _SQUEEZED:
        return data
    try:
        return zlib.decompress(data[1:])
    except zlib.error as exc:
        raise ValueError(f"it cannot be taken apart: {exc}") from exc
