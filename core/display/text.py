"""
Makes text from anywhere safe for a terminal: nothing in it acts on the terminal, and its width in columns is known; and says
numbers, times and targets as people read them.

Minion ids, functions, targets and reasons come from others. Characters that Python calls not printable (control
characters and escape sequences, marks that turn the direction of writing, invisible and unassigned characters) are shown
as escapes, such as ``\\x1b``. The time is an argument.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

#: Marks an omission.
ELLIPSIS = "…"
#: Columns of a terminal if that is unknown, as in a pipe.
DEFAULT_WIDTH = 80
#: A number, which stays with the next word (longer ones are jids); and the blank between them, which no clean text has.
_NUMBER, _KEPT = re.compile(r"((?:\A|(?<= ))\(?[0-9][0-9,.]{0,8}) ", re.ASCII), "\0"

#: Seconds of a unit, and how many of it are shown before the next unit is used.
_UNITS = ((1, 60, "s"), (60, 60, "min"), (3600, 48, "h"), (86400, math.inf, "d"))
#: Shown for an unknown time.
UNKNOWN = "-"


def clean(value: Any) -> str:
    """Return a value as one line of text without anything that is not printable."""
    text = value if isinstance(value, str) else str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


@functools.lru_cache(maxsize=4096)
def _columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def joined(value: Any) -> str:
    """Return a value as people type it: the parts of a list with commas between them, and seconds as ``90s`` or ``1h``."""
    if isinstance(value, float):
        size, unit = next(
            (size, unit) for size, unit in ((3600, "h"), (60, "m"), (1, "s")) if size == 1 or not value % size
        )
        return f"{value / size:.10g}{unit}"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def width_of(text: str) -> int:
    """Return how many columns of a terminal a clean text takes."""
    return len(text) if text.isascii() else sum(_columns(char) for char in text)


def cut(text: str, width: int, middle: bool = True) -> str:
    """Return a clean text of ``width`` columns: without its ``middle``, as many names differ at their ends, or its end."""
    if width_of(text) <= width:
        return text
    room = width - 1
    if room <= 0:
        return ELLIPSIS[: max(0, width)]
    tail = room // 2 if middle else 0
    end = len(text) - len(_taken(reversed(text), tail))
    return _taken(text, room - tail) + ELLIPSIS + text[end:]


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return lines of at most ``width`` columns, divided between words if possible; all but the first after ``indent``."""
    indent = indent if len(indent) < width // 2 else ""
    words = _NUMBER.sub(rf"\1{_KEPT}", text).split(" ")  # a number stays with what it counts
    line, *parts = (part for word in words for part in _broken(word, width - len(indent)))
    lines: list[str] = []
    for part in parts:
        if width_of(line) + 1 + width_of(part) <= width:
            line += f" {part}"
        else:
            lines.append(line)
            line = indent + part
    return [one.replace(_KEPT, " ") for one in (*lines, line)]


def counted(number: int, one: str, many: str = "") -> str:
    """Return ``1 minion`` or ``2,000 minions``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def some(names: Iterable[str], most: int) -> str:
    """Return at most so many names, with commas between them, and how many there are beyond."""
    named = list(names)
    left = len(named) - most
    return ", ".join(named[:most]) + (f" and {left:,} more" if left > 0 else "")


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


def _broken(word: str, width: int) -> Iterator[str]:
    """Divide a word that is too long into parts of at most ``width`` columns."""
    while True:
        part = _taken(word, width)
        yield part
        word = word[len(part) :]
        if not word:
            return


def _taken(chars: Iterable[str], width: int) -> str:
    """Return as many of the first characters as fit; they take one column at least."""
    found = ""
    for char in chars:
        width -= _columns(char)
        if width < 0:
            break
        found += char
    return found


def is_terminal(stream: Any) -> bool:
    """Tell whether a stream leads to a terminal that can redraw a line."""
    try:
        return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # closed, or not a stream
        return False


def width_of_terminal(stream: Any) -> int:
    """Return the columns of the terminal that a stream leads to: what COLUMNS says, what the terminal says, or 80."""
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
    return DEFAULT_WIDTH
