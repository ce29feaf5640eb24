"""What the driver sqlite keeps beside the records of jobs, how a file of an earlier version gets it, and how jobs go."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing.connection
import os
import pathlib
import random
import resource
import shutil
import signal
import sqlite3
import struct
import time

import pytest
import salt.config
import salt.payload
from salt.exceptions import SaltCacheError

from saltext.jobs.core.disk.job_summary import has_failed
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.sqlite.banks import banks_of
from saltext.jobs.core.store.listing import all_jobs
from saltext.jobs.core.store.search import Query, search
from saltext.jobs.core.store.store import Store
from tests.functional.store.beside import writer
from tests.functional.store.test_contract import FORK, LOAD, Returner, in_processes
from tests.waiting import SOON, stretched

pytestmark = pytest.mark.story  # Salt formats what is shown of a job

NOW = time.time()
JIDS = [jid_at(NOW - 3600 * number) for number in range(30)]
LOADS = {
    jid: {**LOAD, "jid": jid, "fun": "test.ping" if number % 3 else "state.apply"} for number, jid in enumerate(JIDS)
}
ODD = {"20260516-special": {"fun": "test.echo", "user": "anna"}, "no-date": {"fun": ["a.b", "c.d"], "arg": [1]}}


def options(folder):
    own = {"cachedir": str(folder), "pki_dir": str(folder), "extension_modules": f"{folder}/ext", "cache": "sqlite"}
    own.update({"id": "m_master", "salt_cache": {"sync": "none"}, "keep_jobs_seconds": 3600})
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


class TestWhatIsShownOfJobs:
    @pytest.mark.parametrize("name", SHOWN)
    def test_the_list_of_jobs_shows_what_their_loads_show(self, opts, tmp_path, name):
        other = tmp_path / "other"
        other.mkdir()
        stores = [Store(opts), Store({**opts, "cache": "localfs", "cachedir": str(other)})]
        for store in stores:
            for jid in (*ODD_JIDS, "20260516120000000001", "20260516120000000001_77"):
                store.store("jobs/loads", jid, SHOWN[name])
                store.store("jobs/loads", f"{jid[:-1]}2", LOAD)
        ours, theirs = (all_jobs(store, False) for store in stores)
        assert ours == theirs

    def test_a_list_of_jobs_reads_no_loads(self, opts):
        store, jids = Store(opts), [*JIDS, *(f"{jid}_77" for jid in JIDS)]
        for jid in jids:
            store.store("jobs/loads", jid, LOADS[jid[:20]])
        with store.driver.banks_file.transaction() as sql:
            sql.execute("UPDATE records SET value = x'c1'")
        assert len(all_jobs(store, False)) == len(jids)

    def test_a_damaged_row_of_the_index_is_read_from_the_load(self, opts):
        store = Store(opts)
        for jid in JIDS:
            store.store("jobs/loads", jid, LOADS[jid])
        whole = all_jobs(store, False)
        with store.driver.banks_file.transaction() as sql:
            for jid, damaged in zip(
                JIDS, (b"", b"\xc1", b"\x93\x01", b"\x93\xc0\xc0\xc0\xc0", b"\xa3abc", b"\x07"), strict=False
            ):
                sql.execute("UPDATE jobs SET shown = ? WHERE jid = ?", (damaged, jid))
        assert all_jobs(store, False) == whole

    def test_a_row_of_the_index_is_removed_with_its_load(self, opts):
        store = Store(opts)
        for remove in (
            lambda: store.flush("jobs/loads", JIDS[0]),
            lambda: store.driver.drop_bank("jobs/loads"),
        ):
            store.store("jobs/loads", JIDS[0], LOADS[JIDS[0]])
            assert found(store) == list(all_jobs(store, False)) == [JIDS[0]]
            remove()
            assert found(store) == list(all_jobs(store, False)) == []


def jid_of(number):
    return f"20260516{number // 3600:02}{number // 60 % 60:02}{number % 60:02}000000"


FLEET = [f"web{number:03}" for number in range(300)]


class TestJobsOfAMinion:
    """Random publishes and removals: the jobs that are found for a minion are compared with those in a dictionary."""

    @pytest.mark.parametrize("seed", range(4))
    def test_jobs_are_found_however_jobs_came_and_went(self, opts, seed):
        chance, job_cache, truth = random.Random(seed), Returner(opts), {}
        banks, order = job_cache.store.driver.banks_file, list(range(2600))
        if seed % 2:
            chance.shuffle(order)
        while order:
            with banks.transaction():
                for number in [order.pop() for _ in range(min(len(order), 130))]:
                    jid = jid_of(number)
                    sent = chance.sample(FLEET, chance.choice((0, 1, 3, 60, 250)))
                    banks.store("jobs/loads", jid, {**LOAD, "jid": jid})
                    if sent:
                        banks.store("jobs/minions", jid, sorted(sent))
                    answered = chance.sample(FLEET, chance.choice((0, 0, 1, 4)))
                    for minion in answered:
                        banks.store_new(f"jobs/returns/{jid}", minion, {"return": 1})
                    truth[jid] = {*sent, *answered}
            gone = chance.sample(sorted(truth), 25)
            for jid in gone[:5]:
                job_cache.store.driver.remove(["jobs/minions", "jobs/loads"], "jobs/returns", [jid])
            banks.remove_older(["jobs/minions", "jobs/loads"], "jobs/returns", gone[5:], time.time() + 60)
            for jid in gone:
                del truth[jid]
        for minion in chance.sample(FLEET, 12):
            wanted = sorted((jid for jid in truth if minion in truth[jid]), reverse=True)
            assert list(banks.index.jids_near("", "~", minion)) == wanted
            low, high = sorted(chance.sample(sorted(truth), 2))
            near = [jid for jid in wanted if low <= jid <= high]
            assert list(banks.index.jids_near(low, high, minion)) == near
        assert found(job_cache.store, minion=minion) == wanted[:1000]
        with banks.transaction() as sql:
            assert sql.execute("SELECT count(*) FROM jobs").fetchone() == (len(truth),)

    @pytest.mark.parametrize("outcome", [None, "returned", "failed", "missing"])
    def test_jobs_with_returns_of_minions_that_they_were_not_for_are_counted_as_on_files(self, opts, tmp_path, outcome):
        other = tmp_path / "other"
        other.mkdir()
        rows = []
        for own in (opts, {**opts, "cache": "localfs", "cachedir": str(other)}):
            job_cache = Returner(own)
            for number, jid in enumerate(JIDS):
                if number % 5:
                    job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=FLEET[: number % 4])
                else:
                    job_cache.store.store("jobs/loads", jid, {**LOAD, "jid": jid})
                for minion in FLEET[number % 3 : number % 7]:
                    job_cache.returner({"jid": jid, "id": minion, "return": 1, "retcode": number % 2})
            for minion in (None, *FLEET[:4]):
                rows.append(search(job_cache.store, Query(limit=1000, minion=minion, outcome=outcome))["jobs"])
        assert rows[:5] == rows[5:] and rows[0]

    def test_a_publish_writes_no_more_because_of_earlier_jobs(self, opts, path):
        job_cache = Returner(opts)
        fleet = [f"web{number:04}" for number in range(1000)]

        def written(number):
            before = os.stat(f"{path}-wal").st_size
            jid = jid_of(number)
            job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=fleet)
            return os.stat(f"{path}-wal").st_size - before

        job_cache.save_load(jid_of(0), {**LOAD, "jid": jid_of(0)}, minions=fleet)
        sizes = [written(number) for number in range(1, 90)]
        assert max(sizes) < 150_000 and sum(sizes[-20:]) < 1.3 * sum(sizes[20:40])


def test_a_job_for_so_many_minions_that_their_list_is_compressed_is_found_and_shown(opts, path):
    many = [f"web{number:06}.example.com" for number in range(10_000)]
    job_cache = Returner(opts)
    job_cache.save_load(JIDS[0], {**LOAD, "jid": JIDS[0]}, minions=many)
    job_cache.returner({"jid": JIDS[0], "id": many[7], "return": "x" * 100_000, "retcode": 0})
    assert (
        job_cache.get_load(JIDS[0])["Minions"] == many and len(job_cache.get_jid(JIDS[0])[many[7]]["return"]) == 100_000
    )
    assert found(job_cache.store, minion=many[-1]) == JIDS[:1] and found(job_cache.store, minion="db1") == []
    banks = banks_of(opts)
    assert list(banks.index.jids_near("", "~", many[5000])) == [JIDS[0]]
    with banks.transaction() as sql:
        ((size,),) = sql.execute("SELECT sum(length(value)) FROM records").fetchall()
        sql.execute("UPDATE records SET value = substr(value, 1, 200) WHERE length(value) > 5000")
    assert size < 60_000
    assert job_cache.get_load(JIDS[0])["Minions"] == [many[7]], (
        "those that answered, because nothing is known of the list"
    )
    assert list(banks.index.jids_near("", "~", many[5000])) == []


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A file with old jobs, some of them with many returns. No process has it open."""
    opts = options(tmp_path_factory.mktemp("kept"))
    job_cache = Returner(opts)
    banks = job_cache.store.driver.banks_file
    for number in range(40):
        jid = f"2020010100{number:010}"
        minions = [f"web{minion}" for minion in range(20 if number % 4 else 4000)]
        job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=minions)
        with banks.transaction():
            for minion in minions:
                banks.store(f"jobs/returns/{jid}", minion, {"return": "x" * 50})
    with contextlib.closing(sqlite3.connect(banks.path)) as sql:
        sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return banks.path


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
        with large.store.driver.banks_file.transaction() as sql:
            left = sql.execute("SELECT DISTINCT name FROM banks JOIN records ON records.bank = banks.id").fetchall()
        assert left == [("other",)]

    def test_a_job_that_was_written_meanwhile_stays_whole(self, large):
        jid = "20200101000000000008"
        with large.store.driver.banks_file.transaction() as sql:
            sql.execute("UPDATE records SET updated = 1")
        large.returner({"jid": jid, "id": "late", "return": 1})
        large.sweep_in(0)
        assert list(large.get_jids()) == [jid] and len(large.get_jid(jid)) == 4001

    @pytest.mark.parametrize("seconds", [0.01, 0.05, 0.15])
    def test_a_sweep_and_a_writer_that_are_killed_leave_jobs_whole_or_gone(self, large, opts, seconds):
        def write():
            for number in itertools.count():
                jid = f"2020020200{number:010}"
                large.save_load(jid, {**LOAD, "jid": jid}, minions=["web1"])

        processes = [FORK.Process(target=write), FORK.Process(target=lambda: large.sweep_in(7200))]
        for process in processes:
            process.start()
        time.sleep(seconds)
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
            process.join(stretched(SOON))
        store = Store(opts)
        loads = store.keys("jobs/loads")
        assert store.keys("jobs/published") == store.keys("jobs/minions") == loads == sorted(all_jobs(store, False))
        for jid in loads:
            returns = len(store.keys(f"jobs/returns/{jid}"))
            assert returns == (0 if jid > "2020020" else 20 if int(jid[-10:]) % 4 else 4000)
        large.sweep_in(7200)
        assert large.get_jids() == {} and store.driver.banks_file.is_sound()

    def test_a_full_disk_stops_a_sweep_and_the_next_one_goes_on(self, large, opts, path):
        with contextlib.closing(sqlite3.connect(path)) as sql:
            sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        def swept(_):
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            try:
                large.sweep_in(7200)
            except SaltCacheError as exc:
                error = str(exc)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            left = len(large.get_jids())
            large.sweep_in(7200)
            return error, left

        ((error, left),) = in_processes(1, swept)
        assert ("full" in error or "disk I/O error" in error) and left > 0
        assert large.get_jids() == {} and large.store.driver.banks_file.is_sound()
        assert not large.store.driver.banks("jobs/returns")


def write_for_ever(opts, writing, seed):
    """Store and remove jobs and returns, and report each publish that was stored."""
    chance, job_cache = random.Random(seed), Returner(opts)
    banks, jids = job_cache.store.driver.banks_file, []
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
    assert set(banks.index.jids_failed("", "~")) == failed
    for minion in FLEET[::40]:
        wanted = {jid for jid in loads if minion in listed.get(jid, ()) or minion in returns.get(jid, ())}
        assert set(banks.index.jids_near("", "~", minion)) == wanted
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


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_any_point_leaves_consistent_records_and_every_confirmed_publish(opts, path, tmp_path, seed):
    """Writers are killed, and the log is cut off at any byte."""
    chance, own = random.Random(seed), {**opts, "salt_cache": {"sync": "publish"}}
    Returner(own).save_load(JIDS[0], {**LOAD, "jid": JIDS[0]}, minions=["web1"])
    reading, writing = os.pipe()
    processes = [FORK.Process(target=write_for_ever, args=(own, writing, number)) for number in range(3)]
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
