"""
Salt's own way of storing returns (``salt.utils.job``), with this returner behind it.

It stores the load of every return again for any job cache but local_cache, which is where the published one got lost.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import subprocess
import sys

import pytest
import salt.config
import salt.minion
import salt.utils.job

from saltext.jobs.core.users import MASTER, WHO, Identity
from tests.functional.cache_servers import free_port
from tests.waiting import stretched

pytestmark = pytest.mark.story

JID = "20260516120000000000"
LOAD = {"fun": "test.arg", "arg": ["x"], "tgt": "web*", "tgt_type": "glob", "user": "sudo_anna", "ret": "", "jid": JID}


@pytest.fixture
def opts(tmp_path):
    folder = str(tmp_path)
    own = {"cachedir": folder, "pki_dir": folder, "extension_modules": f"{folder}/ext", "id": "m_master"}
    return {**salt.config.DEFAULT_MASTER_OPTS, **own, "master_job_cache": "salt_cache", "job_cache_store_endtime": True}


@pytest.fixture
def master(opts):
    mminion = salt.minion.MasterMinion(opts, states=False, rend=False)
    yield mminion
    if hasattr(mminion, "destroy"):
        mminion.destroy()


@pytest.fixture(params=[("postgresql", False), ("postgresql", "postgresql"), ("sqllite", False)])
def opts_of_an_outage(opts, request, tmp_path):
    """The same, with a job cache whose server is away, and the log's too, or whose name is misspelt."""
    pytest.importorskip("psycopg")
    cache, site = request.param
    server = {"host": "127.0.0.1", "port": free_port(), "user": "salt", "db": "salt", "connect_timeout": 2}
    (tmp_path / "master.pem").write_text("the key of the masters")
    return {**opts, "cache": cache, "postgresql": server, "saltext_jobs_site": site, "job_cache_store_endtime": False}


def call(master, function, *args, **kwargs):
    return master.returners[f"salt_cache.{function}"](*args, **kwargs)


def give_back(master, opts, minion="web1", **more):
    load = {"cmd": "_return", "id": minion, "jid": JID, "fun": "test.arg", "fun_args": ["x"], "return": "y"}
    load.update({"retcode": 0, "success": True, **more})
    salt.utils.job.store_job(opts, load, mminion=master)
    return load


def test_a_return_leaves_the_published_load_alone(master, opts):
    call(master, "save_load", JID, dict(LOAD), ["web1", "web2"])
    give_back(master, opts)
    give_back(master, opts, "web2", tgt="forged", user="forged", token="forged")
    assert call(master, "get_load", JID) == {**LOAD, "Minions": ["web1", "web2"]}
    assert sorted(call(master, "get_jid", JID)) == ["web1", "web2"]
    assert call(master, "get_endtime", JID)


def test_no_load_says_itself_who_has_published_it(master):
    call(master, "save_load", JID, {**LOAD, WHO: Identity(MASTER, "root").as_record()}, minions=["web1"])
    assert WHO not in call(master, "get_load", JID)


def test_a_return_without_a_publish_makes_the_job_known_on_its_own_minion(master, opts, tmp_path):
    (tmp_path / "minions").mkdir()
    (tmp_path / "minions" / "web2").write_text("a key")
    give_back(master, opts, out="highstate", tgt="*", tgt_type="glob")
    job = call(master, "get_jids")[JID]
    assert (job["Function"], job["Arguments"]) == ("test.arg", ["x"])
    assert call(master, "get_load", JID)["Minions"] == ["web1"]
    assert call(master, "get_jid", JID) == {"web1": {"return": "y", "retcode": 0, "success": True, "out": "highstate"}}


def test_a_command_whose_run_cannot_be_stored_says_so_in_one_line(opts_of_an_outage, caplog):
    opts, returned = opts_of_an_outage, {"fun": "runner.batch.list", "return": {}, "success": True}
    mminion = salt.minion.MasterMinion(opts, states=False, rend=False)
    load = {"id": opts["id"], "tgt": opts["id"], "jid": JID, "return": returned}
    salt.utils.job.store_job(opts, load, mminion=mminion)
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage().startswith(
        "What runner.batch.list has returned on this master is not in the job cache: "
    )
    assert (record.exc_info, record.getMessage().count("\n")) == (None, 0)


def test_a_minion_s_own_job_gets_a_jid_and_is_shown_with_its_target(master, opts):
    load = give_back(master, opts, jid="req", tok="s3cret", arg=["by itself"])
    job = call(master, "get_jids")[load["jid"]]
    shown = [job[name] for name in ("Function", "Arguments", "Target", "Target-type")]
    assert shown == ["test.arg", ["by itself"], "web1", "glob"]
    assert list(call(master, "get_jid", load["jid"])) == ["web1"]
    assert "s3cret" not in repr(call(master, "get_load", load["jid"]))


def test_a_syndic_s_load_is_kept_and_its_returns_do_not_replace_it(master, opts):
    sent = {**LOAD, "Minions": ["leaf1", "leaf2"], "key": "s3cret"}
    call(master, "save_load", JID, sent)  # as Salt's _syndic_return hands it over
    for leaf in ("leaf1", "leaf2"):
        salt.utils.job.store_job(opts, {"jid": JID, "id": leaf, "return": "y"}, mminion=master)
    assert call(master, "get_load", JID) == {**LOAD, "Minions": ["leaf1", "leaf2"]}
    assert sorted(call(master, "get_jid", JID)) == ["leaf1", "leaf2"]


def test_a_syndic_adds_only_its_minions_to_a_published_job(master, opts):
    call(master, "save_load", JID, dict(LOAD), minions=[])
    salt.utils.job.store_minions(opts, JID, ["leaf1"], mminion=master, syndic_id="syndic1")
    call(master, "save_load", JID, {**LOAD, "user": "of the syndic", "Minions": ["leaf1"]})
    assert call(master, "get_load", JID) == {**LOAD, "Minions": ["leaf1"]}


def test_a_runner_s_job_is_shown_with_its_function_and_arguments(master, opts):
    data = {"fun": "runner.manage.up", "fun_args": ["x"], "jid": JID, "user": "anna", "return": [], "success": True}
    salt.utils.job.store_job(opts, {"id": "m_master", "tgt": "m_master", "jid": JID, "return": data}, mminion=master)
    job = call(master, "get_jids")[JID]
    shown = [job[name] for name in ("Function", "Arguments", "Target", "User")]
    assert shown == ["runner.manage.up", ["x"], "m_master", "anna"]


def test_a_command_that_used_the_job_cache_ends_without_a_traceback(tmp_path):
    # If a loader is still alive at the end, Salt 3008 tears it down when the interpreter is half gone already.
    cachedir = tmp_path / "var" / "cache" / "salt" / "master"
    (cachedir / "proc").mkdir(parents=True)
    config = {"root_dir": str(tmp_path), "user": getpass.getuser(), "id": "m_master", "log_file": str(tmp_path / "log")}
    (tmp_path / "master").write_text(json.dumps({**config, "master_job_cache": "salt_cache"}))
    command = [os.path.join(os.path.dirname(sys.executable), "salt-run"), "-c", str(tmp_path), "test.arg", "x"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), check=True)
    assert os.listdir(cachedir / "jobs" / "loads")  # it was used
    assert "Traceback" not in done.stderr
