"""The pure part of the console, without a browser: node, if it is installed, runs the tests of ``model/``."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from tests.missing import missing
from tests.waiting import stretched

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
TESTS = sorted(pathlib.Path(__file__).parent.glob("model/*.test.js"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The modules and their tests, where node takes them for modules: a browser does so by how the page names them."""
    folder = tmp_path_factory.mktemp("console")
    for place in ("console/model", "tests/unit/console/model"):
        shutil.copytree(CHECKOUT / place, folder / place)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name.partition(".")[0])
def test_the_model_keeps_what_its_tests_say(copy, path):
    node = shutil.which("node") or missing("node is not installed")
    command = [node, "--test", copy / path.relative_to(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_module_of_the_model_has_tests():
    modules = {path.stem for path in (CHECKOUT / "console/model").glob("*.js")}
    assert {path.name.partition(".")[0] for path in TESTS} == modules
