"""
Makes text from anywhere safe for a terminal: nothing in it acts on the terminal, and its width in columns is known.

Minion ids, functions, targets and reasons come from others. Characters that Python calls not printable (control
characters and escape sequences, marks that turn the direction of writing, invisible and unassigned characters) are shown
as escapes, such as ``\\x1b``. Pure: stdlib only.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

#: Marks an omission.
ELLIPSIS = "…"
#: A number, which stays with the next word (longer ones are jids); and the blank between them, which no clean text has.
_NUMBER, _KEPT = re.compile(r"((?:\A|(?<= ))\(?[0-9][0-9,.]{0,8}) ", re.ASCII), "\0"


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


def target(tgt: Any, tgt_type: Any) -> str:
    """Return a target as people write it, with its type unless it is a glob or a list."""
    text = ",".join(str(name) for name in tgt) if isinstance(tgt, (list, tuple)) else str(tgt)
    return text if tgt_type in (None, "glob", "list") else f"{text} ({tgt_type})"


def width_of(text: str) -> int:
    """Return how many columns of a terminal a clean text takes."""
    return len(text) if text.isascii() else sum(_columns(char) for char in text)


def cut(text: str, width: int, mark: str = ELLIPSIS, middle: bool = True) -> str:
    """Return a clean text of ``width`` columns: without its ``middle``, as many names differ at their ends, or its end."""
    if width_of(text) <= width:
        return text
    room = width - width_of(mark)
    if room <= 0:
        return mark[: max(0, width)]
    tail = room // 2 if middle else 0
    end = len(text) - len(_taken(reversed(text), tail))
    return _taken(text, room - tail) + mark + text[end:]


def pad(text: str, width: int, right: bool = False) -> str:
    """Return a clean text padded with spaces to ``width`` columns; on the left if ``right``."""
    blanks = " " * (width - width_of(text))
    return blanks + text if right else text + blanks


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
