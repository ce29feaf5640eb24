"""
What the extension logs at warning and above, read from its sources: for docs/log.md, and the test that keeps it complete.
"""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("cache", "core", "engines", "executors", "output", "reactor", "returners", "runners")
#: Name of a logger's method -> the level of the line; an exception's comes with a traceback.
LEVELS = {"warning": "warning", "error": "error", "exception": "error", "critical": "critical"}
#: Name of a logger -> the argument that is the text; the first one of ``Quiet`` says what must not be repeated.
_LOGGERS = {"log": 0, "quiet": 1}
#: Functions that log a warning for their caller -> the argument that is the text.
_CALLS = {"ignore": 1}
_FIELD = re.compile(r"%[-+#0 ]*\d*(?:\.\d+)?[srd]")


def lines() -> dict[tuple[str, str], set[str]]:
    """Return ``{(level, text): files}`` of all lines; ``…`` in a text stands for a value."""
    found: dict[tuple[str, str], set[str]] = {}
    for folder in FOLDERS:
        for path in sorted((CHECKOUT / folder).rglob("*")):
            if path.suffix in (".py", ".sls"):
                for level, text in _logged(ast.parse(path.read_text(encoding="utf-8"))):
                    found.setdefault((level, text), set()).add(str(path.relative_to(CHECKOUT)))
    return found


def _logged(tree: ast.AST) -> Iterator[tuple[str, str]]:
    texts = {
        assigned.targets[0].id: assigned.value
        for assigned in ast.walk(tree)
        if isinstance(assigned, ast.Assign) and isinstance(assigned.targets[0], ast.Name)
    }
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and (found := _of_call(call)):
            level, text = found
            text = _text(texts.get(text.id, text) if isinstance(text, ast.Name) else text)
            # A text that is made elsewhere is found there.
            if text.strip("…: "):
                yield level, text


def _of_call(call: ast.Call) -> tuple[str, ast.expr] | None:
    """Return level and text of a call that logs, or None."""
    name = ast.unparse(call.func)
    if name in _CALLS:
        return "warning", call.args[_CALLS[name]]
    logger, _, method = name.rpartition(".")
    position = _LOGGERS.get(logger.rpartition(".")[2].strip("_").lower())
    if position is None or method not in LEVELS:
        return None
    return LEVELS[method], call.args[position]


def _text(argument: ast.expr) -> str:
    if isinstance(argument, ast.JoinedStr):
        return "".join(_text(part) for part in argument.values)
    if isinstance(argument, ast.Constant):
        return _FIELD.sub("…", str(argument.value)).replace("%%", "%")
    return "…"
