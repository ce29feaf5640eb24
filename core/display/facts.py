"""
Pages for results without a table of their own: figures by name, one below the other; and the doctors. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.display.page import Page
from saltext.jobs.core.display.text import counted

#: Most lines of one value, most lines of a page, and most values of one list or mapping.
_MOST, _PAGE, _VALUES = 12, 120, 100


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
        page.line(f"{indent}{_plain(data)}", indent, _MOST)
        return
    for name, value in named:
        if not value or not isinstance(value, (Mapping, list, tuple)):
            page.line(f"{indent}{name} {_plain(value)}", f"{indent}  ", _MOST)
        elif isinstance(value, Mapping) or any(isinstance(item, (Mapping, list, tuple)) for item in value):
            page.line(f"{indent}{name}", indent, _MOST)
            _nested(value, page, f"{indent}  ")
        else:
            page.names(f"{indent}{name}", [_plain(item) for item in value], _MOST, f"{indent}  ")
    page.folded(len(data), len(named))


def _timed(name: str, value: Any, page: Page) -> Any:
    """Return a time, which the name tells, as people read it."""
    return page.when(value) if value and name.endswith("_at") else value


def _plain(value: Any) -> str:
    if value is None or (isinstance(value, (Mapping, list, tuple)) and not value):
        return "-"
    return str(value)


#: Facts of a doctor that are shown in words: for True, and for False.
_WORDS = {
    "engine": ("engine: runs", "engine: does not answer"),
    "usable": ("driver: answers", "driver: does not answer"),
    "returns_proven": ("returns: proven", "returns: not proven"),
    "answers_proven": ("answers: proven", "answers: not proven"),
}


def doctor(data: Mapping[str, Any], page: Page) -> None:
    """Show the result of a doctor: the state in one line, and each finding."""
    findings = data["findings"]
    told = [_WORDS[name][0 if value else 1] for name, value in data.items() if name in _WORDS]
    rest = {name: value for name, value in data.items() if name not in (*_WORDS, "findings", "faults", "retcode")}
    told += [f"{name.replace('_', ' ')}: {value}" for name, value in rest.items() if isinstance(value, (str, int))]
    told += [f"since: {page.when(data['since'])}"] if data.get("since") else []
    if told:
        page.line("; ".join(told))
    for name, value in rest.items():
        if isinstance(value, Mapping) and value:
            page.line(f"{name.replace('_', ' ')}: " + "; ".join(f"{key} ({why})" for key, why in value.items()), "  ")
        elif isinstance(value, (list, tuple)) and value:
            page.names(f"{name.replace('_', ' ')} ({len(value):,}):", [str(item) for item in value], 4)
    page.gap()
    if not findings:
        page.line("Nothing needs a change.")
        return
    faults = data["faults"]
    page.line(f"{counted(faults, 'fault')}:" if faults else "Nothing is wrong.")
    for number, finding in enumerate(findings, 1):
        if number == faults + 1:
            page.line("Advice:")
        page.line(f"{number:2}. {finding}", "    ")
