"""
Values in the form that they have in the database: as Salt's serializer writes them. Pure.

In a database large values are compressed if that saves much, because SQLite writes everything twice, to -wal and to the
file; but no lists, which are searched there.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgpack
import salt.payload

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
    """
    Return the value as ``salt.payload.loads`` does, which reads all texts as bytes first, in a fifth of its time.

    :raises Exception: whatever Salt raises for broken data, and ValueError.
    """
    if data[:1] == _SQUEEZED:
        try:
            data = zlib.decompress(data[1:])
        except zlib.error as exc:
            raise ValueError(f"it cannot be decompressed: {exc}") from exc
    # The first bytes of msgpack's byte strings. Data with one of them anywhere goes to Salt, as do Salt's own types.
    if b"\xc4" not in data and b"\xc5" not in data and b"\xc6" not in data:
        try:
            return msgpack.unpackb(data, raw=False, use_list=True, strict_map_key=False, ext_hook=_other)
        except Exception:  # Salt says what is wrong with it
            return salt.payload.loads(data)
    return salt.payload.loads(data)


def _other(code: int, data: bytes) -> Any:
    raise ValueError("it contains one of Salt's own types")
