"""What is recorded, whatever happens to minions, returners and disks."""

from __future__ import annotations

import logging
import os
import threading
import time
import tracemalloc
import uuid

import pytest
import salt.utils.jid

from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.ledger.outbox import Key, Row
from saltext.jobs.core.ledger.records import publish_of, return_of
from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.recorder.recipients import RETURN, is_wanted
from saltext.jobs.core.recorder.returner import settings_of
from saltext.jobs.core.store.records import add_return
from saltext.jobs.core.store.store import store_of
from tests.database import database_of, replies_in
from tests.faults import full_disk
from tests.functional.cache_servers import cache_servers as cache_servers
from tests.functional.cache_servers import masters_key

from .stage import Returner, Stage

NOT_RECORDED = RecorderSettings().exclude


@pytest.fixture
def jid():
    return salt.utils.jid.gen_jid({})


@pytest.fixture
def make(tmp_path):
    """Makes recorders of the same master, one after the other."""
    made = []

    def start(**options):
        if made:
            made[-1].close()
            options = {"returner": made[-1].returner, **options}
        made.append(Stage(tmp_path, **options))
        return made[-1]

    yield start
    made[-1].close()


@pytest.fixture
def stage(make):
    return make()


@pytest.fixture
def hurry(monkeypatch):
    """The time passes after which a job cache in another place has what the log has."""
    clock = time.time

    def wait(stage):
        looks = stage.consumer.looks
        assert stage.until(lambda: stage.consumer.looks > looks + 1)
        monkeypatch.setattr(time, "time", lambda: clock() + 30)

    return wait


# -- whose job it is ---------------------------------------------------------------------------------------------------


def test_a_return_is_recorded_as_the_job_cache_has_it_after_its_load(stage, jid):
    stage.job_cache.publish(jid, arg=["ls"], token="s3cret", kwargs={"metadata": {"ticket": 7}, "password": "s3cret"})
    stage.job_cache.give_back(jid, "m1", {"a": [1, "é", b"\xff", None]}, retcode=2, ret_config="evil")
    stage.settle()
    ((of, load),) = stage.returner.loads
    assert (of, load["kwargs"], "Minions" in load) == (jid, {"metadata": {"ticket": 7}}, False)
    (ret,) = stage.returner.taken
    found = ret["fun"], ret["fun_args"], ret["return"], ret["retcode"]
    assert found == ("cmd.run", ["ls"], {"a": [1, "é", b"\xff", None]}, 2)
    assert "s3cret" not in f"{load} {ret}" and "ret_config" not in ret


def test_which_jobs_are_recorded_depends_on_what_was_published(stage, jid):
    stage.job_cache.publish(jid, "test.ping")
    stage.job_cache.give_back(jid, "m1", True, fun="test.ping")
    other = salt.utils.jid.gen_jid({})
    stage.job_cache.publish(other)
    stage.job_cache.give_back(other, "m1", "forged", fun="test.ping")
    stage.job_cache.give_back(other, "m1", "x")
    stage.settle()
    assert stage.returns == [(other, "m1", "x")]
    assert [found for found, _ in stage.returner.loads] == [other]


@pytest.mark.parametrize(
    ("fun", "include", "exclude", "wanted"),
    [
        ("state.apply", ["state.*"], NOT_RECORDED, True),
        ("pkg.install", ["state.*"], NOT_RECORDED, False),
        (["test.ping", "cmd.run"], ["*"], NOT_RECORDED, True),
        ("test.ping", ["*"], NOT_RECORDED, False),
        (["saltutil.find_job", "saltutil.find_cached_job", "match.compound"], ["*"], NOT_RECORDED, False),
        ([1, None, {"a": 1}], ["*"], (), False),
        ("runner.state.orchestrate", ["*"], (), False),
        ("runner.state.orchestrate", ["*", "runner.state.*"], (), True),
        ("runner.pillar.show_pillar", ["runner.*"], ["runner.pillar.*"], False),
        ("wheel.key.accept", ["*", "runner.*"], (), False),
        ("_system", ["*"], (), False),
        ("runners.of.a.module", ["*"], (), True),
    ],
)
def test_functions_are_chosen_by_globs(fun, include, exclude, wanted):
    assert is_wanted(fun, include, exclude) is wanted


def test_a_return_that_comes_twice_is_recorded_once(stage, jid):
    stage.job_cache.publish(jid)
    for number in range(3):
        stage.job_cache.give_back(jid, "m1", number)
        stage.settle()
    assert stage.returns == [(jid, "m1", 0)]


def test_a_load_is_recorded_once_over_restarts(make, stage, jid):
    stage.job_cache.publish(jid)
    stage.job_cache.give_back(jid, "m1")
    stage.settle()
    stage = make()
    stage.job_cache.give_back(jid, "m2")
    stage.settle()
    assert len(stage.returns) == 2
    assert [found for found, _ in stage.returner.loads] == [jid]


def test_a_job_that_nobody_has_published_is_recorded_with_its_load(stage, jid):
    stage.job_cache.report(jid, "state.highstate", "m1")
    stage.job_cache.give_back(jid, "m1", "x", fun="state.highstate")
    stage.settle()
    assert stage.returns == [(jid, "m1", "x")]
    assert [(of, load["fun"]) for of, load in stage.returner.loads] == [(jid, "state.highstate")]


def test_a_returner_that_takes_no_loads_is_owed_none(stage, jid):
    stage.returner.takes_loads = False
    stage.job_cache.publish(jid)
    stage.job_cache.report(f"{jid}1", "state.highstate", "m1")
    stage.job_cache.give_back(f"{jid}1", "m1", "x", fun="state.highstate")
    stage.settle()
    assert (stage.figures["delivered"], stage.figures["dropped"], stage.returner.loads) == (1, 0, [])


# -- restarts, removed jobs, and a log that lacks something ------------------------------------------------------------


@pytest.mark.parametrize("cache", ["sqlite", "localfs"])
def test_what_a_returner_has_not_got_goes_out_after_a_restart(make, jid, cache):
    stage = make(opts={"cache": cache})
    stage.returner.is_down = True
    stage.job_cache.publish(jid)
    stage.settle()
    stage.close()
    stage.job_cache.give_back(jid, "m1")
    stage = make(opts={"cache": cache})
    stage.returner.is_down = False
    assert stage.until(lambda: stage.returns == [(jid, "m1", "x")] and stage.returner.loads, seconds=5)


def test_masters_that_work_as_one_have_one_recorder_that_goes_on_wherever_it_runs(tmp_path, cache_servers, jid):
    server = cache_servers("postgresql").make_database(f"recorder{uuid.uuid4().hex[:12]}")
    shared = {**server, **masters_key(tmp_path), "cache": "postgresql", "saltext_jobs_site": "postgresql"}
    one, other = (Stage(tmp_path / name, tries=1, opts={**shared, "id": name}) for name in "ab")
    other.close()
    one.returner.refuses = lambda ret: ret["id"] == "bad"
    other.job_cache.publish(jid)
    for minion in ("m1", "bad"):
        other.job_cache.give_back(jid, minion)
    assert one.until(lambda: one.returns == [(jid, "m1", "x")] and one.figures["set_aside"] == 1)
    one.returner.is_down = True
    one.settle()
    one.close()
    one.job_cache.give_back(jid, "m2")
    last = Stage(tmp_path / "b", one.returner, opts={**shared, "id": "b"})
    one.returner.is_down = False
    assert last.until(lambda: last.returns == [(jid, "m1", "x"), (jid, "m2", "x")])
    assert last.until(lambda: (last.figures["set_aside"], last.figures["dropped"]) == (1, 0))
    last.close()


def test_a_returner_that_is_added_gets_what_comes_from_then_on(make, jid):
    stage = make()
    stage.job_cache.publish(jid)
    stage.job_cache.give_back(jid, "m1")
    stage.settle()
    stage = make(returner=Returner(), returners=["two"])
    stage.job_cache.give_back(jid, "m2")
    stage.settle()
    assert ("m2", "x") in [ret[1:] for ret in stage.returns]


def test_a_return_that_the_job_cache_has_no_more_is_counted_and_the_others_are_recorded(make, jid, caplog):
    stage = make()
    stage.returner.is_down = True
    other = salt.utils.jid.gen_jid({})
    for each in (jid, other):
        stage.job_cache.publish(each)
        stage.job_cache.give_back(each, "m1")
    stage.settle()
    stage.close()
    stage.job_cache.remove(jid)
    stage.returner.is_down = False
    with caplog.at_level(logging.CRITICAL, logger="saltext"):
        stage = make()
        assert stage.until(lambda: stage.returns == [(other, "m1", "x")])
        stage.settle()
        assert stage.figures["dropped"] == 1, "the return: the log has the load"
        assert stage.until(lambda: "are lost" in caplog.text)


def test_a_return_that_reaches_the_job_cache_seconds_after_the_log_is_recorded_and_doubles_no_other(
    make, jid, monkeypatch
):
    stage = make(opts={"cache": "localfs"}, returner=Returner(can_be_asked=False))
    stage.job_cache.publish(jid)
    store_of(stage.opts).log.append(return_of(jid, "m1", {"fun": "cmd.run"}))
    stage.job_cache.give_back(jid, "m2")
    later = time.time() + 3
    monkeypatch.setattr(time, "time", lambda: later)
    looks = stage.consumer.looks
    assert stage.until(lambda: stage.consumer.looks > looks + 2) and not stage.figures["dropped"]
    stage = make(opts={"cache": "localfs"})
    stage.job_cache.give_back(jid, "m1")
    assert stage.until(lambda: (jid, "m1", "x") in stage.returns)
    assert sorted(stage.returns) == [(jid, "m1", "x"), (jid, "m2", "x")]


def test_a_return_that_comes_while_the_recorder_is_frozen_is_not_taken_for_lost(make, jid, monkeypatch):
    stage = make(opts={"cache": "localfs"})
    now, opened, seen = time.time(), os.open, []
    monkeypatch.setattr(os, "open", lambda path, *more, **how: seen.append(path) or opened(path, *more, **how))
    monkeypatch.setattr(time, "time", lambda: now + 60 * any("jobs/returns" in str(path) for path in seen))
    assert stage.recipient.read([Row(Key(RETURN, jid, "m1"), now)]) == {} and seen


def test_a_question_of_an_engine_is_neither_recorded_nor_lost(make, jid):
    stage = make(exclude=[])
    stage.job_cache.ask(jid, "test.ping")
    stage.job_cache.give_back(jid, "m1", True, fun="test.ping")
    stage.settle()
    assert (stage.figures["dropped"], stage.returns, stage.returner.loads) == (0, [], [])


def test_the_age_of_what_hangs_in_a_returner_is_told(stage, jid):
    gate = threading.Event()
    stage.returner.refuses = lambda ret: not gate.wait(60)
    stage.job_cache.publish(jid)
    stage.settle()
    stage.job_cache.give_back(jid, "m1")
    assert stage.until(lambda: stage.figures["lag"] > 2)
    gate.set()
    assert stage.until(lambda: not stage.figures["lag"]) and stage.returns == [(jid, "m1", "x")]


@pytest.mark.parametrize("can_be_asked", [True, False])
def test_what_a_log_that_could_not_be_written_lacks_is_found_in_the_job_cache(make, jid, can_be_asked, caplog, hurry):
    stage = make(opts={"cache": "localfs"}, returner=Returner(can_be_asked))
    stage.job_cache.publish(jid)
    stage.job_cache.give_back(jid, "m1")
    stage.settle()
    stage.returner.is_down = True
    with stage.job_cache.without_log():
        stage.job_cache.give_back(jid, "m2")
    hurry(stage)
    assert stage.until(lambda: stage.figures["trouble"] or not can_be_asked)
    stage.job_cache.give_back(jid, "m3")
    assert stage.until(lambda: stage.figures["queued"] and stage.figures["lag"] > 1)
    stage.returner.is_down = False
    assert stage.until(lambda: len(stage.returns) >= 2)
    stage = make(opts={"cache": "localfs"})  # at once: what is in doubt then must neither be lost nor come twice
    assert stage.until(lambda: len(stage.returns) == 2 + can_be_asked)
    stage.settle()
    there = ["m1", "m2", "m3"] if can_be_asked else ["m1", "m3"]
    assert sorted(stage.returns) == [(jid, minion, "x") for minion in there]
    assert caplog.text.count("the log lacks records") <= 2, "once for each start"


@pytest.mark.parametrize("has_load", [True, False])
def test_what_the_log_lacks_is_recorded_though_it_reaches_the_job_cache_seconds_later(make, jid, hurry, has_load):
    stage = make(opts={"cache": "localfs"})
    if has_load:
        stage.job_cache.publish(jid)
    else:
        store_of(stage.opts).log.append(publish_of(jid, {"fun": "cmd.run"}, ["m1"], "", True, True))
    with stage.job_cache.without_log():
        store_of(stage.opts).log.append(return_of(jid, "m1", {"fun": "cmd.run"}))
    stage.run(4.0)
    add_return(store_of(stage.opts), jid, "m1", {"return": "x"})
    hurry(stage)
    assert stage.until(lambda: stage.returns == [(jid, "m1", "x")])


def test_records_of_a_clock_that_is_ahead_are_recorded_at_once(stage, jid, monkeypatch):
    clock = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: clock() + 60)
        stage.job_cache.publish(jid)
        stage.job_cache.give_back(jid, "m1")
    stage.settle()
    assert stage.returns == [(jid, "m1", "x")]


def test_what_is_removed_from_the_log_before_it_is_read_is_counted(make, jid):
    stage = make()
    stage.job_cache.publish(jid, minions=["m1", "m2"])
    stage.settle()
    stage.close()
    for minion in ("m1", "m2"):
        stage.job_cache.give_back(jid, minion)
    with database_of(stage.opts) as sql:
        sql.execute("UPDATE saltext_jobs_site SET removed = (SELECT place FROM saltext_jobs_log WHERE minion = 'm1')")
        sql.execute("DELETE FROM saltext_jobs_log WHERE minion IN ('', 'm1')")
    stage = make()
    assert stage.until(lambda: sorted(stage.returns) == [(jid, minion, "x") for minion in ("m1", "m2")])
    assert stage.figures["dropped"] == 1


def test_what_a_log_has_lost_in_a_power_cut_is_found_in_the_job_cache(make, jid, hurry):
    stage = make(opts={"cache": "localfs"})
    stage.job_cache.publish(jid)
    stage.settle()
    stage.close()
    stage.job_cache.give_back(jid, "m1")
    with database_of(stage.opts) as sql:
        assert sql.execute("DELETE FROM saltext_jobs_log WHERE minion = 'm1'").rowcount
    outbox = stage.consumer.outbox
    outbox.add([], outbox.cursor()._replace(boot="the one before"))
    stage = make(opts={"cache": "localfs"})
    hurry(stage)
    assert stage.until(lambda: stage.returns == [(jid, "m1", "x")])


def test_a_job_that_cannot_be_read_keeps_no_other_from_being_recorded(stage, jid):
    stage.job_cache.publish(jid)
    stage.job_cache.give_back(jid, "m1")
    stage.job_cache.give_back(jid, "m2")
    stage.returner.is_down = True
    stage.job_cache.damage(jid, "m1")
    stage.returner.is_down = False
    stage.settle()
    assert (jid, "m2", "x") in stage.returns


# -- refused records and memory ----------------------------------------------------------------------------------------


def test_records_that_are_refused_delay_no_others_and_are_set_aside_with_reason(stage, jid):
    stage.job_cache.publish(jid)
    stage.returner.refuses = lambda ret: ret["return"] == "bad"
    for number in range(1500):
        stage.job_cache.give_back(jid, f"bad{number}", "bad")
    stage.job_cache.give_back(jid, "good")
    assert stage.until(lambda: stage.returns)
    assert stage.until(lambda: stage.figures["set_aside"] + stage.figures["refused"] == 1500)
    assert stage.figures["trouble"] is None


def test_a_refused_record_is_tried_as_often_as_ever_though_the_engine_was_restarted(make, jid):
    stage = make(tries=3)
    stage.job_cache.publish(jid)
    tried = []
    stage.returner.refuses = lambda ret: tried.append(ret["id"]) or True
    stage.job_cache.give_back(jid, "m1")
    assert stage.until(lambda: stage.figures["refused"] == 1)
    stage = make(tries=3)
    assert stage.until(lambda: stage.figures["set_aside"] == 1)
    assert len(tried) == 3


def test_a_returner_that_is_down_takes_little_memory_however_large_the_returns(stage, jid):
    stage.job_cache.publish(jid)
    stage.returner.is_down = True
    tracemalloc.start()
    for number in range(60):
        stage.job_cache.give_back(jid, f"m{number}", "x" * (1 << 20))
    stage.run(3.0)  # in which it tries again
    assert stage.until(lambda: tracemalloc.get_traced_memory()[0] < 40 << 20)
    tracemalloc.stop()
    stage.returner.is_down = False
    assert stage.until(lambda: len(stage.returns) == 60, seconds=60)


def test_a_disk_that_is_full_loses_nothing_and_doubles_none_of_many(make, jid):
    stage, minions = make(), [f"m{number}" for number in range(1200)]
    stage.returner.is_down = True
    stage.job_cache.publish(jid)
    for minion in minions:
        stage.job_cache.give_back(jid, minion)
    stage.settle()
    with full_disk():
        stage.returner.is_down = False
        stage = make()
        assert stage.until(lambda: len(stage.returns) > 900)
    stage = make()
    stage.job_cache.give_back(jid, "last")
    assert stage.until(lambda: len(stage.returns) > len(minions))
    stage.settle()
    assert sorted(stage.returns) == sorted((jid, minion, "x") for minion in (*minions, "last"))


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ask():
    """Leaves a request for a stage and returns its reply."""

    def leave(stage, request):
        requests.leave(stage.opts, JOB_RECORDER, request)
        had = len(replies_in(stage.opts, JOB_RECORDER))
        stage.shell.service.take()
        assert stage.until(lambda: len(replies_in(stage.opts, JOB_RECORDER)) > had)
        return replies_in(stage.opts, JOB_RECORDER)[-1]

    return leave


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"do": "stats", "returner": "none"}, "accepted are one"),
        ({"do": "set_aside"}, "limit"),
        ({"do": "set_aside", "limit": "many"}, "many"),
        ({"do": "redeliver", "names": 7}, "not iterable"),
    ],
)
def test_a_request_that_fails_is_refused_at_once_with_its_reason(stage, ask, request_, reason):
    assert reason in ask(stage, request_)["error"]


def test_a_record_that_was_set_aside_is_listed_delivered_again_or_dropped_on_request(make, ask, jid):
    stage = make(tries=1)
    stage.job_cache.publish(jid)
    stage.returner.refuses = lambda ret: True
    for number in range(4):
        stage.job_cache.give_back(jid, f"m{number}")
    assert stage.until(lambda: stage.figures["set_aside"] == 4)
    listed = ask(stage, {"do": "set_aside", "limit": 2})["value"]["one"]
    named = [(entry["kind"], entry["jid"], entry["minion"], entry["tries"]) for entry in listed]
    assert named == [("ret", jid, minion, 1) for minion in ("m2", "m3")]
    assert listed[0]["name"] == f"ret/{jid}/m2" and "not such a thing" in listed[0]["reason"]
    stage.returner.refuses = lambda ret: False
    assert ask(stage, {"do": "redeliver", "names": [listed[0]["name"]]})["value"] == {"one": 1}
    assert stage.until(lambda: stage.returns)
    assert ask(stage, {"do": "drop", "names": [listed[1]["name"]]})["value"] == {"one": 1}
    assert ask(stage, {"do": "redeliver", "names": None})["value"] == {"one": 2}
    assert stage.until(lambda: len(stage.returns) == 3)
    assert sorted(minion for _, minion, _ in stage.returns) == ["m0", "m1", "m2"]
    assert ask(stage, {"do": "stats"})["value"]["returners"]["one"]["set_aside"] == 0


# -- where it may lead -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returners", "options", "words"),
    [
        (["salt_cache"], {}, ["salt_cache", "job cache"]),
        ([{"salt_cache": {"ret_config": "x"}}], {"xy.cache": "redis"}, ["salt_cache"]),
        ([{"salt_cache": {"ret_config": "x"}}], {"x.cache": "localfs"}, ["salt_cache"]),
        ([{"salt_cache": {"ret_config": "x"}}], {"x.cache": "redis"}, None),
        (["pgjsonb"], {}, None),
        (["pgjsonb"], {"master_job_cache": "local_cache"}, ["needs master_job_cache: salt_cache", "'local_cache'"]),
        (["pgjsonb"], {"ext_job_cache": "pgjsonb"}, ["pgjsonb"]),
        ([{"pgjsonb": {"ret_config": "x"}}], {"ext_job_cache": "pgjsonb", "x.returner.pgjsonb.host": "h"}, None),
        ([], {}, ["returners is not set"]),
        ([], {"master_job_cache": "local_cache", "job_notices": {"url": "https://x/"}}, None),
    ],
)
def test_a_returner_or_a_job_cache_that_cannot_be_used_is_refused(returners, options, words):
    opts = {"master_job_cache": "salt_cache", "cache": "localfs", "cachedir": "/var/cache/salt/master", **options}
    opts["job_recorder"] = {"returners": returners} if returners else {}
    if words is None:
        settings_of(opts)
        return
    with pytest.raises(SettingsError) as refused:
        settings_of(opts)
    assert all(word in str(refused.value) for word in words)
