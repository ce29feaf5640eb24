"""
Checks of minion ids and jids, which come from the bus and end up in paths and keys. What fails a check here must never be
used to build a path, a bank or a key. The second half of the file turns an id into a key that a cache driver neither loses
nor confuses with another, and back.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from typing import Any

#: Longest name that file systems and cache drivers accept, in bytes.
_LONGEST = 255
#: Matches nearly all ids: they are plain, and keys as they are unless a driver confuses characters.
_COMMON = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.:-]{0,99}").fullmatch


def is_plain(name: Any) -> bool:
    """Tell whether it is one path component: printable text of 1 to 255 bytes without separator, not ``.`` or ``..``."""
    if not isinstance(name, str) or not name or name in (".", ".."):
        return False
    # A lone surrogate, which only a broken or hostile sender sends, is not printable.
    return name.isprintable() and "/" not in name and "\\" not in name and len(name.encode()) <= _LONGEST


def plain(value: Any) -> str | None:
    """
    Return ``value`` as text if it is one plain path component, else None. Numbers are accepted, since YAML on the command
    line turns a jid into one; so are bytes in UTF-8.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    elif isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    return str(value) if is_plain(value) else None


def are_plain(values: Sequence[Any]) -> bool:
    """Tell whether all of many values are plain texts, ten times as fast; False also if that is not certain."""
    try:
        text = "\0".join(values)
    except TypeError:
        return False
    # more NULs than gaps: a value contains one
    if not text.isascii() or "/" in text or "\\" in text or text.count("\0") != len(values) - 1:
        return False
    # A name of at least three characters is neither "." nor "..".
    lengths = set(map(len, values))
    return min(lengths) >= 3 and max(lengths) <= _LONGEST and text.replace("\0", "").isprintable()


def ids_in(value: Any) -> set[str]:
    """Return the valid minion ids in what should be a list of them."""
    if not isinstance(value, (list, tuple, set, frozenset)):
        return set()
    return set(value) if isinstance(value, list) and are_plain(value) else set(filter(is_plain, value))


def as_compound(minions: Iterable[str]) -> str:
    """
    Return a compound target for minions, as one part of a larger one. Salt splits such a target at spaces, and a list in it
    at commas. So ids with these are written as regular expressions.
    """
    names = list(minions)
    listed = [name for name in names if name.split() == [name] and "," not in name]
    words = [f"L@{','.join(listed)}"] if listed else []
    words += [_literally(name) for name in names if name not in listed]
    return words[0] if len(words) == 1 else f"( {' or '.join(words)} )"


def _literally(name: str) -> str:
    """Return a word of a compound target for one id, whatever characters it has."""
    return "E@" + "".join(f"\\U{ord(character):08x}" for character in name) + "$"


def jid_time(jid: str) -> float | None:
    """Return the Unix time in a jid of Salt (``salt.utils.jid.gen_jid``): year to microsecond in UTC; None for others."""
    if not re.match("[0-9]{20}", jid):  # strptime takes fewer, and digits of all scripts
        return None
    try:
        return datetime.datetime.strptime(jid[:20], "%Y%m%d%H%M%S%f").replace(tzinfo=datetime.timezone.utc).timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return None


def jid_at(seconds: float) -> str:
    """Return the jid of a job published at a Unix time."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y%m%d%H%M%S%f")


# -- keys --------------------------------------------------------------------------------------------------------------

# mysql ignores case and accents, and pads with spaces. etcd and consul use keys as parts of a URL, and keep the time of
# a key under a second key, which has a suffix; etcd hides keys that begin with an underscore.
_UNSAFE = {
    "mysql": re.compile(r"[^0-9a-z_.@:+~-]"),
    "etcd": re.compile(r"^_|[^0-9A-Za-z_.@:+-]|p$(?<=\.tstamp)"),
    "consul": re.compile(r"[^0-9A-Za-z_.@:+-]|p$(?<=\.tstamp)"),
}
_ESCAPED = re.compile(rb"=([0-9a-f]{2})")
# Longest key in bytes: limited by the file name with its ".p", and by the columns that hold "jobs/returns/<jid>".
_LIMITS = {"localfs": 253, "mmap_cache": 253, "mysql": 242}


class Keys:
    """The keys of one driver. :param driver: its name in the option ``cache``."""

    def __init__(self, driver: str) -> None:
        self.longest = _LIMITS.get(driver, _LONGEST)
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
