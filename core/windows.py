"""
Times at which work may begin: weekly windows and a first moment, both by the wall clock.

A window is open exactly when the clock of its zone shows a time within it. So a window is an hour shorter when clocks are
put forward within it, and an hour longer when they are put back.

It has no clock: the time (in Unix seconds) and the zone are arguments. ``tz=None`` is the zone of this machine.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import os
import re
import zoneinfo
from collections.abc import Iterable, Sequence
from typing import Any

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_LONG = {name[:3]: name for name in ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")}
_WINDOW = re.compile(
    r"(?:(?P<days>[a-z]+(?:\s*[,-]\s*[a-z]+)*)\s+)?(?P<opens>\S+?)\s*-\s*(?P<closes>\S+)", re.IGNORECASE
)
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{2})")
_MOMENT = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)\s*(Z|[+-][0-9]{2}:?[0-9]{2})?")
_ACCEPTED = (
    "accepted are windows such as '02:00-05:00', 'Sat,Sun 02:00-05:00' or 'Mon-Fri 22:00-06:00; Sat 00:00-24:00'"
)

_DAY = 24 * 60  # minutes
#: Longest step in seconds when looking for a change: within it a zone's offset changes at most once.
_STEP = 6 * 3600
#: Seconds within which every window opens or closes: one that a change of the clocks skips is there the next week.
_HORIZON = 22 * 86400


@dataclasses.dataclass(frozen=True)
class Window:
    """
    A time of the week: on each of ``days`` (0 for Monday) from ``opens`` to ``closes``, in minutes after midnight.

    If ``closes`` is not later than ``opens``, it is on the next day.
    """

    days: frozenset[int]
    opens: int
    closes: int

    def includes(self, day: int, minute: int) -> bool:
        """Tell whether the window is open at that minute of that day of the week."""
        if self.opens < self.closes:
            return day in self.days and self.opens <= minute < self.closes
        return (day in self.days and minute >= self.opens) or ((day - 1) % 7 in self.days and minute < self.closes)


@dataclasses.dataclass(frozen=True)
class Period:
    """A time, in Unix seconds, in which windows are open; ``closes`` is None if they never close."""

    opens: float
    closes: float | None


# -- reading what an operator wrote -----------------------------------------------------------------------------------


def parse_windows(value: Any) -> tuple[Window, ...]:
    """
    Return the windows of a text such as ``Sat,Sun 02:00-05:00; Mon-Fri 22:00-04:00``, or of a list of such texts.

    Without days a window is daily. One that ends at or before its beginning ends on the next day.

    :raises ValueError: naming what is malformed, and what is accepted.
    """
    texts = value if isinstance(value, (list, tuple)) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"window is {value!r}; {_ACCEPTED}")
    return tuple(_window(part.strip()) for text in texts for part in text.split(";"))


@functools.lru_cache(maxsize=256)  # each question about an opening parses the text again
def _window(text: str) -> Window:
    match = _WINDOW.fullmatch(text)
    if not match:
        raise ValueError(f"window is {text!r}; {_ACCEPTED}")
    opens, closes = _minutes(match["opens"], text), _minutes(match["closes"], text)
    if opens in (_DAY, closes):
        raise ValueError(f"window {text!r} has no length; a whole day is '00:00-24:00'")
    return Window(_days(match["days"], text), opens, closes)


def _minutes(text: str, window: str) -> int:
    match = _TIME.fullmatch(text)
    if not match or int(match[2]) > 59 or int(match[1]) * 60 + int(match[2]) > _DAY:
        raise ValueError(f"{text!r} in window {window!r} is no time of day; accepted is 00:00 to 24:00")
    return int(match[1]) * 60 + int(match[2])


def _days(text: str | None, window: str) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin = _day(first, window)
        length = (_day(last, window) - begin) % 7 if dash else 0
        days.update((begin + step) % 7 for step in range(length + 1))
    return frozenset(days)


def _day(text: str, window: str) -> int:
    name = text.strip().lower()
    if name in _DAYS or _LONG.get(name[:3]) == name:
        return _DAYS.index(name[:3])
    raise ValueError(f"{text.strip()!r} in window {window!r} is no day; accepted is Mon, Tue, Wed, Thu, Fri, Sat, Sun")


def parse_moment(text: str, tz: datetime.tzinfo | None) -> float:
    """
    Return the Unix time of a date and time such as ``2026-11-28 02:00``, ``2026-11-28T02:00:30Z`` or ``… +01:00``.

    Without an offset it is the first moment at which the clock of ``tz`` shows that time; if the clock skips that time,
    the moment at which it does.

    :raises ValueError: naming what is malformed, and what is accepted.
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
        raise ValueError(
            f"{text!r} is no date and time; accepted are a date and a time such as '2026-11-28 02:00' or "
            "'2026-11-28T02:00:00+01:00'"
        ) from None


def find_zone(name: Any) -> datetime.tzinfo:
    """
    Return a zone by its name in the system's time zone database, such as ``Europe/Berlin``.

    :raises ValueError: when there is none of that name.
    """
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, TypeError, AttributeError, LookupError, OSError):
        raise ValueError(
            f"{name!r} is no time zone of this system; accepted is a name such as 'Europe/Berlin' or 'UTC'"
        ) from None


def own_zone() -> str:
    """Return the name of this machine's time zone, as ``find_zone`` takes it; empty if it is not known."""
    named = os.environ.get("TZ", "").lstrip(":") or os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    try:
        find_zone(named)
    except ValueError:
        return ""
    return named


# -- when windows are open --------------------------------------------------------------------------------------------


def is_open(windows: Iterable[Window], now: float, tz: datetime.tzinfo | None) -> bool:
    """Tell whether at least one of some windows is open at a Unix time."""
    wall = _clock(now, tz)
    return any(window.includes(wall.weekday(), wall.hour * 60 + wall.minute) for window in windows)


def next_period(windows: Sequence[Window], after: float, tz: datetime.tzinfo | None) -> Period:
    """
    Return the next time in which windows are open without a break, or the present one.

    :param after: Unix time; if a window is open then, the period begins there.
    :param tz: the zone whose clock counts.
    """
    opens: float | None = after
    if not is_open(windows, after, tz):
        opens = _next_change(windows, after, tz)
    if opens is None:
        raise ValueError(f"no window opens within {_HORIZON // 86400} days")  # not expected: each comes once a week
    return Period(opens, _next_change(windows, opens, tz))


def longest_break(windows: Sequence[Window]) -> float:
    """Return the most seconds in a row without an open window, by a clock that is not put forward or back."""
    week = [any(window.includes(day, minute) for window in windows) for day in range(7) for minute in range(_DAY)]
    longest = since = 0
    for is_there in week * 2:  # a break may span the end of the week
        since = 0 if is_there else since + 1
        longest = max(longest, since)
    return 60.0 * longest


def next_opening(start_at: float | None, window: str, timezone: str, now: float) -> Period:
    """
    Return the next time in which work may begin, or the present one.

    :param start_at: not before that Unix time; None for at once.
    :param window: as ``parse_windows`` takes it; empty for any time.
    :param timezone: as ``find_zone`` takes it; empty for this machine's.
    :raises ValueError: when a window or a zone cannot be understood (any more).
    """
    after = max(now, start_at or now)
    return (
        next_period(parse_windows(window), after, find_zone(timezone) if timezone else None)
        if window
        else Period(after, None)
    )


def _next_change(windows: Sequence[Window], now: float, tz: datetime.tzinfo | None) -> float | None:
    """Return the next Unix time at which windows open or close; None if they never do."""
    before, at = is_open(windows, now, tz), math.floor(now)
    end = at + _HORIZON
    while at < end:
        ahead = at + min(_to_boundary(windows, at, tz), _STEP)
        if _offset(ahead, tz) != _offset(at, tz):
            ahead = _transition(at, ahead, tz)
        if is_open(windows, ahead, tz) != before:
            return float(ahead)
        at = ahead
    return None


def _to_boundary(windows: Sequence[Window], at: int, tz: datetime.tzinfo | None) -> int:
    """Return the seconds, one or more, until the clock next shows a time at which a window opens or closes."""
    wall = _clock(at, tz)
    second = (wall.hour * 60 + wall.minute) * 60 + wall.second
    boundaries = {minute * 60 for window in windows for minute in (window.opens, window.closes)}
    return min((boundary - second - 1) % (_DAY * 60) + 1 for boundary in boundaries)


def _clock(now: float, tz: datetime.tzinfo | None) -> datetime.datetime:
    """Return what a clock of the zone shows, to the second, without the zone."""
    return datetime.datetime.fromtimestamp(math.floor(now), tz).replace(tzinfo=None)


def _offset(now: float, tz: datetime.tzinfo | None) -> datetime.timedelta:
    return _clock(now, tz) - _clock(now, datetime.timezone.utc)


def _transition(low: int, high: int, tz: datetime.tzinfo | None) -> int:
    """Return the second at which the offset changes, between two that have different ones."""
    old = _offset(low, tz)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(middle, tz) == old:
            low = middle
        else:
            high = middle
    return high


def _first_showing(wall: datetime.datetime, tz: datetime.tzinfo | None) -> float:
    # fold=0 is the first of two equal readings of the clock. A skipped time lies between its two interpretations.
    moment = wall.replace(tzinfo=tz, fold=0).timestamp()
    if _clock(moment, tz) == wall:
        return moment
    return float(_transition(math.floor(wall.replace(tzinfo=tz, fold=1).timestamp()), math.ceil(moment), tz))
