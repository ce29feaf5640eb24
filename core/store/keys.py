"""
From an id to a key that a cache driver neither confuses with another nor loses, and back.

An id that is not one plain path component never becomes a key. What a driver would confuse is written as ``=`` and two hex
digits for each byte; jids of Salt's own making and common minion ids are their own keys on every driver.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# mysql compares without case and accents, and pads with blanks. etcd and consul take keys as a piece of a URL,
# keep the time of a key in a second one with a suffix, and etcd hides what begins with an underscore.
_UNSAFE = {
    "mysql": re.compile(r"[^0-9a-z_.@:+~-]"),
    "etcd": re.compile(r"^_|[^0-9A-Za-z_.@:+-]|p$(?<=\.tstamp)"),
    "consul": re.compile(r"[^0-9A-Za-z_.@:+-]|p$(?<=\.tstamp)"),
}
_ESCAPED = re.compile(rb"=([0-9a-f]{2})")
# Longest key in bytes: the file name with its ".p", and the columns for "jobs/returns/<jid>".
_LONGEST = {"localfs": 253, "mysql": 242}


def plain(value: Any) -> str | None:
    """
    Return ``value`` as text if it is one plain path component of 1 to 255 bytes, else None.

    Numbers are taken, since YAML on the command line makes one of a jid; so is UTF-8 in bytes.
    """
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
    """Tell whether all of many values are plain texts, in a tenth of the time; False also where that is not certain."""
    try:
        text = "\0".join(values)
    except TypeError:
        return False
    # With one NUL more than there are gaps, one is within a value.
    if not text or not text.isascii() or "/" in text or "\\" in text or text.count("\0") != len(values) - 1:
        return False
    # With three characters there is no "..".
    lengths = set(map(len, values))
    return min(lengths) >= 3 and max(lengths) <= 255


class Keys:
    """
    The keys of one driver.

    :param driver: its name, as the option ``cache`` has it.
    :param longest: the longest key in bytes, where the driver's own limit is a setting.
    """

    def __init__(self, driver: str, longest: int = 255) -> None:
        self.longest = _LONGEST.get(driver, longest)
        self._unsafe = _UNSAFE.get(driver)

    def key(self, value: Any) -> str | None:
        """Return the key of an id from outside; None where the driver cannot take it."""
        text = plain(value)
        key = None if text is None else self.encode(text)
        return None if key is None or len(key.encode()) > self.longest else key

    def encode(self, text: str) -> str:
        """Return the key of a plain id."""
        return self._unsafe.sub(_escape, text) if self._unsafe is not None else text

    def decode(self, key: str) -> str:
        """Return the id of a key."""
        if self._unsafe is None or "=" not in key:
            return key
        return _ESCAPED.sub(lambda match: bytes((int(match[1], 16),)), key.encode()).decode(errors="replace")


def _escape(match: re.Match[str]) -> str:
    return "".join(f"={byte:02x}" for byte in match[0].encode())
