"""The table of what the doctors find, for docs/reference/findings.md, read from the sources: ``make docs-tables``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from docs.logged import CHECKOUT
from docs.options import cell

_FOLDERS = ("core", "runners")
_SEVERITIES = ("fault", "advice")
_ELSEWHERE = "with the same words a runner refuses what it is asked for"


def table() -> str:
    """Return the table as Markdown: a row for each finding, by code; ``…`` stands for a value."""
    rows = ["| code | severity | what is found | what to do |", "|---|---|---|---|"]
    for code, severity, *texts in sorted(set(found())):
        rows.append(f"| `{code}` | {severity} | {' | '.join(map(cell, texts))} |")
    return "\n".join(rows) + "\n"


def found() -> Iterator[tuple[str, ...]]:
    """Yield code, severity, text and what to do of each finding in the sources."""
    for folder in _FOLDERS:
        for path in sorted((CHECKOUT / folder).rglob("*.py")):
            for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(function, ast.FunctionDef):
                    yield from _of(function)


def _of(function: ast.FunctionDef) -> Iterator[tuple[str, ...]]:
    names = [node for node in ast.walk(function) if isinstance(node, (ast.Assign, ast.NamedExpr))]
    names.sort(key=lambda node: node.lineno)
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in _SEVERITIES:
            # of a name, what was assigned to it last before the call
            texts = {_name(one): one.value for one in names if one.lineno < call.lineno}
            code, text, *do = (_text(argument, texts) for argument in call.args)
            yield code, ast.unparse(call.func), _ELSEWHERE if text == "…" else text, *(do or [""])


def _name(assigned: ast.Assign | ast.NamedExpr) -> str:
    return ast.unparse(assigned.target if isinstance(assigned, ast.NamedExpr) else assigned.targets[0])


def _text(argument: ast.expr, texts: dict[str, ast.expr]) -> str:
    if isinstance(argument, ast.JoinedStr):
        return "".join(_text(part, texts) for part in argument.values)
    if isinstance(argument, ast.FormattedValue):
        argument = argument.value
    if isinstance(argument, ast.Name) and isinstance(texts.get(argument.id), (ast.JoinedStr, ast.Constant)):
        return _text(texts[argument.id], texts)
    return str(argument.value) if isinstance(argument, ast.Constant) else "…"
