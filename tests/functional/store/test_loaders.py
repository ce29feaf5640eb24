"""
Several loaders in one process, each with options of its own. Salt's loaders share a module under its name: it has the
options of the last loader that loaded it. What was loaded before must keep to its own.
"""

from __future__ import annotations

import os
import pathlib

import pytest
import salt.cache
import salt.config
import salt.loader
import salt.version

from saltext.jobs.core.master.job_cache import OwnLoad

pytestmark = pytest.mark.story  # the loader differs between the releases

JID = "20260516120000000000"
LOAD = {"fun": "test.ping", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "root", "jid": JID, "ret": ""}
RETURN = {"jid": JID, "id": "web1", "return": True, "retcode": 0, "success": True}


@pytest.fixture
def options(tmp_path):
    """Makes the options of a master that has a directory of its own."""

    def make(name, **more):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        own = {"cachedir": str(folder), "pki_dir": str(folder), "extension_modules": f"{folder}/ext", "id": name}
        return {**salt.config.DEFAULT_MASTER_OPTS, **own, **more}

    return make


@pytest.mark.parametrize("driver", ["localfs", "sqlite"])
def test_a_returner_keeps_its_own_storage_once_another_one_was_loaded(options, driver):
    first, second = (salt.loader.returners(options(name, cache=driver), {}) for name in "ab")
    first["salt_cache.save_load"](JID, LOAD, minions=["web1"])
    assert second["salt_cache.get_load"](JID) == {}, "now the module is the second one's"
    assert first["salt_cache.returner"](RETURN) is None
    assert first["salt_cache.get_load"](JID)["Minions"] == ["web1"]
    assert list(first["salt_cache.get_jid"](JID)) == ["web1"]
    assert (second["salt_cache.get_jid"](JID), second["salt_cache.get_jids"]()) == ({}, {})


def test_a_cache_keeps_its_own_file_once_another_one_was_loaded(options, tmp_path):
    first, second = (
        salt.cache.Cache(options(name, cache="sqlite", sqlite_cache_path=f"{tmp_path}/{name}.sqlite")) for name in "ab"
    )
    first.store("bank", "key", 1)
    second.store("bank", "key", 2)
    first.store("bank", "key", 3)
    assert (first.fetch("bank", "key"), second.fetch("bank", "key")) == (3, 2)
    assert [name for name in "ab" if os.path.exists(f"{tmp_path}/{name}/cache.sqlite")] == []


def test_functions_carried_by_a_permitted_function_are_logged(options, caplog):
    opts = options("a", publisher_acl={"ann": ["test.*", {"web*": ["state.*"]}]}, __role="master")
    for minion in ("web1", "db1"):
        (pathlib.Path(opts["pki_dir"]) / "minions").mkdir(exist_ok=True)
        (pathlib.Path(opts["pki_dir"]) / "minions" / minion).touch()
    save = salt.loader.returners(opts, {})["salt_cache.save_load"]

    def told(number, user, fun, minions=("web1", "db1")):
        caplog.clear()
        jid = str(int(JID) + number)
        who = {"kind": "master" if user == "root" else "key", "name": user, "backends": [], "at": 1.0}
        load = {**LOAD, "jid": jid, "user": user, "fun": fun, "arg": [[] for _ in fun], "saltext_jobs_who": who}
        save(jid, OwnLoad(load), minions=list(minions))
        return [record.getMessage() for record in caplog.records if "Salt has published" in record.getMessage()]

    assert told(1, "root", ["test.ping", "cmd.run"]) == []
    assert told(2, "ann", ["test.ping", "test.echo"]) == []
    assert told(3, "ann", ["test.ping", "state.apply"], ["web1"]) == []
    assert told(4, "ann", "cmd.run") == [], "what Salt refuses, or permits, as it should"
    (line,) = told(5, "ann", ["saltutil.find_job", "cmd.run"])
    assert f": job {int(JID) + 5}, to 2 minions such as db1" in line
    assert "ann may not publish each of saltutil.find_job, cmd.run to it" in line
    assert told(6, "ann", ["saltutil.find_job", "cmd.run"]) == [], "once a minute"
    assert salt.loader.returners(opts, {})["salt_cache.get_load"](str(int(JID) + 6))["fun"][1] == "cmd.run"
