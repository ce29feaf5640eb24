"""What of the console needs no browser: node, if it is installed, runs its tests."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

from tests.missing import missing
from tests.waiting import stretched

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
TESTS = sorted(pathlib.Path(__file__).parent.rglob("*.test.js"))


def test_the_model_keeps_what_its_tests_say(tmp_path):
    node = shutil.which("node") or missing("node is not installed")
    # A browser takes the modules for such by how the page names them, and node by this file.
    for place in ("console", "tests/unit/console"):
        shutil.copytree(CHECKOUT / place, tmp_path / place)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    command = [node, "--test", *(tmp_path / path.relative_to(CHECKOUT) for path in TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_module_of_the_model_has_tests():
    modules = {path.stem for path in (CHECKOUT / "console/model").glob("*.js")}
    assert {path.name.partition(".")[0] for path in TESTS} >= modules
