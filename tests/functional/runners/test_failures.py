"""Why minions failed: ``batch.failures`` and ``job_cache.outcome``, over what each job cache really has."""

from __future__ import annotations

import contextlib
import json

import pytest
import salt.loader
import salt.payload

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.master.job_cache import JobCache
from tests.functional.options import options_in
from tests.functional.retry.records import changes, queue_of, record_of, snapshot_of
from tests.unit.batch.bench import Bench

JID = "20260516101112131415"
CACHES = ("salt_cache", "local_cache")


@pytest.fixture(params=[*CACHES, "sqlite"])
def opts(request, tmp_path):
    (tmp_path / "cache").mkdir()
    if request.param == "sqlite":
        return options_in(tmp_path, master_job_cache="salt_cache", cache="sqlite")
    return options_in(tmp_path, master_job_cache=request.param)


@pytest.fixture
def run(opts):
    return lambda function, *args: salt.loader.runner(opts)[function](*args)


def publish(opts, minions, fun="state.apply", arg=("nginx",), tgt="*", kind="glob"):
    load = {"jid": JID, "fun": fun, "arg": list(arg), "tgt": tgt, "tgt_type": kind, "user": "anna", "ret": ""}
    returners = salt.loader.returners(opts, {})
    with contextlib.suppress(KeyError):
        returners[f"{opts['master_job_cache']}.prep_jid"](passed_jid=JID)
    returners[f"{opts['master_job_cache']}.save_load"](JID, load, minions=list(minions))


def give(opts, minion, retcode=1, value="", **more):
    load = {"jid": JID, "id": minion, "fun": "state.apply", "return": value, "retcode": retcode, "success": not retcode}
    JobCache(opts).store_return({**load, **more})


def ended_batch(opts, failed, completed=(), **more):
    bench = Bench((*failed, *completed), "100%", **{"fun": "state.apply", "arg": ("nginx",), "jid": JID, **more})
    bench.sent()
    for minion in failed:
        bench.returns(minion, retcode=1)
    for minion in completed:
        bench.returns(minion)
    bench.keep(BatchStore(opts))


def failed_state(comment):
    return {
        "pkg_|-nginx_|-nginx_|-installed": {"result": False, "comment": comment, "__run_num__": 0, "__sls__": "web"}
    }


def test_a_batch_in_which_minions_failed_in_two_ways_has_two_reasons(opts, run):
    ended_batch(opts, ["web1", "web2", "web3"], ["db1"])
    publish(opts, ["web1", "web2", "web3", "db1"])
    give(opts, "web1", value=failed_state("web1 has no repository"))
    give(opts, "web2", value="sh: 1: nginx: not found")
    give(opts, "web3", value=failed_state("web3 has no repository"))
    give(opts, "db1", 0, "fine")
    found = run("batch.failures", JID)
    assert [(group["minions"], group["text"]) for group in found["groups"]] == [
        (["web1", "web3"], "nginx (pkg.installed in web): web1 has no repository"),
        (["web2"], "sh: 1: nginx: not found"),
    ]
    assert (found["arguments"], found["unsuccessful"], found["total"]) == (["nginx"], 3, 4)
    json.dumps(found)
    said = run("batch.output", JID, "web2")
    assert (said["state"], said["retcode"], said["return"]) == ("failed", 1, "sh: 1: nginx: not found")


def test_the_outcome_of_a_plain_job_is_shown_in_full(opts, run):
    publish(opts, ["web1", "web2", "web3", "web4"])
    give(opts, "web1", 0, "fine")
    give(opts, "web2", 1, "web2: disk full")
    give(opts, "web3", 1, "web3: disk full")
    found = run("job_cache.outcome", JID)
    assert {name: found[name] for name in ("minions", "returned", "failed", "missing", "owed")} == {
        "minions": 4,
        "returned": 3,
        "failed": 2,
        "missing": ["web4"],
        "owed": {},
    }
    assert [(group["count"], group["text"]) for group in found["groups"]] == [(2, "web2: disk full")]
    assert (found["fun"], found["arguments"], found["user"]) == ("state.apply", ["nginx"], "anna")
    queue_of(opts).write(changes({JID: snapshot_of()}, {("web4", JID): {**record_of("web4"), "state": "cancelled"}}))
    found = run("job_cache.outcome", JID)
    assert (found["missing"], found["owed"]) == ([], {}), "nothing is owed any more"
    assert [(group["state"], group["minions"]) for group in found["groups"][1:]] == [("cancelled", ["web4"])]


def test_a_minion_on_which_a_batch_did_not_succeed_is_named_so_for_its_job_too(opts, run):
    bench = Bench(("web1", "web2", "web3"), "2", fun="state.apply", jid=JID)
    bench.sent(missed=["web2"])
    bench.returns("web1")
    bench.keep(BatchStore(opts))
    publish(opts, ["web1", "web2", "web3"])
    give(opts, "web1", 0, "fine")
    of_batch, of_job = run("batch.failures", JID), run("job_cache.outcome", JID)
    assert of_job["missing"] == []
    assert of_batch["groups"][0] in of_job["groups"]
    assert {group["state"]: group["minions"] for group in of_job["groups"]} == {"offline": ["web2"], "active": ["web3"]}


def test_a_return_that_cannot_be_read_is_neither_missing_nor_a_success(opts, run, tmp_path):
    if opts["cache"] == "sqlite":
        pytest.skip("a record of sqlite is damaged in tests/functional/store/test_sqlite.py")
    publish(opts, ["web1", "web2"])
    give(opts, "web1", 0, "fine")
    give(opts, "web2", 0, "fine")
    (damaged,) = [path for path in (tmp_path / "cache" / "jobs").rglob("*.p") if "web2" in str(path)]
    damaged.write_bytes(b"\xc1")
    found = run("job_cache.outcome", JID)
    assert (found["returned"], found["missing"]) == (2, [])
    assert [(group["state"], group["minions"]) for group in found["groups"]] == [("returned", ["web2"])]
