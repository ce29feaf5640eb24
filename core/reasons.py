"""
Why minions have failed: the reason in a return, and the minions with the same reason. Pure: it gets one return at a time.

Reasons are the same if state and retcode are equal, and so are the texts, apart from ids, addresses, times, numbers and
names of temporary files. This module must never keep a return: it keeps one text of limited length for each group.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Mapping
from typing import Any

#: Most groups; all further reasons go into one more.
MOST_GROUPS = 200
OTHER = "something else: there are too many different texts to tell them all apart"
NOTHING = "it returned no output"
#: What Salt puts in place of a large value (``salt.utils.dicttrim``), and what that means.
_TRIMMED, _TOO_LARGE = "VALUE_TRIMMED", "(left out by Salt: larger than max_event_size, an option of master and minion)"
#: Most lines of a text, most characters of a line, and how many of these are compared if the line was cut.
_LINES, _LONGEST, _COMPARED = 20, 300, 100
_CUT = "…"
#: What comes before the exception in a traceback of Python.
_FRAMES = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(?=\S)")
#: Most levels of a value that are read.
_DEEPEST = 10
#: Most states of a run that are shown, and most lines for each.
_STATES, _COMMENT = 10, 8
#: The separator in the keys of Salt's results of states.
_PARTS = "_|-"
#: The beginning of Salt's comment on a state that was not run because another one failed.
_FOLLOWS = "One or more requisite failed"
_HEX = r"(?:0x[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*[0-9])[0-9a-f]{8,})"
_UNITS = r"(?:[num\u00b5]?s|secs?|seconds?|min|minutes?|h|hours?|days?|bytes?|[kmgt]?i?b)"
#: What is replaced before texts are compared, in this order.
_EVENED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:tmp|__salt\.tmp\.)[a-z0-9_]{6,}",
        rf"\b{_HEX}\b",
        r"\b[0-9a-f]{1,4}:(?::|[0-9a-f]{1,4}:)[0-9a-f:]*",
        r"\b(?:mon|tue|wed|thu|fri|sat|sun|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\b",
        rf"[0-9]+(?:[.,:/-][0-9]+)*(?: ?{_UNITS}\b)?",
    )
)


def text_of(ret: Mapping[str, Any]) -> str:
    """Return the reason in a return, which may hold anything: the failed states with their comments; else the output."""
    value = ret.get("return")
    failed = [item for item in states_of(value) if item[1].get("result") is False]
    text = _of_states(failed) if failed else _short(_output(value), _LINES) or NOTHING
    return text.replace(_TRIMMED, _TOO_LARGE)


def states_of(value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the states of a run by their keys (``module_|-id_|-name_|-function``), in the order in which they ran."""
    if not isinstance(value, Mapping):
        return []
    states = [
        (str(name), state)
        for name, state in value.items()
        if str(name).count(_PARTS) == 3 and isinstance(state, Mapping)
    ]

    def place(item: tuple[str, Mapping[str, Any]]) -> tuple[float, str]:
        number = item[1].get("__run_num__")
        return (number if isinstance(number, int) else float("inf")), item[0]

    return sorted(states, key=place)


def _of_states(states: list[tuple[str, Mapping[str, Any]]]) -> str:
    """Return a paragraph for each state that failed itself, and the number of states that were not run because of that."""
    causes = [item for item in states if not _text(item[1].get("comment")).startswith(_FOLLOWS)]
    told = causes or states
    lines = [_of_state(name, state) for name, state in told[:_STATES]]
    if more := len(told) - len(lines):
        lines.append(f"and {more} more failed")
    if skipped := len(states) - len(told):
        lines.append(f"and {skipped} not run, since what they require failed")
    return "\n".join(lines)


def id_and_function(name: str, state: Mapping[str, Any]) -> tuple[str, str]:
    """Return (id, ``module.function``) of a state, which name it to people. :param name: its key."""
    module, id_, _, function = name.split(_PARTS)
    return _text(state.get("__id__") or id_), f"{module}.{function}"


def _of_state(name: str, state: Mapping[str, Any]) -> str:
    id_, function = id_and_function(name, state)
    sls = state.get("__sls__")
    where = f" in {sls}" if isinstance(sls, str) and sls else ""
    comment = state.get("comment")
    said = [_text(line) for line in comment] if isinstance(comment, (list, tuple)) else [_text(comment or "no comment")]
    changes = state.get("changes")
    if isinstance(changes, Mapping) and (text := _of_command(changes)):
        said.insert(0, text)  # for a command, Salt's comment only says that it was run
    return f"{_cut(id_)} ({function}{where}): " + _short("\n".join(said), _COMMENT)


def _of_command(found: Mapping[Any, Any]) -> str:
    """Return the output of a command, standard error first; empty if this is not the result of a command."""
    if "retcode" not in found:
        return ""
    texts = (found.get(name) for name in ("stderr", "stdout"))
    return next((text for text in texts if isinstance(text, str) and text.strip()), "")


def _output(value: Any) -> str:
    if isinstance(value, Mapping) and (command := _of_command(value)):
        return command
    if isinstance(value, (list, tuple)) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return "" if value is None else _text(value)


def _text(value: Any) -> str:
    """Return any value as a text. Levels below ``_DEEPEST`` are cut: indented, they could make it far longer."""
    if isinstance(value, (str, bool)):
        return str(value)
    try:
        return json.dumps(_shallow(value, _DEEPEST), default=str, sort_keys=True, indent=1, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(type(value))


def _shallow(value: Any, depth: int) -> Any:
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if not depth:
        return _CUT
    if isinstance(value, Mapping):
        return {str(name): _shallow(item, depth - 1) for name, item in value.items()}
    return [_shallow(item, depth - 1) for item in value]


def _short(text: str, most: int) -> str:
    """Return at most ``most`` lines of a text: its beginning, and more of its end, where the cause usually is."""
    lines = [_cut(line.rstrip().expandtabs()) for line in _FRAMES.sub("", text).splitlines() if line.strip()]
    if len(lines) > most:
        head = most // 4
        lines = [*lines[:head], _CUT, *lines[len(lines) - (most - head - 1) :]]
    return textwrap.dedent("\n".join(lines))


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - len(_CUT)] + _CUT


def evened(text: str, minion: str) -> str:
    """Return a text without what differs from minion to minion, for comparison only. :param minion: whose text it is."""
    # its id and the first label of that, if they have more than two letters
    names = (re.escape(name) for name in (minion, minion.partition(".")[0]) if len(name) > 2)
    patterns = (*(re.compile(rf"(?<![0-9A-Za-z_-]){name}(?![0-9A-Za-z_-])") for name in names), *_EVENED)
    return " ".join(" ".join(_evened(line, patterns).split()) for line in text.split("\n"))


def _evened(line: str, patterns: tuple[re.Pattern[str], ...]) -> str:
    was_cut = line.endswith(_CUT)
    for pattern in patterns:
        line = pattern.sub("#", line)
    # where the text was cut depends on the lengths of ids and numbers before the cut
    return line[:_COMPARED] if was_cut else line


class Reasons:
    """Groups minions by the reason of their failure: ``MOST_GROUPS`` groups at most, and one for all other reasons."""

    def __init__(self) -> None:
        self._groups: dict[bytes, dict[str, Any]] = {}

    def add(self, minion: str, state: str, retcode: int | None, text: str) -> None:
        """Add a minion. ``state``: how its job ended, in a word. ``text``: the result of ``text_of``, or words of ours."""
        same = json.dumps((state, retcode, evened(text, minion)))
        key = hashlib.sha256(same.encode("utf-8", "replace")).digest()
        if key not in self._groups and len(self._groups) >= MOST_GROUPS:
            key, state, retcode, text = b"", "failed", None, OTHER
        group: dict[str, Any] = {"state": state, "retcode": retcode, "text": text, "minions": []}
        self._groups.setdefault(key, group)["minions"].append(minion)

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups, the largest first: count, state, retcode (or None), text of the first, and sorted minions."""
        ordered = sorted(self._groups.values(), key=lambda group: -len(group["minions"]))
        return [{"count": len(group["minions"]), **group, "minions": sorted(group["minions"])} for group in ordered]
