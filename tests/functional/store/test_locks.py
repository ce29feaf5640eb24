"""The locks of the job cache, also on a file system that has none to give."""

from __future__ import annotations

import errno
import fcntl

import pytest
from salt.exceptions import SaltCacheError

from saltext.jobs.core.store.store import Store
from tests.functional.options import options_in
from tests.functional.store.test_contract import in_processes
from tests.open_files import open_files


@pytest.fixture
def store(tmp_path):
    return Store(options_in(tmp_path, cache="localfs"))


def test_a_lock_that_cannot_be_taken_causes_an_error_that_names_it_and_leaves_nothing_open(store, monkeypatch, caplog):
    with store.lock("a"):
        pass

    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(20):
        with pytest.raises(SaltCacheError, match=r"salt_cache\.locks.*No locks available"), store.lock("a"):
            pytest.fail("it is not held")
        assert store.takes("a"), "no publish fails because of it"
    assert "Two publishes at one moment may get the same jid" in caplog.text
    assert open_files(store.cachedir) == []


def test_locks_do_not_pile_up_and_are_private(store, tmp_path):
    for number in range(300):
        with store.lock(str(number)):
            pass
    (folder,) = tmp_path.rglob("salt_cache.locks")
    assert len(list(folder.iterdir())) <= 64 and folder.stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_one_of_the_processes_that_take_a_jid_at_one_moment_gets_it(store):
    jids = [f"20260516{number:012}" for number in range(60)]
    got = in_processes(6, lambda _: [jid for jid in jids if store.takes(jid)])
    assert sorted(jid for each in got for jid in each) == jids
    assert not store.takes(jids[-1])
    assert store.takes(jids[0] + "_1") and all(store.takes(str(number)) for number in range(100))
    assert store.takes(jids[-1]), "many others were taken since"
