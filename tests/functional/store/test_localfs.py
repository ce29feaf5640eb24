"""The fast way to the localfs driver's files: Salt's driver reads what it writes, and a failure leaves what was there."""

from __future__ import annotations

import errno
import os
import threading

import pytest
import salt.cache
import salt.config
from salt.exceptions import SaltCacheError

from saltext.jobs.core.store.drivers import Local
from tests.functional.options import options_in

SHAPES = [None, False, 0, "", [], {}, "ünï", b"\xff\x00", {1: {"a": None}}, [1.5, {"x": [True]}], "x" * 300_000]


@pytest.fixture
def opts(tmp_path):
    return options_in(tmp_path, cache="localfs", cachedir=str(tmp_path))


@pytest.fixture
def banks(opts):
    return Local(opts)


def test_salts_driver_reads_what_is_written_here_and_the_other_way_round(banks, opts):
    driver = salt.cache.Cache(opts)
    for value in SHAPES:
        banks.store("a/b", "key", value)
        assert driver.fetch("a/b", "key") == banks.fetch("a/b", "key") == value
        driver.store("a/b", "other", value)
        assert banks.fetch("a/b", "other") == value
    assert sorted(banks.keys("a/b")) == ["key", "other"]


def test_a_bank_goes_with_its_last_key(banks, tmp_path):
    banks.flush("a/b", "none")
    for key in ("one", "two"):
        banks.store("a/b", key, 1)
    banks.flush("a/b", "one")
    assert banks.keys("a/b") == ["two"]
    banks.flush("a/b", "two")
    assert not (tmp_path / "a" / "b").exists()


def test_only_the_owner_writes_a_value(banks, tmp_path):
    banks.store("a/b", "key", 1)
    modes = [os.stat(path).st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/key.p")]
    assert modes == [0o755, 0o755, 0o644]


def test_a_value_that_cannot_be_written_leaves_the_old_one_and_no_draft(banks, tmp_path):
    (tmp_path / "a" / "key.p" / "in the way").mkdir(parents=True)
    for value in (1, object()):
        with pytest.raises(SaltCacheError, match="could not store bank='a' key='key'"):
            banks.store("a", "key", value)
    assert os.listdir(tmp_path / "a") == ["key.p"]


def test_a_draft_of_a_killed_process_does_not_stand_in_the_way(banks, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f".{os.getpid()}-{threading.get_ident()}").write_bytes(b"x" * 10_000)
    banks.store("a", "key", 1)
    assert banks.fetch("a", "key") == 1
    assert os.listdir(tmp_path / "a") == ["key.p"]


@pytest.mark.parametrize("refused", [None, errno.EPERM, errno.EOPNOTSUPP])
def test_the_first_value_stays_on_a_file_system_without_hard_links_too(banks, tmp_path, monkeypatch, refused):
    def link(*names):
        raise OSError(refused, os.strerror(refused), *names)

    if refused is not None:
        monkeypatch.setattr(os, "link", link)
    assert [banks.store_new("a", "key", number) for number in range(2)] == [True, False]
    assert banks.fetch("a", "key") == 0 and os.listdir(tmp_path / "a") == ["key.p"]
