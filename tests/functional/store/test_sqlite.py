"""The file of ``cache: sqlite``: whose it is, many writers, sudden deaths, full disks, copies."""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing.connection
import os
import pathlib
import queue
import random
import resource
import shutil
import signal
import sqlite3
import sys
import threading
import time

import pytest
import salt.cache
import salt.config
import salt.loader
import salt.payload
import salt.version
from salt.exceptions import SaltCacheError

from saltext.jobs.core.ledger.tables import FORMAT, META, VALUES
from saltext.jobs.core.site import site_of
from saltext.jobs.core.sqlite import database
from saltext.jobs.core.sqlite.database import Database
from tests.functional.options import options_in
from tests.functional.retry.records import JID, changes, queue_of, record_of, snapshot_of
from tests.functional.store.banks import banks_of
from tests.functional.store.test_contract import in_processes
from tests.waiting import SOON, stretched, wait_for


def content_of(path):
    with open(path, "rb") as stream:
        return stream.read()


def dense(size):
    """A value that takes as many bytes in the file: it cannot be compressed."""
    return random.randbytes(size)


FORK = multiprocessing.get_context("fork")


@pytest.fixture
def opts(tmp_path):
    (tmp_path / "cache").mkdir()
    return options_in(tmp_path, cache="sqlite")


@pytest.fixture
def cache(opts):
    return salt.cache.Cache(opts)


@pytest.fixture
def path(opts):
    return os.path.join(opts["cachedir"], "cache.sqlite")


class TestTheFile:
    def test_the_file_is_private_to_the_user_of_the_master_even_if_root_creates_it(self, opts, path):
        user = 65534 if os.geteuid() == 0 else os.geteuid()
        os.chown(opts["cachedir"], user, -1)
        before = os.umask(0)
        try:
            salt.cache.Cache(opts).store("bank", "key", 1)
        finally:
            os.umask(before)
        found = [os.stat(path + end) for end in ("", "-wal", "-shm", ".lock")]
        assert {(one.st_mode & 0o777, one.st_uid) for one in found} == {(0o600, user)}

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

    def test_a_file_of_something_else_or_a_link_is_refused_and_left_alone(self, opts, path, tmp_path):
        elsewhere = str(tmp_path / "theirs")
        with contextlib.closing(sqlite3.connect(elsewhere)) as sql:
            sql.execute("CREATE TABLE theirs (x)")
        for content in (b"[main]\nkey = value\n" * 500, content_of(elsewhere), None):
            pathlib.Path(path).write_bytes(content) if content else os.symlink(elsewhere, path)
            with pytest.raises(SaltCacheError, match=r" is (no database|a database of another|a link: set)"):
                salt.cache.Cache(opts).store("bank", "key", 1)
            assert content_of(path) == (content or content_of(elsewhere))
            os.unlink(path)

    def test_a_file_of_another_version_is_refused(self, opts, cache, path):
        cache.store("bank", "key", 1)
        with contextlib.closing(sqlite3.connect(path)) as sql:
            sql.execute(f"PRAGMA user_version={FORMAT + 1}")
        (found,) = in_processes(1, lambda _: Database(path).read("SELECT 1"))
        assert f"is of format {FORMAT + 1}" in found and f"knows {FORMAT}: install the version" in found
        with contextlib.closing(sqlite3.connect(path)) as sql:
            assert sql.execute(f"SELECT value FROM {VALUES}").fetchall() == [(salt.payload.dumps(1),)]

    def test_a_directory_that_was_chosen_and_is_not_there_is_not_made(self, opts, tmp_path):
        """Its disk may not be mounted: what was begun in its place would be missed later."""
        own = {**opts, "sqlite_cache_path": str(tmp_path / "disk" / "salt" / "cache.sqlite")}
        with pytest.raises(SaltCacheError, match="disk/salt, is not there: mount its disk, or make it"):
            salt.cache.Cache(own).store("bank", "key", 1)
        assert not (tmp_path / "disk").exists()
        (tmp_path / "disk" / "salt").mkdir(parents=True)
        salt.cache.Cache(own).store("bank", "key", 1)
        assert salt.cache.Cache(own).fetch("bank", "key") == 1


class TestManyWriters:
    def test_the_log_starts_again_though_there_is_always_a_reader(self, opts, cache, path):
        cache.store("bank", "key", 0)
        begun, ended = FORK.Barrier(2), FORK.Event()

        def read():
            """Again and again one reader begins before the other ends."""
            both = [sqlite3.connect(path, isolation_level=None) for _ in range(2)]
            for turn in itertools.count():
                sql = both[turn % 2]
                sql.execute("BEGIN")
                sql.execute(f"SELECT count(*) FROM {VALUES}").fetchone()
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

        before = beginning()
        wait_for(lambda: write_and_look(before), what="the log has been begun anew")
        ended.set()
        reading.join(stretched(SOON))

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
        cache, banks = salt.cache.Cache(own), banks_of(own)
        with pytest.raises(KeyboardInterrupt), banks.transaction():
            banks.store("jobs/loads", "key", {})
        cache.store("jobs/loads", "key", {"fun": 1})
        assert in_processes(1, lambda _: cache.store("jobs/loads", "other", {})) == [None]
        assert sorted(cache.list("jobs/loads")) == ["key", "other"]


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


@pytest.mark.parametrize("forks", [1, 2])
def test_a_process_whose_parent_has_ended_writes_in_its_turn_and_nothing_it_wrote_is_lost(opts, path, forks):
    """To SQLite the files that its parent had open are open, and their locks held; the system knows nothing of that."""
    told, telling = os.pipe()
    stored, storing = os.pipe()

    def work(banks):
        if not os.fork() and (forks == 1 or not os.fork()):
            os.close(telling)
            os.write(storing, b"x")
            for key in iter(lambda: os.read(told, 1).decode(), ""):
                banks.store("bank", key, 1)
                os.write(storing, b"x")

    _begin_and_end(opts, work)
    os.close(told)
    os.close(storing)

    def store(key, within):
        os.write(telling, key)
        return bool(multiprocessing.connection.wait([stored], within) and os.read(stored, 1))

    assert store(b"", stretched(SOON)), "it has begun"
    assert store(b"a", stretched(SOON))
    with contextlib.closing(sqlite3.connect(path)) as sql:  # one that comes and goes
        assert sql.execute(f"SELECT count(*) FROM {VALUES}").fetchone() == (2,)
    banks = banks_of(opts)
    with banks.transaction():
        banks.store("bank", "other", 1)
        assert not store(b"b", 1), "it writes beside another"
    assert store(b"", stretched(SOON))
    os.close(telling)
    os.close(stored)
    assert banks.keys("bank") == ["a", "b", "other", "parent"] and banks.is_sound()


def test_a_process_that_is_forked_while_another_thread_is_at_work_finds_nothing_locked(opts):
    """As a runner is that an API user calls, on Salt 3008: the same worker stores returns in other threads."""
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


def test_threads_of_a_process_do_not_mix_their_transactions(opts):
    banks = banks_of(opts)

    def work(name):
        for number in range(40):
            with contextlib.suppress(ZeroDivisionError), banks.transaction():
                banks.store("bank", f"{name}{number}", 1)
                time.sleep(0)
                banks.store("twin", f"{name}{number}", 1 // (number % 3))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = sorted(f"{name}{number}" for name in "abc" for number in range(40) if number % 3)
    assert banks.keys("bank") == banks.keys("twin") == whole


def test_a_process_goes_on_reading_while_one_of_its_threads_waits_to_write(opts):
    """As an engine's loop does, which hears the bus."""
    banks = banks_of(opts)
    banks.store("bank", "key", 1)
    begun, over = FORK.Event(), FORK.Event()

    def write_for_long():
        with banks.transaction():
            begun.set()
            over.wait(10.0)

    process = FORK.Process(target=write_for_long)
    process.start()
    assert begun.wait(stretched(SOON))
    thread = threading.Thread(target=banks.store, args=("bank", "thread", 1))
    thread.start()
    for _ in range(100):
        time.sleep(0.002)
        assert banks.keys("bank") == ["key"]
    is_waiting = thread.is_alive()
    over.set()
    thread.join()
    process.join()
    assert is_waiting and banks.keys("bank") == ["key", "thread"]


def test_a_durable_transaction_is_synced_whatever_another_thread_writes_just_then(opts, monkeypatch):
    tables, synced, turns, done = site_of(opts), [], queue.Queue(), threading.Event()

    def write(durable):
        tables.together(lambda: META.keep(tables, "test", str(durable), b"x"), durable=durable)

    def disturb():
        while turns.get():
            write(False)
            done.set()

    def let_the_other_write(frame, *_):
        if frame.f_code.co_filename == database.__file__:
            turns.put(True)
            done.wait(0.02)  # unless it waits for this thread
            done.clear()
        return let_the_other_write

    write(False)
    thread, before = threading.Thread(target=disturb), sys.gettrace()
    thread.start()
    monkeypatch.setattr(os, "fsync", synced.append)
    sys.settrace(let_the_other_write)
    try:
        write(True)
    finally:
        sys.settrace(before)
        turns.put(False)
        thread.join()
    assert len(synced) == 1


def test_a_process_has_one_connection_to_a_file_however_many_other_files_it_has_used(opts, tmp_path):
    first = banks_of(opts)
    first.store("bank", "key", 1)
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        banks_of({**opts, "cachedir": str(tmp_path / str(number))}).store("bank", "key", 1)
    with banks_of(opts).transaction():
        first.store("bank", "other", 1)
    assert first.keys("bank") == ["key", "other"]


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
            banks_of(opts).tables.database.backup(copy)
            cache.store("bank", "key", "new")

        assert in_processes(1, fill) == [None]
        for end in ("-wal", "-shm"):
            pathlib.Path(path + end).unlink(missing_ok=True)
        shutil.copyfile(copy, path)
        assert in_processes(3, lambda _: cache.fetch("bank", "key")) == ["old"] * 3
        cache.store("bank", "key", "newest")
        assert in_processes(1, lambda _: cache.fetch("bank", "key")) == ["newest"] and banks_of(opts).is_sound()

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
        refused = {str(tmp_path / "there"): "is there already", "relative": "absolute path", "/x\0y": "cannot be made"}
        for path, why in (*refused.items(), (str(tmp_path / "no" / "copy"), "a directory that is there")):
            with pytest.raises(Exception, match=why):
                run["job_cache.backup"](path)
        assert (tmp_path / "there").read_text() == "mine"

    def test_with_another_driver_the_log_and_the_queue_are_copied(self, opts, tmp_path):
        opts = {**opts, "cache": "localfs"}
        queue_of(opts).write(changes({JID: snapshot_of()}, {("a", JID): record_of("a")}))
        run, other = salt.loader.runner(opts), {**opts, "cachedir": str(tmp_path / "other")}
        copy = run["job_cache.backup"](str(tmp_path / "copy"))
        assert salt.loader.runner(other)["job_cache.recover"](copy["path"]) == {"read": 2, "written": 2}
        assert [entry.minion for entry, _ in queue_of(other).entries()] == ["a"]
