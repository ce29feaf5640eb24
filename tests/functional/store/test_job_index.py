"""What the driver sqlite keeps beside the records of jobs, and how jobs go."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time

import pytest

from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.ledger.tables import JOBS, VALUES
from saltext.jobs.core.store.listing import all_jobs
from saltext.jobs.core.store.store import Store
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


SHOWN = {
    "plain": LOAD,
    "metadata in an argument": {"fun": "a.b", "arg": [1, {"__kwarg__": True, "metadata": {"x": "é"}}]},
    "nothing": {},
    "no function": {"tgt": ["web1"], "tgt_type": "list"},
    "bytes": {"fun": "a.b", "arg": [b"\xff\x00", "é"], "user": b"root"},
    "several functions": {"fun": ["a.b", "c.d"], "arg": [[1], []], "tgt": "*"},
    "no list of arguments": {"fun": "a.b", "arg": 7},
    "text for arguments": {"fun": "a.b", "arg": "xyz"},
    "no dict of options": {"fun": "a.b", "kwargs": 3},
    "a large number": {"fun": "a.b", "arg": [2**63, -(2**63), 1.5, None, True]},
    "keys that are no text": {"fun": "a.b", "arg": [{1: 2, None: 3}]},
}
#: Without a time; with a month, an hour or a minute that does not exist; with another end than Salt's; in other digits.
ODD_JIDS = ("20260516-special", "20261399120000000000", "20260516250000000000", "20260516126000000000")
ODD_JIDS += ("20260516120000000000_", "20260516120000000000-7", "202605161200000000001", "٢٠٢٦٠٥١٦١٢٠٠٠٠٠٠٠٠٠٠")


@pytest.mark.story  # Salt formats what is shown of a job
def test_the_list_of_jobs_shows_what_their_loads_show(opts, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    stores = [Store(opts), Store({**opts, "cache": "localfs", "cachedir": str(other)})]
    for load in SHOWN.values():
        for store in stores:
            for jid in (*ODD_JIDS, "20260516120000000001", "20260516120000000001_77"):
                store.store("jobs/loads", jid, load)
                store.store("jobs/loads", f"{jid[:-1]}2", LOAD)
        ours, theirs = (all_jobs(store, False) for store in stores)
        assert ours == theirs, load


def test_a_list_of_jobs_reads_no_loads_but_for_damaged_rows_of_the_index(opts):
    store = Store(opts)
    for jid in JIDS:
        store.store("jobs/loads", jid, {**LOAD, "jid": jid})
    whole = all_jobs(store, False)
    run = banks_of(opts).tables.run
    for jid, damaged in zip(JIDS, (b"", b"\xc1", b"\x93\x01", b"\x93\xc0\xc0\xc0\xc0", b"\x07"), strict=False):
        run(f"UPDATE {JOBS} SET shown = ? WHERE jid = ?", (damaged, jid))
    for jid in JIDS[5:]:
        run(f"UPDATE {VALUES} SET value = x'c1' WHERE key = ?", (jid,))
    assert all_jobs(store, False) == whole


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
        left = large.store.driver.tables.read(f"SELECT DISTINCT bank FROM {VALUES}")
        assert left == [("other",)]

    def test_a_job_that_was_written_meanwhile_stays_whole(self, large):
        jid = "20200101000000000008"
        large.store.driver.tables.run(f"UPDATE {VALUES} SET updated = 1")
        large.returner({"jid": jid, "id": "late", "return": 1})
        large.sweep_in(0)
        assert list(large.get_jids()) == [jid] and len(large.get_jid(jid)) == 4001
