"""
All patterns of this extension match ASCII only: a digit of another script looks like a digit of a jid, and is none.
"""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ("cache", "core", "engines", "executors", "output", "reactor", "returners", "runners")
SOURCES = [
    path
    for folder in FOLDERS
    for path in sorted((CHECKOUT / folder).rglob("*"))
    if path.suffix == ".py" or (path.suffix == ".sls" and path.read_text(encoding="utf-8").startswith("#!py"))
]
#: Classes of a pattern that take characters of all scripts.
_ANY_SCRIPT = re.compile(r"(?<!\\)(?:\\\\)*\\[dDwWbB]")
#: Methods of str that do.
_METHODS = {"isdigit", "isdecimal", "isnumeric", "isalnum", "isalpha"}


def patterns(tree):
    """Text and line of each pattern that a module gives to ``re``; those for bytes are ASCII as they are."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        if getattr(call.func.value, "id", "") == "re" and call.func.attr != "escape":
            parts = [part for part in ast.walk(call.args[0]) if isinstance(part, ast.Constant)]
            yield from ((part.value, part.lineno) for part in parts if isinstance(part.value, str))


def digits_of_any_script(tree):
    """Lines that ask a str for digits or letters, and not whether it is ASCII."""
    for line in ast.walk(tree):
        if isinstance(line, (ast.BoolOp, ast.Return, ast.Assign, ast.If, ast.comprehension, ast.Assert, ast.Expr)):
            asked = {it.func.attr for it in ast.walk(line) if isinstance(getattr(it, "func", None), ast.Attribute)}
            if asked & _METHODS and "isascii" not in asked:
                yield ast.unparse(line)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_no_pattern_takes_digits_or_letters_of_other_scripts(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not [(line, pattern) for pattern, line in patterns(tree) if _ANY_SCRIPT.search(pattern)]
    assert not list(digits_of_any_script(tree))


@pytest.mark.parametrize("text", [r'import re; re.compile(r"x\d+")', r'import re; re.search("a\\w", x)'])
def test_the_look_at_the_sources_finds_a_pattern(text):
    assert [pattern for pattern, _ in patterns(ast.parse(text)) if _ANY_SCRIPT.search(pattern)]


def test_the_look_at_the_sources_finds_a_method():
    assert list(digits_of_any_script(ast.parse("y = x[:8].isdigit()")))
    assert not list(digits_of_any_script(ast.parse("y = x.isascii() and x[:8].isdigit()")))
