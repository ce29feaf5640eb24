"""What the driver sqlite keeps beside the records of jobs, and how jobs go."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time

import pytest

from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.ledger.tables import VALUES
from tests.functional.options import options_in
from tests.functional.store.banks import banks_of
from tests.functional.store.beside import writer
from tests.functional.store.test_contract import LOAD, Returner
from tests.waiting import stretched

NOW = time.time()
JIDS = [jid_at(NOW - 3600 * number) for number in range(30)]


@pytest.fixture
def opts(tmp_path):
    (tmp_path / "cache").mkdir()
    return options_in(tmp_path, cache="sqlite", keep_jobs_seconds=3600)


@pytest.fixture
def path(opts):
    return os.path.join(opts["cachedir"], "cache.sqlite")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A file with old jobs, some of them with many returns. No process has it open."""
    opts = options_in(tmp_path_factory.mktemp("kept"), cache="sqlite")
    job_cache = Returner(opts)
    banks = banks_of(opts)
    for number in range(40):
        jid = f"2020010100{number:010}"
        minions = [f"web{minion}" for minion in range(20 if number % 4 else 4000)]
        job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=minions)
        with banks.transaction():
            for minion in minions:
                banks.store(f"jobs/returns/{jid}", minion, {"return": "x" * 50})
    with contextlib.closing(sqlite3.connect(banks.tables.place)) as sql:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return banks.tables.place


class TestRemoval:
    @pytest.fixture
    def large(self, opts, path, kept):
        shutil.copyfile(kept, path)
        return Returner(opts)

    def test_a_writer_waits_for_no_more_than_a_moment(self, large, opts):
        with writer(large.store) as waited:
            large.sweep_in(7200)
        assert large.get_jids() == {} and len(waited) > 20
        assert sorted(waited)[-len(waited) // 20] < stretched(0.1)
        assert large.store.driver.tables.read(f"SELECT DISTINCT bank FROM {VALUES}") == [("other",)]

    def test_a_job_that_was_written_meanwhile_stays_whole(self, large):
        jid = "20200101000000000008"
        large.store.driver.tables.run(f"UPDATE {VALUES} SET updated = 1")
        large.returner({"jid": jid, "id": "late", "return": 1})
        large.sweep_in(0)
        assert list(large.get_jids()) == [jid] and len(large.get_jid(jid)) == 4001
