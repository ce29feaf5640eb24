"""A master's configuration, for runners that are called without a master."""

from __future__ import annotations

import getpass
import json

import pytest


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A master's configuration; no master runs with it."""
    folder = tmp_path_factory.mktemp("m")
    (folder / "var" / "cache" / "salt" / "master" / "proc").mkdir(parents=True)
    content = {"root_dir": str(folder), "user": getpass.getuser(), "id": "m_master", "log_file": str(folder / "log")}
    (folder / "master").write_text(json.dumps({**content, "master_job_cache": "salt_cache"}))
    return folder
