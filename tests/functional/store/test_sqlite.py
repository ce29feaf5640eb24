"""The driver sqlite, loaded by Salt: what salt.cache asks of a driver, many writers, sudden deaths, full disks, damage."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import multiprocessing.connection
import os
import pathlib
import random
import resource
import shutil
import signal
import sqlite3
import string
import subprocess
import sys
import threading
import time

import pytest
import salt.cache
import salt.config
import salt.loader
import salt.payload
import salt.version
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from salt.exceptions import SaltCacheError

from saltext.jobs.core.disk.job_summary import job_marks
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.sqlite import schema
from saltext.jobs.core.sqlite.banks import banks_of
from saltext.jobs.core.sqlite.database import Database, database_at
from saltext.jobs.core.sqlite.mounts import remote_file_system
from tests.functional.store.test_contract import in_processes
from tests.open_files import open_files
from tests.waiting import SOON, stretched, wait_for

#: ``salt.cache`` differs between the releases. How the driver stores what it gets depends on none.
story = pytest.mark.story


def content_of(path):
    with open(path, "rb") as stream:
        return stream.read()


def dense(size):
    """A value that takes as many bytes in the file: it cannot be compressed."""
    return random.randbytes(size)


FORK = multiprocessing.get_context("fork")


class Pendulum:
    """A clock that a busy machine delays as it delays every thread that sleeps. It swings once in so many seconds."""

    def __init__(self, seconds):
        self._seconds, self._swings, self._ended = seconds, 0, False
        self._swung, self._thread = threading.Condition(), threading.Thread(target=self._swing)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._ended = True
        self._thread.join()

    def wait(self, swings):
        """Wait for so many swings."""
        with self._swung:
            end = self._swings + swings
            self._swung.wait_for(lambda: self._swings >= end)

    def _swing(self):
        while not self._ended:
            time.sleep(self._seconds)
            with self._swung:
                self._swings += 1
                self._swung.notify_all()


def _error_of(call):
    with pytest.raises(SaltCacheError) as told:
        call()
    return str(told.value)


def options(folder):
    own = {"cachedir": str(folder), "pki_dir": str(folder), "extension_modules": f"{folder}/ext", "cache": "sqlite"}
    return {**salt.config.DEFAULT_MASTER_OPTS, **own}


@pytest.fixture
def opts(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    return options(folder)


@pytest.fixture
def cache(opts):
    return salt.cache.Cache(opts)


@pytest.fixture
def path(opts):
    return os.path.join(opts["cachedir"], "cache.sqlite")


@story
class TestWhatSaltAsksOfADriver:
    @pytest.mark.parametrize("bank", ["grains", "minions/web1", "a/b/c", "/".join(string.ascii_letters)])
    def test_a_bank_holds_what_is_stored_in_it(self, cache, bank):
        assert not cache.contains(bank) and cache.list(bank) == []
        assert cache.fetch(bank, "key") == {} and cache.updated(bank, "key") is None
        value = {"some": "data", 42: "number", "other": {"sub": [1, None, 1.5, {"x": True}]}, "é": b"\xff\x00"}
        before = int(time.time())
        cache.store(bank, "key", "first")
        cache.store(bank, "key", value)
        assert before <= cache.updated(bank, "key") <= time.time()
        assert isinstance(cache.updated(bank, "key"), int)
        assert cache.fetch(bank, "key") == value
        assert cache.list(bank) == ["key"]
        assert cache.contains(bank) and cache.contains(bank, None) and cache.contains(bank, "key")
        assert not cache.contains(bank, "other") and not cache.contains("other", "key")

    def test_a_key_that_is_flushed_leaves_the_others_and_the_bank(self, cache):
        cache.store("bank", "one", 1)
        cache.store("bank", "two", 2)
        assert not cache.flush("bank", "three")
        cache.flush("bank", "one")
        assert cache.list("bank") == ["two"] and cache.updated("bank", "one") is None
        cache.flush("bank", "two")
        assert cache.list("bank") == [] and cache.contains("bank")
        cache.flush("bank")
        assert not cache.contains("bank")

    def test_a_parent_lists_its_banks_and_keys_and_takes_them_along(self, cache):
        for bank in ("jobs/returns/1", "jobs/returns/2", "jobs/loads", "jobs0/x", "jobs.d", "other"):
            cache.store(bank, "key", bank)
        cache.store("jobs", "key", 1)
        cache.store("jobs", "loads", 2)
        assert sorted(cache.list("jobs")) == ["key", "loads", "returns"]
        assert sorted(cache.list("jobs/returns")) == ["1", "2"]
        cache.flush("jobs/returns")
        assert cache.list("jobs/returns") == [] and cache.list("jobs/returns/1") == []
        assert sorted(cache.list("jobs")) == ["key", "loads"]
        cache.flush("jobs")
        assert not cache.contains("jobs") and cache.fetch("jobs/loads", "key") == {}
        assert [cache.fetch(bank, "key") for bank in ("jobs0/x", "jobs.d", "other")] == ["jobs0/x", "jobs.d", "other"]

    def test_a_bank_has_one_name(self, cache):
        cache.store("a/b", "key", 1)
        for name in ("/a/b", "a//b", "a/b/", "./a/./b"):
            assert cache.fetch(name, "key") == 1, name
        cache.store("a.b/c.d", "e.p", 2)
        assert cache.list("a.b/c.d") == ["e.p"]

    @pytest.mark.parametrize("bank", ["..", "a/../../b", "", "/", None, 7, ["a"]])
    def test_a_bank_that_leads_out_or_is_invalid_is_refused(self, cache, bank):
        for call in (lambda: cache.store(bank, "key", 1), lambda: cache.flush(bank), lambda: cache.list(bank)):
            with pytest.raises(SaltCacheError, match=r"sqlite.*bank"):
                call()

    @pytest.mark.parametrize(
        "key", ["a/b", "minion:env/../x", "", " ", "é", "a\0b", "'; DROP TABLE records; --", "x" * 5000]
    )
    def test_any_text_is_a_key(self, cache, key):
        cache.store("bank", key, 1)
        cache.store("bank", f"{key}-", 2)
        assert cache.fetch("bank", key) == 1 and sorted(cache.list("bank")) == sorted((key, f"{key}-"))
        assert cache.contains("bank", key)
        cache.flush("bank", key)
        assert cache.list("bank") == [f"{key}-"]

    def test_a_value_that_cannot_be_stored_is_an_error_and_the_old_value_stays(self, cache):
        cache.store("bank", "key", "old")
        for key, value in (("\ud800", 1), ("key", object())):
            with pytest.raises((SaltCacheError, Exception)):
                cache.store("bank", key, value)
        assert cache.fetch("bank", "key") == "old" and cache.list("bank") == ["key"]

    def test_a_value_is_recomputed_only_when_it_is_old(self, cache):
        assert cache.cache("bank", "key", lambda **kwargs: "made") == "made"
        assert cache.cache("bank", "key", lambda **kwargs: "again") == "made"
        assert cache.cache("bank", "key", lambda **kwargs: "again", expire=-1) == "again"
        for empty in ("", (), [], {}, 0, False, None):
            cache.store("bank", "key", empty)
            assert cache.cache("bank", "key", lambda **kwargs: "filled") == "filled"

    def test_salts_memcache_works_on_top_of_it(self, opts):
        cache = salt.cache.factory({**opts, "memcache_expire_seconds": 5})
        cache.store("bank", "key", {"x": 1})
        assert cache.fetch("bank", "key") == {"x": 1}
        assert salt.cache.Cache(opts).fetch("bank", "key") == {"x": 1}

    def test_another_cachedir_is_another_file(self, opts, cache, tmp_path):
        other = salt.cache.Cache({**opts, "sqlite_cache_path": str(tmp_path / "x.sqlite")}, cachedir=str(tmp_path))
        other.store("bank", "key", 1)
        assert cache.fetch("bank", "key") == {}
        assert os.path.exists(tmp_path / "cache.sqlite") and not os.path.exists(tmp_path / "x.sqlite")

    @pytest.mark.skipif(salt.version.__saltstack_version__.major < 3008, reason="came with Salt 3008")
    def test_an_expired_value_is_not_there(self, cache, opts, path):
        cache.store("tokens", "short", {"token": 1}, expires=1)
        cache.store("tokens", "long", {"token": 2}, expires=1000)
        cache.store("tokens", "ever", {"token": 3})
        assert cache.fetch("tokens", "short") == {"token": 1}
        assert cache.list_all("tokens", include_data=True) == {
            name: {"token": number} for name, number in {"ever": 3, "long": 2, "short": 1}.items()
        }
        wait_for(lambda: not cache.contains("tokens", "short"), what="the token has expired")
        assert cache.fetch("tokens", "short") == {} and cache.updated("tokens", "short") is None
        assert sorted(cache.list("tokens")) == ["ever", "long"]
        rows = "SELECT count(*) FROM records"
        assert database_at(path).read(rows) == [(3,)]
        cache.clean_expired("tokens")
        assert database_at(path).read(rows) == [(2,)]
        assert cache.fetch("tokens", "long") == {"token": 2}
        cache.store("tokens", "long", "for ever")
        assert banks_of(opts).store_new("tokens", "long", 1) is False

    @pytest.mark.parametrize(
        "wrong", [{"sqlite_cache_path": "x.sqlite"}, {"sqlite_cache_path": 7}, {"sqlite_cache_synchronous": "OFF"}]
    )
    def test_an_option_that_is_not_accepted_is_named(self, opts, wrong):
        ((name, value),) = wrong.items()
        with pytest.raises(SaltCacheError, match=f"{name} is {value!r}; accepted is"):
            salt.cache.Cache({**opts, **wrong}).fetch("bank", "key")


BANKS = st.sampled_from(["a", "a/b", "a/b/c", "a/bb", "b", "jobs/loads"])
KEYS = st.sampled_from(["1", "2", "b", "c", ""])
STEP = st.tuples(st.sampled_from(["store", "store", "store", "flush", "drop", "new"]), BANKS, KEYS, st.integers(0, 9))


@story
class TestAgainstADictionary:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(steps=st.lists(STEP, max_size=40))
    def test_any_row_of_calls_leaves_what_a_dictionary_would_hold(self, opts, cache, steps):
        banks, model, made = banks_of(opts), {}, set()
        for bank in ("a", "b", "jobs"):
            cache.flush(bank)
        for what, bank, key, value in steps:
            below = [name for name in made if name == bank or name.startswith(f"{bank}/")]
            if what == "store":
                cache.store(bank, key, value)
                model[bank, key] = value
                made.add(bank)
            elif what == "new":
                assert banks.store_new(bank, key, value) is ((bank, key) not in model)
                model.setdefault((bank, key), value)
                made.add(bank)
            elif what == "flush":
                assert cache.flush(bank, key) is ((bank, key) in model)
                model.pop((bank, key), None)
            else:
                assert cache.flush(bank) is bool(below)
                model = {place: kept for place, kept in model.items() if place[0] not in below}
                made.difference_update(below)
        for bank in ("a", "a/b", "a/b/c", "a/bb", "b", "jobs/loads"):
            keys = {key for name, key in model if name == bank}
            subs = {name[len(bank) + 1 :].partition("/")[0] for name in made if name.startswith(f"{bank}/")}
            assert sorted(cache.list(bank)) == sorted(keys | subs)
            assert cache.contains(bank) is (bank in made or bool(subs))
            assert {key: salt.payload.loads(data) for key, data in banks.items(bank)} == {
                k: model[bank, k] for k in keys
            }
            assert banks.present(bank, ["1", "2", "b", "c", "", "x"]) == keys
            for key in ("1", "2", "b", "c", ""):
                assert cache.fetch(bank, key) == model.get((bank, key), {})
                assert cache.contains(bank, key) is ((bank, key) in model)
        assert banks.is_sound()


@story
class TestTheFile:
    def test_the_file_is_private_and_small(self, cache, path):
        before = os.umask(0)
        try:
            cache.store("bank", "key", 1)
        finally:
            os.umask(before)
        names = [path + end for end in ("", "-wal", "-shm", ".lock")]
        assert {os.stat(name).st_mode & 0o777 for name in names} == {0o600}

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can write for somebody else")
    def test_a_file_that_root_creates_belongs_to_the_user_of_the_master(self, opts, path):
        os.chown(opts["cachedir"], 65534, 65534)
        salt.cache.Cache(opts).store("bank", "key", 1)
        for end in ("", "-wal", "-shm", ".lock"):
            found = os.stat(path + end)
            assert (found.st_uid, found.st_gid) == (65534, 65534), end

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_a_user_who_may_not_read_it_gets_an_error_and_no_empty_answer(self, opts, cache, tmp_path):
        for folder in (opts["cachedir"], tmp_path, *tmp_path.parents):
            if os.stat(folder).st_mode & 0o055 == 0:
                os.chmod(folder, 0o755)
        cache.store("bank", "key", 1)

        def as_nobody(_):
            os.setgid(65534)
            os.setuid(65534)
            try:
                return cache.fetch("bank", "key")
            except SaltCacheError as exc:
                return str(exc)

        (found,) = in_processes(1, as_nobody)
        assert "is private to the user that the master runs as (uid 0); this process is of another (uid 65534)" in found

    def test_a_forked_process_leaves_the_connections_of_all_threads(self, opts, cache, monkeypatch):
        banks, is_open, is_over = banks_of(opts), threading.Event(), threading.Event()
        seen = []
        monkeypatch.setattr(sys, "unraisablehook", seen.append)  # gets what a hook of a fork raises
        thread = threading.Thread(target=lambda: (banks.keys("bank"), is_open.set(), is_over.wait()))
        thread.start()
        assert is_open.wait(stretched(SOON))
        cache.store("bank", "key", 1)
        (found,) = in_processes(1, lambda _: ([str(told.exc_value) for told in seen], banks.fetch("bank", "key")))
        is_over.set()
        thread.join()
        assert found == ([], 1)

    def test_a_file_of_something_else_is_refused_and_left_alone(self, opts, path):
        for content in (b"[main]\nkey = value\n" * 500, None):
            if content is None:
                with contextlib.closing(sqlite3.connect(path)) as sql:
                    sql.execute("CREATE TABLE theirs (x)")
                content = content_of(path)
            else:
                with open(path, "wb") as stream:
                    stream.write(content)
            with pytest.raises(SaltCacheError, match=r"cache\.sqlite is (no database|a database of another program)"):
                salt.cache.Cache(opts).store("bank", "key", 1)
            assert content_of(path) == content
            os.unlink(path)

    def test_a_file_of_another_version_is_refused(self, opts, cache, path):
        cache.store("bank", "key", 1)
        with contextlib.closing(sqlite3.connect(path)) as sql:
            sql.execute(f"PRAGMA user_version={schema.VERSION + 1}")
        (found,) = in_processes(1, lambda _: Database(path).read("SELECT 1"))
        assert f"is of format {schema.VERSION + 1}" in found and f"knows {schema.VERSION}: install the version" in found
        with contextlib.closing(sqlite3.connect(path)) as sql:
            assert sql.execute("SELECT value FROM records").fetchall() == [(salt.payload.dumps(1),)]

    def test_a_link_in_its_place_is_not_followed(self, opts, path, tmp_path):
        os.symlink(tmp_path / "target", path)
        with pytest.raises(SaltCacheError, match="is a link"):
            salt.cache.Cache(opts).store("bank", "key", 1)
        assert not os.path.exists(tmp_path / "target")

    @pytest.mark.parametrize(
        ("folder", "kind"),
        [
            ("/var/cache/salt/master", "nfs4"),
            ("/var/cache", None),
            ("/var/cache/saltier", None),
            ("/mnt/a b/c", "cifs"),
        ],
    )
    def test_a_network_file_system_is_known_by_its_mount(self, folder, kind):
        mounts = "/dev/sda1 / ext4 rw 0 0\nserver:/x /var/cache/salt nfs4 rw 0 0\n//s/x /mnt/a\\040b cifs rw 0 0\n"
        assert remote_file_system(folder, mounts) == kind

    def test_a_network_file_system_is_refused(self, path):
        far = Database(path, mounts=lambda: "server:/x / nfs rw 0 0\n")
        with pytest.raises(StateError, match=r"network file system \(nfs\).*sqlite_cache_path"):
            far.read("SELECT 1")

    def test_an_sqlite_that_is_too_old_is_refused(self, cache, monkeypatch):
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 23, 1))
        monkeypatch.setattr(sqlite3, "sqlite_version", "3.23.1")
        with pytest.raises(SaltCacheError, match=r"needs SQLite 3\.24 or later, and this Python has 3\.23\.1"):
            cache.store("bank", "key", 1)

    def test_a_directory_that_was_chosen_and_is_not_there_is_not_made(self, opts, tmp_path):
        """Its disk may not be mounted: what was begun in its place would be missed later."""
        own = {**opts, "sqlite_cache_path": str(tmp_path / "disk" / "salt" / "cache.sqlite")}
        with pytest.raises(SaltCacheError, match="disk/salt, is not there: mount its disk, or make it"):
            salt.cache.Cache(own).store("bank", "key", 1)
        assert not (tmp_path / "disk").exists()
        (tmp_path / "disk" / "salt").mkdir(parents=True)
        salt.cache.Cache(own).store("bank", "key", 1)
        assert salt.cache.Cache(own).fetch("bank", "key") == 1

    def test_a_file_that_is_taken_away_is_begun_anew(self, cache, path):
        cache.store("bank", "key", 1)
        for end in ("", "-wal", "-shm"):
            os.unlink(path + end)
        assert cache.fetch("bank", "key") == {}
        cache.store("bank", "key", 2)
        assert cache.fetch("bank", "key") == 2


class TestManyWriters:
    def test_eight_processes_lose_nothing(self, cache, opts):
        cache.store("jobs/loads", "0", {})  # the parent has it open: its connection must not be used by the others

        def work(number):
            for turn in range(60):
                cache.store("jobs/loads", f"{number}-{turn}", {"fun": "test.ping", "turn": turn})
                cache.store(f"jobs/returns/{turn}", f"web{number}", number)
                cache.fetch("jobs/loads", f"{(number + 1) % 8}-{turn}")

        assert in_processes(8, work) == [None] * 8
        assert len(cache.list("jobs/loads")) == 8 * 60 + 1
        for turn in range(60):
            assert sorted(cache.list(f"jobs/returns/{turn}")) == [f"web{number}" for number in range(8)]
        assert banks_of(opts).is_sound()

    def test_processes_that_begin_the_file_together_make_one(self, opts):
        files = [{**opts, "sqlite_cache_path": f"{opts['cachedir']}/{attempt}.sqlite"} for attempt in range(10)]
        together = FORK.Barrier(6)

        def work(number):
            for own in files:
                together.wait(stretched(SOON))
                banks_of(own).store("bank", str(number), number)

        assert in_processes(6, work) == [None] * 6
        for own in files:
            assert sorted(salt.cache.Cache(own).list("bank")) == [str(number) for number in range(6)]

    def test_a_writer_waits_for_a_slow_one(self, opts, cache):
        banks = banks_of(opts)
        cache.store("bank", "key", 0)
        begun, was_read, order = threading.Event(), threading.Event(), []

        def slow():
            with banks.transaction():
                banks.store("bank", "slow", 1)
                begun.set()
                was_read.wait(stretched(SOON))
                time.sleep(0.5)  # in which the other one comes
                order.append("slow")

        thread = threading.Thread(target=slow)
        thread.start()
        begun.wait(stretched(SOON))
        assert cache.list("bank") == ["key"], "who reads does not wait, and sees no half of it"
        was_read.set()
        cache.store("bank", "key", 1)
        order.append("the other")
        thread.join()
        assert order == ["slow", "the other"]
        assert sorted(cache.list("bank")) == ["key", "slow"]

    def test_a_writer_gets_its_turn_between_the_writes_of_a_busy_one(self, opts, cache):
        banks, pendulum = banks_of(opts), Pendulum(0.002)
        cache.store("bank", "key", 0)
        turns, held, ended = [0], threading.Event(), threading.Event()

        def write():
            while not ended.is_set():
                with banks.transaction():
                    banks.store("bank", "busy", turns[0])
                    turns[0] += 1
                    held.set()
                    pendulum.wait(30)
                held.clear()
                pendulum.wait(3)

        with pendulum:
            thread = threading.Thread(target=write)
            thread.start()
            missed = 0
            for number in range(20):
                held.wait(stretched(SOON))
                before = turns[0]
                cache.store("bank", "key", number)
                missed += turns[0] - before
            ended.set()
            thread.join()
        assert missed <= 40, "a writer that tried ten times a second, as SQLite itself does, would miss 100"

    def test_the_log_stays_small_and_is_small_again_once_old_readers_have_ended(self, cache, path):
        def size():
            return os.stat(f"{path}-wal").st_size

        def write(count):
            for number in range(count):
                cache.store("bank", str(number % 30), dense(100_000))

        wait_for(lambda: write(30) or size() > 8 << 20, what="the log has been filled")
        wait_for(lambda: write(30) or size() < 9 << 20, what="the log has been begun anew")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM records").fetchone() == (30,)
            write(400)
            assert size() > 30 << 20
            assert reader.execute("SELECT count(*) FROM records").fetchone() == (30,)
        wait_for(lambda: write(1) or size() < 9 << 20, what="it has been begun anew")

    def test_the_log_starts_again_though_there_is_always_a_reader(self, opts, cache, path):
        cache.store("bank", "key", 0)
        begun, ended = FORK.Barrier(2), FORK.Event()

        def read():
            """Again and again one reader begins before the other ends."""
            both = [sqlite3.connect(path, isolation_level=None) for _ in range(2)]
            for turn in itertools.count():
                sql = both[turn % 2]
                sql.execute("BEGIN")
                sql.execute("SELECT count(*) FROM records").fetchone()
                if turn == 1:
                    begun.wait(stretched(SOON))
                time.sleep(0.02)
                if both[(turn + 1) % 2].in_transaction:
                    both[(turn + 1) % 2].execute("COMMIT")
                if ended.is_set():
                    return

        reading = FORK.Process(target=read)
        reading.start()
        begun.wait(stretched(SOON))

        def beginning():
            """SQLite gives each beginning of the log two other numbers."""
            with open(f"{path}-wal", "rb") as file:
                return file.read(24)[16:]

        numbers = itertools.count()

        def write_and_look(before):
            for number in itertools.islice(numbers, 100):
                cache.store("bank", str(number % 30), dense(100_000))
            return beginning() != before

        for _ in range(2):
            before = beginning()
            wait_for(lambda before=before: write_and_look(before), what="the log has been begun anew")
        ended.set()
        reading.join(stretched(SOON))

    def test_an_endless_reader_keeps_writers_waiting_for_a_second_at_times(self, cache, path):
        cache.store("bank", "key", 0)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM records").fetchone()
            waits = []
            for number in range(1500):
                began = time.monotonic()
                cache.store("bank", str(number % 30), dense(100_000))
                waits.append(time.monotonic() - began)
        assert os.stat(f"{path}-wal").st_size > 100 << 20
        assert max(waits) < stretched(5) and sum(wait > 0.9 for wait in waits) <= stretched(4), sorted(waits)[-5:]

    def test_a_write_that_is_interrupted_as_it_begins_holds_up_no_other(self, opts, path, monkeypatch):
        class Interrupted(sqlite3.Connection):
            left = 1

            def execute(self, sql, *values):
                if self.in_transaction and self.left:
                    Interrupted.left = 0
                    raise KeyboardInterrupt
                return super().execute(sql, *values)

        own = {**opts, "sqlite_cache_path": f"{opts['cachedir']}/other.sqlite"}
        assert in_processes(1, lambda _: salt.cache.Cache(own).store("bank", "key", 0)) == [None]
        monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Interrupted))
        cache = salt.cache.Cache(own)
        with pytest.raises(KeyboardInterrupt):
            cache.store("bank", "key", 1)
        cache.store("bank", "key", 2)
        assert in_processes(1, lambda _: cache.store("bank", "other", 3)) == [None]
        assert sorted(cache.list("bank")) == ["key", "other"]

    def test_a_look_for_expired_records_neither_holds_up_nor_waits_for_other_processes(self, opts, cache):
        banks = banks_of(opts)
        for number in range(1200):
            banks.store("tokens", str(number), number, expires=0.001 if number % 2 else 1000)
        wait_for(lambda: len(banks.keys("tokens")) == 600, what="half of them have expired")
        assert banks.clean_expired("tokens") == 600 and len(banks.keys("tokens")) == 600
        begun, ended = threading.Event(), threading.Event()

        def slow():
            with banks.transaction():
                banks.store("bank", "slow", 1)
                begun.set()
                ended.wait(stretched(SOON))

        thread = threading.Thread(target=slow)
        thread.start()
        begun.wait(stretched(SOON))
        try:
            assert banks.clean_expired("tokens") == 0 and not ended.is_set()
        finally:
            ended.set()
            thread.join()

    def test_a_block_that_fails_leaves_nothing(self, opts, cache):
        banks = banks_of(opts)
        with pytest.raises(RuntimeError), banks.transaction():
            banks.store("bank", "key", 1)
            banks.flush("other")
            raise RuntimeError
        assert not cache.contains("bank")
        cache.store("bank", "key", 2)
        assert cache.fetch("bank", "key") == 2

    def test_threads_that_end_leave_no_file_open(self, cache, tmp_path):
        cache.store("bank", "key", 1)
        before = len(open_files(tmp_path))
        for _ in range(30):
            thread = threading.Thread(target=cache.fetch, args=("bank", "key"))
            thread.start()
            thread.join()
        assert 0 < before <= len(open_files(tmp_path)) <= before + 9

    @pytest.mark.parametrize("seed", range(3))
    def test_a_confirmed_write_of_a_killed_writer_is_there(self, opts, cache, seed, tmp_path):
        """Each writer notes in a pipe what has been stored; the pipes outlive it."""
        chance, banks = random.Random(seed), banks_of(opts)
        cache.store("bank", "first", 1)
        told = {}
        for round_ in range(6):
            writers = []
            for number in range(3):
                reading, writing = os.pipe()
                process = FORK.Process(target=_write_for_ever, args=(banks, writing, f"{round_}.{number}"))
                process.start()
                os.close(writing)
                writers.append((process, reading))
            assert all(multiprocessing.connection.wait([reading], stretched(SOON)) for _, reading in writers), (
                "each has begun"
            )
            time.sleep(chance.uniform(0.01, 0.08))
            for process, _ in writers:
                os.kill(process.pid, signal.SIGKILL)
            for process, reading in writers:
                process.join(stretched(SOON))
                with os.fdopen(reading) as stream:
                    for line in stream.read().split("\n")[:-1]:
                        key, value = line.split(" ")
                        told[key] = int(value)
            for key, value in told.items():
                found = banks.fetch("bank", key)
                assert found in (value, value + 7), key  # the next one may have been stored, and not been told of
                assert banks.fetch("twin", key) == found, "both of a transaction or none"
        assert len(told) > 10 and banks.is_sound()


def _write_for_ever(banks, writing, name):
    for number in itertools.count():
        key = f"{name}.{number % 7}"
        with banks.transaction():
            banks.store("bank", key, number)
            banks.store("twin", key, number)
        os.write(writing, f"{key} {number}\n".encode())


def _begin_and_end(opts, forks):
    """Have a process open the file and fork others by ``forks(banks)``, and wait until it has ended."""
    parent = os.fork()
    if not parent:
        with contextlib.suppress(BaseException):
            banks = banks_of(opts)
            banks.store("bank", "parent", 1)
            forks(banks)
        os.kill(os.getpid(), signal.SIGKILL)  # without what else a process does at its end
    os.waitpid(parent, 0)


class TestAProcessWhoseParentHasEnded:
    """To SQLite the files that its parent had open are open, and their locks held; the system knows nothing of that."""

    @pytest.fixture(params=[1, 2], ids=["forked", "forked from a forked one"])
    def orphan(self, opts, request):
        """A function that tells a forked process to store a value, and waits for it if that is wanted."""
        told, telling = os.pipe()
        stored, storing = os.pipe()

        def forks(banks):
            if not os.fork() and (request.param == 1 or not os.fork()):
                os.close(telling)
                os.write(storing, b"x")
                for key in iter(lambda: os.read(told, 1).decode(), ""):
                    banks.store("bank", key, 1)
                    os.write(storing, b"x")

        _begin_and_end(opts, forks)
        os.close(told)
        os.close(storing)

        def store(key=None, within=None):
            if key:
                os.write(telling, key.encode())
            found = multiprocessing.connection.wait([stored], within or stretched(SOON))
            return bool(found and os.read(stored, 1))

        assert store(), "it has begun"
        yield store
        os.close(telling)
        os.close(stored)

    def test_keeps_the_log_from_being_removed_by_one_that_comes_and_goes(self, orphan, path):
        assert orphan("a")
        before = os.stat(f"{path}-wal").st_ino
        with contextlib.closing(sqlite3.connect(path)) as sql:
            assert sql.execute("SELECT count(*) FROM records").fetchone() == (2,)
        assert os.path.exists(f"{path}-wal") and os.stat(f"{path}-wal").st_ino == before
        assert orphan("b")

    def test_waits_for_its_turn_behind_those_that_came_after_its_parent(self, orphan, opts, path):
        with contextlib.closing(sqlite3.connect(path)) as sql:
            sql.execute("SELECT count(*) FROM records").fetchone()
        banks = banks_of(opts)
        with banks.transaction():
            banks.store("bank", "other", 1)
            assert not orphan("a", within=1), "it writes beside another"
        assert orphan()
        assert banks.keys("bank") == ["a", "other", "parent"] and banks.is_sound()


class TestAProcessThatIsForkedWhileAnotherThreadIsAtWork:
    """As a runner is that an API user calls, on Salt 3008: the same worker stores returns in other threads."""

    def test_finds_nothing_locked(self, opts):
        banks = banks_of(opts)
        banks.store("bank", "key", 1)
        begun = threading.Event()

        def work():
            with banks.transaction():
                begun.set()
                banks.store("bank", "thread", 1)
                time.sleep(0.3)

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        (error,) = in_processes(1, lambda _: banks.store("bank", "forked", 1))
        thread.join()
        assert error is None and banks.keys("bank") == ["forked", "key", "thread"]


class TestFaults:
    def test_a_full_disk_is_an_error_and_nothing_is_lost(self, opts, cache, path):
        cache.store("bank", "kept", "x" * 1000)
        size = os.stat(f"{path}-wal").st_size

        def fill(_):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 500_000, resource.RLIM_INFINITY))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            stored = 0
            for stored in itertools.count():
                try:
                    cache.store("bank", f"more{stored}", "x" * 10_000)
                except SaltCacheError as exc:
                    error = str(exc)
                    break
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            cache.store("bank", "after", stored)
            return stored, error

        ((stored, error),) = in_processes(1, fill)
        assert stored > 10 and f"more{stored}" in error and ("full" in error or "disk I/O error" in error)
        assert cache.fetch("bank", "kept") == "x" * 1000
        assert cache.fetch("bank", "after") == stored and len(cache.list("bank")) == stored + 2
        assert banks_of(opts).is_sound()

    def test_a_database_that_may_not_grow_says_so(self, opts, cache, path):
        cache.store("bank", "key", 1)
        database_at(path).read("PRAGMA max_page_count=40")
        with pytest.raises(SaltCacheError, match="full"):
            cache.store("bank", "large", dense(1_000_000))
        database_at(path).read("PRAGMA max_page_count=1000000")
        cache.store("bank", "large", dense(1_000_000))
        assert cache.fetch("bank", "key") == 1

    @pytest.fixture
    def disk(self, opts, tmp_path):
        """Its own disk, with a file that holds a value. No process has the file open."""
        disk = tmp_path / "disk"
        disk.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "nr_inodes=50", "none", disk]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("this user may not mount anything")
        try:
            opts["cachedir"] = str(disk)
            in_processes(1, lambda _: salt.cache.Cache(opts).store("bank", "key", 1))
            yield disk
        finally:
            subprocess.run(["umount", "-l", disk], check=True)

    def test_files_left_by_killed_processes_on_a_read_only_disk_can_be_read_and_not_written(self, opts, disk):
        assert os.path.exists(disk / "cache.sqlite-wal")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)

        def work(_):
            cache = salt.cache.Cache(opts)
            return cache.fetch("bank", "key"), _error_of(lambda: cache.store("bank", "key", 2))

        ((found, error),) = in_processes(1, work)
        assert found == 1 and "readonly" in error
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        assert in_processes(1, lambda _: salt.cache.Cache(opts).store("bank", "key", 3)) == [None]
        assert in_processes(1, lambda _: salt.cache.Cache(opts).fetch("bank", "key")) == [3]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
    def test_a_file_that_may_not_be_written_is_an_error_that_names_it(self, opts, cache, path, tmp_path):
        for folder in (opts["cachedir"], tmp_path, *tmp_path.parents):
            os.chmod(folder, 0o755)
        cache.store("bank", "key", 1)
        for end in ("", "-wal", "-shm", ".lock"):
            os.chmod(path + end, 0o644)

        def as_nobody(_):
            os.setgid(65534)
            os.setuid(65534)
            found = cache.fetch("bank", "key")
            try:
                cache.store("bank", "key", 2)
            except SaltCacheError as exc:
                return found, str(exc)

        ((found, error),) = in_processes(1, as_nobody)
        assert found == 1 and "readonly" in error and "'bank'" in error
        assert cache.fetch("bank", "key") == 1


class TestCopies:
    def test_a_copy_is_of_one_moment_while_others_write(self, opts, cache, tmp_path):
        banks, run = banks_of(opts), salt.loader.runner(opts)
        target = str(tmp_path / "copy.sqlite")
        for number in range(2000):
            banks.store("bank", str(number), "x" * 500)
        reading, writing = os.pipe()
        process = FORK.Process(target=_write_for_ever, args=(banks, writing, "w"))
        process.start()
        try:
            os.close(writing)
            os.read(reading, 1)
            done = run["job_cache.backup"](target)
        finally:
            process.kill()
            process.join(stretched(SOON))
            os.close(reading)
        assert done == {"path": target, "bytes": os.stat(target).st_size}
        assert os.stat(target).st_mode & 0o777 == 0o600
        copied = salt.cache.Cache({**opts, "sqlite_cache_path": target})
        assert copied.fetch("bank", "1999") == "x" * 500
        twins = [key for key in copied.list("bank") if key.startswith("w")]
        assert twins and all(copied.fetch("bank", key) == copied.fetch("twin", key) for key in twins)
        assert [name for name in os.listdir(tmp_path) if "part" in name] == []

    def test_a_copy_that_is_put_back_is_what_it_was(self, opts, cache, path, tmp_path):
        copy = str(tmp_path / "copy.sqlite")

        def fill(_):
            cache.store("bank", "key", "old")
            banks_of(opts).backup(copy)
            cache.store("bank", "key", "new")

        assert in_processes(1, fill) == [None]
        for end in ("-wal", "-shm"):
            pathlib.Path(path + end).unlink(missing_ok=True)
        shutil.copyfile(copy, path)
        assert in_processes(3, lambda _: cache.fetch("bank", "key")) == ["old"] * 3
        cache.store("bank", "key", "newest")
        assert in_processes(1, lambda _: cache.fetch("bank", "key")) == ["newest"] and banks_of(opts).is_sound()

    def test_a_copy_can_lie_where_files_have_one_name_only(self, opts, cache, tmp_path, monkeypatch):
        def link(*names):
            raise PermissionError(errno.EPERM, "Operation not permitted")

        cache.store("bank", "key", 1)
        monkeypatch.setattr(os, "link", link)
        run, target = salt.loader.runner(opts), str(tmp_path / "copy.sqlite")
        assert run["job_cache.backup"](target)["bytes"] == os.stat(target).st_size > 0
        with pytest.raises(Exception, match="is there already"):
            run["job_cache.backup"](target)
        assert sorted(name for name in os.listdir(tmp_path) if name.startswith("copy")) == ["copy.sqlite"]

    def test_a_copy_for_which_the_disk_is_too_small_leaves_nothing(self, opts, cache, tmp_path):
        for number in range(300):
            cache.store("bank", str(number), "x" * 5000)
        run, target = salt.loader.runner(opts), str(tmp_path / "copy.sqlite")

        def backup(_):
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            return run["job_cache.backup"](target)

        (found,) = in_processes(1, backup)
        assert "The copy cannot be made" in found
        assert [name for name in os.listdir(tmp_path) if name.startswith("copy")] == []

    def test_a_copy_replaces_nothing(self, opts, cache, tmp_path):
        cache.store("bank", "key", 1)
        run = salt.loader.runner(opts)
        (tmp_path / "there").write_text("mine")
        refused = {str(tmp_path / "there"): "is there already", "relative": "absolute path", "/x\0y": "absolute path"}
        for path, why in refused.items():
            with pytest.raises(Exception, match=why):
                run["job_cache.backup"](path)
        assert (tmp_path / "there").read_text() == "mine"

    def test_a_driver_without_a_file_is_refused(self, opts):
        run = salt.loader.runner({**opts, "cache": "localfs"})
        for verb, args in (("backup", ["/x"]), ("recover", ["/x"])):
            with pytest.raises(Exception, match=f"job_cache.{verb} is for cache: sqlite"):
                run[f"job_cache.{verb}"](*args)


#: Without the module, jobs are stored on localfs, and ``cache: sqlite`` says what is lacking.
BARE = """
import sys
sys.modules["sqlite3"] = None
import salt.cache, salt.config, salt.loader
from tests.open_files import open_files
opts = {**salt.config.DEFAULT_MASTER_OPTS, "id": "m_master", "master_job_cache": "salt_cache"}
opts.update({name: sys.argv[1] for name in ("cachedir", "pki_dir", "extension_modules")})
found = salt.loader.returners(opts, {})
found["salt_cache.save_load"]("20260516120000000000", {"fun": "test.ping", "jid": "20260516120000000000"}, minions=["web1"])
assert list(salt.loader.runner(opts)["job_cache.search"](kind="all")["jobs"])[0]["Function"] == "test.ping"
assert salt.loader.runner(opts)["job_cache.doctor"]()["usable"]
opts["cache"] = "sqlite"
for name, call in (
    ("returner", lambda: salt.loader.returners(opts, {})["salt_cache.get_jids"]()),
    ("runner", lambda: salt.loader.runner(opts)["job_cache.stats"]()),
    ("driver", lambda: salt.cache.Cache(opts).store("bank", "key", 1)),
):
    try:
        call()
    except Exception as exc:
        print(name, exc)
"""


def test_a_python_without_sqlite_has_all_the_rest(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(tmp_path)], capture_output=True, text=True, timeout=stretched(60), check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    for name in ("returner", "runner"):
        assert "cache: sqlite needs Python's module sqlite3" in told[name]
    assert "sqlite" in told["driver"]


@pytest.mark.parametrize(
    ("load", "marks"),
    [
        ({"fun": "test.ping", "user": "anna"}, ("test.ping", "anna")),
        ({"fun": ["a.b", "c.d", 7]}, ("a.b,c.d", "")),
        ({"fun": {"x": 1}, "user": None}, ("", "")),
        ("no load", ("", "")),
    ],
)
def test_a_job_is_found_by_its_function_and_user(load, marks):
    assert job_marks(load) == marks
