"""The fast way to the localfs driver's files: the driver reads what it writes, and a failure leaves what was there."""

from __future__ import annotations

import os
import threading

import pytest
import salt.cache
import salt.config

from saltext.jobs.core.disk.local_banks import LocalBanks

SHAPES = [None, False, 0, "", [], {}, "ünï", b"\xff\x00", {1: {"a": None}}, [1.5, {"x": [True]}], "x" * 300_000]


@pytest.fixture
def banks(tmp_path):
    return LocalBanks(str(tmp_path))


@pytest.fixture
def driver(tmp_path):
    folder = str(tmp_path)
    own = {"cachedir": folder, "pki_dir": folder, "extension_modules": f"{folder}/ext", "cache": "localfs"}
    return salt.cache.Cache({**salt.config.DEFAULT_MASTER_OPTS, **own})


@pytest.mark.parametrize("value", SHAPES, ids=lambda value: repr(value)[:20])
def test_the_driver_reads_what_is_written_here_and_the_other_way_round(banks, driver, value):
    banks.store("a/b", "key", value)
    assert driver.fetch("a/b", "key") == banks.fetch("a/b", "key") == value
    driver.store("a/b", "other", value)
    assert banks.fetch("a/b", "other") == value
    assert sorted(banks.list("a/b")) == ["key", "other"]


def test_a_missing_key_reads_as_empty(banks):
    assert (banks.fetch("a", "key"), banks.list("a")) == ({}, [])
    banks.flush("a", "key")


def test_a_bank_goes_with_its_last_key(banks, tmp_path):
    banks.store("a/b", "one", 1)
    banks.store("a/b", "two", 2)
    banks.flush("a/b", "one")
    assert banks.list("a/b") == ["two"]
    banks.flush("a/b", "two")
    assert not (tmp_path / "a" / "b").exists()
    banks.store("a/b", "one", 1)
    assert banks.fetch("a/b", "one") == 1


def test_only_the_owner_writes_a_value(banks, tmp_path):
    banks.store("a/b", "key", 1)
    modes = [os.stat(path).st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/key.p")]
    assert modes == [0o755, 0o755, 0o644]


def test_a_value_that_cannot_be_written_leaves_the_old_one_and_no_draft(banks, tmp_path):
    (tmp_path / "a" / "key.p" / "in the way").mkdir(parents=True)
    with pytest.raises(OSError, match="Is a directory"):
        banks.store("a", "key", 1)
    assert os.listdir(tmp_path / "a") == ["key.p"]
    with pytest.raises(TypeError):
        banks.store("a", "key", object())
    assert os.listdir(tmp_path / "a") == ["key.p"]


def test_a_draft_of_a_killed_process_does_not_stand_in_the_way(banks, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f".{os.getpid()}-{threading.get_ident()}").write_bytes(b"x" * 10_000)
    banks.store("a", "key", 1)
    assert banks.fetch("a", "key") == 1
    assert os.listdir(tmp_path / "a") == ["key.p"]


def test_threads_write_at_once(banks):
    threads = [threading.Thread(target=banks.store, args=("a", f"k{number}", number)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key: banks.fetch("a", key) for key in banks.list("a")} == {f"k{number}": number for number in range(20)}
