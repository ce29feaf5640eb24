"""What a limited caller of the runners, and a login that reads the event stream, learn of minions."""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.integration.api import SECRET, Api, fronts, salt_api
from tests.integration.conftest import ask_runner, finished, look_at, make_master, make_minion
from tests.integration.job_retry.desk import Ear
from tests.waiting import wait_for

pytestmark = pytest.mark.story

RUNNERS = {"@runner": ["batch.*", "job_retry.*"]}
USERS = {
    "of_a": [{"a*": ["test.*"]}, RUNNERS],
    "reader": [{"a*": ["test.*", {"pillar.get": {"args": ["code"]}}, "grains.get"]}, RUNNERS],
    "watcher": [{"@runner": ["batch.status", "batch.minions", "batch.list"]}],
}
#: What each minion has as pillar ``code`` and as grain ``door``, which are secrets.
CODES = {"a1": "hush1", "a2": "hush2", "b1": "hush3"}
DOORS = {"a1": "creak1", "a2": "creak2", "b1": "creak3"}


@pytest.fixture(scope="module")
def master(salt_factories, tmp_path_factory):
    pillar = tmp_path_factory.mktemp("pillar")
    (pillar / "top.sls").write_text(json.dumps({"base": {minion: [minion] for minion in CODES}}))
    for minion, code in CODES.items():
        (pillar / f"{minion}.sls").write_text(json.dumps({"code": code}))
    daemon = make_master(
        salt_factories,
        sharedsecret=SECRET,
        external_auth={"sharedsecret": USERS},
        pillar_roots={"base": [str(pillar)]},
        **fronts("rest_cherrypy"),
    )
    daemon.slow_stop = False
    with daemon.started(), salt_api(daemon):
        started = [make_minion(daemon, name, grains={"door": DOORS[name]}).started() for name in CODES]
        for minion in started:
            minion.__enter__()
        Api(daemon, "rest_cherrypy").log_in("of_a")

        def known():
            return all(len(look_at(daemon, f"cache.{what}", "*")) == 3 for what in ("grains", "pillar"))

        wait_for(known, what="the master has the grains and the pillar of all")
        yield daemon
        for minion in started:
            minion.__exit__(None, None, None)


@pytest.fixture
def api(master):
    """Call a runner as a user; what its event tells."""
    return Api(master, "rest_cherrypy").call


@pytest.fixture
def stream(master):
    with Ear(master) as heard:
        yield heard


@pytest.mark.parametrize("by", ["pillar:code:[hush2]", "grains:door"])
@pytest.mark.parametrize("verb", ["batch.preview", "batch.start"])
def test_a_user_who_may_not_read_a_key_may_not_group_by_it(api, verb, by):
    answer = api(verb, "a*", "test.ping", user="of_a", by=by)
    kind, key = by.split(":")[:2]
    assert answer["success"] is False, answer
    assert f"may not group these minions by {kind}:{key}" in answer["return"]
    assert not any(word in answer["return"] for word in ("hush1", "creak", "a1", "a2"))


def test_a_user_who_may_read_a_key_may_group_by_it_and_its_values_are_in_no_answer_or_event(api, run, look, stream):
    shown = api("batch.preview", "a*", "test.ping", user="reader", by="pillar:code")["return"]
    assert shown["groups"] == [["1", 1], ["2", 1]]
    assert api("batch.preview", "a*", "test.ping", user="reader", by="pillar:other")["success"] is False
    jid = api("batch.start", "a*", "test.ping", user="reader", by="pillar:code", batch=1)["return"]["jid"]
    other = run("batch.start", "*", "test.ping", "by=grains:door", "batch=1", "max_failures=50%")["jid"]
    for batch in (jid, other):
        assert finished(look, batch)["success"] is True
        api("batch.status", batch, user="watcher")
        told = api("batch.minions", batch, user="watcher")["return"]
        assert {record["group"] for record in told.values()} <= {"1", "2", "3"}
    wait_for(lambda: f"salt/batch/{other}/complete" in stream.text, what="the end is told")
    assert not any(word in stream.text for word in ("hush", "creak"))


#: What the user may not see, and what is not there.
TARGETS = [
    ("pillar", "code:hush3", "code:nothing*"),
    ("grain", "door:creak3", "door:x*"),
    ("compound", "a1 or I@code:hush3", "I@code:x*"),
    ("list", "a1,b1", "a1,x1"),
]


@pytest.mark.parametrize("verb", ["batch.preview", "batch.run"])
@pytest.mark.parametrize(("tgt_type", "forbidden", "nothing"), TARGETS)
def test_a_target_that_matches_nothing_is_answered_like_one_that_matches_forbidden_minions(
    api, verb, tgt_type, forbidden, nothing
):
    told = []
    for tgt in (forbidden, nothing):
        answer = api(verb, tgt, "test.ping", user="of_a", tgt_type=tgt_type)
        assert (answer["success"], answer["retcode"]) == (False, 1), answer
        told.append(answer["return"].replace(repr(tgt), "TGT").replace(repr(tgt.split(",")), "TGT"))
    assert told[0] == told[1]
    assert "b1" not in told[0].replace("TGT", "")


def test_a_refusal_names_no_minion_but_those_of_the_caller(master, api, run, look):
    paused = run("batch.start", "*", "test.ping", "start_at=+1d")["jid"]
    run("batch.pause", paused)
    keys = pathlib.Path(master.config["pki_dir"], "minions")
    (keys / "b9").write_bytes((keys / "b1").read_bytes())
    owed = ask_runner(master, "batch.start", "b9", "test.ping", "offline=queue")["jid"]
    wait_for(lambda: look("job_retry.list", jid=owed), what="the job is owed")
    calls = [
        ("batch.resume", [paused], {}),
        ("batch.stop", [paused], {"kill": True}),
        ("job_retry.enqueue", [owed], {}),
        ("job_retry.retry", [], {"jid": owed}),
    ]
    for verb, arg, kwarg in calls:
        answer = api(verb, *arg, user="of_a", **kwarg)
        assert answer["success"] is False, (verb, answer)
        assert "may not publish" in answer["return"]
        assert not any(name in answer["return"] for name in ("b1", "b9")), answer["return"]
    (keys / "b9").unlink()
