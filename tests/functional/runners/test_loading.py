"""What Salt's loader makes of our runners."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import salt.config
import salt.loader

from tests.unit.test_docs import CHECKOUT, functions
from tests.waiting import SOON, stretched

#: The functions that the file of each runner defines.
VERBS = {path.stem: functions(path.stem) for path in (CHECKOUT / "runners").glob("[!_]*.py")}

#: Our modules that every salt-run may import.
LIGHT = {"display", "display.text", "engine", "engine.names", "errors", "findings", "ids", "lines", "loader", "options"}
LIGHT |= {"options.kinds", "runner", "windows"}
_LOADS_ALL = """
import json, sys
import salt.config, salt.loader
opts = dict(salt.config.DEFAULT_MASTER_OPTS, cachedir={0!r}, pki_dir={0!r}, extension_modules={0!r}, id="m_master")
assert "batch.start" in list(salt.loader.runner(opts))
print(json.dumps([name for name in sys.modules if name.startswith("saltext.jobs.core.")]))
"""


@pytest.fixture
def loaded(tmp_path):
    own = {"cachedir": str(tmp_path), "pki_dir": str(tmp_path), "extension_modules": str(tmp_path), "id": "m_master"}
    return salt.loader.runner({**salt.config.DEFAULT_MASTER_OPTS, **own})


@pytest.mark.parametrize("name", VERBS)
def test_a_runner_offers_its_verbs_and_nothing_else(loaded, name):
    # The loader offers every function that it finds in a module, one that was imported for its own use too.
    assert {function.partition(".")[2] for function in loaded if function.startswith(f"{name}.")} == VERBS[name]


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_documented_with_an_example(loaded, name):
    for verb in VERBS[name]:
        assert f"salt-run {name}.{verb}" in loaded[f"{name}.{verb}"].__doc__, verb


def test_a_salt_run_that_uses_no_runner_of_ours_imports_little_of_ours(tmp_path):
    # Salt imports all runners for each salt-run.
    command = [sys.executable, "-c", _LOADS_ALL.format(str(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(SOON), check=True)
    assert {name.removeprefix("saltext.jobs.core.") for name in json.loads(done.stdout)} == LIGHT
