"""
The file of ``cache: sqlite`` that each earlier version has left is brought up to this version, and holds what it held.

It was written by that version's own code: see ``write_database.py``.
"""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest
import salt.cache

from saltext.jobs.core.sqlite.banks import banks_of
from saltext.jobs.core.store import migration
from saltext.jobs.core.store.listing import all_jobs
from saltext.jobs.core.store.records import load_of, returns_of
from saltext.jobs.core.store.search import Query, search
from saltext.jobs.core.store.store import Store
from tests.functional.options import options_in

HERE = pathlib.Path(__file__).parent
JOBS = [*(f"2026112203000{number}000000" for number in range(10)), "0", "20261122-special"]


@pytest.fixture(params=["0_2_0", "0_3_0", "0_4_0"])
def opts(tmp_path, request):
    shutil.copytree(HERE / f"database_of_{request.param}", tmp_path / "cache")
    return options_in(tmp_path, master_job_cache="salt_cache", cache="sqlite")


def found(store, **query):
    return {row["JID"] for row in search(store, Query(limit=1000, **query))["jobs"]}


def test_jobs_are_listed_searched_and_shown_as_they_were_stored(opts):
    store = Store(opts)
    assert set(all_jobs(store, False)) == {*JOBS, "20261122040000000000"}
    assert found(store, minion="web50") == {jid for number, jid in enumerate(JOBS) if number % 2}
    assert found(store, users=("anna",)) == {jid for number, jid in enumerate(JOBS) if number % 2}
    assert found(store, functions=("test.f2",)) == set(JOBS[2::3])
    assert found(store, minion="web1", outcome="failed") == {JOBS[number] for number in (2, 3, 6, 7, 11)}
    load = load_of(store, JOBS[3])
    assert (load["fun"], load["arg"], load["kwargs"]["metadata"], len(load["Minions"])) == (
        "test.f0",
        [3],
        {"ticket": 3},
        60,
    )
    assert returns_of(store, JOBS[2]) == {
        f"web{number}": {"return": "é", "retcode": 2, "success": False} for number in range(2)
    }
    assert returns_of(store, "20261122050000000000") == {"db1": {"return": b"\xff\x00"}}


def test_all_else_is_there_and_the_file_is_sound(opts):
    cache, banks = salt.cache.Cache(opts), banks_of(opts)
    assert cache.fetch("grains", "web1") == {"os": "Debian"} and cache.fetch("tokens", "t") == {"name": "anna"}
    assert banks.keys("job_retry/jobs") == [JOBS[1]] and banks.is_sound()


def test_values_that_0_4_0_has_compressed_are_read(tmp_path):
    shutil.copytree(HERE / "database_of_0_4_0", tmp_path / "cache")
    opts = options_in(tmp_path, cache="sqlite")
    assert len(banks_of(opts).values([("mine", "web1")])["mine", "web1"]) < 1000
    assert salt.cache.Cache(opts).fetch("mine", "web1") == {"network.interfaces": "lo " * 20_000}


def test_jobs_of_0_1_0_on_localfs_can_be_copied_into_sqlite(tmp_path):
    """Version 0.1.0 has no sqlite."""
    shutil.copytree(HERE / "written_by_0_1_0", tmp_path / "cache")
    opts = options_in(tmp_path, master_job_cache="salt_cache")
    source, target = Store({**opts, "cache": "localfs"}), Store({**opts, "cache": "sqlite"})
    jids = migration.jobs_in(source)
    for jid in jids:
        migration.copy_between(source, target, jid, False)
    assert jids and set(all_jobs(target, False)) == set(jids)
    assert not any(migration.lacking(source, target, jid) for jid in jids)
    assert [load_of(target, jid) for jid in jids] == [load_of(source, jid) for jid in jids]
    assert os.path.exists(f"{opts['cachedir']}/cache.sqlite")
