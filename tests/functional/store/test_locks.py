"""The locks of the job cache on a file system that has none to give."""

from __future__ import annotations

import errno
import fcntl

import pytest
from salt.exceptions import SaltCacheError

from saltext.jobs.core.store.store import Locks
from tests.functional.store.test_contract import in_processes
from tests.open_files import open_files


def test_a_lock_that_cannot_be_taken_causes_an_error_that_names_it_and_leaves_nothing_open(tmp_path, monkeypatch):
    locks = Locks(str(tmp_path))
    with locks.hold("a"):
        pass

    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(20):
        with pytest.raises(SaltCacheError, match=r"salt_cache\.locks.*No locks available"), locks.hold("a"):
            pytest.fail("it is not held")
    assert open_files(tmp_path) == []


def test_locks_do_not_pile_up_and_are_private(tmp_path):
    locks = Locks(str(tmp_path))
    for number in range(300):
        with locks.hold(str(number)):
            pass
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) <= 64 and folder.stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_one_of_the_processes_that_take_a_name_at_one_moment_gets_it(tmp_path):
    names = [f"20260516{number:012}" for number in range(60)]
    got = in_processes(6, lambda _: [name for name in names if Locks(str(tmp_path)).take(name)])
    assert sorted(name for each in got for name in each) == names


def test_a_name_can_be_taken_again_once_many_others_were(tmp_path):
    locks = Locks(str(tmp_path))
    assert locks.take("a") and not locks.take("a")
    assert all(locks.take(str(number)) for number in range(100))
    assert locks.take("a")
