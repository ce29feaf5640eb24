"""Pages for results without a table of their own: figures by name; why minions have failed; the doctors. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core.display import moments
from saltext.jobs.core.display.page import Page, plain
from saltext.jobs.core.display.text import counted

#: Most lines of one value, most lines of a page, and most values of one list or mapping.
_MOST, _PAGE, _VALUES = 12, 120, 100
#: Of reasons: most groups, most lines of a group's text, most lines on the screen for one of them, and most lines of names.
_GROUPS, _LINES, _WRAPPED, _NAMES = 12, 14, 3, 2


def facts(data: Any, page: Page) -> None:
    """Show any result of a runner: the values of a mapping by name, those of a list one below the other."""
    if isinstance(data, str):
        for line in data.split("\n"):
            page.line(line)
        return
    _nested(data, page, "")
    page.fold(_PAGE)


def _nested(data: Any, page: Page, indent: str) -> None:
    if isinstance(data, Mapping):
        named = [(f"{name}:", _timed(str(name), value, page)) for name, value in list(data.items())[:_VALUES]]
    elif isinstance(data, (list, tuple)):
        named = [("-", value) for value in data[:_VALUES]]
    else:
        page.line(f"{indent}{plain(data)}", indent, _MOST)
        return
    for name, value in named:
        if isinstance(value, str) and "\n" in value.strip():
            page.line(f"{indent}{name}", indent, _MOST)
            for line in value.strip("\n").split("\n")[:_VALUES]:
                page.line(f"{indent}  {line}", f"{indent}  ", _MOST)
        elif not value or not isinstance(value, (Mapping, list, tuple)):
            page.line(f"{indent}{name} {plain(value)}", f"{indent}  ", _MOST)
        elif isinstance(value, Mapping) or any(isinstance(item, (Mapping, list, tuple)) for item in value):
            page.line(f"{indent}{name}", indent, _MOST)
            _nested(value, page, f"{indent}  ")
        else:
            page.names(f"{indent}{name}", [plain(item) for item in value], _MOST, f"{indent}  ")
    page.folded(len(data), len(named))


def _timed(name: str, value: Any, page: Page) -> Any:
    """Return a time, which the name tells, as people read it; a word or a flag of that name is none."""
    is_time = name.endswith("_at") or name in ("since", "started", "oldest")
    return page.when(value) if value and is_time and moments.seconds_of(value) is not None else value


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
    standing = {name: value for name, value in data.items() if name not in ("findings", "faults", "retcode")}
    told = {
        name: {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
        for name, value in standing.items()
    }
    facts({name.replace("_", " "): value for name, value in told.items() if value not in (None, [], {})}, page)


def head(group: Mapping[str, Any]) -> str:
    """Return how many minions of a group ended how."""
    code = f" (retcode {group['retcode']})" if group["retcode"] else ""
    return f"{counted(group['count'], 'minion')}, {group['state']}{code}:"


def reasons(groups: Sequence[Mapping[str, Any]], page: Page) -> None:
    """Show groups as ``core/reasons.py`` has them, the largest first."""
    for group in groups[:_GROUPS]:
        page.gap()
        page.names(head(group), group["minions"], _NAMES)
        lines = str(group["text"]).split("\n")
        for line in lines[:_LINES]:
            page.line(f"    {line.strip()}", "      ", _WRAPPED)
        if len(lines) > _LINES:
            page.line(f"    … and {len(lines) - _LINES} more lines")
    if groups:
        page.gap()
    page.folded(len(groups), _GROUPS, " reasons")
