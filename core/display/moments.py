"""Times for people: a date and time on the clock of a zone, and how long ago that was. Pure: the time is an argument."""

from __future__ import annotations

import contextlib
import datetime
import math
from typing import Any

#: Seconds of a unit, and how many of it are shown before the next unit is used.
_UNITS = ((1, 60, "s"), (60, 60, "min"), (3600, 48, "h"), (86400, math.inf, "d"))
#: Shown for an unknown time.
UNKNOWN = "-"


def seconds_of(value: Any) -> float | None:
    """Return Unix time, or a length of time in seconds, as a number; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value) if math.isfinite(value) else None
    return None


def span(seconds: Any) -> str:
    """Return a length of time in one unit: ``12 s``, ``3 min``, ``26 h``, ``5 d``."""
    number = seconds_of(seconds)
    if number is None:
        return UNKNOWN
    for unit, most, name in _UNITS:
        if abs(number) < unit * most:
            return f"{int(abs(number) // unit)} {name}"
    return UNKNOWN


def ago(value: Any, now: float) -> str:
    """Return ``3 min ago``, ``in 2 h`` or ``now``."""
    at = seconds_of(value)
    if at is None:
        return UNKNOWN
    if abs(now - at) < 1:
        return "now"
    return f"{span(now - at)} ago" if at < now else f"in {span(at - now)}"


def local(value: Any, tz: datetime.tzinfo | None) -> str:
    """Return the date and time that the clock of ``tz`` shows; None stands for the zone of this machine."""
    at = seconds_of(value)
    try:
        return UNKNOWN if at is None else f"{datetime.datetime.fromtimestamp(at, tz):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return UNKNOWN
