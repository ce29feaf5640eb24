"""
What one command prints: lines, tables and a last line that names the next commands, none wider than the terminal.

Every text goes through ``clean`` here, so the code that draws a page need not do that. Pure: the time is an argument.
"""

from __future__ import annotations

import collections
import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saltext.jobs.core.display import moments
from saltext.jobs.core.display.text import ELLIPSIS, clean, counted, cut, pad, width_of, wrap

#: Rows that a table shows by default; those that need attention come first.
ROWS = 40
_GAP = "  "
#: The narrowest page, in columns.
_NARROWEST = 8
_RED, _YELLOW, _GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"
_END = "\x1b[0m"
#: The colours of states, if the terminal has colours.
_COLOURS = {
    **dict.fromkeys(("failed", "lost", "timed_out", "killed", "halted", "held", "dead", "unsuccessful"), _RED),
    **dict.fromkeys(("offline", "paused", "waiting", "stopping", "expired"), _YELLOW),
    **dict.fromkeys(("completed", "succeeded"), _GREEN),
}


@dataclass(frozen=True)
class Column:
    """
    A column of a table.

    :param title: its head.
    :param least: columns of the terminal to which it may shrink; 0 for not at all.
    :param right: aligned on the right, as numbers are.
    :param rank: if there is no room for all columns, the one with the highest rank goes first; those with 0 stay.
    :param names: a text that is too long loses its middle, not its end.
    """

    title: str
    least: int = 0
    right: bool = False
    rank: int = 0
    names: bool = True


class Page:
    """
    :param width: columns of the terminal.
    :param now: Unix time.
    :param tz: the zone in which times are shown; None for that of this machine.
    :param jid_tz: the zone in which jids are made; None likewise.
    :param colours: whether states are coloured.
    :param encoding: that of the terminal.
    :param jid: the job that the command was called with; else ``JID`` stands for it.
    """

    def __init__(
        self,
        width: int,
        now: float,
        tz: datetime.tzinfo | None = None,
        jid_tz: datetime.tzinfo | None = None,
        colours: bool = False,
        encoding: str = "utf-8",
        jid: str = "JID",
    ) -> None:
        self.width, self.now, self.tz = max(_NARROWEST, width), now, tz
        self.jid_tz, self.jid = jid_tz, jid
        self._colours, self._encoding = colours, encoding
        self._mark = self.clean(ELLIPSIS)
        self._lines: list[str] = []

    def text(self) -> str:
        """Return the whole page."""
        return "\n".join(self._lines)

    def clean(self, value: Any) -> str:
        """Return a value as a line of text for this terminal."""
        return clean(value, self._encoding)

    # -- what is added ------------------------------------------------------------------------------------------------

    def line(self, text: str, indent: str = "", most: int | None = None) -> None:
        """
        Add a text, on as many lines as it takes.

        :param indent: spaces with which all lines but the first begin.
        :param most: most lines; an omission is marked.
        """
        cleaned = self.clean(text)
        if most is not None:
            cleaned = cut(cleaned, self.width * (most + 1), self._mark, middle=False)
        lines = wrap(cleaned, self.width, indent)
        if most is not None and len(lines) > most:
            lines = [*lines[: most - 1], cut(f"{lines[most - 1]} {self._mark}", self.width, self._mark, middle=False)]
        self._lines.extend(line.rstrip() for line in lines)

    def gap(self) -> None:
        """Add an empty line, unless this is the beginning."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def names(self, head: str, names: Sequence[str], most: int, indent: str = "    ") -> None:
        """
        Add names after a head, and the number of names that are left out.

        :param most: most lines.
        """
        likely = [self.clean(name) for name in names[: self.width * most // 3 + 1]]

        def told(count: int) -> str:
            left = len(names) - count
            return f"{self.clean(head)} {', '.join(likely[:count])}" + (
                f", {self._mark} and {left:,} more" if left else ""
            )

        fits, fails = 1, len(likely) + 1
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if len(wrap(told(middle), self.width, indent)) <= most:
                fits = middle
            else:
                fails = middle
        self.line(told(fits), indent)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> None:
        """Add a table with a head; columns without room are left out, the others shrink."""
        cells = [[self.clean(value) for value in row] for row in rows]
        natural = [
            max(width_of(column.title), *(width_of(row[at]) for row in cells), 1) for at, column in enumerate(columns)
        ]
        shown = list(range(len(columns)))
        least = [min(wide, column.least or wide) for wide, column in zip(natural, columns, strict=True)]
        while _needed(least, shown) > self.width and any(columns[at].rank for at in shown):
            shown.remove(max(shown, key=lambda at: columns[at].rank))
        widths = _shared(natural, least, shown, self.width)
        for row in ([column.title for column in columns], *cells):
            self._lines.append(self._row(row, columns, widths))

    def folded(self, rows: int, shown: int, what: str = "") -> None:
        """Say how many of the rows are left out, if any."""
        if rows > shown:
            self.line(f"{ELLIPSIS} and {rows - shown:,} more{what}; --out=json shows all")

    def fold(self, most: int) -> None:
        """Keep at most ``most`` lines, and say how many are left out."""
        left = len(self._lines) - most
        if left > 0:
            del self._lines[most:]
            self.line(f"{ELLIPSIS} and {left:,} more lines; --out=json shows all")

    def next(self, command: str, *others: str) -> None:
        """
        Add the last line: what to call next.

        :param others: what may be called instead; functions of the same runner are shown without its name.
        """
        runner = command.partition(".")[0]
        more = f" (or {', '.join(other.removeprefix(f'{runner}.') for other in others)})" if others else ""
        self.line(f"Next: salt-run {command}{more}", "      ")

    # -- times --------------------------------------------------------------------------------------------------------

    def when(self, value: Any) -> str:
        """Return a time with its age: ``2026-05-16 10:11:12 (3 min ago)``."""
        if moments.seconds_of(value) is None:
            return moments.UNKNOWN
        return f"{moments.local(value, self.tz)} ({moments.ago(value, self.now)})"

    def age(self, value: Any) -> str:
        """Return how long ago it was, for a table: ``3 min``; a time to come begins with ``in``."""
        return moments.ago(value, self.now).removesuffix(" ago")

    def _row(self, row: Sequence[str], columns: Sequence[Column], widths: Mapping[int, int]) -> str:
        parts = []
        for at, width in widths.items():
            column = columns[at]
            text = pad(cut(row[at], width, cut(self._mark, width), column.names), width, column.right)
            colour = _COLOURS.get(row[at]) if self._colours else None
            parts.append(f"{colour}{text}{_END}" if colour else text)
        return _GAP.join(parts).rstrip()


def _needed(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[at] for at in shown) + len(_GAP) * (len(shown) - 1)


def _shared(natural: Sequence[int], least: Sequence[int], shown: Sequence[int], width: int) -> dict[int, int]:
    """Return the width of each column that is shown: all grow alike from their least towards what they need."""
    widths = {at: least[at] for at in shown}
    room = width - len(_GAP) * (len(shown) - 1)
    while sum(widths.values()) > room:  # columns that must not shrink do so too
        widest = max(widths, key=lambda at: widths[at])
        if widths[widest] == 1:
            del widths[max(widths)]
            room += len(_GAP)
        else:
            widths[widest] -= 1
    while True:
        wanting = [at for at in widths if widths[at] < natural[at]][: room - sum(widths.values())]
        if not wanting:
            return widths
        for at in wanting:
            widths[at] += 1


# -- what several pages have in common ----------------------------------------------------------------------------------


def by_state(states: Iterable[str], order: Sequence[str]) -> str:
    """Return ``2 failed, 90 completed``: the number in each state, in this order."""
    found = collections.Counter(states)
    named = [*(state for state in order if found[state]), *sorted(found.keys() - set(order))]
    return ", ".join(f"{found[state]:,} {state}" for state in named)


def headline(number: int, one: str, many: str, states: str) -> str:
    """Return ``3 batches: 1 running, 2 complete``."""
    return f"{counted(number, one, many)}: {states}" if states else counted(number, one, many)
