"""The doctor of the job_cache runner, loaded by Salt. Each finding is really caused."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sqlite3

import pytest
import salt.loader

from saltext.jobs.core.disk.surroundings import why_closed
from tests.found import said
from tests.functional.options import options_in
from tests.functional.store.banks import banks_of
from tests.functional.store.test_contract import JID, LOAD, Returner
from tests.user import USER


@pytest.fixture(params=["sqlite", "localfs"])
def opts(request, tmp_path):
    (tmp_path / "cache").mkdir()
    return options_in(tmp_path, cache=request.param, master_job_cache="salt_cache", user=USER)


def examined(opts, **more):
    return salt.loader.runner({**opts, **more})["job_cache.doctor"]()


def told(opts, **more):
    return "\n".join(said(examined(opts, **more)))


@pytest.fixture
def disk(monkeypatch):
    """A disk with enough space, whatever this machine has."""
    room = os.statvfs_result((4096, 4096, 10**9, 10**9, 10**9, 10**6, 10**6, 10**6, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: room)


def test_a_cache_in_order_has_no_findings(opts, disk):
    Returner(opts).save_load(JID, LOAD, minions=["web1"])
    assert examined(opts) == {
        "job_cache": "salt_cache",
        "driver": opts["cache"],
        "usable": True,
        "jobs": 1,
        "findings": [],
        "faults": 0,
        "retcode": 0,
    }


def test_no_other_user_may_write_stored_records_whatever_the_umask_of_the_master(opts, disk):
    before = os.umask(0)
    try:
        Returner(opts).save_load(JID, LOAD, minions=["web1"])
    finally:
        os.umask(before)
    made = [pathlib.Path(base, name) for base, folders, names in os.walk(opts["cachedir"]) for name in folders + names]
    assert len(made) > 1
    assert [(path, path.stat().st_mode) for path in made if path.stat().st_mode & 0o022] == []
    assert "others" not in told(opts)


@pytest.mark.parametrize("opts", ["localfs"], indirect=True)
@pytest.mark.parametrize("name", ["jobs", "jobs/published", f"jobs/published/{JID}.p"])
def test_a_file_that_others_may_write_is_reported(opts, disk, name):
    Returner(opts).save_load(JID, LOAD, minions=["web1"])
    path = pathlib.Path(opts["cachedir"], name)
    path.chmod(path.stat().st_mode | 0o002)
    folder = f"{opts['cachedir']}/jobs"
    assert told(opts) == f"{path} can be written by others than {USER}: chmod -R go-w {folder}"
    path.chmod(path.stat().st_mode & ~0o002)
    path.parent.joinpath("link").symlink_to(path.parent)
    assert told(opts) == ""


def test_another_job_cache_is_reported(opts, disk):
    assert "master_job_cache is 'local_cache'" in told(opts, master_job_cache="local_cache")
    assert "ext_job_cache is 'mysql', which gets the returns" in told(opts, ext_job_cache="mysql")


def test_jobs_without_a_record_of_a_publish_are_reported(opts, disk):
    Returner(opts).save_load(JID, {**LOAD, "cmd": "publish"})
    assert "no record of a publish (jobs/published)" in told(opts)


def test_jobs_that_were_not_published_have_no_record_of_a_publish(opts, disk):
    """All that a new master may have: what a runner ran (the doctor), a minion on its own, and salt-ssh."""
    ran = {"fun": "test.ping", "return": True}
    Returner(opts).save_load(JID, {**ran, "id": "m_master", "tgt": "m_master"})
    Returner(opts).save_load(f"{JID[:-1]}1", {**ran, "cmd": "_return", "id": "web1"})
    Returner(opts).save_load(f"{JID[:-1]}2", LOAD)
    assert "publish" not in told(opts)


def test_a_disk_that_is_nearly_full_is_reported(opts, monkeypatch):
    full = os.statvfs_result((4096, 4096, 10**6, 100, 100, 10**6, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert "MB left" in told(opts) and "inodes left" in told(opts)


@pytest.mark.parametrize(
    ("blocks", "free", "files", "free_files", "flags", "why"),
    [
        (10**6, 4097, 0, 0, 0, ""),
        (10**6, 4095, 0, 0, 0, "full"),
        (1000, 100, 0, 0, 0, ""),  # a small disk
        (1000, 10, 0, 0, 0, "full"),
        (0, 0, 0, 0, 0, ""),  # a disk that tells nothing
        (10**6, 10**5, 10**5, 64, 0, ""),
        (10**6, 10**5, 10**5, 63, 0, "full"),
        (10**6, 10**5, 10**5, 10**4, os.ST_RDONLY, "read-only"),
    ],
)
def test_a_disk_takes_no_job_if_it_is_full_or_read_only(monkeypatch, blocks, free, files, free_files, flags, why):
    told = os.statvfs_result((4096, 4096, blocks, free, free, files, free_files, free_files, flags, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: told)
    assert why_closed("/any") == why


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_reported(opts, disk):
    Returner(opts).save_load(JID, LOAD, minions=["web1"])
    name = "cache.sqlite" if opts["cache"] == "sqlite" else f"jobs/loads/{JID}.p"
    os.chown(os.path.join(opts["cachedir"], name), 65534, 65534)
    assert f"{name} does not belong to the master's user root: chown" in told(opts)


def test_a_file_that_was_set_aside_is_reported(opts, disk):
    assert "set aside" not in told(opts)
    with open(os.path.join(opts["cachedir"], "cache.sqlite.damaged-20260516120000"), "wb"):
        pass
    assert ("set aside" in told(opts)) is (opts["cache"] == "sqlite")


@pytest.mark.parametrize("opts", ["sqlite"], indirect=True)
def test_a_driver_that_cannot_be_used_is_reported(opts, disk):
    found = examined(opts, sqlite_cache_path="relative")
    assert found["usable"] is False and found["jobs"] is None
    assert "cannot be used" in said(found)[0] and "sqlite_cache_path is 'relative'" in said(found)[0]


@pytest.mark.parametrize("opts", ["sqlite"], indirect=True)
def test_a_file_that_others_may_read_and_damage_are_reported_and_the_file_left_alone(opts, disk):
    banks = banks_of(opts)
    for number in range(200):
        banks.store("bank", str(number), "x" * 1000)
    path = os.path.join(opts["cachedir"], "cache.sqlite")
    os.chmod(path, 0o644)
    assert f"cache.sqlite can be read by others than {USER}: chmod -R go= " in told(opts)
    with contextlib.closing(sqlite3.connect(path)) as sql:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(path, "r+b") as stream:
        stream.seek(8192 * 16)
        stream.write(b"\xff" * 4000)
    assert "cache.sqlite is damaged (" in told(opts)
    os.truncate(path, 8192 * 4)  # nothing of it can be read then
    assert "cache.sqlite is damaged (" in told(opts)
    assert not [name for name in os.listdir(opts["cachedir"]) if "damaged" in name]


def test_options_of_the_job_cache_that_do_nothing_are_reported(opts, disk):
    assert "salt_cache is ignored: salt_cache has no option 'max_job'" in told(opts, salt_cache={"max_job": 5})
    assert ("max_bytes does nothing" in told(opts, salt_cache={"max_bytes": "20G"})) is (opts["cache"] != "sqlite")
