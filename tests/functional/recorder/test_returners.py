"""What the recorder can rely on of Salt's own returners, against real servers and files."""

from __future__ import annotations

import contextlib
import json
import logging
import sys

import psycopg2
import pytest
import salt.cache
import salt.config
import salt.loader
import salt.utils.jid
from salt.exceptions import SaltMasterError

from saltext.jobs.core.recorder.pipeline import failure_of
from saltext.jobs.core.recorder.returner import ReturnerAbsent, ReturnerModule, promoted
from tests.functional import cache_servers
from tests.functional.options import options_in
from tests.postgresql import PostgreSQL

#: What pgjsonb catches and logs.
CAUGHT = (psycopg2.Error, SaltMasterError)
JID = "20260516101112131415"


@pytest.fixture(scope="module")
def postgresql():
    server = PostgreSQL()
    yield server
    server.remove()


@pytest.fixture
def opts(tmp_path):
    return options_in(tmp_path)


def a_return(minion="m1", value=None, **more):
    job = {"cmd": "_return", "id": minion, "jid": JID, "fun": "test.echo", "fun_args": ["x"]}
    return {**job, "return": value, "retcode": 0, "success": True, **more}


def a_load():
    load = {"jid": JID, "fun": "test.echo", "arg": ["x"], "tgt": "*", "tgt_type": "glob"}
    return {**load, "user": "anna", "cmd": "publish"}


# -- pgjsonb ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pgjsonb(postgresql, opts):
    postgresql.start() if postgresql.process is None else None
    postgresql.empty()
    opts.update(postgresql.options)
    return ReturnerModule(opts, "pgjsonb")


@pytest.mark.parametrize("name", ["", "history"])  # save_load has no way to learn of a ret_config
def test_pgjsonb_stores_loads_and_returns_also_by_an_alternative_configuration(pgjsonb, postgresql, opts, name):
    prefix = f"{name}." if name else ""
    opts.update({"returner.pgjsonb.port": 1, **{prefix + option: it for option, it in postgresql.options.items()}})
    module = ReturnerModule(opts, "pgjsonb", name)
    module.store_load(JID, a_load())
    module.store_return(a_return(value={"a": [1, 2]}))
    assert postgresql.returns() == [(JID, "m1")]
    assert postgresql.execute("SELECT jid, load->>'user' FROM jids") == [(JID, "anna")]
    assert module.returns(JID)["m1"]["return"] == {"a": [1, 2]}


def test_a_server_that_is_down_is_an_error_although_pgjsonb_only_logs_it(pgjsonb, postgresql, caplog):
    postgresql.stop()
    with pytest.raises(CAUGHT) as raised, caplog.at_level(logging.ERROR):
        pgjsonb.store_return(a_return())
    assert not failure_of(raised.value).is_fault
    # It says that it drops the return. Without the recorder it would.
    assert "dropping" not in caplog.text


@pytest.mark.parametrize("poison", [{"value": "nul \0 character"}, {"fun": "x" * 60}])
def test_a_value_that_postgresql_cannot_store_blames_the_record(pgjsonb, poison):
    with pytest.raises(CAUGHT) as raised:
        pgjsonb.store_return(a_return(**poison))
    assert failure_of(raised.value).is_fault


@pytest.mark.parametrize("use", [lambda of: of.store_return(a_return()), lambda of: of.returns(JID)])
def test_a_missing_table_blames_no_record_and_leaves_no_traceback(pgjsonb, postgresql, use, caplog):
    postgresql.execute("ALTER TABLE salt_returns RENAME TO elsewhere")
    try:
        with pytest.raises(CAUGHT) as raised:
            use(pgjsonb)
    finally:
        postgresql.execute("ALTER TABLE elsewhere RENAME TO salt_returns")
    assert not failure_of(raised.value).is_fault and not caplog.text


def test_an_error_is_heard_whatever_the_log_level(pgjsonb, postgresql):
    postgresql.stop()
    logging.getLogger().manager.disable, before = 0, logging.getLogger().level
    logging.getLogger().setLevel(1000)
    try:
        with pytest.raises(CAUGHT):
            pgjsonb.store_return(a_return())
    finally:
        logging.getLogger().setLevel(before)


# -- rawfile_json -----------------------------------------------------------------------------------------------------


def test_rawfile_json_gets_a_line_for_each_return_and_has_no_place_for_loads(opts, tmp_path):
    opts["rawfile_json.filename"] = str(tmp_path / "returns")
    module = ReturnerModule(opts, "rawfile_json")
    assert not module.takes_loads
    module.store_return(a_return("m1"))
    module.store_return(a_return("m2"))
    lines = [json.loads(line) for line in (tmp_path / "returns").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["m1", "m2"]
    assert not module.has("get_jid")


@pytest.mark.parametrize("bad", [b"\xff", {1, 2}, "\udc80", [[[object()]]]])
def test_a_return_that_is_no_json_leaves_nothing_behind_in_the_file(opts, tmp_path, bad):
    path = tmp_path / "returns"
    opts["rawfile_json.filename"] = str(path)
    module = ReturnerModule(opts, "rawfile_json")
    for minion, value in (("m1", "good"), ("m2", ["much that comes first" * 5000, bad]), ("m3", "good")):
        with contextlib.nullcontext() if value == "good" else pytest.raises((TypeError, ValueError)):
            module.store_return(a_return(minion, value=value))
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["m1", "m3"]


# -- salt_cache on Redis ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    server = cache_servers.redis_server(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.stop()


@pytest.fixture
def salt_cache(redis, opts):
    opts.update({f"history.{name}": value for name, value in redis.options.items()})
    return ReturnerModule(opts, "salt_cache", "history")


def test_jobs_recorded_into_salt_cache_do_not_count_as_published_by_this_master(salt_cache, redis, opts):
    salt_cache.store_load(JID, a_load())
    cache = salt.cache.Cache({**opts, **redis.options})
    assert cache.contains("jobs/loads", JID)
    assert not cache.contains("jobs/published", JID)


def test_a_redis_that_is_down_blames_no_record(salt_cache, redis):
    salt_cache.store_return(a_return())
    redis.stop()
    try:
        with pytest.raises(Exception, match="redis") as raised:
            salt_cache.store_return(a_return("m2"))
    finally:
        redis.start()
    assert not failure_of(raised.value).is_fault
    salt_cache.store_return(a_return("m2"))
    assert "m2" in salt_cache.returns(JID)


# -- loading ----------------------------------------------------------------------------------------------------------


def test_a_returner_that_does_not_exist_is_an_error_that_names_it_and_takes_memory_once(opts):
    module, loaded = ReturnerModule(opts, "no_such"), []
    for _ in range(3):
        with pytest.raises(ReturnerAbsent, match="no_such"):
            module.store_return(a_return())
        loaded.append(len(sys.modules))
    assert not module.has("store_many") and loaded[0] == loaded[-1] == len(sys.modules)


@pytest.mark.parametrize(
    ("usual", "alternative", "expected"),
    [
        ({"returner.x.host": "a"}, {"alt.returner.x.host": "b"}, {"returner.x.host": "b"}),
        ({"x": {"host": "a", "port": 1}}, {"alt.x": {"host": "b"}}, {"x": {"host": "b", "port": 1}}),
        ({"returner.x": {"host": "a"}}, {"alt.returner.x.host": "b"}, {"returner.x": {"host": "b"}}),
        ({"cache": "localfs"}, {"alt.cache": "redis"}, {"cache": "redis"}),
    ],
)
def test_an_alternative_configuration_takes_the_place_of_the_usual_one(usual, alternative, expected):
    result = promoted({**usual, **alternative}, "alt")
    assert {name: result[name] for name in expected} == expected
    assert promoted({**usual, **alternative}, "") == {**usual, **alternative}


def test_two_configurations_in_one_process_never_mix(opts, tmp_path):
    # Salt's loaders share a module, and the options in it, unless they are told not to.
    opts.update({f"{name}.cachedir": str(tmp_path / name) for name in "ab"})
    modules = {name: ReturnerModule(opts, "salt_cache", name) for name in "ab"}
    for module in modules.values():
        with pytest.raises(ReturnerAbsent):
            module.store_many([])  # makes the loader load everything
    for name in "abab":
        modules[name].store_return(a_return(name))
    assert {name: list(module.returns(JID)) for name, module in modules.items()} == {"a": ["a"], "b": ["b"]}
