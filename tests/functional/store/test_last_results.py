"""The last result of each minion, over what each driver has."""

from __future__ import annotations

import time

import pytest
import salt.loader

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.ids import jid_at
from tests.functional.options import options_in
from tests.unit.batch.bench import Bench

NOW = time.time()
HOUR = 3600


@pytest.fixture(params=["localfs", "sqlite"])
def opts(request, tmp_path):
    keys = tmp_path / "pki" / "minions"
    keys.mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    for name in ("web1", "web2", "web3", "db1"):
        (keys / name).write_text("a key")
    return options_in(tmp_path, master_job_cache="salt_cache", cache=request.param)


@pytest.fixture
def run(opts):
    return lambda *args, **given: salt.loader.runner(opts)["job_cache.minions"](*args, **given)


@pytest.fixture
def ran(opts):
    """Store a job: when it was published, and the exit code of each minion; None of one that has not returned."""
    returners = salt.loader.returners(opts, {})

    def store(ago, fun="state.apply", arg=("nginx",), jid=None, **codes):
        jid = jid or jid_at(NOW - ago)
        load = {"jid": jid, "fun": fun, "arg": list(arg), "tgt": "*", "tgt_type": "glob", "user": "root", "kwargs": {}}
        returners["salt_cache.save_load"](jid, load, minions=sorted(codes))
        for minion, code in codes.items():
            if code is not None:
                ret = {"jid": jid, "id": minion, "fun": fun, "return": {}, "retcode": code, "success": not code}
                returners["salt_cache.returner"](ret)
        return jid

    return store


def test_a_job_of_which_it_is_not_known_when_it_was_published_hides_no_other(run, ran):
    ran(0, jid="deploy-7", web1=2)
    last = ran(HOUR, web1=0)
    assert run(minion="web1")["web1"]["jid"] == last and run(minion="web1", not_since="-2h") == {}
    with pytest.raises(Refused, match="No accepted minion matches nope"):
        run(minion="nope*")


def test_the_newest_return_of_each_minion_counts_and_a_newer_job_that_it_missed_is_named(run, ran, opts):
    ran(9 * HOUR, web1=2, web2=2, web3=0, db1=0)
    second = ran(5 * HOUR, web1=0, web2=0)
    ran(1 * HOUR, fun="cmd.run", web1=7, db1=7)
    missed = ran(60, web1=2, web2=None)
    assert run()["web2"]["missed_state"] is None
    Bench(("web1", "web2"), "1", jid=missed).keep(BatchStore(opts))
    found = run()
    assert found["web2"]["missed_state"] == "pending", "the batch has not sent to it"
    assert {name: (one["outcome"], one["retcode"]) for name, one in found.items()} == {
        "web1": ("failed", 2),
        "web2": ("succeeded", 0),
        "web3": ("succeeded", 0),
        "db1": ("succeeded", 0),
    }
    assert (found["web2"]["jid"], found["web2"]["missed"], found["web1"]["missed"]) == (second, missed, None)
    assert found["web2"]["at"] == pytest.approx(NOW - 5 * HOUR, abs=1)
    assert (found["web2"]["fun"], found["web2"]["arguments"]) == ("state.apply", ["nginx"])


def test_a_minion_that_never_ran_it_has_no_result(run, ran):
    ran(60, web1=0)
    assert run()["db1"] == dict.fromkeys(
        ("jid", "at", "fun", "arguments", "outcome", "retcode", "missed", "missed_state")
    )


def test_minions_that_have_not_run_it_since_can_be_asked_for(run, ran):
    ran(8 * 24 * HOUR, web1=0, web2=0)
    ran(HOUR, web2=1)
    assert sorted(run(not_since="-7d")) == ["db1", "web1", "web3"]
    assert sorted(run("web*", not_since="-7d")) == ["web1", "web3"]


def test_functions_and_minions_are_globs(run, ran):
    ran(60, fun="state.highstate", web1=0)
    assert run(fun="state.apply", minion="web1")["web1"]["outcome"] is None
    assert run(fun="state.*", minion="web1")["web1"]["outcome"] == "succeeded"
    assert run(fun="state.apply,state.highstate", minion="web1,db1").keys() == {"web1", "db1"}


def test_a_return_that_cannot_be_read_is_neither_a_success_nor_a_failure(run, ran, opts, tmp_path):
    if opts["cache"] != "localfs":
        pytest.skip("a record is a file with localfs")
    jid = ran(60, web1=0)
    (tmp_path / "cache" / "jobs" / "returns" / jid / "web1.p").write_bytes(b"\xc1")
    assert run()["web1"]["outcome"] == "unreadable"


@pytest.mark.parametrize("given", [{"not_since": "yesterday"}, {"start_time": "x"}, {"fun": {}}, {"minion": {}}])
def test_an_invalid_value_is_refused(run, given):
    with pytest.raises(Refused, match=f"{next(iter(given))} is"):
        run(**given)
