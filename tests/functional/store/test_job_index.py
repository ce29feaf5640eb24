"""What the driver sqlite keeps beside the records of jobs, and how jobs go."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing.connection
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import struct
import time

import pytest
import salt.config
import salt.payload

from saltext.jobs.core.disk.job_summary import has_failed
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.ledger import jobs
from saltext.jobs.core.ledger.tables import JOBS, VALUES
from saltext.jobs.core.store.listing import all_jobs
from saltext.jobs.core.store.search import Query, search
from saltext.jobs.core.store.store import Store
from tests.functional.store.banks import banks_of
from tests.functional.store.beside import writer
from tests.functional.store.test_contract import FORK, LOAD, Returner, in_processes
from tests.waiting import SOON, stretched

NOW = time.time()
JIDS = [jid_at(NOW - 3600 * number) for number in range(30)]


def options(folder):
    own = {"cachedir": str(folder), "pki_dir": str(folder), "extension_modules": f"{folder}/ext", "cache": "sqlite"}
    own.update({"id": "m_master", "keep_jobs_seconds": 3600})
    return {**salt.config.DEFAULT_MASTER_OPTS, **own}


@pytest.fixture
def opts(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    return options(folder)


@pytest.fixture
def path(opts):
    return os.path.join(opts["cachedir"], "cache.sqlite")


def found(store, **query):
    return [row["JID"] for row in search(store, Query(limit=1000, **query))["jobs"]]


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
    with banks_of(opts).transaction() as sql:
        for jid, damaged in zip(JIDS, (b"", b"\xc1", b"\x93\x01", b"\x93\xc0\xc0\xc0\xc0", b"\x07"), strict=False):
            sql.execute(f"UPDATE {JOBS} SET shown = ? WHERE jid = ?", (damaged, jid))
        sql.executemany(f"UPDATE {VALUES} SET value = x'c1' WHERE key = ?", [(jid,) for jid in JIDS[5:]])
    assert all_jobs(store, False) == whole


def jid_of(number):
    return f"20260516{number // 3600:02}{number // 60 % 60:02}{number % 60:02}000000"


FLEET = [f"web{number:03}" for number in range(300)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A file with old jobs, some of them with many returns. No process has it open."""
    opts = options(tmp_path_factory.mktemp("kept"))
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


def write_for_ever(opts, writing, seed):
    """Store and remove jobs and returns, and report each publish that was stored."""
    chance, job_cache = random.Random(seed), Returner(opts)
    banks, jids = banks_of(opts), []
    for number in itertools.count():
        jid = f"2026051{seed}{number // 3600:02}{number // 60 % 60:02}{number % 60:02}000000"
        job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=chance.sample(FLEET, chance.choice((1, 5, 200))))
        os.write(writing, f"{jid}\n".encode())
        jids.append(jid)
        for minion in chance.sample(FLEET, 3):
            job_cache.returner(
                {"jid": chance.choice(jids), "id": minion, "return": 1, "retcode": chance.choice((0, 2))}
            )
        if chance.random() < 0.1:
            gone = jids.pop(chance.randrange(len(jids)))
            os.write(writing, f"-{gone}\n".encode())
            banks.remove_older(
                ["jobs/published", "jobs/minions", "jobs/loads"], "jobs/returns", [gone], time.time() + 60
            )


def assert_it_fits(opts):
    """The index matches the records."""
    store, banks = Store(opts), banks_of(opts)
    assert banks.is_sound() and not banks.damaged()
    listed = {jid: set(store.fetch("jobs/minions", jid)) for jid in store.keys("jobs/minions")}
    returns = {
        jid: dict(store.driver.fetch_each(f"jobs/returns/{jid}", store.keys(f"jobs/returns/{jid}")))
        for jid in store.driver.banks("jobs/returns")
    }
    loads = set(store.keys("jobs/loads"))
    assert set(all_jobs(store, False)) == loads == set(store.keys("jobs/published"))
    failed = {jid for jid in returns if any(has_failed(record) for record in returns[jid].values())}
    assert set(jobs.failed(banks.tables, "", "~")) == failed
    for minion in FLEET[::40]:
        wanted = {jid for jid in loads if minion in listed.get(jid, ()) or minion in returns.get(jid, ())}
        assert set(jobs.near(banks.tables, "", "~", minion)) == wanted
    return loads


def moved(path):
    """
    How many bytes of the log are in the file already, or about to be: they were on the disk before, and no power cut takes
    them. The log's index has the numbers of those frames behind its two headers, and behind the marks of readers and locks.
    """
    index = pathlib.Path(f"{path}-shm").read_bytes()
    frames = max(struct.unpack_from("=I", index, place)[0] for place in (96, 128))
    page = struct.unpack_from(">I", pathlib.Path(f"{path}-wal").read_bytes(), 8)[0]
    return 32 + frames * (24 + page)


@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_at_any_point_leaves_consistent_records_and_every_confirmed_publish(opts, path, tmp_path, seed):
    """Writers are killed, and the log is cut off at any byte."""
    chance = random.Random(seed)
    Returner(opts).save_load(JIDS[0], {**LOAD, "jid": JIDS[0]}, minions=["web1"])
    reading, writing = os.pipe()
    processes = [FORK.Process(target=write_for_ever, args=(opts, writing, number)) for number in range(3)]
    for process in processes:
        process.start()
    assert multiprocessing.connection.wait([reading], stretched(SOON)), "one has begun"
    time.sleep(chance.uniform(0.5, 1.5))
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    for process in processes:
        process.join(stretched(SOON))
    os.close(writing)
    with os.fdopen(reading) as stream:
        lines = stream.read().split("\n")[:-1]
    told = {line for line in lines if line[0] != "-"} - {line[1:] for line in lines if line[0] == "-"}
    size = os.stat(f"{path}-wal").st_size
    for number, cut in enumerate([0, *(chance.randrange(size - moved(path) + 1) for _ in range(6))]):
        folder = tmp_path / f"cut{number}"
        folder.mkdir()
        copy = {**opts, "cachedir": str(folder), "pki_dir": str(folder)}
        for end in ("", "-wal"):
            shutil.copyfile(path + end, folder / f"cache.sqlite{end}")
        with open(folder / "cache.sqlite-wal", "r+b") as log:
            log.truncate(size - cut)
        (loads,) = in_processes(1, lambda _, copy=copy: assert_it_fits(copy))
        assert isinstance(loads, set), loads
        assert cut or told <= loads
