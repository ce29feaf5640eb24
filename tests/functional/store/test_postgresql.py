"""
The server of ``cache: postgresql``, a real one: how a master gets in, several masters, and a server that is killed, full or
locked, or has a table of another program.
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
import threading
import time

import pytest
import salt.cache
import salt.config
import salt.payload
import salt.version
from salt.exceptions import SaltCacheError

from saltext.jobs.core.errors import RowRefused, SettingsError, SiteAway
from saltext.jobs.core.ledger.tables import FORMAT, SITE, VALUES
from saltext.jobs.core.options.postgresql import read_cache_options
from saltext.jobs.core.store.drivers import Outage
from saltext.jobs.core.store.store import Store
from tests.functional.cache_servers import cache_servers, driver_options  # noqa: F401 (a fixture)
from tests.functional.store.banks import banks_of
from tests.functional.store.test_contract import LOAD, in_processes
from tests.missing import missing
from tests.waiting import SOON, stretched, wait_for

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


def test_a_key_that_the_server_cannot_hold_is_refused_for_good(opts, cache):
    long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9000))
    for key in ("a\0b", long, "\ud800"):
        with pytest.raises(SaltCacheError, match=r"postgresql could not store bank='bank'") as refused:
            cache.store("bank", key, 1)
        assert isinstance(refused.value.__cause__, (RowRefused, UnicodeError))
        with pytest.raises(SaltCacheError) as refused:
            Store(opts).store("bank", key, 1)
        assert not isinstance(refused.value, Outage)
    cache.store("bank", "key", 1)
    assert cache.list("bank") == ["key"]


def test_a_token_is_on_the_disk_of_its_master_and_one_in_the_database_is_none(opts, cache, asked):
    cache.store("tokens", "own", {"name": "anna"})
    banks_of(opts).store("tokens", "forged", {"name": "boss"})
    assert (cache.list("tokens"), cache.fetch("tokens", "forged")) == (["own"], {})
    assert asked(f"SELECT key FROM {VALUES}") == [("forged",)]


class TestTheServerAndItsTables:
    def test_a_table_of_another_format_is_left_alone(self, opts, cache, asked):
        cache.store("bank", "key", 1)
        asked(f"UPDATE {SITE} SET number = %s", FORMAT + 1)
        other = {**opts, "postgresql.timeout": 6}
        with pytest.raises(SaltCacheError, match="is of format"):
            salt.cache.Cache(other).store("bank", "key", 2)
        with pytest.raises(SiteAway):
            banks_of(other).flush("bank")
        assert asked(f"SELECT count(*) FROM {VALUES}") == [(1,)]

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
        wrong = {**opts, "postgresql.password": "s3cret", "postgresql.connect_timeout": 1, **wrong}
        with caplog.at_level(logging.DEBUG), pytest.raises(SaltCacheError, match=why) as told:
            salt.cache.Cache(wrong).fetch("bank", "key")
        assert type(told.value.__cause__) is SiteAway
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
        assert banks_of(opts).tables.read(shown) == [("on",)]
        server.server.execute(f"ALTER DATABASE {opts['postgresql.db']} SET synchronous_commit = local")
        assert banks_of({**opts, "postgresql.timeout": 6}).tables.read(shown) == [("local",)]

    def test_threads_and_processes_share_few_connections(self, opts, asked):
        def work(number):
            threads = [threading.Thread(target=cache.store, args=("bank", f"{number}.{one}", one)) for one in range(30)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(stretched(SOON))
            mine = "application_name = 'salt cache' AND datname = current_database()"
            return asked(f"SELECT count(*) FROM pg_stat_activity WHERE {mine}")[0][0]

        cache = salt.cache.Cache({**opts, "postgresql.connect_timeout": stretched(5)})
        cache.store("bank", "first", 1)
        assert max(in_processes(2, work)) <= 2 * 4 + 1
        assert cache.fetch("bank", "first") == 1, "a child's end ends no connection of its parent"
        assert len(cache.list("bank")) == 61


class TestFaults:
    @pytest.fixture
    def patient(self, opts):
        """Options with which a server is waited for longer the busier the machine is: its start takes longer, too."""
        return {**opts, "postgresql.connect_timeout": stretched(5)}

    def test_a_connection_that_is_cut_in_the_middle_is_made_anew_and_the_record_stored_once(self, patient, asked):
        cache = salt.cache.Cache(patient)
        cache.store("bank", "first", 1)
        banks_of(patient).keys("bank")
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

    @pytest.mark.parametrize("away", ["stop", "freeze"])
    def test_a_process_waits_for_a_server_that_is_away_once_and_not_for_each_of_its_calls(self, opts, server, away):
        options = [{**opts, "postgresql.connect_timeout": 2, "postgresql.timeout": seconds} for seconds in (4, 5, 6)]
        caches, times = [salt.cache.Cache(one) for one in options], [time.monotonic()]
        getattr(server, away)()
        try:
            for cache in caches:
                with pytest.raises(SaltCacheError):
                    cache.fetch("bank", "key")
                times.append(time.monotonic())
            assert times[1] - times[0] > times[3] - times[1]
        finally:
            server.start() if away == "stop" else server.thaw()
        wait_for(lambda: all(_works(one) for one in options), what="the server is used again")

    def test_a_locked_row_is_an_error_in_time_and_not_a_refusal(self, opts, server):
        wanted = {**opts, "postgresql.timeout": 1}
        cache, store = salt.cache.Cache(wanted), Store(wanted)
        cache.store("bank", "key", 1)
        with contextlib.closing(server.server.connect(opts["postgresql.db"])) as other:
            other.autocommit = False
            other.cursor().execute(f"SELECT * FROM {VALUES} FOR UPDATE")
            with pytest.raises(SaltCacheError, match="look at its load, its locks") as told:
                cache.store("bank", "key", 2)
            assert type(told.value.__cause__) is SiteAway
            with pytest.raises(Outage):
                store.store("bank", "key", 3)
            assert cache.fetch("bank", "key") == 1, "who reads waits for nobody"
        cache.store("bank", "key", 4)
        assert cache.fetch("bank", "key") == 4

    @pytest.mark.parametrize(
        ("role", "setting", "why"),
        [
            ("limited", "CONNECTION LIMIT 0", "max_connections"),
            ("poor", "", r"user poor.*permission denied for schema public.*rights"),
            ("", "SET default_transaction_read_only = on", "read-only transaction"),
        ],
    )
    def test_a_server_that_lets_nobody_write_is_an_error_that_says_why_and_no_refusal(
        self, opts, cache, server, role, setting, why
    ):
        if role:
            server.server.execute(f"DROP ROLE IF EXISTS {role}")
            server.server.execute(f"CREATE ROLE {role} LOGIN")
        else:
            cache.store("bank", "key", 1)
        if setting:
            server.server.execute(f"ALTER DATABASE {opts['postgresql.db']} {setting}")
        other = salt.cache.Cache(
            {**opts, "postgresql.connect_timeout": 1, **({"postgresql.user": role} if role else {})}
        )
        with pytest.raises(SaltCacheError, match=why) as told:
            other.store("bank", "key", 2)
        assert type(told.value.__cause__) is SiteAway
        assert role or other.fetch("bank", "key") == 1, "what can be read is read"

    def test_records_written_while_old_jobs_are_removed_stay(self, opts):
        """A job is removed as a whole, or a write of any of it keeps it."""
        banks, jids = banks_of(opts), [f"20200101{number:012}" for number in range(40)]
        now = time.time() + 3600
        for jid in jids:
            banks.store_all(
                [("jobs/loads", jid, LOAD), ("jobs/minions", jid, ["web1"]), (f"jobs/returns/{jid}", "a", 1)]
            )
        banks.tables.run(f"UPDATE {VALUES} SET updated = updated - 86400")

        def work(number):
            mine = banks_of(opts)
            if number == 0:
                return mine.remove_older(jids, time.time() - 60)
            for jid in jids[::-1]:
                mine.store("jobs/minions", jid, ["web2"])
            return now

        in_processes(2, work)
        for jid in jids:
            assert banks.fetch("jobs/minions", jid) == ["web2"]
            assert banks.contains("jobs/loads", jid) is banks.contains(f"jobs/returns/{jid}", "a")

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
            banks_of(opts).tables.run(f"ALTER TABLE {VALUES} SET TABLESPACE s{name}")
            error = None
            for number in range(200):
                try:
                    cache.store("bank", f"key{number}", os.urandom(100_000))
                except SaltCacheError as exc:
                    error = exc
                    break
            assert error is not None and "make room on its disk" in str(error)
            assert type(error.__cause__) is SiteAway
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
        assert banks_of(good).tables.read("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [(True,)]
        (tmp_path / "pgpass").write_text("127.0.0.1:*:*:strict:s3cret\n")
        os.chmod(tmp_path / "pgpass", 0o600)
        assert _works({**good, "postgresql.password": "", "postgresql.dsn": f"passfile={tmp_path}/pgpass"})
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
