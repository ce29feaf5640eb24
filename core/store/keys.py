"""
Turns an id into a key that a cache driver neither loses nor confuses with another, and back.

Only an id that is one plain path component becomes a key. Characters that a driver would confuse are written as ``=`` and
two hex digits for each byte. With every driver, the jids that Salt makes and common minion ids are keys as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# mysql ignores case and accents, and pads with spaces. etcd and consul use keys as parts of a URL, and keep the time of
# a key under a second key, which has a suffix; etcd hides keys that begin with an underscore.
_UNSAFE = {
    "mysql": re.compile(r"[^0-9a-z_.@:+~-]"),
    "etcd": re.compile(r"^_|[^0-9A-Za-z_.@:+-]|p$(?<=\.tstamp)"),
    "consul": re.compile(r"[^0-9A-Za-z_.@:+-]|p$(?<=\.tstamp)"),
}
_ESCAPED = re.compile(rb"=([0-9a-f]{2})")
# Longest key in bytes: limited by the file name with its ".p", and by the columns that hold "jobs/returns/<jid>".
_LONGEST = {"localfs": 253, "mmap_cache": 253, "mysql": 242}
#: Matches nearly all ids: they are plain, and keys as they are unless a driver confuses characters.
_COMMON = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.:-]{0,99}").fullmatch


def plain(value: Any) -> str | None:
    """
    Return ``value`` as text if it is one plain path component of 1 to 255 bytes, else None. Numbers are accepted, since YAML
    on the command line turns a jid into one; so are bytes in UTF-8.
    """
    if type(value) is str and _COMMON(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    try:
        text = value.decode() if isinstance(value, bytes) else value
        size = len(text.encode()) if isinstance(text, str) else 0
    except UnicodeError:
        return None
    if not 0 < size <= 255 or text in (".", "..") or "/" in text or "\\" in text or "\0" in text:
        return None
    return str(text)


def are_plain(values: Sequence[Any]) -> bool:
    """Tell whether all of many values are plain texts, ten times as fast as ``plain``; False also if it is not certain."""
    try:
        text = "\0".join(values)
    except TypeError:
        return False
    # more NULs than gaps: a value contains one
    if not text or not text.isascii() or "/" in text or "\\" in text or text.count("\0") != len(values) - 1:
        return False
    # A name of at least three characters is neither "." nor "..".
    lengths = set(map(len, values))
    return min(lengths) >= 3 and max(lengths) <= 255


def ids_in(value: Any) -> set[str]:
    """Return the valid minion ids in what should be a list of them."""
    if not isinstance(value, (list, tuple, set, frozenset)):
        return set()
    if isinstance(value, list) and are_plain(value):
        return set(value)
    return {item for item in value if isinstance(item, str) and plain(item) is not None}


class Keys:
    """The keys of one driver. :param driver: its name in the option ``cache``."""

    def __init__(self, driver: str) -> None:
        self.longest = _LONGEST.get(driver, 255)
        self._unsafe = _UNSAFE.get(driver)

    def key(self, value: Any) -> str | None:
        """Return the key of an unchecked id; None if the driver cannot take it."""
        if self._unsafe is None and type(value) is str and _COMMON(value):
            return value
        key = plain(value)
        if key is not None and self._unsafe is not None:
            key = self._unsafe.sub(_escape, key)
        return None if key is None or len(key.encode()) > self.longest else key

    def decode(self, key: str) -> str:
        if self._unsafe is None or "=" not in key:
            return key
        return _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), key.encode()).decode(errors="replace")


def _escape(match: re.Match[str]) -> str:
    return "".join(f"={byte:02x}" for byte in match[0].encode())
