"""
Checks of minion ids and jids, which come from the bus and end up in paths and keys. What fails a check here must never be
used to build a path, a bank or a key.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

#: Longest name that file systems and cache drivers accept, in bytes.
_LONGEST = 255


def is_plain(name: Any) -> bool:
    """Tell whether it is one path component: printable text of 1 to 255 bytes without separator, not ``.`` or ``..``."""
    if not isinstance(name, str) or not name or name in (".", ".."):
        return False
    if "/" in name or "\\" in name or not name.isprintable():
        return False
    try:
        return len(name.encode("utf-8")) <= _LONGEST
    except UnicodeEncodeError:  # a lone surrogate, which only a broken or hostile sender sends
        return False


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
    if not jid.isascii():  # strptime takes digits of all scripts
        return None
    try:
        return datetime.datetime.strptime(jid[:20], "%Y%m%d%H%M%S%f").replace(tzinfo=datetime.timezone.utc).timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return None


def jid_at(seconds: float) -> str:
    """Return the jid of a job published at a Unix time."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y%m%d%H%M%S%f")
