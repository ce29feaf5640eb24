"""
What every driver must give the job cache: one class of tests, inherited once per driver, against real storage. Files, SQLite
and one server are asked on each run, the other drivers among the slow tests.

Nothing here may replace a part of the returner or of a driver. Tests watch the calls of a driver, and set the clock of the
sweep and the time that a server may be away.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import logging
import multiprocessing
import os
import sqlite3
import threading
import time

import pytest
import salt.cache
import salt.config
import salt.loader
import salt.utils.jid
import salt.version
from salt.exceptions import SaltCacheError

from saltext.jobs.core import lines
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.ids import jid_at
from saltext.jobs.core.ledger.tables import VALUES
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.options.engines import JobCacheSettings
from saltext.jobs.core.store import drivers, records
from saltext.jobs.core.store.drivers import Outage
from saltext.jobs.core.store.records import digest
from saltext.jobs.core.store.retention import sweep, trim
from saltext.jobs.core.store.search import Query, search
from saltext.jobs.core.store.store import Store, store_of
from tests.functional.cache_servers import cache_servers, disk_usage, driver_options  # noqa: F401 (a fixture)
from tests.functional.retry.records import changes, queue_of
from tests.unit.batch.bench import Bench
from tests.waiting import SOON, stretched, wait_for

TAGS = itertools.count()
LOG = lines.logger(__name__)
FORK = multiprocessing.get_context("fork")

HOSTILE = ["../x", "..", ".", "a/b", "a\\b", "a\0b", "", "x" * 256, "é" * 128, None, ["x"], {"x": 1}, "\ud800", True]
JID = "20260516120000000000"
OLD = "20200101000000000000"
LOAD = {
    "fun": "state.apply",
    "arg": ["web", {"__kwarg__": True, "pillar": {"a": [1, 2]}}],
    "tgt": "web*",
    "tgt_type": "glob",
    "user": "sudo_anna",
    "ret": "",
    "jid": JID,
    "kwargs": {"metadata": {"ticket": "OPS-1"}, "delimiter": ":"},
}


def now_jid(offset=0):
    return jid_at(time.time() + offset)


def a_return(minion, jid=JID, value=True, **more):
    return {"jid": jid, "id": minion, "return": value, "retcode": 0, "success": True, "fun": LOAD["fun"], **more}


class Returner:
    """The functions of the loaded returner by their names, and what is needed to look behind them."""

    def __init__(self, opts):
        self.opts = opts
        self.loader = salt.loader.returners(opts, {})

    def __getattr__(self, name):
        return self.loader[f"salt_cache.{name}"]

    @property
    def store(self):
        """The store that the loaded functions work on: those for the same settings are one."""
        return store_of(self.opts)

    def fetch(self, bank, key):
        return salt.cache.Cache(self.opts).fetch(bank, key)

    def sweep_in(self, seconds):
        """Sweep as it will be done some time from now."""
        self.sweep_at(time.time() + seconds)

    def sweep_at(self, moment):
        """Sweep as it will be done at that time."""
        sweep(self.store, self.opts["keep_jobs_seconds"], moment)


def in_processes(count, work):
    """Run ``work(number)`` in forked processes that begin together; their answers."""
    barrier, answers = FORK.Barrier(count), FORK.Queue()

    def run(number):
        barrier.wait(stretched(SOON))
        try:
            answers.put((number, work(number)))
        except BaseException as exc:
            answers.put((number, repr(exc)))

    processes = [FORK.Process(target=run, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    try:
        collected = dict(answers.get(timeout=stretched(SOON)) for _ in processes)
    finally:
        for process in processes:
            process.join(stretched(SOON))
    return [collected[number] for number in range(count)]


@pytest.fixture
def synced(monkeypatch):
    """What is synced from now on, by its path."""
    paths, fsync = [], os.fsync

    def noted(handle):
        paths.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    return paths


class Contract:
    driver = None

    @pytest.fixture
    def opts(self, cache_servers, tmp_path):  # noqa: F811
        settings = driver_options(self.driver, cache_servers, tmp_path, next(TAGS))
        opts = {**salt.config.DEFAULT_MASTER_OPTS, "id": "m_master", "keep_jobs_seconds": 3600, **settings}
        if self.driver == "redis":
            import redis

            with redis.Redis(port=opts["cache.redis.port"], db=int(opts["cache.redis.db"])) as client:
                client.flushdb()
        return opts

    @pytest.fixture
    def job_cache(self, opts):
        return Returner(opts)

    def test_a_new_jid_is_a_jid_that_neither_a_job_nor_a_publish_at_this_moment_has(self, job_cache, monkeypatch):
        jids = [f"2026051612000000000{digit}" for digit in range(6)]
        for jid in jids[:4]:
            job_cache.save_load(jid, LOAD, minions=[])
        offered = iter([*jids[:5], jids[4], jids[5]])
        monkeypatch.setattr(salt.utils.jid, "gen_jid", lambda opts: next(offered))
        assert [job_cache.prep_jid(), job_cache.prep_jid()] == jids[4:]

    def test_the_first_return_of_a_minion_is_kept(self, job_cache, caplog):
        with caplog.at_level(logging.DEBUG):
            assert job_cache.returner(a_return("web1", out="highstate")) is None
            assert job_cache.returner(a_return("web1", out="highstate")) is False
            assert "web1 returned the same again" in caplog.text
            assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert job_cache.returner(a_return("web1", value="forged", retcode=1)) is False
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 1
        assert "in return, retcode, out." in warnings[0] and "forged" not in warnings[0]
        kept = {"return": True, "retcode": 0, "success": True, "out": "highstate"}
        assert job_cache.get_jid(JID) == {"web1": kept}
        assert job_cache.fetch(f"jobs/returns/{JID}", "web1") == kept

    def test_returns_of_any_shape_come_back_as_they_were(self, job_cache):
        shapes = [None, False, 0, "", [], {}, "ünï", b"\xff\x00", {1: {"a": None}}, [1.5, {"x": [True]}], "x" * 300_000]
        for number, shape in enumerate(shapes):
            job_cache.returner({"jid": JID, "id": f"m{number}", "return": shape, "retcode": 0})
        stored = job_cache.get_jid(JID)
        assert [stored[f"m{number}"] for number in range(len(shapes))] == [
            {"return": shape, "retcode": 0} for shape in shapes
        ]

    def test_a_return_without_a_jid_gets_one_and_one_of_a_job_with_nocache_is_not_stored(self, job_cache):
        jid = job_cache.prep_jid(nocache=True)
        assert job_cache.returner(a_return("web1", jid)) is None
        assert job_cache.get_jid(jid) == job_cache.get_load(jid) == job_cache.get_jids() == {}
        assert job_cache.fetch("jobs/nocache", jid) is True
        load = a_return("web1", "req")
        assert job_cache.returner(load) is None
        assert salt.utils.jid.is_jid(load["jid"])
        assert list(job_cache.get_jid(load["jid"])) == ["web1"]

    def test_one_of_eight_processes_with_the_same_return_stores_it(self, job_cache):
        job_cache.get_load(JID)  # the parent has talked to the server: its connection must not be used by the others
        for attempt in range(2):
            jid = f"2026051612000000000{attempt}"
            answers = in_processes(8, lambda number, jid=jid: job_cache.returner(a_return("web1", jid, value=number)))
            assert sorted(answers, key=str) == [False] * 7 + [None]
            assert job_cache.get_jid(jid)["web1"]["return"] == answers.index(None)

    def test_threads_of_one_process_do_not_disturb_each_other(self, job_cache):
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda number: job_cache.returner(a_return(f"m{number % 10}")), range(40)))
        assert (answers.count(None), answers.count(False)) == (10, 30)
        assert len(job_cache.get_jid(JID)) == 10

    def test_a_run_under_a_borrowed_jid_is_no_return_of_the_job(self, job_cache, caplog):
        job_cache.save_load(JID, LOAD, minions=["web1", "web2"])
        job_cache.save_load(JID, {**LOAD, "fun": "test.ping", "arg": [], "user": "anna"}, minions=["web1"])
        assert job_cache.returner(a_return("web1", fun="test.ping", fun_args=[])) is False
        assert f"web1 has run test.ping under the jid {JID} of a job that runs state.apply" in caplog.text
        assert "anna (test.ping)" in caplog.text
        assert job_cache.get_jid(JID) == {}
        for minion in ("web1", "web2"):  # restarted, it runs the job after all; and a syndic may leave the name out
            more = {"fun_args": LOAD["arg"]} if minion == "web1" else {"fun": None}
            assert job_cache.returner(a_return(minion, **more)) is None
        assert sorted(job_cache.get_jid(JID)) == ["web1", "web2"]

    def test_the_load_reads_back_with_its_minions(self, job_cache):
        job_cache.save_load(JID, LOAD, minions=["web2", "web1"])
        assert job_cache.get_load(JID) == {**LOAD, "Minions": ["web1", "web2"]}
        assert job_cache.fetch("jobs/loads", JID) == LOAD
        assert job_cache.fetch("jobs/minions", JID) == ["web1", "web2"]
        published = job_cache.fetch("jobs/published", JID)
        assert published.pop("at") == pytest.approx(time.time(), abs=60)
        assert published == {"by": job_cache.opts["id"], "load": digest(LOAD)}

    def test_nothing_replaces_a_published_load(self, job_cache):
        job_cache.save_load(JID, {"fun": "early.bird", "id": "web1", "jid": JID})
        assert job_cache.get_load(JID)["fun"] == "early.bird" and not job_cache.fetch("jobs/published", JID)
        job_cache.save_load(JID, LOAD, minions=["web1"])
        published = job_cache.fetch("jobs/published", JID)
        job_cache.save_load(JID, {**a_return("web1"), "tgt": "*", "user": "root", "fun": "cmd.run"})
        job_cache.save_load(JID, {**LOAD, "tgt": ["web2"], "tgt_type": "list", "kwargs": {}}, minions=["web2"])
        another = {"fun": "test.ping", "tgt": ["web3"], "tgt_type": "list", "arg": [], "user": "sudo_anna"}
        job_cache.save_load(JID, another, minions=["web3"])
        job_cache.save_load(JID, {"fun": "forged", "Minions": ["evil"]})
        assert job_cache.get_load(JID) == {**LOAD, "Minions": ["web1", "web2", "web3"]}
        now = job_cache.fetch("jobs/published", JID)
        assert now.pop("last") > published["at"]
        assert now.pop("added") == ["web3"]
        assert now == published

    def test_minions_that_no_publish_named_are_distinguished_from_the_others(self, job_cache):
        job_cache.save_minions(JID, ["early"])
        job_cache.save_load(JID, LOAD, minions=["web1"])
        job_cache.save_minions(JID, ["web1", "late", "../../etc", 7, "later"], syndic_id="syndic1")
        job_cache.save_load(JID, LOAD, minions=["later"])
        assert job_cache.fetch("jobs/published", JID)["added"] == ["early", "late"]
        assert job_cache.get_load(JID)["Minions"] == ["early", "late", "later", "web1"]
        job_cache.save_load(JID, LOAD, minions=["early", "late"])
        assert "added" not in job_cache.fetch("jobs/published", JID)

    def test_secrets_are_not_stored_and_the_load_in_use_is_not_touched(self, job_cache):
        secrets = {"token": "s3cret", "password": "s3cret", "key": "s3cret"}
        load = {**LOAD, **secrets, "eauth": "pam", "username": "anna", "kwargs": {**secrets, "metadata": {"a": 1}}}
        given = {**load, "kwargs": dict(load["kwargs"])}
        job_cache.save_load(JID, load, minions=["web1"])
        job_cache.save_load(OLD, load)
        assert load == given
        for jid in (JID, OLD):
            stored = job_cache.get_load(jid)
            assert "s3cret" not in repr(stored)
            assert (stored["eauth"], stored["username"], stored["user"]) == ("pam", "anna", "sudo_anna")
            assert stored["kwargs"] == {"metadata": {"a": 1}}

    def test_a_load_that_took_the_place_of_the_published_one_is_not_believed(self, job_cache, opts, caplog):
        job_cache.save_load(JID, LOAD, minions=["web1"])
        salt.cache.Cache(opts).store("jobs/loads", JID, {**LOAD, "fun": "cmd.run", "arg": ["evil"]})
        assert job_cache.get_load(JID) == {}
        assert JID in caplog.text and "not believed" in caplog.text
        job_cache.save_load(JID, LOAD, minions=["web2"])
        assert job_cache.get_load(JID) == {**LOAD, "Minions": ["web1", "web2"]}

    @pytest.mark.parametrize("spoilt", ["text", {"web1": 1}, [1, None, "web2"], {"at": "x"}])
    def test_a_load_is_shown_whatever_is_stored_beside_it(self, job_cache, opts, spoilt):
        cache = salt.cache.Cache(opts)
        for bank in ("jobs/minions", "jobs/published"):
            job_cache.save_load(JID, LOAD, minions=["web1"])
            cache.store(bank, JID, spoilt)
            assert job_cache.get_load(JID)["fun"] == "state.apply"
            job_cache.save_minions(JID, ["web2"])
            job_cache.save_load(JID, LOAD, minions=["web1"])
            assert job_cache.get_load(JID) == {**LOAD, "Minions": ["web1", "web2"]}

    def test_one_process_reads_at_once_what_another_has_stored(self, opts):
        one, other = Store(opts), Store(opts)
        for number in range(30):
            key = str(number)
            one.store("jobs/loads", key, {"number": number})
            assert other.contains("jobs/loads", key)
            assert other.fetch("jobs/loads", key) == {"number": number}
            assert not other.driver.store_new("jobs/loads", key, {"number": -1})
            other.store("jobs/loads", key, {"number": number + 1})
            assert one.fetch("jobs/loads", key) == {"number": number + 1}
            one.driver.flush("jobs/loads", key)
            assert not other.contains("jobs/loads", key)
            assert other.fetch("jobs/loads", key) == {}

    def test_processes_that_publish_and_return_at_once_mix_nothing_up(self, job_cache):
        job_cache.get_load(JID)
        jids = [f"2026051612000000{number:04}" for number in range(12)]

        def work(number):
            for jid in jids:
                if number == 0:
                    job_cache.save_load(jid, {**LOAD, "jid": jid}, minions=["web0"])
                else:
                    job_cache.save_load(jid, {"fun": "forged", "id": f"web{number}", "jid": jid, "return": 1})
                    job_cache.save_minions(jid, [f"web{number}"])
                    job_cache.returner(a_return(f"web{number}", jid))

        assert in_processes(4, work) == [None] * 4
        for jid in jids:
            minions = ["web0", "web1", "web2", "web3"]
            assert job_cache.get_load(jid) == {**LOAD, "jid": jid, "Minions": minions}
            assert sorted(job_cache.get_jid(jid)) == minions[1:]

    def test_a_hostile_id_is_refused_everywhere_and_nothing_is_written(self, job_cache, opts, caplog):
        job_cache.store.quiet = lines.Quiet(LOG, itertools.count(step=lines.PAUSE).__next__)  # which says each warning

        def written():
            found = []
            for folder, _, files in os.walk(os.path.dirname(opts["cachedir"])):
                found += [os.path.join(folder, name) for name in files if "salt_cache.locks" not in folder]
            cache = salt.cache.Cache(opts)
            banks = ("loads", "minions", "endtimes", "nocache", "published", f"returns/{JID}")
            return sorted(found), [sorted(cache.list(f"jobs/{bank}")) for bank in banks]

        job_cache.get_load(JID)  # a driver with one file makes it when it is first asked
        before = written()
        for hostile in HOSTILE:
            refusals = [
                (lambda bad: job_cache.returner(a_return(bad)), False),
                (lambda bad: job_cache.returner(a_return("web1", bad)), False),
                (lambda bad: job_cache.save_load(bad, LOAD, minions=["web1"]), None),
                (lambda bad: job_cache.save_load(bad, LOAD), None),
                (lambda bad: job_cache.save_minions(bad, ["web1"]), None),
                (lambda bad: job_cache.update_endtime(bad, "now"), None),
                (lambda bad: job_cache.get_load(bad), {}),
                (lambda bad: job_cache.get_jid(bad), {}),
                (lambda bad: job_cache.get_endtime(bad), None),
            ]
            if hostile:  # none and the empty one ask for a new jid
                refusals.append((lambda bad: job_cache.prep_jid(nocache=True, passed_jid=bad), None))
            if hostile is not None:
                refusals.append((lambda bad: job_cache.save_minions(JID, ["web1"], syndic_id=bad), None))
            for call, answer in refusals:
                caplog.clear()
                assert call(hostile) == answer, hostile
                assert "Refusing" in caplog.text, hostile
        assert written() == before

    def test_ids_that_look_alike_stay_apart(self, job_cache):
        ids = "ABC abc é e E ß ss a?b a#b a%41 a=41 a+b a&b _x x x.tstamp x.p top to stop. ends.pp 日本 a:b 'a' $KEYS_ * ~"
        ids = [*ids.split(), "a b", "a b "]
        for number, name in enumerate(ids):
            assert job_cache.returner(a_return(name, value=number)) is None, name
            job_cache.save_load(f"{name}-job" if number % 2 else name, {**LOAD, "user": name}, minions=[name])
        returned = job_cache.get_jid(JID)
        assert {name: record["return"] for name, record in returned.items()} == {n: i for i, n in enumerate(ids)}
        jobs = {(f"{name}-job" if number % 2 else name): name for number, name in enumerate(ids)}
        assert {jid: job["User"] for jid, job in job_cache.get_jids().items()} == jobs
        for jid, name in jobs.items():
            assert job_cache.get_load(jid) == {**LOAD, "user": name, "Minions": [name]}

    def test_a_long_id_is_stored_whole_or_refused(self, job_cache, caplog):
        job_cache.store.quiet = lines.Quiet(LOG, itertools.count(step=lines.PAUSE).__next__)  # which says each warning
        for length in (60, 64, 65, 200, 242, 243, 253, 254, 255):
            for end in ("a", "b"):
                name = "m" * (length - 1) + end
                caplog.clear()
                answer = job_cache.returner(a_return(name, value=end))
                assert answer is None or (answer is False and "Refusing" in caplog.text)
                stored = job_cache.get_jid(JID)
                assert stored[name]["return"] == end if answer is None else name not in stored

    def test_jobs_are_listed_with_their_end_and_a_malformed_one_hides_no_other(self, opts):
        job_cache = Returner({**opts, "job_cache_store_endtime": True})
        job_cache.save_load(JID, LOAD, minions=["web1"])
        job_cache.save_load("20260516-special", LOAD, minions=["web1"])
        job_cache.update_endtime(JID, "2026, May 16 12:00:01.000000")
        assert job_cache.get_endtime(JID) == "2026, May 16 12:00:01.000000"
        job_cache.save_load("20260599-deploy-prod", LOAD, minions=[])  # 20 characters and no month
        job_cache.save_load("odd", {"fun": "x", "arg": None, "kwargs": None}, minions=[])
        jobs = job_cache.get_jids()
        assert set(jobs) == {JID, "20260516-special", "20260599-deploy-prod", "odd"}
        assert jobs[JID] == {
            "Function": "state.apply",
            "Arguments": LOAD["arg"],
            "User": "sudo_anna",
            "Target": "web*",
            "Target-type": "glob",
            "Metadata": {"ticket": "OPS-1"},
            "StartTime": "2026, May 16 12:00:00.000000",
            "EndTime": "2026, May 16 12:00:01.000000",
        }
        assert "EndTime" not in jobs["20260516-special"]
        assert len(job_cache.get_jids_filter(10)) == 4

    def test_the_newest_jobs_are_picked(self, job_cache):
        jids = [f"202605161200000000{number:02}" for number in range(30)]
        for number, jid in enumerate(jids):
            fun = "saltutil.find_job" if number in (28, 25) else "test.ping"
            job_cache.save_load(jid, {**LOAD, "fun": fun}, minions=[])
        job_cache.save_load("deploy", LOAD, minions=[])  # sorts after all times
        newest = job_cache.get_jids_filter(4)
        assert [job["JID"] for job in newest] == [jids[26], jids[27], jids[29], "deploy"]
        assert newest[0]["StartTime"] and newest[0]["Function"] == "test.ping"
        assert [job["JID"] for job in job_cache.get_jids_filter(3, filter_find_job=False)] == [*jids[28:], "deploy"]
        assert len(job_cache.get_jids_filter(100)) == 29
        assert job_cache.get_jids_filter(0) == []

    def test_an_old_job_is_removed_with_all_that_belongs_to_it(self, job_cache, opts):
        fresh = now_jid(3590)
        for jid in (OLD, "20260516-special", "no-time", fresh):
            job_cache.prep_jid(nocache=jid == "no-time", passed_jid=jid)
            job_cache.save_load(jid, LOAD, minions=["web1"])
            job_cache.returner(a_return("web1", jid))
            job_cache.update_endtime(jid, "now")
        job_cache.clean_old_jobs()
        assert len(job_cache.get_jids()) == 4, "written just now, whatever their jid says"
        job_cache.sweep_in(3700)
        assert list(job_cache.get_jids()) == [fresh]
        assert list(job_cache.get_jid(fresh)) == ["web1"]
        cache = salt.cache.Cache(opts)
        for bank in ("loads", "minions", "endtimes", "published"):
            assert [key for key in cache.list(f"jobs/{bank}") if key != fresh] == []
        assert cache.list("jobs/nocache") == []
        for jid in (OLD, "20260516-special", "no-time"):
            assert not job_cache.get_jid(jid)
        assert set(cache.list("jobs/returns")) <= {fresh}

    def test_no_job_is_removed_that_an_engine_still_needs(self, job_cache, opts):
        bench, batches = Bench(jid=JID, minions="a"), BatchStore(opts)
        bench.keep(batches)
        queue = queue_of(opts)
        queue.write(changes({OLD: {"published_at": 1.0, "load": LOAD}}))
        for jid in (OLD, JID, "20260516-special"):
            job_cache.save_load(jid, LOAD, minions=["web1"])
        job_cache.sweep_in(3700)
        assert sorted(job_cache.get_jids()) == sorted([OLD, JID])
        bench.keep(batches, ended=True)
        queue.write(changes({OLD: None}))
        job_cache.sweep_in(3700)
        assert job_cache.get_jids() == {}

    def test_records_without_a_load_are_removed_once_they_are_old(self, job_cache, opts):
        job_cache.returner(a_return("web1", OLD))
        job_cache.prep_jid(nocache=True, passed_jid="marker")
        job_cache.update_endtime("ended", "now")
        job_cache.save_minions("listed", ["web1"])
        job_cache.save_load("published", LOAD, minions=["web1"])
        for bank in ("jobs/loads", "jobs/minions"):
            salt.cache.Cache(opts).flush(bank, "published")
        job_cache.clean_old_jobs()
        assert list(job_cache.get_jid(OLD)) == ["web1"]
        assert job_cache.fetch("jobs/nocache", "marker") is True
        job_cache.sweep_in(3700)
        assert job_cache.get_jid(OLD) == {}
        cache = salt.cache.Cache(opts)
        assert [cache.list(f"jobs/{bank}") for bank in ("nocache", "endtimes", "minions", "published")] == [[]] * 4

    def test_a_recent_publish_is_known_if_its_jid_is_of_the_last_two_days_or_tells_no_time(self, job_cache):
        began = time.time() - 1
        jids = {now_jid(0), jid_at(time.time() - 47 * 3600), "20260516-special"}
        for jid in (*jids, jid_at(time.time() - 49 * 3600)):
            job_cache.save_load(jid, LOAD, minions=["web1"])
        known = JobCache({**job_cache.opts, "master_job_cache": "salt_cache"})
        assert set(known.published_since(began)) == jids
        assert known.published_since(time.time() + 60) == []

    def test_zero_keeps_every_job(self, opts, monkeypatch):
        job_cache = Returner({**opts, "keep_jobs_seconds": 0})
        job_cache.save_load(OLD, LOAD, minions=["web1"])
        later = time.time() + 3600 * 24 * 365
        monkeypatch.setattr(time, "time", lambda: later)
        job_cache.clean_old_jobs()
        assert list(job_cache.get_jids()) == [OLD]

    def test_the_oldest_jobs_are_removed_if_there_are_too_many(self, opts):
        job_cache = Returner({**opts, "salt_cache": {"max_jobs": 3}, "keep_jobs_seconds": 0})
        jids = [f"202605161200000000{number:02}" for number in range(8)]
        for jid in ("deploy", *jids):
            job_cache.save_load(jid, LOAD, minions=["web1"])
            job_cache.returner(a_return("web1", jid))
        job_cache.clean_old_jobs()
        assert len(job_cache.get_jids()) == 9, "each may be running"
        trim(job_cache.store, time.time() + 3700)
        assert set(job_cache.get_jids()) == {*jids[-2:], "deploy"}
        assert job_cache.get_jid(jids[0]) == {} and list(job_cache.get_jid("deploy")) == ["web1"]
        trim(job_cache.store, time.time() + 3700)
        assert len(job_cache.get_jids()) == 3


class ServerContract(Contract):
    """What is asked of a driver with a server besides."""

    def test_a_server_that_is_away_causes_an_error_that_names_it(self, cache_servers, opts):  # noqa: F811
        job_cache = Returner(opts)
        job_cache.save_load(JID, LOAD, minions=["web1"])
        job_cache.store.driver.patience = 0.1
        server = cache_servers(self.driver)
        server.stop()
        try:
            with pytest.raises(SaltCacheError, match=f"{self.driver}.*jobs/published.*{JID}"):
                job_cache.get_load(JID)
        finally:
            server.start()
        assert job_cache.get_load(JID)["fun"] == "state.apply"

    def test_a_frozen_server_is_an_error_in_time_and_holds_no_lock(self, cache_servers, opts):  # noqa: F811
        job_cache = Returner(opts)
        job_cache.save_load(JID, LOAD, minions=["web1"])
        server, store = cache_servers(self.driver), job_cache.store
        server.freeze()
        try:
            began = time.monotonic()
            with pytest.raises(Outage, match=f"{self.driver}.*{JID}"):
                job_cache.returner(a_return("web1"))
            assert time.monotonic() - began < stretched(4 * drivers.OUTAGE_SECONDS)
            with store.lock(JID, "web1"):
                pass
        finally:
            server.thaw()

        def returned():  # before, or now: the server may have taken what it was sent while it was frozen
            with contextlib.suppress(Outage):
                job_cache.returner(a_return("web1"))
                return list(job_cache.get_jid(JID))

        assert wait_for(returned, what="the server is used again") == ["web1"]

    def test_a_short_outage_is_ridden_out(self, cache_servers, opts):  # noqa: F811
        job_cache = Returner(opts)
        job_cache.save_load(JID, LOAD, minions=["web1"])
        job_cache.store.driver.patience = stretched(SOON)  # in which any server starts
        server = cache_servers(self.driver)
        server.stop()
        back = threading.Timer(0.7, server.start)
        back.start()
        try:
            assert job_cache.returner(a_return("web1")) is None
        finally:
            back.join(stretched(SOON))
        assert list(job_cache.get_jid(JID)) == ["web1"]


@pytest.mark.story  # Salt's own drivers differ between the releases
class TestLocalfs(Contract):
    driver = "localfs"

    def test_a_replay_keeps_the_job_for_its_full_time_again(self, job_cache, opts):
        for jid in (OLD, "20200101000000000001"):
            job_cache.save_load(jid, LOAD, minions=["web1"])
            for bank in ("loads", "minions", "published"):
                os.utime(os.path.join(opts["cachedir"], "jobs", bank, f"{jid}.p"), (1, 1))
        job_cache.save_load(OLD, LOAD, minions=["web1"])
        job_cache.clean_old_jobs()
        assert list(job_cache.get_jids()) == [OLD]

    def test_an_unreadable_record_does_not_hide_the_others(self, job_cache, opts, caplog):
        for minion in ("web1", "web2"):
            job_cache.returner(a_return(minion))
        job_cache.save_load(JID, LOAD, minions=["web1"])
        job_cache.save_load(OLD, LOAD, minions=["web1"])
        for name in (f"returns/{JID}/web1.p", f"loads/{OLD}.p"):
            with open(os.path.join(opts["cachedir"], "jobs", name), "wb") as record:
                record.write(b"\xc1broken")
        assert list(job_cache.get_jid(JID)) == ["web2"]
        path = os.path.join(opts["cachedir"], "jobs", "minions", f"{JID}.p")
        os.unlink(path)
        os.mkdir(path)  # stands for any error that is none of the record's own
        assert list(job_cache.get_jids()) == [row["JID"] for row in search(Store(opts), Query())["jobs"]] == [JID]
        assert "Skipped in the job cache" in caplog.text

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for somebody else")
    def test_files_that_root_writes_belong_to_the_user_of_the_master(self, opts):
        os.chown(opts["cachedir"], 65534, 65534)
        job_cache = Returner(opts)
        job_cache.save_load(JID, LOAD, minions=["web1"])
        job_cache.returner(a_return("web1"))
        for folder, folders, files in os.walk(opts["cachedir"]):
            for name in [*folders, *files]:
                assert os.lstat(os.path.join(folder, name)).st_uid == 65534, (folder, name)

    @pytest.mark.parametrize("damaged", [b"", b"\xc1"])
    def test_a_damaged_record_is_healed_by_what_comes_next(self, job_cache, opts, damaged):
        def damage(name):
            with open(os.path.join(opts["cachedir"], "jobs", f"{name}.p"), "wb") as record:
                record.write(damaged)

        job_cache.save_load(JID, {"fun": "early", "id": "web1"})
        damage(f"loads/{JID}")
        job_cache.save_load(JID, {"fun": "test.ping", "id": "web1"})
        assert job_cache.get_load(JID)["fun"] == "test.ping"
        job_cache.returner(a_return("web1", value="lost"))
        damage(f"returns/{JID}/web1")
        assert job_cache.returner(a_return("web1", value="whole")) is None
        assert job_cache.get_jid(JID)["web1"]["return"] == "whole"
        for name in ("loads", "minions", "published"):
            job_cache.save_load(JID, LOAD, minions=["web1"])
            damage(f"{name}/{JID}")
            job_cache.get_load(JID)
            job_cache.save_minions(JID, ["web1"])
            job_cache.save_load(JID, LOAD, minions=["web1"])
            assert job_cache.get_load(JID) == {**LOAD, "Minions": ["web1"]}

    def test_a_record_that_cannot_be_read_is_an_error_and_is_not_overwritten(self, job_cache, opts):
        job_cache.save_load(JID, LOAD, minions=["web1"])
        path = os.path.join(opts["cachedir"], "jobs", "loads", f"{JID}.p")
        os.rename(path, f"{path}.kept")
        os.mkdir(path)  # stands for any error that is none of the record's own
        with pytest.raises(SaltCacheError, match=f"localfs.*jobs/loads.*{JID}"):
            job_cache.save_load(JID, LOAD, minions=["web1"])
        assert os.listdir(path) == []

    def test_with_mmap_cache_the_jobs_are_in_files_too(self, job_cache, opts):
        job_cache.save_load(JID, LOAD, minions=["web1"])
        assert Returner({**opts, "cache": "mmap_cache"}).get_load(JID) == {**LOAD, "Minions": ["web1"]}

    def test_a_publish_survives_a_power_cut_that_takes_its_files(self, job_cache, opts, synced):
        job_cache.save_load(JID, LOAD, minions=["web1"])
        assert [os.path.basename(name) for name in synced] == ["jobs.sqlite-wal"]
        job_cache.returner(a_return("web1"))
        assert len(synced) == 1
        for bank in ("loads", "minions", "published"):
            os.unlink(f"{opts['cachedir']}/jobs/{bank}/{JID}.p")
        assert job_cache.get_load(JID) == {**LOAD, "Minions": ["web1"]}

    @pytest.mark.parametrize("wrong", [{"max_jbos": 3}, "all of it", 7, {"max_jobs": 0}, {"max_bytes": "20X"}])
    def test_a_wrong_option_is_named_and_the_defaults_count(self, opts, wrong, caplog):
        assert Store({**opts, "salt_cache": wrong}).limits == JobCacheSettings()
        assert "salt_cache is ignored: salt_cache" in caplog.text and "accepted" in caplog.text


class TestSqlite(Contract):
    driver = "sqlite"

    def test_the_oldest_jobs_are_removed_if_they_take_too_much_space(self, opts):
        job_cache = Returner({**opts, "salt_cache": {"max_bytes": "1M"}})
        jids = [f"202605161200000000{number:02}" for number in range(60)]
        for jid in jids:
            job_cache.save_load(jid, LOAD, minions=["web1"])
            job_cache.returner(a_return("web1", jid, os.urandom(50_000)))
        trim(job_cache.store, time.time())
        assert len(job_cache.get_jids()) == 60
        trim(job_cache.store, time.time() + 3700)
        left = sorted(job_cache.get_jids())
        assert 5 < len(left) < 25 and left == jids[-len(left) :]
        assert job_cache.store.driver.used_bytes() <= 2**20

    def test_a_publish_is_stored_whole_or_not_at_all(self, job_cache, opts):
        job_cache.save_load(OLD, LOAD, minions=["web1"])
        # What is stored between the load and the mark is refused.
        refuse = f"""CREATE TRIGGER refuse BEFORE INSERT ON {VALUES} WHEN NEW.key = '{JID}'
            AND NEW.bank = 'jobs/minions' BEGIN SELECT RAISE(ABORT, 'refused'); END"""
        path = os.path.join(opts["cachedir"], "cache.sqlite")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute(refuse)
            with pytest.raises(SaltCacheError, match=f"sqlite.*{JID}.*refused"):
                job_cache.save_load(JID, LOAD, minions=["web1"])
            other.execute("DROP TRIGGER refuse")
        assert [job_cache.fetch(bank, JID) for bank in ("jobs/loads", "jobs/published")] == [{}, {}]
        job_cache.save_load(JID, LOAD, minions=["web1"])
        assert job_cache.get_load(JID) == {**LOAD, "Minions": ["web1"]}

    def test_what_a_publish_stores_survives_a_power_cut(self, job_cache, opts, synced):
        job_cache.save_load(JID, LOAD, minions=["web1"])
        job_cache.returner(a_return("web1"))
        assert synced == [f"{opts['cachedir']}/cache.sqlite-wal"]


@pytest.mark.story
class TestRedis(ServerContract):
    driver = "redis"


class TestPostgresql(ServerContract):
    driver = "postgresql"

    def test_one_of_several_masters_with_the_same_return_stores_it(self, opts, tmp_path):
        masters = [Store({**opts, "cachedir": str(tmp_path / f"master{number}")}) for number in range(4)]
        for number in range(4):
            (tmp_path / f"master{number}").mkdir()
        jids = [f"2026051612000000{number:04}" for number in range(40)]

        def work(number):
            return [records.add_return(masters[number], jid, "web1", a_return("web1", jid, number)) for jid in jids]

        answers = in_processes(4, work)
        assert [sum(stored) for stored in zip(*answers, strict=True)] == [1] * len(jids)
        for number, jid in enumerate(jids):
            assert Returner(opts).get_jid(jid)["web1"]["return"] == [stored[number] for stored in answers].index(True)


@pytest.mark.story
@pytest.mark.slow
class TestMysql(ServerContract):
    driver = "mysql"

    def test_a_value_that_is_too_large_does_not_spoil_the_next(self, job_cache):
        job_cache.save_load(JID, LOAD, minions=["web1", "web2"])
        for size in (2_000_000, 15_000_000):
            began = time.monotonic()
            with contextlib.suppress(SaltCacheError):
                job_cache.returner(a_return("web1", value="x" * size))
            assert time.monotonic() - began < stretched(4 * drivers.OUTAGE_SECONDS)
        assert job_cache.returner(a_return("web2")) is None
        assert list(job_cache.get_jid(JID)) == ["web2"]


@pytest.mark.story
@pytest.mark.slow
class TestEtcd(ServerContract):
    driver = "etcd"
