"""A master and a minion that are not root's, and root, who types the commands."""

from __future__ import annotations

import os
import pathlib
import subprocess

import psutil
import pytest

from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER
from tests.found import said
from tests.integration.conftest import finished, make_master, make_minion, salt_cli
from tests.integration.other_user import AS_ROOT, OWNER, Master, Minion, give
from tests.missing import missing
from tests.private import not_private
from tests.waiting import stretched, wait_for

pytestmark = [pytest.mark.story, pytest.mark.slow]

#: An accepted minion that is away.
AWAY = "away"


@pytest.fixture(scope="module", params=["localfs", "sqlite"])
def master(request, salt_factories, tmp_path_factory):
    if os.geteuid():
        missing("only root may start a master that is another user's")
    returns = tmp_path_factory.mktemp("recorded")
    os.chown(returns, OWNER.pw_uid, OWNER.pw_gid)
    daemon = make_master(
        salt_factories,
        kind=Master,
        user=OWNER.pw_name,
        cache=request.param,
        engines=[{"job_retry": {}}, {"batch_manager": {}}, {"job_recorder": {}}],
        job_recorder={"returners": ["rawfile_json"]},
        **{"rawfile_json.filename": str(returns / "returns")},
    )
    daemon.slow_stop = False
    with give(daemon).started(), give(make_minion(daemon, "there", kind=Minion, user=OWNER.pw_name)).started():
        keys = pathlib.Path(daemon.config["pki_dir"], "minions")
        (keys / AWAY).write_bytes((keys / "there").read_bytes())
        yield daemon


def typed(master, *words):
    """What root's ``salt-run`` prints, which becomes the master's user by itself."""
    command = master.salt_run_cli().cmdline(*words, "--log-level=warning")
    done = subprocess.run([*AS_ROOT, *command], capture_output=True, text=True, timeout=stretched(90), check=False)
    assert done.returncode == 0, done
    return done.stdout


def of_others(master):
    """What is below the ``cachedir`` by us, and does not belong to the master's user."""
    cachedir = pathlib.Path(master.config["cachedir"])
    banks = [path for bank in ("jobs", "job_retry") for path in cachedir.glob(f"{bank}/**/*")]
    others = [path for path in (*cachedir.glob("cache.sqlite*"), *banks) if path.lstat().st_uid != OWNER.pw_uid]
    return not_private(cachedir / "saltext_jobs", OWNER.pw_uid) + list(map(str, others))


def entries(look):
    return [(entry["minion"], entry["fun"], entry["state"]) for entry in look("job_retry.list")]


def test_all_files_of_a_master_of_another_user_belong_to_that_user_whoever_made_the_request(master, look):
    processes = [psutil.Process(master.pid), *psutil.Process(master.pid).children(recursive=True)]
    assert {process.uids().real for process in processes} == {OWNER.pw_uid}
    # `salt-run` becomes that user; `salt`, and Python, stay root.
    assert "1 of 1 minion completed" in typed(master, "batch.run", "there", "test.arg", "typed")
    assert salt_cli(master, AWAY, "--async", "test.arg", "owed").returncode == 0
    jid = look("batch.start", "there", "test.arg", "by Python")["jid"]
    assert finished(look, jid)["completed"] == 1
    owed = [(AWAY, "test.arg", "pending")]
    wait_for(lambda: entries(look) == owed, what=lambda: f"a job is owed: {entries(look)}")
    assert "delivered" in typed(master, "job_recorder.stats")
    assert of_others(master) == []
    for runner in ("batch", "job_retry", "job_cache", "job_recorder"):
        told = said(look(f"{runner}.doctor"))
        assert not [finding for finding in told if "belong" in finding or "chmod" in finding], told

    parked = look("batch.start", "there", "test.arg", "start_at=+1d")["jid"]
    master.terminate()
    look("batch.stop", parked)  # what root asks for now lies there until the engine takes it
    assert requests.waiting(master.config, BATCH_MANAGER)
    assert of_others(master) == []
    master.start()
    assert finished(look, parked)["halted"] is True
    assert jid in typed(master, "batch.list")
    assert entries(look) == owed
    assert "1 of 1 minion completed" in typed(master, "batch.run", "there", "test.arg", "again")
    assert of_others(master) == []
