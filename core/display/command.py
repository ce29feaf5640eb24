"""What a job runs and where, as an operator would type it: without the secrets among the arguments. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from saltext.jobs.core.display.text import ELLIPSIS, cut, joined

#: Replaces the value of an argument that is named like a secret.
HIDDEN = "********"
#: Most words of one command, and most characters of one word.
_WORDS, _LONGEST = 50, 500
#: Most levels of a value that are searched.
_DEEPEST = 20
#: Names of arguments whose values are hidden.
_SECRET = (
    r"passw|passphrase|secret|token|credential|bearer|cookie|authorization|(private|api|access|ssh)[_-]?key"
    r"|(^|[^a-z])(pass|pwd|auth)(?![a-z])"
)
_IS_SECRET = re.compile(_SECRET, re.IGNORECASE).search
#: Within a text (a command, JSON, YAML): such a name, and its value, to the end of the text if the value has no other end.
_IN_TEXT = re.compile(
    rf"""((?:{_SECRET})[a-z0-9_.-]{{0,60}}["']?(?:\s{{0,8}}=\s{{0,8}}|\s{{0,8}}:\s{{1,8}}|(?<=["']):))"""
    r"""("(?:[^"\\]|\\.)*("|\Z)|'[^']*('|\Z)|[\[{].*|((bearer|basic)\s+)?[^\s,;&}]+)""",
    re.IGNORECASE | re.DOTALL,
)
#: Such a value among others, as Python writes them.
_IS_HIDDEN = re.compile(r"""["'=:]\s{0,8}\*{8}(?!\*)""").search
#: The order of groups by a grain or pillar key (``by``), which has values of minions.
_GROUPS = re.compile(r"((?:grains|pillar):[^\s\[]{1,200}:)\[[^\]]*\]?")


def has_hidden(*values: Any) -> bool:
    """Tell whether values were copied from where secrets are hidden."""
    return _IS_HIDDEN(repr(values)) is not None


def command(row: Mapping[str, Any]) -> str:
    """Return the function and the arguments of a job or a batch, after what an operator has named it."""
    given = ", ".join(str(word) for word in named((row.get("options") or {}).get("metadata")).values())
    return " ".join(map(str, (*([f"{given}:"] if given else []), row["fun"] or "-", *(row.get("arguments") or ()))))


def named(metadata: Any) -> dict[str, Any]:
    """Return the name and the ticket in metadata, which are for people and shown to everybody."""
    given = metadata if isinstance(metadata, Mapping) else {}
    return {key: given[key] for key in ("name", "ticket") if given.get(key) and isinstance(given[key], (str, int))}


def where(row: Mapping[str, Any]) -> str:
    """Return the target of a job or a batch, with its type unless it is a glob or a list."""
    text, kind = joined(row.get("tgt")), row.get("tgt_type")
    return text if kind in (None, "glob", "list") else f"{text} ({kind})"


def words_of(arg: Iterable[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return arguments as words: ``nginx``, ``test=True``. Long words are cut, and words beyond the limit counted."""
    found = list(map(_word, arg))
    found += [cut(f"{name}={_word(shown(value, name))}", _LONGEST, middle=False) for name, value in kwargs.items()]
    left = len(found) - _WORDS
    return [*found[:_WORDS], f"{ELLIPSIS} and {left} more"] if left > 0 else found


def published_words(arg: Any) -> list[str]:
    """Return the arguments of a load as words."""
    return words_of(*divided(arg))


def divided(arg: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the keyword arguments of a load, which has both in one list."""
    plain: list[Any] = []
    named: dict[str, Any] = {}
    for value in arg if isinstance(arg, (list, tuple)) else ():
        if isinstance(value, Mapping) and value.get("__kwarg__"):
            named.update((str(name), item) for name, item in value.items() if name != "__kwarg__")
        else:
            plain.append(value)
    return plain, named


def shown(value: Any, name: str = "", depth: int = _DEEPEST) -> Any:
    """Return a value (its own name: ``name``) without what in it is named like a secret, or is too deep to be searched."""
    if _IS_SECRET(name):
        return HIDDEN
    if isinstance(value, str):
        return _shown_text(value, depth)
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if not depth:
        return "…"
    if isinstance(value, Mapping):
        return {str(key): shown(item, str(key), depth - 1) for key, item in value.items()}
    return [shown(item, "", depth - 1) for item in value]


def _shown_text(text: str, depth: int) -> str:
    if depth and text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None  # no JSON, or only its beginning
        if value is not None and (found := shown(value, "", depth - 1)) != value:
            return json.dumps(found, ensure_ascii=False)
    return _GROUPS.sub(r"\1[…]", _IN_TEXT.sub(rf"\1{HIDDEN}", text))


def _word(value: Any) -> str:
    found = shown(value)
    text = json.dumps(found, default=str, ensure_ascii=False) if isinstance(found, (dict, list)) else str(found)
    return cut(text, _LONGEST, middle=False)
