"""Going back to ``local_cache``, as the documentation says it."""

from __future__ import annotations

import logging
import pathlib
import re
import subprocess

import pytest
import salt.config
import salt.loader

pytestmark = pytest.mark.story

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "installation.md"
JID = "20260516120000000000"


@pytest.fixture
def returners(tmp_path):
    folder = str(tmp_path)
    own = {"cachedir": folder, "pki_dir": folder, "extension_modules": f"{folder}/ext", "id": "m_master"}
    loaded = salt.loader.returners({**salt.config.DEFAULT_MASTER_OPTS, **own}, {})
    loaded["salt_cache.save_load"](JID, {"fun": "test.ping", "tgt": "*", "jid": JID}, ["web1"])
    loaded["salt_cache.returner"]({"jid": JID, "id": "web1", "return": True, "retcode": 0})
    return loaded


def swept(returners, caplog):
    """What local_cache logs as an error when it sweeps."""
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        returners["local_cache.clean_old_jobs"]()
    return [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_banks_moved_away_as_documented_are_whole_and_local_cache_logs_nothing(returners, caplog, tmp_path):
    commands = re.search(r"^ +\$ cd (\S+) && (.*)\n +\$ (mv .*)$", PAGE.read_text(encoding="utf-8"), re.M)
    moved = commands[3].split()
    there = [name for name in moved[1:-1] if (tmp_path / "jobs" / name).exists()]
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == set(there)  # the documentation names them all
    for command in (commands[2], " ".join(["mv", *there, moved[-1]])):
        subprocess.run(["bash", "-ec", command], cwd=tmp_path / "jobs", check=True)
    assert swept(returners, caplog) == []
    assert (tmp_path / "jobs.salt_cache" / "loads" / f"{JID}.p").exists()
