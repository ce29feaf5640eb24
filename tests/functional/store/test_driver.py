"""
What ``salt.cache`` asks of a driver, of the two that this extension brings: sqlite and postgresql, loaded by Salt.

What differs stands in these tests; what only one of them can suffer, in ``test_sqlite.py`` and ``test_postgresql.py``.
"""

from __future__ import annotations

import itertools
import string
import subprocess
import sys
import time

import pytest
import salt.cache
import salt.config
import salt.payload
import salt.version
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from salt.exceptions import SaltCacheError

from tests.functional.cache_servers import cache_servers, driver_options  # noqa: F401 (a fixture)
from tests.functional.store.banks import banks_of
from tests.functional.store.test_contract import in_processes
from tests.waiting import stretched, wait_for

pytestmark = pytest.mark.story  # ``salt.cache`` differs between the releases
TAGS = itertools.count(7000)

OPTIONS = {
    "sqlite": [{"sqlite_cache_path": "x.sqlite"}, {"sqlite_cache_path": 7}],
    "postgresql": [{"postgresql.port": "x"}, {"postgresql.timeout": -1}, {"postgresql.connect_timeout": 0}],
}


@pytest.fixture(params=["sqlite", "postgresql"])
def opts(request, cache_servers, tmp_path):  # noqa: F811
    own = driver_options(request.param, cache_servers, tmp_path, next(TAGS))
    return {**salt.config.DEFAULT_MASTER_OPTS, "id": "m_master", **own}


@pytest.fixture
def is_file(opts):
    return opts["cache"] == "sqlite"


@pytest.fixture
def cache(opts):
    return salt.cache.Cache(opts)


@pytest.fixture
def banks(opts):
    """What is below the driver."""
    return banks_of(opts)


@pytest.mark.parametrize("bank", ["grains", "a/b/c", "/".join(string.ascii_letters)])
def test_a_bank_holds_what_is_stored_in_it(cache, bank):
    assert not cache.contains(bank) and cache.list(bank) == []
    assert cache.fetch(bank, "key") == {} and cache.updated(bank, "key") is None
    value = {"some": "data", 42: "number", "other": {"sub": [1, None, 1.5, {"x": True}]}, "é": b"\xff\x00"}
    before = int(time.time())
    for stored in ("first", "x" * 20_000_000, value):
        cache.store(bank, "key", stored)
        assert cache.fetch(bank, "key") == stored
    assert before <= cache.updated(bank, "key") <= time.time() + 1
    assert isinstance(cache.updated(bank, "key"), int)
    assert cache.list(bank) == ["key"]
    assert cache.contains(bank) and cache.contains(bank, None) and cache.contains(bank, "key")
    assert not cache.contains(bank, "other") and not cache.contains("other", "key")


def test_a_bank_has_one_name(cache):
    cache.store("a/b", "key", 1)
    for name in ("/a/b", "a//b", "a/b/", "./a/./b"):
        assert cache.fetch(name, "key") == 1, name
    cache.store("a.b/c.d", "e.p", 2)
    assert cache.list("a.b/c.d") == ["e.p"]


@pytest.mark.parametrize("bank", ["..", "a/../../b", "", "/", None, 7, ["a"]])
def test_a_bank_that_leads_out_or_is_invalid_is_refused(cache, opts, bank):
    for call in (lambda: cache.store(bank, "key", 1), lambda: cache.flush(bank), lambda: cache.list(bank)):
        with pytest.raises(SaltCacheError, match=f"{opts['cache']}.*bank"):
            call()


def test_any_text_is_a_key(cache, is_file):
    keys = ["a/b", "minion:env/../x", "", " ", "é", "'; DROP TABLE records; --", "%s"]
    keys += ["a\0b", "x" * 5000] * is_file
    for number, key in enumerate(keys):
        cache.store("bank", key, number)
    assert sorted(cache.list("bank")) == sorted(keys)
    for number, key in enumerate(keys):
        assert cache.fetch("bank", key) == number and cache.contains("bank", key)
        cache.flush("bank", key)
    assert cache.list("bank") == []


def test_a_value_that_cannot_be_stored_is_an_error_and_the_old_value_stays(cache):
    cache.store("bank", "key", "old")
    for key, value in (("\ud800", 1), ("key", object())):
        with pytest.raises((SaltCacheError, Exception)):
            cache.store("bank", key, value)
    assert cache.fetch("bank", "key") == "old" and cache.list("bank") == ["key"]


@pytest.mark.skipif(salt.version.__saltstack_version__.major < 3008, reason="came with Salt 3008")
def test_an_expired_value_is_not_there(cache, banks):
    for name, seconds in {"short": 1, "long": 1000, "ever": None}.items():
        cache.store("bank", name, {"name": name}, expires=seconds)
    assert cache.list_all("bank", include_data=True) == {name: {"name": name} for name in ("ever", "long", "short")}
    wait_for(lambda: not cache.contains("bank", "short"), what="it has expired")
    assert cache.fetch("bank", "short") == {} and cache.updated("bank", "short") is None
    assert sorted(cache.list("bank")) == sorted(cache.list_all("bank")) == ["ever", "long"]
    assert banks.store_new("bank", "short", "again") is True, "its place is free"
    cache.store("bank", "short", 1, expires=0.001)
    wait_for(lambda: not cache.contains("bank", "short"), what="it has expired again")
    cache.clean_expired("bank")
    cache.store("bank", "long", "for ever")
    assert banks.store_new("bank", "long", 1) is False
    assert sorted(cache.list("bank")) == ["ever", "long"]


def test_an_option_that_is_not_accepted_is_named(opts):
    for wrong in OPTIONS[opts["cache"]]:
        ((name, value),) = wrong.items()
        with pytest.raises(SaltCacheError, match=f"{name.rpartition('.')[2]} is {value!r}; accepted is"):
            salt.cache.Cache({**opts, **wrong}).fetch("bank", "key")


def test_masters_and_workers_that_begin_together_make_one_store_and_lose_nothing(opts):
    def work(number):
        cache = salt.cache.Cache(opts)
        for turn in range(30):
            cache.store("jobs/loads", f"{number}-{turn}", {"fun": "test.ping", "turn": turn})
            cache.store(f"jobs/returns/{turn}", f"web{number}", number)
            cache.fetch("jobs/loads", f"{(number + 1) % 8}-{turn}")

    assert in_processes(8, work) == [None] * 8
    cache = salt.cache.Cache(opts)
    assert len(cache.list("jobs/loads")) == 8 * 30
    for turn in range(30):
        assert sorted(cache.list(f"jobs/returns/{turn}")) == [f"web{number}" for number in range(8)]


BANKS = ["a", "a/b", "a/b/c", "a/bb", "a-b", "b", "jobs/loads", "jobs/minions", "jobs/returns/1"]
KEYS = ["1", "b", ""]
VALUES = st.sampled_from([0, "x", {}, {"fun": "a.b", "user": "\0"}, ["web1"], ["a/b", 7], {"return": 1, "retcode": 2}])
WHAT = st.sampled_from(["store", "store", "store", "flush", "drop", "new"])
STEP = st.tuples(WHAT, st.sampled_from(BANKS), st.sampled_from(KEYS), VALUES)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=30))
def test_any_row_of_calls_leaves_what_a_dictionary_would_hold(opts, cache, banks, steps):
    model, made = {}, set()
    for bank in ("a", "a-b", "b", "jobs"):
        cache.flush(bank)
    for what, bank, key, value in steps:
        below = {name for name in made if name == bank or name.startswith(f"{bank}/")}
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
            assert cache.flush(bank) is bool(below)
            model = {place: kept for place, kept in model.items() if place[0] not in below}
        made = {name for name, _ in model}
    for bank in (*BANKS, "jobs", "jobs/returns"):
        keys = {key for name, key in model if name == bank}
        subs = {name[len(bank) + 1 :].partition("/")[0] for name in made if name.startswith(f"{bank}/")}
        assert sorted(cache.list(bank)) == sorted(keys | subs)
        assert cache.contains(bank) is (bank in made or bool(subs))
        found = {key: salt.payload.loads(data) for key, data in banks.items(bank)}
        assert found == {key: model[bank, key] for key in keys}
        for key in KEYS:
            assert cache.fetch(bank, key) == model.get((bank, key), {})
            assert cache.contains(bank, key) is ((bank, key) in model)


#: Jobs are stored on localfs without psycopg, and the driver that needs it says what is lacking.
BARE = """
import sys
folder, module, driver = sys.argv[1:]
sys.modules[module] = None
import salt.cache, salt.config, salt.loader
opts = {**salt.config.DEFAULT_MASTER_OPTS, "id": "m_master", "master_job_cache": "salt_cache"}
opts.update(dict.fromkeys(("cachedir", "pki_dir", "extension_modules"), folder))
found = salt.loader.returners(opts, {})
found["salt_cache.save_load"]("20260516120000000000", {"fun": "test.ping", "jid": "20260516120000000000"}, minions=["web1"])
assert list(salt.loader.runner(opts)["job_cache.search"](kind="all")["jobs"])[0]["Function"] == "test.ping"
assert salt.loader.runner(opts)["job_cache.doctor"]()["usable"]
opts["cache"] = driver
for call in (
    lambda: salt.loader.returners(opts, {})["salt_cache.get_jids"](),
    lambda: salt.loader.runner(opts)["job_cache.stats"](),
    lambda: salt.cache.Cache(opts).store("bank", "key", 1),
):
    try:
        call()
    except Exception as exc:
        print(exc)
"""


def test_a_python_without_psycopg_has_all_the_rest(tmp_path):
    command = [sys.executable, "-c", BARE, str(tmp_path), "psycopg", "postgresql"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    returner, runner, cache = done.stdout.splitlines()
    told = "cache: postgresql needs the Python module psycopg: pip install"
    assert told in returner and told in runner and "postgresql" in cache
