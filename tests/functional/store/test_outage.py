"""While the server of the job cache is away, what the engines need to know is in the log."""

from __future__ import annotations

import contextlib
import pathlib
import time

import pytest
import salt.loader
from salt.exceptions import SaltCacheError

from saltext.jobs.core.engine.proof import Returns
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.passes import pass_for
from saltext.jobs.core.retry.reader import JobReader
from saltext.jobs.core.site import site_of
from saltext.jobs.core.store.drivers import Driver
from tests.functional.cache_servers import cache_servers  # noqa: F401
from tests.functional.options import options_in
from tests.waiting import stretched

LOAD = {"cmd": "publish", "fun": "state.apply", "arg": ["web"], "tgt": "*", "tgt_type": "glob", "user": "root"}
QUESTION = "20261123000000000000"


@pytest.fixture
def redis(cache_servers):  # noqa: F811
    server = cache_servers("redis")
    yield server
    with contextlib.suppress(Exception):
        server.start()


def test_only_the_first_of_many_saves_waits_for_a_server_that_is_away(tmp_path, redis):
    driver = Driver(options_in(tmp_path, **redis.options))
    driver.store("jobs/loads", "1", {"fun": "test.ping"})
    redis.stop()
    took = []
    for _ in range(5):
        began = time.monotonic()
        with pytest.raises(SaltCacheError):
            driver.store("jobs/loads", "1", {})
        took.append(time.monotonic() - began)
    assert took[0] > 2 and sum(took[1:]) < stretched(1)
    redis.start()
    driver.store("jobs/loads", "1", {"fun": "test.echo"})
    assert driver.fetch("jobs/loads", "1") == {"fun": "test.echo"}


def test_a_job_its_returns_and_an_answer_are_known_while_redis_is_away(tmp_path, redis):
    opts = options_in(tmp_path, master_job_cache="salt_cache", **redis.options)
    (tmp_path / "pki" / "minions").mkdir(parents=True)
    for minion in ("a", "b"):
        (tmp_path / "pki" / "minions" / minion).write_text("key")
    pathlib.Path(opts["cachedir"]).mkdir(exist_ok=True)
    pathlib.Path(opts["cachedir"], f".{opts['user']}_key").write_text("the key for local clients")
    utils = salt.loader.utils(opts)
    master = salt.loader.returners(opts, salt.loader.minion_mods(opts, utils=utils))
    returns = Returns(site_of(opts), JobCache(opts))
    redis.stop()
    assert master["salt_cache.prep_jid"](nocache=True)
    jid = master["salt_cache.prep_jid"]()
    for call, arguments in (("save_load", (jid, {**LOAD, "jid": jid}, ["a", "b"])), ("returner", None)):
        with contextlib.suppress(SaltCacheError):  # as Salt does
            said = {"jid": jid, "id": "a", "fun": "state.apply", "fun_args": ["web"], "return": True, "retcode": 2}
            master[f"salt_cache.{call}"](*(arguments or (said,)))
    assert returns.of(jid, ["a", "b"]) == {"a": 2}
    read = JobReader(opts, returns, lambda _jid: ()).read(jid)
    assert (read.missing, read.job.load["arg"]) == ({"b"}, ["web"])
    master["salt_cache.prep_jid"](passed_jid=pass_for(opts, QUESTION, "job_retry"))
    asks = {"executor_opts": {"job_once": {"question": True}}}
    master["salt_cache.save_load"](QUESTION, {**LOAD, "fun": "saltutil.find_job", "kwargs": asks}, minions=["b"])
    assert master["salt_cache.returner"]({"jid": QUESTION, "id": "b", "fun": "saltutil.find_job", "return": {}}) is None
    assert returns.of(QUESTION, ["b"]) == {"b": 0}
