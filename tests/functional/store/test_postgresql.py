"""
The driver postgresql, loaded by Salt, with a real server: what salt.cache asks of a driver, several masters, and a server
that is killed, frozen, full or locked, or has a table of another program.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import os
import random
import shutil
import subprocess
import sys
import threading
import time

import pytest
import salt.cache
import salt.config
import salt.payload
import salt.version
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from salt.exceptions import SaltCacheError

from saltext.jobs.core.disk.job_summary import has_failed
from saltext.jobs.core.errors import SettingsError, StateError
from saltext.jobs.core.postgresql.options import read_cache_options
from saltext.jobs.core.store.drivers import Outage
from saltext.jobs.core.store.store import Store
from tests.functional.cache_servers import cache_servers, driver_options  # noqa: F401 (a fixture)
from tests.functional.store import test_sqlite
from tests.functional.store.test_contract import LOAD, Returner, a_return, in_processes
from tests.missing import missing
from tests.waiting import SOON, stretched, wait_for

with contextlib.suppress(ImportError):  # psycopg is an extra
    from saltext.jobs.core.postgresql.banks import banks_of
    from saltext.jobs.core.postgresql.cache_tables import FORMAT
    from saltext.jobs.core.postgresql.trouble import Away, Rejected

#: ``salt.cache`` differs between the releases. How the driver stores what it gets depends on none.
story = pytest.mark.story
TAGS = itertools.count(5000)
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def opts(cache_servers, tmp_path):  # noqa: F811
    own = driver_options("postgresql", cache_servers, tmp_path, next(TAGS))
    return {**salt.config.DEFAULT_MASTER_OPTS, "id": "m_master", **own}


@pytest.fixture
def cache(opts):
    return salt.cache.Cache(opts)


@pytest.fixture
def server(cache_servers):  # noqa: F811
    return cache_servers("postgresql")


@pytest.fixture
def asked(server, opts):
    """A function that runs a statement beside the driver, and returns its rows."""
    return lambda sql, *args: server.server.execute(sql, *args, database=opts["postgresql.db"])


@story
class TestWhatSaltAsksOfADriver(test_sqlite.TestWhatSaltAsksOfADriver):
    """As with sqlite; here is what differs."""

    def test_a_key_that_is_flushed_leaves_the_others_and_the_bank(self, cache):
        cache.store("bank", "one", 1)
        cache.store("bank", "two", 2)
        assert not cache.flush("bank", "three")
        cache.flush("bank", "one")
        assert cache.list("bank") == ["two"] and cache.updated("bank", "one") is None
        cache.flush("bank", "two")
        assert cache.list("bank") == [] and not cache.contains("bank"), "with nothing in it there is no bank"

    @pytest.mark.parametrize("bank", ["..", "a/../../b", "", "/", None, 7, ["a"]])
    def test_a_bank_that_leads_out_or_is_invalid_is_refused(self, cache, bank):
        for call in (lambda: cache.store(bank, "key", 1), lambda: cache.flush(bank), lambda: cache.list(bank)):
            with pytest.raises(SaltCacheError, match=r"postgresql.*bank"):
                call()

    @pytest.mark.parametrize("key", ["a/b", "minion:env/../x", "", " ", "é", "'; DROP TABLE salt_cache; --", "%s"])
    def test_any_text_is_a_key(self, cache, key):
        super().test_any_text_is_a_key(cache, key)

    def test_a_key_that_the_server_cannot_hold_is_refused_for_good(self, opts, cache):
        long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9000))
        for key in ("a\0b", long, "\ud800"):
            with pytest.raises(SaltCacheError, match=r"postgresql could not store bank='bank'") as refused:
                cache.store("bank", key, 1)
            assert isinstance(refused.value.__cause__, Rejected)
            with pytest.raises(SaltCacheError) as refused:
                Store(opts).store("bank", key, 1)
            assert not isinstance(refused.value, Outage)
        cache.store("bank", "key", 1)
        assert cache.list("bank") == ["key"]

    def test_another_cachedir_is_another_file(self, opts, cache, tmp_path):
        """There is no file: masters with one database have one cache, whatever their directories."""
        salt.cache.Cache(opts, cachedir=str(tmp_path)).store("bank", "key", 1)
        assert cache.fetch("bank", "key") == 1

    @pytest.mark.skipif(salt.version.__saltstack_version__.major < 3008, reason="came with Salt 3008")
    def test_an_expired_value_is_not_there(self, cache, opts, asked):
        cache.store("tokens", "short", {"token": 1}, expires=1)
        cache.store("tokens", "long", {"token": 2}, expires=1000)
        cache.store("tokens", "ever", {"token": 3})
        wait_for(lambda: not cache.contains("tokens", "short"), what="the token has expired")
        assert cache.fetch("tokens", "short") == {} and cache.updated("tokens", "short") is None
        assert sorted(cache.list("tokens")) == sorted(cache.list_all("tokens")) == ["ever", "long"]
        assert asked("SELECT count(*) FROM salt_cache") == [(3,)]
        assert banks_of(opts).store_new("tokens", "short", "again") is True
        cache.store("tokens", "short", 1, expires=0.001)
        wait_for(lambda: not cache.contains("tokens", "short"), what="it has expired again")
        cache.clean_expired("tokens")
        assert asked("SELECT count(*) FROM salt_cache") == [(2,)]
        cache.store("tokens", "long", "for ever")
        assert banks_of(opts).store_new("tokens", "long", 1) is False

    @pytest.mark.parametrize(
        "wrong", [{"postgresql.port": "x"}, {"postgresql.timeout": -1}, {"postgresql.synchronous_commit": "maybe"}]
    )
    def test_an_option_that_is_not_accepted_is_named(self, opts, wrong):
        ((name, value),) = wrong.items()
        with pytest.raises(SaltCacheError, match=f"postgresql: {name[11:]} is {value!r}; accepted is"):
            salt.cache.Cache({**opts, **wrong}).fetch("bank", "key")

    def test_a_large_value_comes_back(self, cache):
        value = {"return": os.urandom(20_000_000)}
        cache.store("bank", "key", value)
        assert cache.fetch("bank", "key") == value

    def test_a_broken_value_is_an_error_that_says_where(self, opts, cache, asked):
        cache.store("bank", "key", 1)
        asked("UPDATE salt_cache SET value = '\\xc1'")
        with pytest.raises(Exception, match=r"."):
            cache.fetch("bank", "key")


BANKS = st.sampled_from(["a", "a/b", "a/b/c", "a/bb", "a-b", "b", "jobs/loads", "jobs/minions", "jobs/returns/1"])
KEYS = st.sampled_from(["1", "2", "b", "c", ""])
VALUES = st.sampled_from([0, "x", {}, {"fun": "a.b", "user": "\0"}, ["web1"], ["a/b", 7], {"return": 1, "retcode": 2}])
STEP = st.tuples(st.sampled_from(["store", "store", "store", "flush", "drop", "new"]), BANKS, KEYS, VALUES)


@story
class TestAgainstADictionary:
    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(steps=st.lists(STEP, max_size=30))
    def test_any_row_of_calls_leaves_what_a_dictionary_would_hold(self, opts, cache, steps):
        banks, model = banks_of(opts), {}
        for bank in ("a", "a-b", "b", "jobs"):
            cache.flush(bank)
        for what, bank, key, value in steps:
            if what == "store":
                cache.store(bank, key, value)
                model[bank, key] = value
            elif what == "new":
                assert banks.store_new(bank, key, value) is ((bank, key) not in model)
                model.setdefault((bank, key), value)
            elif what == "flush":
                assert cache.flush(bank, key) is ((bank, key) in model)
                model.pop((bank, key), None)
            else:
                below = {place for place in model if place[0] == bank or place[0].startswith(f"{bank}/")}
                assert cache.flush(bank) is bool(below)
                model = {place: kept for place, kept in model.items() if place not in below}
        for bank in ("a", "a/b", "a/b/c", "a/bb", "a-b", "b", "jobs", "jobs/loads", "jobs/returns", "jobs/returns/1"):
            keys = {key for name, key in model if name == bank}
            subs = {name[len(bank) + 1 :].partition("/")[0] for name, _ in model if name.startswith(f"{bank}/")}
            assert sorted(cache.list(bank)) == sorted(keys | subs)
            assert cache.contains(bank) is bool(keys | subs)
            assert {key: salt.payload.loads(data) for key, data in banks.items(bank)} == {
                k: model[bank, k] for k in keys
            }
            assert banks.present(bank, ["1", "2", "b", "c", "", "x"]) == keys
            for key in ("1", "2", "b", "c", ""):
                assert cache.fetch(bank, key) == model.get((bank, key), {})
        failed = {key for (bank, key), value in model.items() if bank == "jobs/returns/1" and has_failed(value)}
        rows = banks.rows("SELECT key FROM salt_cache WHERE failed")
        assert {row[0] for row in rows} == failed


@story
class TestTheServerAndItsTables:
    def test_masters_that_begin_together_make_one_table(self, opts, asked):
        answers = in_processes(8, lambda number: salt.cache.Cache(opts).store("bank", str(number), number))
        assert answers == [None] * 8
        assert asked("SELECT number FROM salt_cache_format") == [(FORMAT,)]
        assert len(salt.cache.Cache(opts).list("bank")) == 8

    def test_a_table_of_another_format_is_left_alone(self, opts, cache, asked):
        cache.store("bank", "key", 1)
        asked("UPDATE salt_cache_format SET number = %s", FORMAT + 1)
        other = {**opts, "postgresql.timeout": 6}
        with pytest.raises(SaltCacheError, match="is of format"):
            salt.cache.Cache(other).store("bank", "key", 2)
        with pytest.raises(StateError):
            banks_of(other).flush("bank")
        assert asked("SELECT count(*) FROM salt_cache") == [(1,)]

    def test_a_database_that_cannot_hold_every_id_is_refused(self, opts, server):
        server.server.execute("DROP DATABASE IF EXISTS latin")
        server.server.execute("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        with pytest.raises(SaltCacheError, match="encoding LATIN1"):
            salt.cache.Cache({**opts, "postgresql.db": "latin"}).store("bank", "key", 1)

    @pytest.mark.parametrize(
        ("wrong", "why"),
        [
            ({"postgresql.db": "nonesuch"}, 'database nonesuch.*"nonesuch" does not exist'),
            ({"postgresql.user": "nobody"}, 'user nobody.*role "nobody" does not exist'),
            ({"postgresql.port": 1}, "127.0.0.1:1,.*check that the server runs"),
            ({"postgresql.host": "nonesuch.invalid"}, "nonesuch.invalid"),
            ({"postgresql.sslmode": "require"}, "SSL"),
            ({"postgresql.dsn": "host=127.0.0.1 port=1"}, "127.0.0.1:1,"),
        ],
    )
    def test_a_server_that_cannot_be_used_is_named_and_its_password_is_not(self, opts, wrong, why, caplog):
        wrong = {**opts, "postgresql.password": "s3cret", **wrong}
        with caplog.at_level(logging.DEBUG), pytest.raises(SaltCacheError, match=why) as told:
            salt.cache.Cache(wrong).fetch("bank", "key")
        assert isinstance(told.value.__cause__, Away)
        if why.startswith("SSL"):
            with pytest.raises(Outage, match=why):
                Store(wrong).fetch("bank", "key")
        assert "s3cret" not in caplog.text + repr(told.value)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"postgresql.dsn": "host=x password s3cret"},
            {"postgresql.dsn": "postgresql://salt:s3cret@[/x"},
            {"postgresql.dsn": ["s3cret"]},
            {"postgresql.password": ["s3cret"]},
            {"postgresql.passwd": "s3cret"},
            {"postgresql": "postgresql://salt:s3cret@host/db"},
            {"postgresql": {"passwd": "s3cret"}},
        ],
    )
    def test_no_error_about_an_option_shows_a_password(self, opts, wrong, caplog):
        with caplog.at_level(logging.DEBUG), pytest.raises(SaltCacheError, match=r"postgresql|password") as told:
            salt.cache.Cache({**opts, **wrong}).fetch("bank", "key")
        assert "s3cret" not in caplog.text + str(told.value)

    def test_options_stand_in_a_section_or_one_by_one_and_a_connection_string_counts_before_them(self, opts, cache):
        cache.store("bank", "key", 1)
        plain = {name: value for name, value in opts.items() if not name.startswith("postgresql")}
        section = {name[11:]: value for name, value in opts.items() if name.startswith("postgresql.")}
        assert salt.cache.Cache({**plain, "postgresql": {**section, "pass": "x"}}).fetch("bank", "key") == 1
        assert read_cache_options({"postgresql.pass": 123}).password == "123"
        dsn = f"postgresql://salt@127.0.0.1:{section['port']}/{section['db']}"
        assert salt.cache.Cache({**plain, "postgresql.dsn": dsn, "postgresql.port": 1}).fetch("bank", "key") == 1
        with pytest.raises(SettingsError):
            read_cache_options({"postgresql": ["x"]})

    def test_a_server_that_answers_before_its_disk_has_it_is_told_to_wait(self, opts, server):
        server.server.execute(f"ALTER DATABASE {opts['postgresql.db']} SET synchronous_commit = off")
        shown = "SELECT current_setting('synchronous_commit')"
        assert banks_of(opts).rows(shown) == [("on",)]
        for chosen in ("off", "local", False):
            named = "off" if chosen is False else chosen
            assert banks_of({**opts, "postgresql.synchronous_commit": chosen}).rows(shown) == [(named,)]

    def test_threads_and_processes_share_few_connections(self, opts, cache, asked):
        def work(number):
            threads = [threading.Thread(target=cache.store, args=("bank", f"{number}.{one}", one)) for one in range(30)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(stretched(SOON))
            mine = "application_name = 'salt cache' AND datname = current_database()"
            return asked(f"SELECT count(*) FROM pg_stat_activity WHERE {mine}")[0][0]

        cache.store("bank", "first", 1)
        most = in_processes(2, work)
        assert max(most) <= 2 * 4 + 1
        assert cache.fetch("bank", "first") == 1, "a child's end ends no connection of its parent"
        assert len(cache.list("bank")) == 61


class TestFaults:
    @pytest.mark.parametrize("seed", range(2))
    def test_a_confirmed_write_outlives_a_server_that_is_killed(self, opts, cache, server, seed):
        chance, banks, told = random.Random(seed), banks_of(opts), {}
        cache.store("bank", "first", 1)
        for round_ in range(3):
            reading, writing = os.pipe()
            process = FORK.Process(target=_write_for_ever, args=(opts, writing, str(round_)))
            process.start()
            os.close(writing)
            assert multiprocessing.connection.wait([reading], stretched(SOON)), "it has begun"
            time.sleep(chance.uniform(0, 0.4))
            server.kill()
            time.sleep(chance.uniform(0, 0.5))
            server.start()
            time.sleep(chance.uniform(0.2, 0.6))
            process.kill()
            process.join(stretched(SOON))
            with os.fdopen(reading) as stream:
                lines = stream.read().split("\n")[:-1]
            assert lines
            for line in lines:
                key, value = line.split(" ")
                told[key] = int(value)
            for key, value in told.items():
                found = banks.fetch("bank", key)
                assert found in (value, value + 7), key
                assert banks.fetch("twin", key) == found, "both of a call or none"

    def test_a_connection_that_was_cut_is_made_anew_unnoticed(self, opts, cache, asked):
        for _ in range(3):
            cache.store("bank", "key", 1)
            asked("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'salt cache'")
            assert cache.fetch("bank", "key") == 1
            asked("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'salt cache'")
            assert banks_of(opts).store_new("bank", "new", 1) is True
            cache.flush("bank", "new")

    @pytest.fixture
    def patient(self, opts):
        """Options with which a server is waited for longer the busier the machine is: its start takes longer, too."""
        return {**opts, "postgresql.connect_timeout": stretched(5)}

    def test_a_connection_that_is_cut_in_the_middle_is_made_anew_and_the_record_stored_once(self, patient, asked):
        cache = salt.cache.Cache(patient)
        cache.store("bank", "first", 1)
        banks_of(patient).rows("SELECT 1")
        stop = threading.Event()

        def cut():
            while not stop.is_set():
                asked("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'salt cache'")
                time.sleep(0.005)

        cutter, store = threading.Thread(target=cut), Store(patient)
        cutter.start()
        try:
            stored = [store.driver.store_new("bank", f"key{number}", number) for number in range(60)]
        finally:
            stop.set()
            cutter.join(stretched(SOON))
        assert stored == [True] * 60, "whose answer was lost finds its own value, and counts it as stored"
        assert len(cache.list("bank")) == 61

    def test_a_frozen_server_is_an_error_in_time(self, opts, server):
        cache = salt.cache.Cache({**opts, "postgresql.timeout": 1, "postgresql.connect_timeout": 2})
        cache.store("bank", "key", 1)
        server.freeze()
        try:
            for _ in range(2):  # with a connection, and without one
                began = time.monotonic()
                with pytest.raises(SaltCacheError, match=r"127\.0\.0\.1:\d+, database t") as told:
                    cache.fetch("bank", "key")
                assert time.monotonic() - began < stretched(12)
                assert isinstance(told.value.__cause__, Away)
        finally:
            server.thaw()
        assert cache.fetch("bank", "key") == 1

    def test_a_command_waits_for_a_server_that_is_away_once_and_not_for_each_of_its_calls(self, opts, server):
        caches = [salt.cache.Cache({**opts, "postgresql.connections": number}) for number in (1, 2, 3)]
        server.stop()
        try:
            began = time.monotonic()
            for cache in caches:
                with pytest.raises(SaltCacheError):
                    cache.fetch("bank", "key")
            assert time.monotonic() - began < 9
        finally:
            server.start()
        assert [cache.fetch("bank", "key") for cache in caches] == [{}] * 3

    def test_a_locked_row_is_an_error_in_time_and_not_a_refusal(self, opts, server):
        wanted = {**opts, "postgresql.timeout": 1}
        cache, store = salt.cache.Cache(wanted), Store(wanted)
        cache.store("bank", "key", 1)
        with contextlib.closing(server.server.connect(opts["postgresql.db"])) as other:
            other.autocommit = False
            other.cursor().execute("SELECT * FROM salt_cache FOR UPDATE")
            with pytest.raises(SaltCacheError, match="look at its load, its locks") as told:
                cache.store("bank", "key", 2)
            assert isinstance(told.value.__cause__, Away)
            with pytest.raises(Outage):
                store.store("bank", "key", 3)
            assert cache.fetch("bank", "key") == 1, "who reads waits for nobody"
        cache.store("bank", "key", 4)
        assert cache.fetch("bank", "key") == 4

    def test_a_server_that_has_no_connection_left_is_an_error_and_no_refusal(self, opts, server):
        server.server.execute(f"ALTER DATABASE {opts['postgresql.db']} CONNECTION LIMIT 0")
        server.server.execute("DROP ROLE IF EXISTS limited")
        server.server.execute("CREATE ROLE limited LOGIN")
        with pytest.raises(SaltCacheError, match="max_connections") as told:
            salt.cache.Cache({**opts, "postgresql.user": "limited"}).store("bank", "key", 1)
        assert isinstance(told.value.__cause__, Away)

    def test_a_role_that_may_make_no_table_gets_an_error_that_says_what_is_missing(self, opts, server):
        server.server.execute("DROP ROLE IF EXISTS poor")
        server.server.execute("CREATE ROLE poor LOGIN")
        with pytest.raises(SaltCacheError, match=r"user poor.*permission denied for schema public.*rights"):
            salt.cache.Cache({**opts, "postgresql.user": "poor"}).store("bank", "key", 1)

    def test_a_server_that_only_reads_is_read(self, opts, cache, server):
        cache.store("bank", "key", 1)
        server.server.execute(f"ALTER DATABASE {opts['postgresql.db']} SET default_transaction_read_only = on")
        other = salt.cache.Cache({**opts, "postgresql.timeout": 7})
        assert other.fetch("bank", "key") == 1
        with pytest.raises(SaltCacheError, match="read-only transaction") as told:
            other.store("bank", "key", 2)
        assert isinstance(told.value.__cause__, Away)

    def test_two_masters_that_write_the_same_at_once_leave_one_whole_value(self, opts, tmp_path):
        for name in "ab":
            (tmp_path / name).mkdir()
        keys = [f"key{number}" for number in range(5)]

        def work(number):
            banks = banks_of({**opts, "cachedir": str(tmp_path / "ab"[number % 2])})
            order = random.Random(number)
            for turn in range(40):
                items = [("bank", key, [number, turn]) for key in order.sample(keys, 4)]
                banks.store_all(items)
                if turn % 10 == 9:
                    banks.remove_older(["bank"], "own", order.sample(keys, 3), time.time() + 60)
            return "done"

        assert in_processes(4, work) == ["done"] * 4
        banks = banks_of(opts)
        banks.store_all([("bank", key, 1) for key in keys])
        assert [salt.payload.loads(data) for _, data in banks.items("bank")] == [1] * 5

    def test_records_written_while_old_jobs_are_removed_stay(self, opts):
        """A job is removed as a whole, or a write of any of it keeps it."""
        banks, jids = banks_of(opts), [f"20200101{number:012}" for number in range(40)]
        now = time.time() + 3600
        for jid in jids:
            banks.store_all(
                [("jobs/loads", jid, LOAD), ("jobs/minions", jid, ["web1"]), (f"jobs/returns/{jid}", "a", 1)]
            )
        banks.rows("UPDATE salt_cache SET updated = updated - interval '1 day'")

        def work(number):
            mine = banks_of(opts)
            if number == 0:
                return mine.remove_older(["jobs/minions", "jobs/loads"], "jobs/returns", jids, time.time() - 60)
            for jid in jids[::-1]:
                mine.store("jobs/minions", jid, ["web2"])
            return now

        in_processes(2, work)
        for jid in jids:
            assert banks.fetch("jobs/minions", jid) == ["web2"]
            assert banks.contains("jobs/loads", jid) is banks.contains(f"jobs/returns/{jid}", "a")

    def test_everything_that_salt_caches_survives_a_short_outage(self, patient, server):
        cache = salt.cache.Cache(patient)
        cache.store("bank", "key", 1)
        server.stop()
        back = threading.Timer(0.7, server.start)
        back.start()
        try:
            assert cache.fetch("bank", "key") == 1
        finally:
            back.join(stretched(SOON))

    def test_a_return_that_came_to_a_server_that_was_killed_is_known_again(self, opts, server):
        returner = Returner(opts)
        assert returner.returner(a_return("web1")) is None
        server.stop()
        server.start()
        assert returner.returner(a_return("web1")) is False
        assert list(returner.get_jid(a_return("web1")["jid"])) == ["web1"]

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk")
    def test_a_full_disk_is_an_error_that_says_so_and_no_refusal(self, opts, cache, server, tmp_path):
        folder = server.server.folder / f"small{next(TAGS)}"
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=12m,mode=777", "none", str(folder)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            missing("a disk cannot be mounted here")
        name = opts["postgresql.db"]
        try:
            os.chown(folder, server.server.user.pw_uid, server.server.user.pw_gid)
            server.server.execute(f"CREATE TABLESPACE s{name} LOCATION '{folder}'")
            (folder / "ballast").write_bytes(bytes(4_000_000))
            cache.store("bank", "kept", 1)
            banks_of(opts).rows(f"ALTER TABLE salt_cache SET TABLESPACE s{name}")
            error = None
            for number in range(200):
                try:
                    cache.store("bank", f"key{number}", os.urandom(100_000))
                except SaltCacheError as exc:
                    error = exc
                    break
            assert error is not None and "make room on its disk" in str(error)
            assert isinstance(error.__cause__, Away), "by which the retry queue knows that no record is refused"
            store = Store(opts)
            with pytest.raises(Outage, match="make room on its disk"):
                store.store("bank", "large", os.urandom(1_000_000))
            assert cache.fetch("bank", "kept") == 1 and len(cache.list("bank")) == number + 1
            (folder / "ballast").unlink()
            cache.store("bank", "after", os.urandom(100_000))
        finally:
            server.server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            server.server.execute(f"DROP TABLESPACE IF EXISTS s{name}")
            subprocess.run(["umount", "-l", str(folder)], check=False)

    def test_every_error_says_whether_a_later_try_may_succeed(self, opts, cache):
        cache.store("bank", "key", 1)
        banks = banks_of(opts)
        for statement, kind in (
            ("SELECT 1/0", Rejected),
            ("SELECT pg_sleep(3)", Away),
            ("SELECT * FROM nonesuch", Away),
        ):
            short = banks_of({**opts, "postgresql.timeout": 1}) if "sleep" in statement else banks
            with pytest.raises(kind):
                short.rows(statement)


def _write_for_ever(opts, writing, name):
    store = Store(opts)
    for number in itertools.count():
        key = f"{name}.{number % 7}"
        store.driver.store_all([("bank", key, number), ("twin", key, number)])
        os.write(writing, f"{key} {number}\n".encode())


_WITHOUT = """
import sys
sys.modules["psycopg"] = None
import salt.cache, salt.config, salt.loader
opts = {{**salt.config.DEFAULT_MASTER_OPTS, "cachedir": {folder!r}, "pki_dir": {folder!r}, "cache": "postgresql",
    "extension_modules": {folder!r} + "/ext", "id": "m"}}
from saltext.jobs.core.store.store import Store
try:
    Store(opts)
except Exception as exc:
    print(exc)
print("postgresql.store" in salt.loader.cache(opts))
print("sqlite.store" in salt.loader.cache(opts), "pgjsonb_bulk.returner" in salt.loader.returners(opts, {{}}))
"""


def test_a_python_without_psycopg_says_what_to_install_and_has_all_the_rest(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(folder=str(tmp_path))],
        capture_output=True,
        text=True,
        timeout=stretched(60),
        check=False,
    )
    assert done.stdout.startswith("cache: postgresql needs the Python module psycopg: pip install"), (
        done.stdout + done.stderr
    )
    assert done.stdout.endswith("\nFalse\nTrue False\n")


class TestLogins:
    """Passwords and TLS, of a server that insists on them."""

    @pytest.fixture
    def strict(self, opts, server, tmp_path):
        """The folder of the server's certificate. The user ``strict`` gets in only by TLS and with a password."""
        folder, own = server.server.folder, server.server
        if not shutil.which("openssl"):
            missing("openssl is not installed")
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "server.key", "-out", "server.crt"]
        subprocess.run(command, cwd=folder / "data", check=True, capture_output=True)
        for name in ("server.key", "server.crt"):
            os.chmod(folder / "data" / name, 0o600)
            if own.user:
                os.chown(folder / "data" / name, own.user.pw_uid, own.user.pw_gid)
        shutil.copy(folder / "data" / "server.crt", tmp_path / "ca.crt")
        hba = folder / "data" / "pg_hba.conf"
        before = hba.read_text()
        hba.write_text(f"hostssl all strict all scram-sha-256\nhost all strict all reject\n{before}")
        own.execute("DROP ROLE IF EXISTS strict")
        own.execute("CREATE ROLE strict LOGIN SUPERUSER PASSWORD 's3cret'")
        own.execute("ALTER SYSTEM SET ssl = on")
        own.execute("SELECT pg_reload_conf()")
        yield {**opts, "postgresql.user": "strict", "postgresql.sslrootcert": str(tmp_path / "ca.crt")}
        hba.write_text(before)
        own.execute("ALTER SYSTEM RESET ssl")
        own.execute("SELECT pg_reload_conf()")

    def test_a_password_and_a_certificate_are_what_the_server_asks_for(self, strict, caplog, tmp_path):
        good = {**strict, "postgresql.password": "s3cret", "postgresql.sslmode": "verify-full"}
        wait_for(lambda: _works(good), what="the server has read its configuration")
        assert banks_of(good).rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [(True,)]
        (tmp_path / "pgpass").write_text("127.0.0.1:*:*:strict:s3cret\n")
        os.chmod(tmp_path / "pgpass", 0o600)
        by_file = {**good, "postgresql.password": "", "postgresql.dsn": f"passfile={tmp_path}/pgpass"}
        assert _works(by_file)
        (tmp_path / "other.crt").write_text("")
        for wrong, why in (
            ({"postgresql.password": "wr0ng"}, "password authentication failed"),
            ({"postgresql.sslmode": "disable"}, "pg_hba"),
            ({"postgresql.sslrootcert": str(tmp_path / "other.crt")}, "other.crt"),
        ):
            with caplog.at_level(logging.DEBUG), pytest.raises(SaltCacheError, match=why) as told:
                salt.cache.Cache({**good, **wrong}).fetch("bank", "key")
            assert "s3cret" not in caplog.text + str(told.value) and "wr0ng" not in caplog.text + str(told.value)


def _works(opts):
    with contextlib.suppress(SaltCacheError):
        salt.cache.Cache(opts).store("bank", "key", 1)
        return True
    return False
