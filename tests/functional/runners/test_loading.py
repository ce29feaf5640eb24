"""What Salt's loader makes of our runners."""

from __future__ import annotations

import pytest
import salt.config
import salt.loader

VERBS = {
    "batch": {
        "start",
        "preview",
        "run",
        "status",
        "doctor",
        "stats",
        "hand_over",
        "history",
        "list_active",
        "masters",
        "list",
        "minions",
        "failures",
        "stop",
        "pause",
        "resume",
        "approve",
        "wait",
        "watch",
        "retry",
    },
    "job_cache": {
        "backup",
        "doctor",
        "minions",
        "outcome",
        "recover",
        "running",
        "search",
        "stats",
    },
    "job_console": {"config"},
    "job_notices": {"doctor", "stats", "test"},
    "job_recorder": {"doctor", "stats", "history", "set_aside", "redeliver"},
    "job_retry": {
        "list",
        "show",
        "stats",
        "history",
        "doctor",
        "enqueue",
        "replay",
        "retry",
        "cancel",
        "coverage",
        "purge",
        "pause",
        "resume",
    },
}


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
