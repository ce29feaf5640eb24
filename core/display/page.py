"""
What one command prints: lines, facts by name, tables, and a last line that names the next commands, none wider than the
terminal; and the results that several runners have: any mapping, why minions have failed, what a doctor has found.

Every text goes through ``clean`` here, so the code that draws a page need not do that. Pure: the time is an argument.
"""

from __future__ import annotations

import collections
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from saltext.jobs.core.display.command import command, where
from saltext.jobs.core.display.text import ELLIPSIS, UNKNOWN, ago, clean, counted, cut, local, width_of, wrap

#: Rows that a table shows by default; those that need attention come first.
ROWS = 40
_GAP = "  "
#: The narrowest page, in columns.
_NARROWEST = 8
#: Most lines of one fact, and of a mapping that is one; most lines of all facts, and most values of a list or mapping.
_MOST, _SHORT, _FACTS, _VALUES = 12, 2, 120, 100
#: What is no fact, and a dash in a table.
_EMPTY: tuple[Any, ...] = (None, "", (), [], {})
#: Of reasons: most groups, most lines of a group's text, most lines on the screen for one of them, and most lines of names.
_GROUPS, _LINES, _WRAPPED, _NAMES = 12, 20, 3, 2
_RED, _YELLOW, _GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"
_END = "\x1b[0m"
#: The colours of states, if the terminal has colours.
_COLOURS = {
    **dict.fromkeys(("failed", "lost", "timed_out", "killed", "halted", "held", "dead", "unsuccessful"), _RED),
    **dict.fromkeys(("offline", "queued", "paused", "waiting", "stopping", "expired"), _YELLOW),
    **dict.fromkeys(("completed", "succeeded"), _GREEN),
}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    value: str | Callable[[Row], Any]  # the key of its value in a row, or a function of the row
    least: int = 0  # columns of the terminal to which it may shrink; 0 for not at all
    right: bool = False  # aligned on the right, as numbers are
    rank: int = 0  # without room for all columns, the one with the highest rank goes first; those with 0 stay
    names: bool = True  # a text that is too long loses its middle, not its end
    age: bool = False  # the value is Unix time, and is shown as an age


#: Columns of several tables.
JID, MINION, STATE = Column("JID", "jid"), Column("MINION", "minion", 16), Column("STATE", "state")
FUNCTION = Column("FUNCTION", command, 7, names=False)
TARGET, USER = Column("TARGET", where, 6, rank=5, names=False), Column("USER", "user", 5, rank=6)


@dataclass(frozen=True)
class Table:
    """How one kind of row is shown: first how many there are in each state, then a line for each."""

    one: str  # what a row is called
    many: str  # what several are
    columns: tuple[Column, ...]
    state: str | Callable[[Row], Any] = "state"  # the key of a row's state, or a function of the row
    order: tuple[str, ...] = ()  # the states, those that need an operator first

    def headline(self, rows: Sequence[Row]) -> str:
        """Return ``3 batches: 1 running, 2 complete``: how many rows there are, and in each state."""
        found = collections.Counter(str(_of(row, self.state)) for row in rows)
        counts = ", ".join(f"{found[state]:,} {state}" for state in sorted(found, key=self.rank))
        return f"{counted(len(rows), self.one, self.many)}{': ' if counts else ''}{counts}"

    def rank(self, state: Any) -> tuple[int, str]:
        return (self.order.index(state) if state in self.order else len(self.order)), str(state)

    def sorted(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows by their states, those that need an operator first, and otherwise as they were."""
        return sorted(rows, key=lambda row: self.rank(_of(row, self.state)))


def _of(row: Row, value: str | Callable[[Row], Any]) -> Any:
    return row[value] if isinstance(value, str) else value(row)


@dataclass
class Page:
    """
    ``width``: columns of the terminal. ``now``: Unix time. ``tz``: the zone of times; None for that of this machine.
    ``chosen``: the call had arguments, so that nothing found does not mean that there is nothing. ``jid``: that it named.
    """

    width: int
    now: float
    tz: datetime.tzinfo | None = None
    colours: bool = False
    chosen: bool = False
    jid: str = "JID"
    _lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.width = max(_NARROWEST, self.width)

    def text(self) -> str:
        return "\n".join(self._lines)

    def line(self, text: str, indent: str = "", most: int | None = None) -> None:
        """Add a text on as many lines as it takes, but at most ``most``. ``indent`` begins all but the first."""
        cleaned = clean(text)
        if most is not None:
            cleaned = cut(cleaned, self.width * (most + 1), middle=False)
        lines = wrap(cleaned, self.width, indent)
        if most is not None and len(lines) > most:
            lines = [*lines[: most - 1], cut(f"{lines[most - 1]} {ELLIPSIS}", self.width, middle=False)]
        self._lines.extend(line.rstrip() for line in lines)

    def head(self, row: Row, state: str = "") -> None:
        """Add the line that names a job or a batch: its jid, its ``state`` in a word, what runs where, and for whom."""
        user = f", by {row['user']}" if row.get("user") else ""
        parts = (row["jid"], state, f"{command(row)} on {where(row)}{user}")
        self.line(_GAP.join(filter(None, parts)), _GAP, 3)

    def gap(self) -> None:
        """Add an empty line, unless this is the beginning."""
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def names(self, head: str, names: Sequence[str], most: int, indent: str = "    ") -> None:
        """Add names after a head, on at most ``most`` lines, and the number of names that are left out."""
        shown = [cut(clean(name), self.width * most) for name in names[: self.width * most // 3 + 1]]
        while True:
            more = f", {ELLIPSIS} and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
            lines = wrap(f"{clean(head)} {', '.join(shown)}{more}", self.width, indent)
            if len(lines) <= most or len(shown) <= 1:
                self._lines.extend(line.rstrip() for line in lines)
                return
            del shown[-max(1, len(shown) // 20) :]

    def folded(self, rows: int, shown: int, what: str = "") -> None:
        """Say how many of the rows are left out, if any."""
        if rows > shown:
            self.line(f"{ELLIPSIS} and {rows - shown:,} more{what}; --out=json shows all")

    def fold(self, most: int) -> None:
        """Keep at most ``most`` lines, and say how many are left out."""
        lines = len(self._lines)
        del self._lines[most:]
        self.folded(lines, most, " lines")

    def next(self, command: str, *others: str) -> None:
        """Add what to call next, or instead (``others``, without the runner's name if it is the same)."""
        runner = command.partition(".")[0]
        named = ", ".join(other.removeprefix(f"{runner}.") for other in others if other)
        self.line(f"Next: salt-run {command}" + (f" (or {named})" if named else ""), "      ")

    # -- tables ---------------------------------------------------------------------------------------------------------

    def listing(self, table: Table, rows: Sequence[Row], more: str = "", most: int = ROWS) -> None:
        """Add the counts of a kind of row, and ``more`` of all; and the first rows."""
        self.line(f"{table.headline(rows)}{more}")
        self.table(table.columns, rows, most)

    def table(self, columns: Sequence[Column], rows: Sequence[Row], most: int = ROWS) -> None:
        """Add a table of at most ``most`` rows, if there are any. Columns without room are left out, the others shrink."""
        if not rows:
            return
        cells = [[column.title for column in columns]]
        for row in rows[:most]:
            values = ((column, _of(row, column.value)) for column in columns)
            cells.append([clean(self.age(value) if column.age else plain(value)) for column, value in values])
        widths = self._widths(columns, cells)
        for texts in cells:
            self._lines.append(_GAP.join(self._cell(texts[at], columns[at], widths[at]) for at in widths).rstrip())
        self.folded(len(rows), most)

    def _widths(self, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> dict[int, int]:
        widths = {at: max(1, *(min(self.width, width_of(texts[at])) for texts in cells)) for at in range(len(columns))}
        least = {at: min(width, columns[at].least or width) for at, width in widths.items()}
        while _needed(least) > self.width and any(columns[at].rank for at in least):
            last = max(least, key=lambda at: columns[at].rank)
            del least[last], widths[last]
        while _needed(widths) > self.width:  # the widest shrinks, if need be one that must not
            able = [at for at in widths if widths[at] > least[at]] or [at for at in widths if widths[at] > 1]
            if able:
                widths[max(able, key=widths.__getitem__)] -= 1
            else:
                del widths[max(widths)]
        return widths

    def _cell(self, text: str, column: Column, width: int) -> str:
        shown = cut(text, width, middle=column.names)
        blanks = " " * (width - width_of(shown))
        padded = blanks + shown if column.right else shown + blanks
        colour = _COLOURS.get(text) if self.colours else None
        return f"{colour}{padded}{_END}" if colour else padded

    # -- facts ----------------------------------------------------------------------------------------------------------

    def facts(self, data: Any, *without: str) -> None:
        """Show any result: a mapping by name, but for what is empty (if not all is) or ``without``; a list line by line."""
        if isinstance(data, Mapping):
            told = {name: value for name, value in data.items() if name not in without}
            data = {name: value for name, value in told.items() if value not in _EMPTY} or told
        self._nested(data, "")
        if not isinstance(data, str):
            self.fold(_FACTS)

    def _nested(self, data: Any, indent: str) -> None:
        if not isinstance(data, (Mapping, list, tuple)):
            for line in plain(data).split("\n", _FACTS if indent else -1):
                self.line(f"{indent}{line}", indent, _MOST if indent else None)
            return
        parts = list(data.items()) if isinstance(data, Mapping) else [("", part) for part in data]
        for name, value in parts[:_VALUES]:
            head, told = f"{indent}{name}:" if isinstance(data, Mapping) else f"{indent}-", self._flat(str(name), value)
            if told is None:
                self.line(head, indent, _MOST)
                self._nested(value.strip("\n") if isinstance(value, str) else value, f"{indent}  ")
            else:
                self.names(head, told, _MOST, f"{indent}  ")
        self.folded(len(parts), _VALUES)

    def _flat(self, name: str, value: Any) -> list[str] | None:
        """Return a value, or each of its parts, on one line, with times as people read them; None if it takes several."""
        if _is_plain(value):
            # A word or a flag may have the name of a time.
            is_time = name.endswith("_at") or name in ("since", "started", "oldest", "time", "not_before")
            return [self.when(value) if value and is_time and type(value) in (int, float) else plain(value)]
        if isinstance(value, Mapping) and all(map(_is_plain, value.values())):
            parts = {str(key): part for key, part in value.items() if part not in _EMPTY}
            told = [f"{key} {text}" for key, part in parts.items() for text in self._flat(key, part) or ()]
            return told if sum(map(len, told)) < self.width * _SHORT else None
        return [*map(plain, value)] if isinstance(value, (list, tuple)) and all(map(_is_plain, value)) else None

    # -- times ----------------------------------------------------------------------------------------------------------

    def when(self, value: Any) -> str:
        """Return a time with its age: ``2026-05-16 10:11:12 (3 min ago)``."""
        at = local(value, self.tz)
        return at if at == UNKNOWN else f"{at} ({ago(value, self.now)})"

    def age(self, value: Any) -> str:
        """Return how long ago it was, for a table: ``3 min``; a time to come begins with ``in``."""
        return ago(value, self.now).removesuffix(" ago")


def _is_plain(value: Any) -> bool:
    return not value or not (isinstance(value, (Mapping, list, tuple)) or "\n" in str(value))


def plain(value: Any) -> str:
    """Return a value as it is shown; a dash for nothing."""
    return UNKNOWN if value in _EMPTY else str(value)


def _needed(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def doctor(data: Mapping[str, Any], page: Page) -> None:
    """Show the result of a doctor: each finding with its code, faults first; then how things stand."""
    findings, faults = data["findings"], data["faults"]
    page.line(f"{counted(faults, 'fault')}:" if faults else "Nothing is wrong.")
    for number, finding in enumerate(findings, 1):
        if number == faults + 1:
            page.line("Advice:")
        part = f"{finding['part']}: " if "parts" in data and finding["part"] and number <= faults else ""
        sentence = ": ".join(text for text in (finding["text"], finding["do"]) if text)
        page.line(f"{number:2}. {part}{sentence} [{finding['code']}]", "    ")
    page.gap()
    flags = {name: {True: "yes", False: "no"}[value] for name, value in data.items() if isinstance(value, bool)}
    standing = {name.replace("_", " "): value for name, value in {**data, **flags}.items()}
    page.facts(standing, "findings", "faults", "retcode")


def ended(group: Mapping[str, Any]) -> str:
    """Return how many minions of a group ended how."""
    code = f" (retcode {group['retcode']})" if group["retcode"] else ""
    return f"{counted(group['count'], 'minion')}, {group['state']}{code}:"


def reasons(groups: Sequence[Mapping[str, Any]], page: Page) -> None:
    """Show groups as ``core/reasons.py`` has them, the largest first."""
    for group in groups[:_GROUPS]:
        page.gap()
        page.names(ended(group), group["minions"], _NAMES)
        lines = str(group["text"]).split("\n")
        for line in lines[:_LINES]:
            told = line.lstrip(" ")
            indent = " " * (4 + len(line) - len(told))
            page.line(f"{indent}{told}", f"{indent}  ", _WRAPPED)
        page.folded(len(lines), _LINES, " lines")
    if groups:
        page.gap()
    page.folded(len(groups), _GROUPS, " reasons")
