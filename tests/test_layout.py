"""What may import what: the state machines are pure, and the checkout is laid out as Salt's loader wants it."""

from __future__ import annotations

import ast
import json
import pathlib
import subprocess
import sys

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parents[1]

# What an interpreter's own start-up loads (site, .pth files) does not count, so it is taken off.
_LOADED_BY = """
import json, sys
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(module):
    """The names of all modules that importing ``module`` in a fresh interpreter brings in."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADED_BY.format(module=module)], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stdout))


def roots(modules):
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("machine", ["batch", "retry"])
def test_a_state_machine_needs_the_standard_library_and_nothing_else(machine):
    loaded = loaded_by(f"saltext.jobs.core.{machine}.machine")
    assert f"saltext.jobs.core.{machine}.machine" in loaded
    assert roots(loaded) - sys.stdlib_module_names == {"saltext"}


@pytest.mark.parametrize("machine", ["batch", "retry"])
def test_a_state_machine_has_no_clock_and_no_input_or_output(machine):
    own = [name for name in loaded_by(f"saltext.jobs.core.{machine}.machine") if name.startswith("saltext.jobs.core.")]
    assert own
    for name in own:
        imported = imported_names(source_of(name))
        assert not roots(imported) & {"time", "os", "pathlib", "socket", "subprocess", "threading", "asyncio"}, name


def test_an_adapter_does_bring_in_salt():
    # Otherwise the first test here could not fail.
    assert "salt" in roots(loaded_by("saltext.jobs.core.compat"))


def source_of(name):
    """The file of a module of this extension."""
    path = CHECKOUT.joinpath(*name.split(".")[2:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported_names(path):
    """The absolute names that a source file imports, without running it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return names


def test_the_job_cache_is_read_without_engines():
    loaded = {name for name in loaded_by("saltext.jobs.returners.salt_cache") if name.startswith("saltext.jobs.core.")}
    below = ("store", "disk.local_banks", "ids", "master.secrets")
    packages = {f"saltext.jobs.core.{name}" for name in ("disk", "master")}
    assert "saltext.jobs.core.store.records" in loaded
    assert not [name for name in loaded - packages if not name.removeprefix("saltext.jobs.core.").startswith(below)]


@pytest.mark.parametrize("kind", ["engines", "runners", "returners"])
def test_files_that_the_loader_reads_import_by_absolute_name(kind):
    # A relative import fails inside a file that Salt's loader has loaded.
    relative = [
        path.name
        for path in (CHECKOUT / kind).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative


def test_core_never_imports_what_is_built_on_it():
    above = ("saltext.jobs.engines", "saltext.jobs.runners", "saltext.jobs.returners", "saltext.jobs.reactor")
    wrong = {
        f"{path.name} imports {name}"
        for path in (CHECKOUT / "core").rglob("*.py")
        for name in imported_names(path)
        if name.startswith(above)
    }
    assert not wrong
