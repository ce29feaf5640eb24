"""
How options are declared, and what they accept. Each kind of value has one check, which also words the error.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.windows import find_zone, parse_windows

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")
_ADDRESS = re.compile(r"https?://[^\s/]+(/\S*)?")
#: Most characters of a window that a job names.
_LONGEST_WINDOW = 1000


@dataclasses.dataclass(frozen=True)
class Check:
    """What an option accepts: ``read`` returns the value to use or raises ValueError; ``accepts`` says it in words."""

    read: Callable[[Any], Any]
    accepts: str


def option(default: Any, check: Check) -> Any:
    """Declare an option of a settings class."""
    return dataclasses.field(default=default, metadata={"check": check})


def duration(value: Any) -> float:
    """
    Return seconds from a number of seconds or from ``90s``, ``15m``, ``12h``, ``7d``.

    :raises ValueError: for anything else, and for a negative or infinite number.
    """
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if not match:
            raise ValueError(value)
        value = float(match[1]) * _UNITS[match[2]]
    if (found := _finite(value)) < 0:
        raise ValueError(value)
    return found


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(value)
    try:
        found = float(value)
    except OverflowError:  # a whole number may have any number of digits
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(value)
    return found


def seconds(minimum: float = 0.0, maximum: float = math.inf) -> Check:
    """Accept a duration between two limits, in seconds."""

    def read(value: Any) -> float:
        result = duration(value)
        if not minimum <= result <= maximum:
            raise ValueError(value)
        return result

    limits = " and ".join(
        limit
        for limit in (f"at least {minimum:g}" if minimum else "", f"at most {maximum:g}" if maximum < math.inf else "")
        if limit
    )
    limits = f" of {limits}" if limits else ""
    return Check(read, f"a number of seconds{limits}, or a duration such as 90s, 15m, 12h or 7d")


def whole(minimum: int = 0) -> Check:
    """Accept a whole number of at least ``minimum``."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ValueError(value)
        return value

    return Check(read, f"a whole number of at least {minimum}")


def number(minimum: float = 0.0) -> Check:
    """Accept a number greater than ``minimum``."""

    def read(value: Any) -> float:
        if not minimum < (found := _finite(value)):
            raise ValueError(value)
        return found

    return Check(read, f"a number above {minimum:g}")


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _globs(value: Any) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item for item in value):
        raise ValueError(value)
    return tuple(value)


def _ids(value: Any) -> tuple[str, ...]:
    found = _globs(value)
    if not all(is_plain(name) for name in found):
        raise ValueError(value)
    return found


def _window(value: Any) -> str:
    if value == "":
        return ""
    parse_windows(value)
    return value if isinstance(value, str) else "; ".join(value)


def job_window(value: Any) -> str:
    """
    Return the window that a job names for itself. The job's publisher chooses it, and engines parse it often.

    :raises ValueError: or TypeError, when it is not valid, or too long.
    """
    text = _window(value)
    if len(text) > _LONGEST_WINDOW:
        raise ValueError(f"it has more than {_LONGEST_WINDOW} characters")
    return text


def _timezone(value: Any) -> str:
    if value != "":
        find_zone(value)
    return str(value)


#: WINDOW accepts windows of time as core/windows.py reads them, and TIMEZONE a time zone; both, an empty text too.
WINDOW = Check(
    _window,
    "such as '02:00-05:00' or 'Sat,Sun 02:00-05:00; Mon-Fri 22:00-06:00', or '' for any time (to gather minions for some "
    "seconds, set the option gather)",
)
TIMEZONE = Check(_timezone, "a time zone of this system such as 'Europe/Berlin' or 'UTC', or '' for the master's own")


def _folder(value: Any) -> str:
    if not isinstance(value, str) or (value and not value.startswith(("/", "~"))):
        raise ValueError(value)
    return value


#: Accepts a directory, or nothing.
FOLDER = Check(_folder, "the full path of a directory, such as /var/lib/prometheus/node-exporter, or '' for none")
#: Accepts a file, or nothing.
FILE = Check(_folder, "the full path of a file, or '' for none")


def _web(value: Any) -> str:
    if not isinstance(value, str) or (value and not _ADDRESS.fullmatch(value)):
        raise ValueError(value)
    return value


#: Accepts the address of a page, or nothing.
WEB = Check(_web, "an address such as https://salt.example.com:8000/console/index.html, or '' for none")
#: Accepts a list of minion ids.
IDS = Check(_ids, "a list of minion ids")
#: Accepts True and False.
FLAG = Check(_flag, "True or False")
#: Accepts a list of globs over function names.
GLOBS = Check(_globs, "a list of globs over function names, such as ['state.*', 'pkg.install']")


def some_of(*names: str) -> Check:
    """Accept one of ``names``, or a list of some of them."""

    def read(value: Any) -> tuple[str, ...]:
        chosen = _globs(value)
        if not set(chosen) <= set(names):
            raise ValueError(value)
        return chosen

    return Check(read, f"a list with some of {', '.join(names)}")
