"""
Times at which work may begin: weekly windows and a first moment, both by the wall clock.

A window is open exactly when the clock of its zone shows a time within it. So it is an hour shorter when clocks are put
forward within it, and an hour longer when they are put back. The time (in Unix seconds) and the zone are arguments;
``tz=None`` is the zone of this machine.
"""

from __future__ import annotations

import bisect
import datetime
import functools
import math
import os
import re
import zoneinfo
from typing import Any, NamedTuple, TypeAlias

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NAME = f"(?:{'|'.join(f'{day[:3]}(?:{day[3:]})?' for day in _DAYS)})"
_TIME = "((?:[01]?[0-9]|2[0-3]):[0-5][0-9]|24:00)"
_WINDOW = re.compile(rf"(?:({_NAME}(?:\s*[,-]\s*{_NAME})*)\s+)?{_TIME}\s*-\s*{_TIME}", re.IGNORECASE)
_MOMENT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)\s*(Z|[+-][0-9]{2}:?[0-9]{2})?")

_DAY = 24 * 60  # minutes
#: Longest step in seconds when looking for a change: within it a zone's offset changes at most once.
_STEP = 6 * 3600

#: A character for each minute of a week that begins on Monday at 00:00: ``_OPEN`` if a window is open, else ``_SHUT``.
Week: TypeAlias = str
_OPEN, _SHUT = "o", "."


class Period(NamedTuple):
    """A time, in Unix seconds, in which windows are open; ``closes`` is None if they never close."""

    opens: float
    closes: float | None


# -- reading what an operator wrote -----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)  # each question about an opening parses the text again
def parse_windows(text: str) -> Week:
    """
    Return when windows are open, such as ``Sat,Sun 02:00-05:00; Mon-Fri 22:00-04:00``. Without days a window is daily. One
    that ends before its beginning ends on the next day. :raises ValueError:
    """
    week = [_SHUT] * (7 * _DAY)
    for window in map(str.strip, text.split(";")):
        match = _WINDOW.fullmatch(window)
        opens, closes = map(_minutes, match.groups()[1:]) if match else (0, 0)
        if not match or opens in (_DAY, closes):
            raise ValueError(f"{window!r} is no window")
        for day in _days(match[1] or "mon-sun"):
            for minute in range(opens, closes if opens < closes else closes + _DAY):
                week[(day * _DAY + minute) % len(week)] = _OPEN
    return "".join(week)


def _minutes(time: str) -> int:
    hours, _, minutes = time.partition(":")
    return int(hours) * 60 + int(minutes)


def _days(text: str) -> set[int]:
    """Return the days that a list of days and ranges names, 0 for Monday."""
    short, days = [day[:3] for day in _DAYS], set[int]()
    for part in text.lower().split(","):
        first, *last = (short.index(name.strip()[:3]) for name in part.split("-"))
        days.update((first + step) % 7 for step in range((last[0] - first) % 7 + 1 if last else 1))
    return days


def parse_moment(text: str, tz: datetime.tzinfo | None) -> float:
    """
    Return the Unix time of a date and time such as ``2026-11-28 02:00``, ``2026-11-28T02:00:30Z`` or ``… +01:00``. Without
    an offset it is the first moment at which the clock of ``tz`` shows that time; if the clock skips that time, the moment
    at which it does. :raises ValueError:
    """
    match = _MOMENT.fullmatch(text.strip())
    try:
        if not match:
            raise ValueError(text)
        wall = datetime.datetime.fromisoformat(f"{match[1]} {match[2]}")
        offset = "+00:00" if match[3] == "Z" else match[3]
        if offset:
            zone = datetime.datetime.strptime(offset, "%z").tzinfo
            return wall.replace(tzinfo=zone).timestamp()
        return _first_showing(wall, tz)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is no date and time") from None


def find_zone(name: Any) -> datetime.tzinfo:
    """Return a zone by its name in the system's database, such as ``Europe/Berlin``. :raises ValueError: for others."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, TypeError, AttributeError, LookupError, OSError):
        raise ValueError(f"{name!r} is no time zone of this system") from None


def own_zone() -> str:
    """Return the name of this machine's time zone, as ``find_zone`` takes it; empty if it is not known."""
    named = os.environ.get("TZ", "").lstrip(":") or os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    try:
        find_zone(named)
    except ValueError:
        return ""
    return named


# -- when windows are open --------------------------------------------------------------------------------------------


def is_open(week: Week, now: float, tz: datetime.tzinfo | None) -> bool:
    """Tell whether a window is open at a Unix time."""
    return week[_minute(_clock(now, tz))] == _OPEN


def next_period(week: Week, after: float, tz: datetime.tzinfo | None) -> Period:
    """Return the next time in which windows are open without a break; if one is open at ``after``, from then on."""
    opens = after if is_open(week, after, tz) else _next_change(week, _OPEN, after, tz)
    return Period(opens, _next_change(week, _SHUT, opens, tz) if _SHUT in week else None)


def longest_break(week: Week) -> float:
    """Return the most seconds in a row without an open window, by a clock that is not put forward or back."""
    return 60.0 * max(map(len, (week * 2).split(_OPEN)))  # twice, since a break may span the end of the week


def next_opening(start_at: float | None, window: str, timezone: str, now: float) -> Period:
    """
    Return the next time in which work may begin, or the present one: not before ``start_at``, and within ``window``. Empty
    stands for any time, and for the time zone of this machine. :raises ValueError: for a wrong window or zone.
    """
    after = max(now, start_at or now)
    if not window:
        return Period(after, None)
    return next_period(parse_windows(window), after, find_zone(timezone) if timezone else None)


def _next_change(week: Week, to: str, now: float, tz: datetime.tzinfo | None) -> float:
    """Return the next Unix time at which the windows are ``to``, which they are not now."""
    at = math.floor(now)
    while True:
        wall = _clock(at, tz)
        minute = _minute(wall)
        ahead = at + min(((week * 2).index(to, minute) - minute) * 60 - wall.second, _STEP)
        if _offset(ahead, tz) != _offset(at, tz):
            ahead = _transition(at, ahead, tz)
        if week[_minute(_clock(ahead, tz))] == to:
            return float(ahead)
        at = ahead


def _minute(wall: datetime.datetime) -> int:
    return (wall.weekday() * 24 + wall.hour) * 60 + wall.minute


def _clock(now: float, tz: datetime.tzinfo | None) -> datetime.datetime:
    """Return what a clock of the zone shows, to the second, without the zone."""
    return datetime.datetime.fromtimestamp(math.floor(now), tz).replace(tzinfo=None)


def _offset(now: float, tz: datetime.tzinfo | None) -> datetime.timedelta:
    return _clock(now, tz) - _clock(now, datetime.timezone.utc)


def _transition(low: int, high: int, tz: datetime.tzinfo | None) -> int:
    """Return the second at which the offset changes, between two that have different ones."""
    old = _offset(low, tz)
    return low + bisect.bisect_left(range(low, high), True, key=lambda at: _offset(at, tz) != old)


def _first_showing(wall: datetime.datetime, tz: datetime.tzinfo | None) -> float:
    # fold=0 is the first of two equal readings of the clock. A skipped time lies between its two interpretations.
    moment = wall.replace(tzinfo=tz, fold=0).timestamp()
    if _clock(moment, tz) == wall:
        return moment
    return float(_transition(math.floor(wall.replace(tzinfo=tz, fold=1).timestamp()), math.ceil(moment), tz))
