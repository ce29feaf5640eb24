"""Only the master's user can read or change what the engines keep."""

from __future__ import annotations

import pathlib

import pytest

from tests.integration.conftest import look_at, make_master, minions, salt_cli, salt_run
from tests.private import not_private
from tests.waiting import wait_for


@pytest.mark.story
def test_every_file_of_every_engine_is_private(salt_factories, tmp_path):
    master = make_master(
        salt_factories,
        engines=[{"job_retry": {}}, {"batch_manager": {}}, {"job_recorder": {}}],
        job_recorder={"returners": ["rawfile_json"]},
        **{"rawfile_json.filename": str(tmp_path / "returns")},
    )
    master.slow_stop = False
    folder = pathlib.Path(master.config["cachedir"]) / "saltext_jobs"
    with master.started():
        with minions(master, "private-1"):
            assert salt_cli(master, "private-1", "test.arg", "x").returncode == 0
            started = salt_run(master, "batch.run", "*", "test.arg", "arg=['x']")
            assert started.returncode == 0, started
        assert salt_cli(master, "private-1", "test.arg", "owed", "--async").returncode == 0
        wait_for(lambda: look_at(master, "job_retry.list"), what="an entry in the queue")
        assert salt_run(master, "job_recorder.stats").data["recorded"] >= 2
        engines = {path.name for path in folder.iterdir()}
        assert {"job_retry", "batch_manager", "job_recorder"} <= engines
        assert len(list(folder.rglob("*"))) > 10
        assert not_private(folder) == []
