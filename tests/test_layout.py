"""What may import what: wings that know nothing of each other, pure state machines, and the folders of Salt's loader."""

from __future__ import annotations

import ast
import functools
import json
import pathlib
import re
import subprocess
import sys

import pytest

from saltext.jobs.core.loader import module_dirs
from tests.waiting import SOON, stretched

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]

#: Single modules, and the options, that all others may use. They import no package of ours.
BASE = {
    *("findings", "banks", "boot", "compat", "errors", "functions", "ids", "lines", "metrics", "options"),
    *("loader", "reasons", "users", "windows"),
}
#: The packages that a wing is built on.
GROUND = BASE | {"disk", "display", "engine", "ledger", "master", "site", "sqlite", "store"}
#: What each package, and each module that stands alone in core/, may import besides itself.
MAY_IMPORT = {
    "findings": set(),
    "banks": {"errors"},
    "boot": set(),
    "compat": set(),
    "errors": set(),
    "functions": set(),
    "ids": set(),
    "lines": set(),
    "loader": set(),
    "metrics": set(),
    "reasons": set(),
    "options": {"errors", "ids", "windows"},
    "users": set(),
    "windows": {"errors"},
    "display": set(),
    "disk": BASE,
    "ledger": BASE | {"disk"},
    "sqlite": BASE | {"disk", "ledger"},
    "site": BASE | {"disk", "ledger", "postgresql", "sqlite"},
    "store": BASE | {"disk", "display", "ledger", "postgresql", "site", "sqlite"},
    "master": BASE | {"disk", "display", "ledger", "site", "store"},
    "engine": BASE | {"disk", "ledger", "master", "site"},
    "delivery": BASE | {"engine", "master"},
    "batch": GROUND | {"delivery"},
    "retry": GROUND | {"delivery"},
    "recorder": GROUND,
    "runner": {"options", "display", "errors", "lines"},
    "postgresql": BASE | {"disk", "ledger"},
    "returners": BASE | {"ledger", "master", "store", "postgresql"},
    "engines": GROUND | {"batch", "retry", "recorder"},
    "runners": GROUND | {"runner", "batch", "retry", "recorder"},
    "output": {"display", "lines", "batch", "retry", "recorder", "store"},
    "reactor": BASE | {"master"},
    "cache": BASE | {"disk", "ledger", "postgresql", "sqlite"},
    "executors": BASE,
}
#: The folders that Salt's loader reads.
FOR_SALT = [
    folder
    for folder in ("engines", "runners", "returners", "cache", "executors", "output")
    if (CHECKOUT / folder).is_dir()
]

#: The modules of each wing that touch the master, the disk, a clock or the loop. All others are pure: facts in, effects out.
SHELLS = {
    "batch": {
        *("catalog", "doctor", "effects", "live", "minion_data", "permission", "shell", "starting", "store"),
        "watch",
    },
    "retry": {"doctor", "effects", "reader", "shell", "store"},
    "recorder": {"consumer", "doctor", "recipients", "returner", "shell"},
}
#: What a pure module may import from outside its wing: options that have been read, windows of time, a logger, and the like.
VALUES = {
    *("delivery", "display", "errors", "functions", "ids", "lines", "metrics", "options", "reasons", "users"),
    "windows",
}
#: What has a clock, a loop, a disk or a network.
IMPURE = {"asyncio", "io", "multiprocessing", "os", "pathlib", "shutil", "socket", "subprocess", "threading", "time"}

# What an interpreter's own start-up loads (site, .pth files) does not count, so it is taken off.
_LOADED_BY = """
import json, sys
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


# -- reading the sources -----------------------------------------------------------------------------------------------


@functools.cache
def modules():
    """``{dotted name: its file}`` of all modules of this extension."""
    files = [path for folder in ("core", "reactor", *FOR_SALT) for path in (CHECKOUT / folder).rglob("*.py")]
    return {name_of(path): path for path in files}


def name_of(path):
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(("saltext", "jobs", *(parts[:-1] if parts[-1] == "__init__" else parts)))


@functools.cache
def imported_names(path):
    """The absolute names that a file imports anywhere, also those for type checkers alone: readers see them too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


def imports_of(name):
    """The modules of this extension that a module of it imports."""
    return {other for other in imported_names(modules()[name]) if other in modules()} - {name}


def package_of(name):
    """``batch`` for saltext.jobs.core.batch.machine, ``ids`` for saltext.jobs.core.ids, ``core`` for core/ itself."""
    parts = name.split(".")[2:]
    return parts[1] if parts[0] == "core" and len(parts) > 1 else parts[0]


def roots(names):
    return {name.partition(".")[0] for name in names}


def loaded_by(module):
    """The names of all modules that importing ``module`` in a fresh interpreter brings in."""
    command = [sys.executable, "-c", _LOADED_BY.format(module=module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(SOON), check=True)
    return set(json.loads(done.stdout))


# -- directions --------------------------------------------------------------------------------------------------------


def test_every_package_has_its_place_in_this_order():
    assert {package_of(name) for name in modules()} - {"core"} <= MAY_IMPORT.keys()


def test_a_package_imports_only_what_is_below_it():
    wrong = {
        f"{name} imports {other}"
        for name in modules()
        for other in imports_of(name)
        if package_of(other) not in {"core", package_of(name), *MAY_IMPORT.get(package_of(name), ())}
    }
    assert not wrong


def test_a_wing_may_know_of_no_other_wing():
    assert not [wing for wing in SHELLS if MAY_IMPORT[wing] & SHELLS.keys()]


@pytest.mark.parametrize("of", [package_of, str], ids=["packages", "modules"])
def test_no_import_leads_back_to_where_it_came_from(of):
    below = {}
    for name in modules():
        below.setdefault(of(name), set()).update({of(other) for other in imports_of(name)} - {of(name), "core"})
    while leaves := {name for name, others in below.items() if not others}:
        below = {name: others - leaves for name, others in below.items() if name not in leaves}
    assert below == {}, "these import each other, or import modules that do"


# -- pure modules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wing", SHELLS)
def test_a_module_that_is_not_listed_as_a_shell_is_pure(wing):
    folder = f"saltext.jobs.core.{wing}"
    shells = {f"{folder}.{name}" for name in SHELLS[wing]}
    assert shells <= modules().keys(), "what is gone leaves the list"
    for name in (name for name in modules() if package_of(name) == wing and name not in shells):
        others = imports_of(name)
        assert not others & shells, name
        assert {package_of(other) for other in others} <= {"core", wing} | VALUES, name
        assert roots(imported_names(modules()[name])) - {"saltext"} <= sys.stdlib_module_names - IMPURE, name


@pytest.mark.parametrize("machine", ["batch.machine", "retry.machine"])
def test_a_state_machine_needs_the_standard_library_and_nothing_else(machine):
    loaded = loaded_by(f"saltext.jobs.core.{machine}")
    assert f"saltext.jobs.core.{machine}" in loaded
    # The standard library does not count what it was built with among its names.
    foreign = {name for name in roots(loaded) - sys.stdlib_module_names if not name.startswith("_sysconfigdata_")}
    assert foreign == {"saltext"}


def test_an_adapter_does_bring_in_salt():
    # Otherwise the test before this one could not fail.
    assert "salt" in roots(loaded_by("saltext.jobs.core.compat"))


# -- Salt's loader -----------------------------------------------------------------------------------------------------


def test_the_options_of_the_calling_loader_come_from_one_place():
    # Patches of Salt before 3006.10 and 3007.2 do not have them there, and a module that imports them would not load.
    users = {name for name, path in modules().items() if any("loader.dunder" in each for each in imported_names(path))}
    assert users == {"saltext.jobs.core.compat"}


def test_the_loader_gets_every_folder_that_is_for_it():
    assert set(module_dirs()) == set(FOR_SALT)


def test_each_module_that_stores_a_body_in_the_database_seals_it():
    for path in sorted((CHECKOUT / "core" / "ledger").glob("*.py")):
        source = path.read_text()
        if re.search(r"INSERT INTO [^)]*body|\{append\}", source):
            assert "seal.put(" in source, f"{path} stores what who can write to PostgreSQL could have written"
            assert "seal.take(" in source, path


BUDGETS = {
    **dict(zip(("batch", "retry", "delivery", "recorder", "engine"), (4607, 3558, 424, 1480, 1487), strict=True)),
    **dict(zip(("master", "store", "ledger", "sqlite", "postgresql"), (2080, 1760, 1751, 750, 990), strict=True)),
    **dict(zip(("disk", "options", "display"), (440, 630, 590), strict=True)),
}


def test_core_keeps_to_its_budgets():
    lines = {path: len(path.read_text().splitlines()) for path in CHECKOUT.glob("core/**/*.py")}
    spent = {name: sum(lines[path] for path in lines if path.parent.name == name) for name in BUDGETS}
    assert {name: count for name, count in spent.items() if count > BUDGETS[name]} == {}
    assert sum(lines.values()) <= 22_000
    assert {str(path): count for path, count in lines.items() if count > 450} == {}


def test_no_class_of_core_has_more_than_25_methods():
    classes = (node for path in CHECKOUT.glob("core/**/*.py") for node in ast.walk(ast.parse(path.read_text())))
    bodies = {node.name: node.body for node in classes if isinstance(node, ast.ClassDef)}
    assert [name for name, body in bodies.items() if sum(hasattr(item, "args") for item in body) > 25] == []
