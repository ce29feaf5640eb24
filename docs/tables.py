"""
Prints the tables of states, options and findings into their pages, and draws those of states: ``make docs-tables``.

What a state or an option means stands beside it in the code, so that it is written once. A test fails where a page or a
picture is not what this would write.
"""

from __future__ import annotations

import enum
import inspect
import pathlib
import re
from collections.abc import Mapping

from docs import diagrams, findings, options
from saltext.jobs.core.delivery import known
from saltext.jobs.core.retry import entry

PAGE = pathlib.Path(__file__).with_name("architecture.md")
#: The pages with tables of code.
PAGES = (PAGE, *(PAGE.parent / "reference" / f"{name}.md" for name in ("options", "findings")))
#: Name of a table in the page -> the states, and to which each may go.
TABLES: dict[str, tuple[type[enum.Enum], Mapping[enum.Enum, frozenset[enum.Enum]]]] = {
    "entry": (entry.State, entry.TRANSITIONS),
    "delivery": (known.Step, known.TRANSITIONS),
}
#: The texts of the pictures, for readers who cannot see them.
TITLES = {"entry": "An entry of the retry queue", "delivery": "A delivery"}
_MEMBER = re.compile(r'^\s+([A-Z_]+) = "[^"]*"  # (.+)$', re.MULTILINE)
_PLACE = re.compile(r"(<!-- table of ([\w.]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def table(name: str) -> str:
    """Return one table as Markdown: a row for each state or option, in the order of the code."""
    if name == "findings":
        return findings.table()
    if name in options.SECTIONS:
        return options.table(name)
    states, ways = TABLES[name]
    meanings = dict(_MEMBER.findall(inspect.getsource(states)))
    rows = ["| state | what it means | may go to |", "|---|---|---|"]
    for state in states:
        to = ", ".join(f"`{other.value}`" for other in states if other in ways[state])
        rows.append(f"| `{state.value}` | {meanings[state.name]} | {to or 'nowhere'} |")
    return "\n".join(rows) + "\n"


def picture(name: str) -> tuple[pathlib.Path, str]:
    """Return the file of a picture, and what is in it: the states of a table, and to which each may go."""
    states, ways = TABLES[name]
    drawn = {state.value: [other.value for other in states if other in ways[state]] for state in states}
    return PAGE.parent / "states" / f"{name}.svg", diagrams.draw(f"{TITLES[name]}: its states", drawn)


def printed(text: str) -> str:
    """Return a page with each of its tables as it is in the code now."""
    return _PLACE.sub(lambda place: f"{place[1]}{table(place[2])}{place[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(printed(page.read_text(encoding="utf-8")), encoding="utf-8")
    for path, drawing in map(picture, TABLES):
        path.write_text(drawing, encoding="utf-8")
