"""
Tests and benchmarks use the extension as it is: they vary an argument, or an attribute of an object that they made. None
replaces part of a module or class of ours. None uses private names; attributes are looked at by ruff (SLF001).

Replacements of parts of the operating system, of Salt or of other libraries are not checked here.
"""

from __future__ import annotations

import ast
import pathlib

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = [
    path
    for folder in ("tests", "benchmarks")
    for path in sorted((CHECKOUT / folder).rglob("*.py"))
    if path != pathlib.Path(__file__).resolve()
]
OURS = "saltext.jobs"
#: Files that may do so, and why.
REPLACING = {
    "tests/integration/run_engine.py": "a debugger's trap: an engine in a process of its own kills itself at a chosen call",
}


def root(node):
    """The name at the head of ``name.attribute.attribute``, or None."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def ours_in(tree):
    """The names under which a file knows modules, classes and functions of ours."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names if alias.name.startswith(OURS)}
    return names


def replaced_in(tree):
    """Lines that give a module or a class of ours another attribute."""
    ours = ours_in(tree)
    for node in ast.walk(tree):
        targets = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = node.targets
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if called in ("setattr", "delattr", "setitem", "delitem", "object", "patch"):
                named = isinstance(first, ast.Constant) and str(first.value).startswith(OURS)
                if named or root(first) in ours:
                    yield ast.unparse(node)
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                held = part.value if isinstance(part, ast.Subscript) else part
                # Salt's loader, too, gives a module its __opts__.
                if isinstance(held, ast.Attribute) and root(held) in ours and not held.attr.startswith("__"):
                    yield ast.unparse(node)


def code_in(path):
    """The tree of a file, and those of the programs that it has as text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and f"from {OURS}" in node.value:
            try:
                yield ast.parse(node.value.replace("!r}", "}"))  # it may be a template
            except SyntaxError:
                continue  # prose


def names_of(paths):
    return [str(path.relative_to(CHECKOUT)) for path in paths]


@pytest.mark.parametrize("name", names_of(SOURCES))
def test_nothing_of_ours_is_replaced(name):
    for tree in code_in(CHECKOUT / name):
        assert name in REPLACING or not list(replaced_in(tree))
        assert not [known for known in ours_in(tree) if known.startswith("_")]


def test_the_exceptions_are_files_that_need_one():
    for name in REPLACING:
        assert any(list(replaced_in(tree)) for tree in code_in(CHECKOUT / name))


@pytest.mark.parametrize(
    "text",
    [
        "from saltext.jobs.core import late\nlate.GATHER = 1",
        "from saltext.jobs.core.late import Late\nLate.take = None",
        "from saltext.jobs.core.late import Late\nmonkeypatch.setattr(Late, 'take', None)",
        "from saltext.jobs.core.late import TABLE\nmonkeypatch.setitem(TABLE, 'a', 1)",
        "monkeypatch.setattr('saltext.jobs.core.late.GATHER', 1)",
    ],
)
def test_a_replacement_of_our_code_is_found(text):
    assert list(replaced_in(ast.parse(text)))
