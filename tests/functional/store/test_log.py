"""What the job cache writes into the log, and when."""

from __future__ import annotations

import os
import pathlib

import pytest
import salt.loader

from saltext.jobs.core.ledger.log import Reader
from saltext.jobs.core.ledger.records import Published, Returned, work_of
from saltext.jobs.core.master.job_cache import BATCH_MARK, JobCache
from saltext.jobs.core.master.passes import pass_for
from saltext.jobs.core.site import site_of
from tests.functional.options import options_in

JID = "20261123000000000000"
LOAD = {
    "cmd": "publish",
    "fun": "state.apply",
    "arg": ["web"],
    "tgt": "web*",
    "tgt_type": "glob",
    "user": "ops",
    "ret": "",
}


@pytest.fixture
def opts(tmp_path):
    return options_in(tmp_path, master_job_cache="salt_cache", cache="localfs")


@pytest.fixture
def job_cache(opts):
    utils = salt.loader.utils(opts)
    loaded = salt.loader.returners(opts, salt.loader.minion_mods(opts, utils=utils))
    return {
        name: loaded[f"salt_cache.{name}"] for name in ("save_load", "get_load", "returner", "prep_jid", "save_minions")
    }


@pytest.fixture
def reader(opts):
    return Reader(site_of(opts))


@pytest.fixture
def tail(reader, job_cache):
    """What was appended since the last call."""
    job_cache["returner"]({"jid": "1", "id": "first", "return": 1, "fun": "test.ping"})
    reader.read()

    def tail():
        news = reader.read()
        assert not news.gap
        return news.records

    return tail


def test_a_publish_is_a_record_of_the_job_and_its_minions(job_cache, tail, opts):
    job_cache["save_load"](JID, {**LOAD, "jid": JID, "kwargs": {"token": "secret"}}, minions=["web2", "web1", "../x"])
    (record,) = tail()
    assert isinstance(record, Published)
    assert record[:7] == (JID, "state.apply", "ops", True, "", ("web1", "web2"), ())
    assert record.work == work_of(LOAD)
    assert record.loaded() == {**LOAD, "jid": JID, "kwargs": {}}
    assert record.sent and not record.fresh
    assert job_cache["prep_jid"](passed_jid=None) and not tail()


def test_of_a_job_under_a_new_jid_the_log_has_all(job_cache, tail):
    jid = job_cache["prep_jid"]()
    for _ in range(2):
        job_cache["save_load"](jid, {**LOAD, "jid": jid}, minions=["web1"])
    assert [record.fresh for record in tail()] == [True, False]


@pytest.mark.parametrize("fun", ["saltutil.find_job", ["saltutil.find_job", "saltutil.running"]])
def test_what_is_never_owed_has_neither_minions_nor_load_in_the_log(job_cache, tail, fun):
    job_cache["save_load"](JID, {**LOAD, "jid": JID, "fun": fun}, minions=["web1"])
    (record,) = tail()
    assert (record.minions, record.load) == ((), b"")


def nested(levels):
    value = "deepest"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("fun", "arg"),
    [
        ("test.echo", nested(500)),
        # Salt permits all of several functions to a user who may run one of them, and finds out nothing about the others.
        (["saltutil.find_job", ["x"], "saltutil.kill_job"], [["1"], [], ["2"]]),
        (["saltutil.find_job", {"x": 1}, 3, None, "saltutil.kill_all_jobs"], [["1"], [], [], [], []]),
        ({"saltutil.kill_job": 1}, "x"),
        ("saltutil.kill_job", nested(500)),
    ],
)
def test_nothing_in_a_load_hides_its_publish(job_cache, tail, fun, arg):
    job_cache["save_load"](JID, {**LOAD, "jid": JID, "fun": fun, "arg": arg}, minions=["web1"])
    assert [record.jid for record in tail()] == [JID]
    assert job_cache["get_load"](JID)["fun"] == fun


def test_a_kill_that_is_one_of_several_functions_ends_no_job(job_cache, tail):
    """Salt permits all of several functions to a user who may run one of them."""
    load = {**LOAD, "jid": JID, "fun": ["saltutil.find_job", "saltutil.kill_job"], "arg": [[JID], [JID]]}
    job_cache["save_load"](JID, load, minions=["web1"])
    assert [record.ends for record in tail()] == [()]


def test_only_a_publish_is_one(job_cache, tail):
    job_cache["save_load"](JID, {**LOAD, "jid": JID})
    job_cache["save_minions"](JID, ["web9"], syndic_id="s")
    job_cache["prep_jid"](passed_jid=JID)
    assert tail() == []


def test_the_first_return_is_a_record_and_a_second_one_is_none(job_cache, tail):
    said = {"jid": JID, "id": "web1", "fun": "state.apply", "return": 1, "retcode": 2, "success": True}
    assert job_cache["returner"](said) is None
    assert job_cache["returner"]({**said, "fun": "test.ping", "retcode": 0}) is False
    (record,) = tail()
    assert isinstance(record, Returned) and record[:4] == (JID, "web1", "state.apply", 2)


def test_a_return_that_is_not_stored_is_no_record(job_cache, tail):
    job_cache["prep_jid"](nocache=True, passed_jid=JID)
    job_cache["returner"]({"jid": JID, "id": "web1", "fun": "test.ping", "return": 1})
    job_cache["returner"]({"jid": "../x", "id": "web1", "fun": "test.ping", "return": 1})
    assert tail() == []


def test_records_that_a_minion_keeps_with_this_returner_are_in_no_log(tmp_path):
    opts = options_in(tmp_path, master_job_cache="salt_cache", cache="localfs", __role="minion")
    utils = salt.loader.utils(opts)
    loaded = salt.loader.returners(opts, salt.loader.minion_mods(opts, utils=utils))
    loaded["salt_cache.returner"]({"jid": JID, "id": "web1", "fun": "test.ping", "return": 1})
    assert not os.path.exists(os.path.join(opts["cachedir"], "saltext_jobs"))


# -- who has published --------------------------------------------------------------------------------------------------


def test_the_publish_record_of_an_engine_with_a_pass_has_the_name_of_the_engine(job_cache, tail, opts, tmp_path):
    pathlib.Path(opts["cachedir"], f".{opts['user']}_key").write_text("the key for local clients")
    for jid, named in ((JID, pass_for(opts, JID, "job_retry")), ("2", "2"), (JID, JID)):
        assert job_cache["prep_jid"](nocache=False, passed_jid=named) == jid
        job_cache["save_load"](jid, {**LOAD, "jid": jid, BATCH_MARK: True}, minions=["web1"])
    assert [record.origin for record in tail()] == ["job_retry", "", ""]


@pytest.mark.parametrize("fun", ["saltutil.find_job", "saltutil.kill_job"])
def test_a_question_of_an_engine_and_its_answers_are_in_the_log_alone_and_a_kill_is_a_job(job_cache, tail, opts, fun):
    pathlib.Path(opts["cachedir"], f".{opts['user']}_key").write_text("the key for local clients")
    job_cache["prep_jid"](passed_jid=pass_for(opts, JID, "job_retry"))
    load = {**LOAD, "jid": JID, "fun": fun, "arg": ["1"], "kwargs": {"executor_opts": {"job_once": {"question": True}}}}
    job_cache["save_load"](JID, load, minions=["web1"])
    for _ in range(2):
        job_cache["returner"]({"jid": JID, "id": "web1", "fun": fun, "return": {"pid": 1}})
    asked, answer = tail()
    assert (asked.origin, answer.minion, answer.answer()) == ("job_retry", "web1", {"pid": 1})
    is_kill = fun == "saltutil.kill_job"
    assert bool(job_cache["get_load"](JID)) is bool(JobCache(opts).returned(JID, ["web1"])) is is_kill


def test_a_user_cannot_have_the_log_keep_what_minions_return(job_cache, tail):
    asks = {"executor_opts": {"job_once": {"question": True}}}
    job_cache["save_load"](JID, {**LOAD, "jid": JID, "kwargs": asks}, minions=["web1"])
    job_cache["returner"]({"jid": JID, "id": "web1", "fun": "state.apply", "return": "x" * 1000})
    assert tail()[1].value == b""
    assert job_cache["get_load"](JID)["fun"] == "state.apply"


def test_a_pass_that_was_not_followed_by_its_publish_says_nothing_of_the_next_one(job_cache, tail, opts, tmp_path):
    pathlib.Path(opts["cachedir"], f".{opts['user']}_key").write_text("the key for local clients")
    job_cache["prep_jid"](nocache=False, passed_jid=pass_for(opts, JID, "job_retry"))
    job_cache["prep_jid"](nocache=False, passed_jid=JID)
    job_cache["save_load"](JID, {**LOAD, "jid": JID}, minions=["web1"])
    assert [record.origin for record in tail()] == [""]


def test_a_load_that_is_only_kept_is_no_publish(tail, opts):
    JobCache(opts).keep_load(JID, {**LOAD, "jid": JID, "kwargs": {"delimiter": ":"}}, ["web1"])
    (record,) = tail()
    assert not record.sent


def test_a_return_of_another_function_than_the_jobs_is_no_record(job_cache, tail):
    job_cache["save_load"](JID, {**LOAD, "jid": JID}, minions=["web1"])
    tail()
    assert job_cache["returner"]({"jid": JID, "id": "web1", "fun": "test.ping", "return": 1}) is False
    assert tail() == []


# -- a disk that is really full ---------------------------------------------------------------------------------------
