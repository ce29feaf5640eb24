"""What is recorded, whatever happens to minions and disks."""

from __future__ import annotations

import logging
import os
import time
import tracemalloc

import pytest
import salt.utils.jid

from saltext.jobs.core.disk import files
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.recorder.usable import check
from saltext.jobs.core.settings import RecorderSettings, read_settings
from saltext.jobs.core.site import FileSite
from tests.database import replies_in
from tests.faults import full_disk
from tests.private import not_private

from .stage import Stage


@pytest.fixture
def jid():
    return salt.utils.jid.gen_jid({})


@pytest.fixture
def make(tmp_path):
    """Makes recorders with the same files, one after the other."""
    made = []

    def start(**options):
        if made:
            made[-1].close()
            options = {"job_cache": made[-1].job_cache, "returner": made[-1].returner, **options}
        made.append(Stage(tmp_path, **options))
        return made[-1]

    yield start
    made[-1].close()


@pytest.fixture
def stage(make):
    return make()


# -- whose job it is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lie",
    [{"fun": "test.ping"}, {"fun": ...}, {"fun": None}, {"fun": {"a": 1}}, {"retcode": float("inf")}, {"retcode": "x"}],
)
def test_a_minion_cannot_keep_its_return_out_by_what_the_return_says(stage, jid, lie):
    stage.job_cache.publish(jid, "cmd.run")
    stage.event(jid, "m1", "did it", **lie)
    assert stage.until(lambda: stage.returns)
    assert stage.returns == [(jid, "m1", "did it")]


def test_a_minion_cannot_bring_a_return_in_by_what_the_return_says(stage, jid):
    stage.job_cache.publish(jid, "test.ping")
    stage.event(jid, "m1", "forged", fun="cmd.run")
    other = salt.utils.jid.gen_jid({})
    stage.job_cache.publish(other, "cmd.run")
    stage.event(other, "m1", "x")
    assert stage.until(lambda: stage.returns)
    assert stage.returns == [(other, "m1", "x")]
    assert [found for found, _ in stage.returner.loads] == [other]


def test_while_the_job_cache_is_down_returns_are_recorded_and_loads_when_it_is_back(stage, jid):
    stage.job_cache.publish(jid, "cmd.run")
    stage.job_cache.is_down = True
    stage.event(jid, "m1", "x", fun="test.ping")
    assert stage.until(lambda: stage.returns)
    stage.job_cache.is_down = False
    assert stage.until(lambda: stage.returner.loads)


def test_the_job_cache_is_asked_once_for_a_job_and_not_for_each_return(stage, jid):
    stage.await_search()
    stage.job_cache.publish(jid, "cmd.run")
    before = stage.job_cache.asked
    for number in range(200):
        stage.event(jid, f"m{number}", "x")
        if number % 50 == 0:
            stage.settle()
    assert stage.until(lambda: len(stage.returns) == 200)
    assert stage.job_cache.asked - before <= 2


def test_a_load_is_recorded_once_over_restarts(make, jid):
    stage = make()
    stage.job_cache.publish(jid, "cmd.run")
    stage.event(jid, "m1", "x")
    assert stage.until(lambda: stage.returns)
    stage = make()
    stage.event(jid, "m2", "x")
    assert stage.until(lambda: len(stage.returns) == 2)
    assert [found for found, _ in stage.returner.loads] == [jid]


# -- forged events -----------------------------------------------------------------------------------------------------


def test_a_forged_event_without_a_genuine_one_is_corrected_by_the_next_look_into_the_job_cache(make, jid):
    stage = make()
    stage.job_cache.publish(jid, "cmd.run")
    stage.event(jid, "m1", "forged")
    assert stage.until(lambda: stage.returns)
    stage.job_cache.give_back(jid, "m1", "genuine")
    stage.shell.on_gap()
    assert stage.until(lambda: len(stage.returns) == 2)
    before = stage.job_cache.searched
    stage = make()
    stage.await_search(before)
    stage.run(0.2)
    stage.settle()
    assert stage.returns[1:] == [(jid, "m1", "genuine")], "once, after a restart too"


def test_a_return_that_comes_twice_is_recorded_once(stage, jid):
    stage.job_cache.publish(jid, "cmd.run")
    for _ in range(3):
        stage.event(jid, "m1", {"a": [1, "é", b"\xff", None]}, _stamp=str(time.time()))
    stage.settle()
    assert len(stage.returns) == 1


# -- the look into the job cache ---------------------------------------------------------------------------------------


def test_a_return_that_the_bus_did_not_bring_is_found(make, jid):
    stage = make()
    stage.job_cache.publish(jid, "cmd.run")
    stage.job_cache.give_back(jid, "m1", "x", retcode=1e308)
    stage.shell.on_gap()
    assert stage.until(lambda: stage.returns)
    assert stage.returner.taken[0]["success"] is True, "as the job cache has it"
    assert stage.returner.loads[0][0] == jid


def test_a_return_whose_event_comes_while_the_job_cache_is_read_is_recorded_once(make, jid, caplog):
    stage = make()
    read = stage.job_cache.load

    def load(of):
        """Read the load of a job whose returns have been read. At that moment the bus brings the event of a return."""
        if not brought:
            brought.append(of)
            stage.loop.add_callback(stage.event, jid, "m1", "x")
        return read(of)

    brought, stage.job_cache.load = [], load
    stage.job_cache.publish(jid, "cmd.run")
    stage.job_cache.give_back(jid, "m1", "x")
    stage.shell.on_gap()
    assert stage.until(lambda: stage.returns)
    stage.run(0.5)
    assert brought
    assert stage.returns == [(jid, "m1", "x")]
    assert "replaces" not in stage.returner.taken[0]
    assert "differed" not in caplog.text


def test_a_return_lost_without_a_sign_is_found_by_an_audit(make, jid):
    stage = make(audit=0.2)
    stage.event(jid, "m1", "forged")
    stage.job_cache.publish(jid, "cmd.run")
    stage.job_cache.give_back(jid, "m1", "did it")
    stage.job_cache.give_back(jid, "m2", "x")
    assert stage.until(lambda: len(stage.returns) == 3)
    stage.run(0.5)
    assert stage.returns == [(jid, "m1", "forged"), (jid, "m1", "did it"), (jid, "m2", "x")]
    assert [ret.get("replaces") for ret in stage.returner.taken] == [None, "event", None]


# -- events ------------------------------------------------------------------------------------------------------------


def test_events_are_recorded_where_their_tags_are_asked_for_in_order_and_without_secrets(make):
    stage = make(events=["salt/auth", "salt/batch/*"])
    for tag in ("salt/auth", "salt/authority", "salt/batch/1/new", "minion/refresh/m1", "xsalt/batch/1/new"):
        stage.bus.bring(tag, {"id": "m1", "load": [{"token": "s3cret", "user": "anna"}]})
    stage.settle()
    stored = {"id": "m1", "load": [{"user": "anna"}]}
    assert stage.returner.events == [("salt/auth", stored), ("salt/batch/1/new", stored)]


@pytest.mark.parametrize("data", ["text", None, 7, ["a"]])
def test_an_event_that_carries_no_mapping_is_passed_over(make, data):
    stage = make(events=["*"])
    stage.bus.bring("some/tag", data)
    stage.settle()
    assert stage.returner.events == []


def test_a_flood_of_events_crowds_no_return_out(make, jid):
    stage = make(events=["flood"], spool_max_bytes=1 << 20)
    stage.returner.is_down = True
    stage.job_cache.publish(jid, "cmd.run")
    stage.event(jid, "m1", "first")
    stage.settle()
    for number in range(300):
        stage.bus.bring("flood", {"text": "x" * 10_000, "number": number})
        if number % 20 == 0:
            stage.settle()
    stage.event(jid, "m2", "last")
    stage.settle()
    stage.returner.is_down = False
    assert stage.until(lambda: len(stage.returns) == 2)
    assert stage.intake.events_dropped > 100
    assert len(stage.returner.events) == stage.intake.events
    assert stage.consumer.dropped == 0


@pytest.mark.parametrize(("options", "count"), [({}, 0), ({"include": ["*", "runner.*"]}, 1)])
def test_jobs_of_the_master_itself_are_recorded_on_request_only(make, jid, options, count):
    stage = make(**options)
    stage.job_cache.publish(jid, "runner.pillar.show_pillar")
    stage.job_cache.give_back(jid, "m_master", {"secret": "s3cret"})
    other = salt.utils.jid.gen_jid({})
    stage.job_cache.publish(other, "cmd.run")
    stage.job_cache.give_back(other, "m1", "x")
    stage.shell.on_gap()
    assert stage.until(lambda: (other, "m1", "x") in stage.returns)
    assert len([ret for ret in stage.returns if ret[0] == jid]) == count
    stage.event(jid, "m_master", {"secret": "live"}, fun="runner.pillar.show_pillar")
    stage.settle()
    assert len([ret for ret in stage.returns if ret[0] == jid]) == count


def test_one_job_that_cannot_be_read_keeps_no_other_from_being_found(stage, caplog):
    jids = [f"2026112110000000{number:04d}" for number in range(40)]
    for number, jid in enumerate(jids):
        stage.job_cache.publish(jid, "cmd.run")
        stage.job_cache.give_back(jid, "m1", "x")
        if number % 2:
            stage.job_cache.broken.add(jid)
    with caplog.at_level(logging.ERROR, logger="saltext"):
        stage.shell.on_gap()
        assert stage.until(lambda: len(stage.returns) == 20)
    assert len([record for record in caplog.records if "cannot be read from the job cache" in record.message]) == 1


def test_a_malformed_return_does_not_hide_the_others(stage, jid):
    stage.job_cache.publish(jid, "cmd.run")
    malformed = ["text", 7, None, [], {"return": {1: object}}]
    stage.job_cache.stored[jid] = {"../m": {"return": 1}, **{f"a{each}": one for each, one in enumerate(malformed)}}
    stage.job_cache.give_back(jid, "m1", "x")
    stage.shell.on_gap()
    assert stage.until(lambda: stage.returns)
    assert stage.returns == [(jid, "m1", "x")]


# -- refused records and memory ----------------------------------------------------------------------------------------


def test_records_that_are_refused_delay_no_others_and_are_set_aside_with_reason(stage, jid):
    stage.job_cache.publish(jid, "cmd.run")
    stage.returner.refuses = lambda ret: ret["return"] == "bad"
    for number in range(2000):
        stage.event(jid, f"bad{number}", "bad")
    stage.until(lambda: stage.spool.next >= 2000)
    stage.event(jid, "good", "x")
    assert stage.until(lambda: stage.returns, seconds=10)
    figures = stage.consumer.stats(time.time())
    assert figures["set_aside"] + figures["refused"] + figures["queued"] >= 2000
    assert stage.until(lambda: stage.consumer.stats(time.time())["set_aside"] >= 1000)
    assert figures["trouble"] is None


def test_a_returner_that_is_down_takes_little_memory_however_large_the_returns(stage, jid):
    stage.job_cache.publish(jid, "cmd.run")
    stage.returner.is_down = True
    tracemalloc.start()
    for number in range(60):
        stage.event(jid, f"m{number}", "x" * (1 << 20))
        stage.run(0.06)
    stage.until(lambda: stage.spool.next >= 60)
    assert stage.until(lambda: tracemalloc.get_traced_memory()[0] < 16 << 20)
    stage.run(5.0)  # in which it tries again
    assert stage.until(lambda: tracemalloc.get_traced_memory()[0] < 16 << 20)
    tracemalloc.stop()
    stage.returner.is_down = False
    assert stage.until(lambda: len(stage.returns) == 60, seconds=60)


# -- restarts and disks ------------------------------------------------------------------------------------------------


def test_records_in_memory_when_the_engine_ends_are_delivered_by_the_next_one(make):
    stage = make(flush=60)
    stage.await_search()
    jids = [salt.utils.jid.gen_jid({}) for _ in range(30)]
    for jid in jids:
        stage.event(jid, "m1", "x")
    stage = make(flush=60)
    assert stage.until(lambda: len(stage.returns) == 30)


def test_a_disk_that_is_full_at_the_start_keeps_nothing_from_being_delivered(make, jid):
    stage = make()
    stage.returner.is_down = True
    stage.event(jid, "m1", "x")
    assert stage.until(lambda: stage.spool.next >= 1)
    for path in (stage.folder / "seen").iterdir():
        path.write_bytes(b"")  # what was not written in time

    with full_disk():
        stage = make()
        stage.run(0.5)
        stage = make()
        stage.run(0.5)
    stage.returner.is_down = False
    assert stage.until(lambda: stage.returns)
    stage.event(jid, "m2", "y")
    assert stage.until(lambda: len(stage.returns) == 2)
    stage.event(jid, "m1", "x")
    stage.settle()
    assert len(stage.returns) == 2


def test_only_the_master_s_user_may_use_any_file(make, jid, ask):
    before = os.umask(0)
    try:
        stage = make(tries=1)
        stage.job_cache.publish(jid, "cmd.run")
        stage.returner.refuses = lambda ret: ret["id"] == "bad"
        for minion in ("good", "bad"):
            stage.event(jid, minion, "x")
        assert stage.until(lambda: stage.returns and stage.consumer.stats(time.time())["set_aside"])
        ask(stage, {"do": "stats"})
        requests.leave(stage.opts, JOB_RECORDER, {"do": "stats"})
        with files.single_holder(FileSite(stage.opts).lock_path(JOB_RECORDER)):
            assert len(list(stage.folder.parent.rglob("*"))) > 10
            assert not_private(stage.folder.parent) == []
    finally:
        os.umask(before)


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def ask():
    """Leaves a request for a stage and returns its reply."""

    def leave(stage, request):
        requests.leave(stage.opts, JOB_RECORDER, request)
        had = len(replies_in(stage.opts, JOB_RECORDER))
        assert stage.until(lambda: len(replies_in(stage.opts, JOB_RECORDER)) > had)
        return replies_in(stage.opts, JOB_RECORDER)[-1]

    return leave


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"do": "fly"}, "'fly'"),
        ({"action": "stats"}, "None"),
        ({"do": "stats", "returner": "none"}, "accepted are one"),
        ({"do": "set_aside"}, "limit"),
        ({"do": "set_aside", "limit": "many"}, "many"),
        ({"do": "redeliver", "names": 7}, "not iterable"),
    ],
)
def test_a_request_that_fails_is_refused_at_once_with_its_reason(stage, ask, request_, reason):
    assert reason in ask(stage, request_)["error"]


def test_a_record_that_was_set_aside_is_listed_and_delivered_again_on_request(make, ask, jid):
    stage = make(tries=1)
    stage.job_cache.publish(jid, "cmd.run")
    stage.returner.refuses = lambda ret: True
    for number in range(3):
        stage.event(jid, f"m{number}", "x")
    assert stage.until(lambda: stage.consumer.stats(time.time())["set_aside"] == 3)
    listed = ask(stage, {"do": "set_aside", "limit": 2})["value"]["one"]
    assert [(entry["kind"], entry["jid"], entry["minion"], entry["tries"]) for entry in listed] == [
        ("ret", jid, "m1", 1),
        ("ret", jid, "m2", 1),
    ]
    stage.returner.refuses = lambda ret: False
    assert ask(stage, {"do": "redeliver", "names": [listed[0]["name"]]})["value"] == {"one": 1}
    assert stage.until(lambda: stage.returns)
    assert ask(stage, {"do": "redeliver", "names": None})["value"] == {"one": 2}
    assert stage.until(lambda: len(stage.returns) == 3)
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
        (["pgjsonb"], {"ext_job_cache": "pgjsonb"}, ["pgjsonb"]),
        ([{"pgjsonb": {"ret_config": "x"}}], {"ext_job_cache": "pgjsonb", "x.returner.pgjsonb.host": "h"}, None),
        ([], {}, ["returners is not set"]),
    ],
)
def test_a_returner_that_would_write_to_the_masters_own_job_cache_is_refused(returners, options, words):
    opts = {"master_job_cache": "salt_cache", "cache": "localfs", "cachedir": "/var/cache/salt/master", **options}
    settings = (
        read_settings(RecorderSettings, JOB_RECORDER, {"returners": returners}) if returners else RecorderSettings()
    )
    if words is None:
        check(opts, settings)
        return
    with pytest.raises(SettingsError) as refused:
        check(opts, settings)
    assert all(word in str(refused.value) for word in words)
