"""The parts of job retry that touch Salt: the store, the job cache, keys, access lists, the runner, the engine."""

from __future__ import annotations

import logging
import os
import pathlib
import subprocess
import sys
import time
import zlib

import pytest
import salt.cache
import salt.config
import salt.loader
from salt.exceptions import CommandExecutionError, SaltInvocationError

from saltext.jobs.core import compat
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.errors import SettingsError, StateError
from saltext.jobs.core.master.access import Access
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Entry, Limits, State
from saltext.jobs.core.retry.reader import JobReader, job_of, limits_of
from saltext.jobs.core.retry.shell import ENGINE, Keeper
from saltext.jobs.core.retry.store import Changes, RetryStore
from saltext.jobs.core.retry.writer import Writer
from saltext.jobs.core.settings import RetrySettings, read_settings
from tests.functional.cache_servers import DRIVERS, cache_servers, driver_options
from tests.waiting import SOON, Deadline

__all__ = ["cache_servers"]

JID = "20260516101112131415"


@pytest.fixture
def opts(tmp_path):
    opts = salt.config.master_config(None)
    opts.update(
        id="here_master",
        cachedir=str(tmp_path / "cache"),
        pki_dir=str(tmp_path / "pki"),
        extension_modules=str(tmp_path / "ext"),
        sock_dir=str(tmp_path / "sock"),
        root_dir=str(tmp_path),
        cluster_id=None,
        master_job_cache="salt_cache",
    )
    for kind in ("minions", "minions_pre", "minions_rejected", "minions_denied"):
        (tmp_path / "pki" / kind).mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    return opts


def accept(opts, *minions, kind="minions"):
    for minion in minions:
        (pathlib.Path(opts["pki_dir"]) / kind / minion).write_text(
            "-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n"
        )


def load_of(**more):
    return {"jid": JID, "fun": "state.apply", "arg": ["web"], "tgt": "*", "tgt_type": "glob", "user": "root", **more}


def snapshot_of(*minions, owner="here_master", **more):
    return {"owner": owner, "published_at": 100.0, "load": load_of(**more), "minions": list(minions)}


def record_of(minion, jid=JID):
    return Entry(minion, jid, 100.0, 1e10, "was away").as_record()


# -- the store --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=DRIVERS)
def any_store(request, opts, tmp_path, cache_servers):
    (tmp_path / "driver").mkdir()
    tag = zlib.crc32(request.node.name.encode()) % 10**6
    return RetryStore({**opts, **driver_options(request.param, cache_servers, tmp_path / "driver", tag)})


def test_what_is_stored_is_found_by_another_process_on_every_driver(any_store):
    names = ("a", "B", "b", "web.example.com")
    any_store.write(Changes({JID: snapshot_of(*names)}, {(name, JID): record_of(name) for name in names}))
    again = RetryStore(any_store._opts)
    found = dict(again.snapshots())
    assert list(found) == [JID]
    assert {entry.minion: entry.state for entry in again.entries(JID, found[JID])} == dict.fromkeys(
        names, State.PENDING
    )


def test_jids_that_look_alike_are_jobs_of_their_own_on_every_driver(any_store):
    jids = ("deploy", "Deploy", "déploy", "_deploy", "a?b=c")
    any_store.write(Changes({jid: snapshot_of("a") for jid in jids}, {("a", jid): record_of("a") for jid in jids}))
    any_store.write(Changes({"Deploy": None}, {("a", "Deploy"): None}))
    found = dict(any_store.snapshots())
    assert set(found) == {"deploy", "déploy", "_deploy", "a?b=c"}
    assert all([entry.jid for entry in any_store.entries(jid, found[jid])] == [jid] for jid in found)


def test_what_is_removed_is_gone_on_every_driver(any_store):
    any_store.write(Changes({JID: snapshot_of("a", "b")}, {(name, JID): record_of(name) for name in "ab"}))
    any_store.write(Changes({}, {("a", JID): None}))
    assert [entry.minion for entry in any_store.entries(JID, any_store.snapshot(JID))] == ["b"]
    any_store.write(Changes({JID: None}, {("b", JID): None}))
    assert list(any_store.snapshots()) == []


def test_a_claim_counts_until_the_entry_says_something_newer(any_store):
    any_store.write(Changes({JID: snapshot_of("a", "b")}, {(name, JID): record_of(name) for name in "ab"}))
    any_store.write(Changes(claims={JID: {"a": 200.0}}))

    def states():
        found = any_store.entries(JID, any_store.snapshot(JID))
        return {entry.minion: (entry.state, entry.attempts) for entry in found}

    assert states() == {"a": (State.CLAIMED, 1), "b": (State.PENDING, 0)}
    newer = Entry.from_record("a", JID, record_of("a"))
    newer.move(State.HELD, 300.0, "was begun")
    any_store.write(Changes({}, {("a", JID): newer.as_record()}))
    assert states() == {"a": (State.HELD, 0), "b": (State.PENDING, 0)}
    any_store.write(Changes({JID: None}, {("a", JID): None, ("b", JID): None}))
    assert any_store._claims(JID) == {}


def test_entries_of_other_masters_are_left_alone(opts):
    store = RetryStore(opts)
    store.write(Changes({"1": snapshot_of("a"), "2": snapshot_of("a", owner="other_master")}))
    assert [jid for jid, _ in store.snapshots("here_master")] == ["1"]


@pytest.mark.parametrize("rubbish", [{"state": "x"}, ["list"], "text", {"minion": "b"}])
def test_a_corrupt_entry_is_held_with_the_reason_and_harms_no_other(opts, rubbish, caplog):
    store = RetryStore(opts)
    store.write(Changes({JID: snapshot_of("a", "b")}, {("b", JID): record_of("b")}))
    salt.cache.Cache(opts).store("job_retry/queue/a", JID, rubbish)
    with caplog.at_level(logging.ERROR):
        states = {entry.minion: entry.state for entry in store.entries(JID, store.snapshot(JID))}
    assert states == {"a": State.HELD, "b": State.PENDING}
    assert "entry of a" in caplog.text


def test_a_file_that_cannot_be_decoded_is_held_with_the_reason(opts):
    store = RetryStore(opts)
    store.write(Changes({JID: snapshot_of("a", "b")}, {(name, JID): record_of(name) for name in "ab"}))
    (pathlib.Path(opts["cachedir"]) / "job_retry/queue/a" / f"{JID}.p").write_bytes(b"\xc1\xff garbage")
    states = {entry.minion: entry.state for entry in store.entries(JID, store.snapshot(JID))}
    assert states == {"a": State.HELD, "b": State.PENDING}


def test_a_corrupt_snapshot_is_set_aside_and_harms_no_other(opts, caplog):
    store = RetryStore(opts)
    store.write(Changes({"1": snapshot_of("a"), "2": snapshot_of("a")}))
    salt.cache.Cache(opts).store("job_retry/jobs", "1", {"owner": 7})
    assert [jid for jid, _ in store.snapshots()] == ["2"]
    assert [jid for jid, _ in store.snapshots()] == ["2"]
    assert salt.cache.Cache(opts).list("job_retry/corrupt") == ["job_retry.jobs.1"]


def test_a_runner_changes_nothing_when_it_reads(opts):
    RetryStore(opts).write(Changes({"1": snapshot_of("a")}))
    salt.cache.Cache(opts).store("job_retry/jobs", "1", {"owner": 7})
    assert list(RetryStore(opts, read_only=True).snapshots()) == []
    assert salt.cache.Cache(opts).fetch("job_retry/jobs", "1") == {"owner": 7}


def test_files_are_for_the_masters_user_only(opts):
    RetryStore(opts).write(Changes({JID: snapshot_of("a")}, {("a", JID): record_of("a")}))
    found = list((pathlib.Path(opts["cachedir"]) / "job_retry").rglob("*.p"))
    assert len(found) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in found)


def test_a_removed_queue_leaves_no_directory(opts):
    store = RetryStore(opts)
    store.write(Changes({JID: snapshot_of("a")}, {("a", JID): record_of("a")}))
    store.write(Changes({JID: None}, {("a", JID): None}))
    assert not (pathlib.Path(opts["cachedir"]) / "job_retry/queue/a").exists()


class Loop:
    """A loop on which a writer can be tried."""

    def __init__(self):
        self.loop = compat.new_loop()

    def until(self, condition):
        deadline = Deadline(SOON)

        def look():
            if condition() or deadline.is_over():
                self.loop.stop()
            else:
                self.loop.call_later(0.02, look)

        self.loop.add_callback(look)
        self.loop.start()
        assert condition()


def test_what_the_disk_does_not_take_is_written_once_it_does(opts, caplog):
    helper, durable = Loop(), []
    worker = Worker(helper.loop)
    writer = Writer(helper.loop, worker, RetryStore(opts))
    blocker = pathlib.Path(opts["cachedir"]) / "job_retry"
    blocker.write_text("no directory can be made here")
    writer.put_job(JID, snapshot_of("a"))
    writer.put_entry("a", JID, record_of("a"))
    writer.when_durable(lambda: durable.append(True))
    with caplog.at_level(logging.WARNING):
        helper.until(lambda: "cannot be written" in caplog.text)
        assert durable == []
        writer.put_entry("b", JID, record_of("b"))
        blocker.unlink()
        helper.until(lambda: bool(durable))
        helper.until(lambda: (blocker / "queue/b" / f"{JID}.p").exists())
    assert caplog.text.count("cannot be written") == 1
    assert "can be written again" in caplog.text
    assert (blocker / "queue/a" / f"{JID}.p").exists()
    worker.close()
    helper.loop.close()


def test_what_redis_does_not_take_is_written_once_it_is_back(opts, cache_servers, caplog):
    server = cache_servers("redis")
    helper, durable = Loop(), []
    worker = Worker(helper.loop)
    store = RetryStore({**opts, **server.options})
    writer = Writer(helper.loop, worker, store)
    store.beat("here_master", 1.0)
    server.stop()
    writer.put_job(JID, snapshot_of("a"))
    writer.put_entry("a", JID, record_of("a"))
    writer.when_durable(lambda: durable.append(True))
    with caplog.at_level(logging.WARNING):
        helper.until(lambda: "cannot be written" in caplog.text)
        assert durable == []
        server.start()
        helper.until(lambda: bool(durable))
    assert [entry.minion for entry in store.entries(JID, store.snapshot(JID))] == ["a"]
    worker.close()
    helper.loop.close()


def test_an_engine_that_dies_in_its_first_second_leaves_behind_from_when_on_jobs_are_looked_for(opts):
    def checkpoint():
        loop = compat.new_loop()
        keeper = Keeper(opts, RetrySettings(), loop)
        keeper._read_checkpoint()
        keeper.close()
        loop.close()
        return keeper._checkpoint

    first = checkpoint()
    assert first == pytest.approx(time.time(), abs=60)
    assert checkpoint() == first


# -- the job cache, keys and access -----------------------------------------------------------------------------------


@pytest.fixture
def job_cache(opts):
    return JobCache(opts)


def publish(cache, minions, **more):
    cache.keep_load(JID, load_of(**more), minions)


def test_a_job_that_this_master_published_is_read_with_those_that_have_not_returned(opts, job_cache):
    accept(opts, "a", "b")
    publish(job_cache, ["a", "b"])
    job_cache.store_return({"jid": JID, "id": "a", "return": True, "retcode": 0})
    read, load = JobReader(opts, job_cache, trust=False).read(JID)
    assert read.missing == {"b"}
    assert (read.job.funs, load["arg"]) == (("state.apply",), ["web"])
    assert abs(read.job.published_at - time.time()) < 60


def test_a_load_that_a_minion_or_syndic_brought_is_no_published_job(opts, job_cache):
    job_cache._call("salt_cache", "save_load", JID, load_of())
    job_cache._call("salt_cache", "save_minions", JID, ["a", "b"])
    assert JobReader(opts, job_cache, trust=False).read(JID)[0].job is None


def test_a_job_that_another_master_published_into_the_same_cache_is_not_this_master_s(opts, job_cache):
    there = {**opts, "id": "there_master"}
    publish(JobCache(there), ["a"])
    assert JobReader(opts, job_cache, trust=False).read(JID)[0].job is None
    assert job_cache.published_since(0) == {}
    assert list(JobCache(there).published_since(0)) == [JID]


def test_a_minion_that_was_added_to_a_job_from_outside_is_not_owed_it(opts, job_cache, caplog):
    accept(opts, "a", "b")
    job_cache._call("salt_cache", "save_minions", JID, ["b"])
    publish(job_cache, ["a"])
    job_cache._call("salt_cache", "save_minions", JID, ["b"])
    reader = JobReader(opts, job_cache, trust=False)
    assert reader.read(JID)[0].missing == {"a"}
    assert "not kept for minions that it was not published to: ['b']" in caplog.text


def test_minions_of_further_publishes_under_the_same_jid_are_owed_the_job_too(opts, job_cache):
    accept(opts, "a", "b", "c")
    publish(job_cache, ["a"], tgt=["a"], tgt_type="list")
    job_cache._call("salt_cache", "save_minions", JID, ["c"])
    publish(job_cache, ["b", "c"], tgt=["b", "c"], tgt_type="list")
    assert JobReader(opts, job_cache, trust=False).read(JID)[0].missing == {"a", "b", "c"}


def test_a_spoilt_note_of_a_publish_is_none(opts, job_cache, caplog):
    publish(job_cache, ["a"])
    salt.cache.Cache(opts).store("jobs/published", JID, {"by": opts["id"]})
    assert JobReader(opts, job_cache, trust=False).read(JID)[0].job is None
    assert "cannot be used" in caplog.text


def test_a_minion_without_an_accepted_key_is_left_to_others(opts, job_cache):
    accept(opts, "a")
    accept(opts, "b", kind="minions_pre")
    reader = JobReader(opts, job_cache, trust=False)
    publish(job_cache, ["a", "b", "c"])
    assert reader.read(JID)[0].missing == {"a"}
    assert reader.look_up(JID, ("a", "b"), load_of()).barred == frozenset({"b"})
    assert reader.without_key(("a", "b", "c")) == ("c",)


def test_a_return_that_a_minion_kept_is_stored_as_its_own(opts, job_cache):
    publish(job_cache, ["a"])
    reader = JobReader(opts, job_cache, trust=False)
    kept = {"a": {"jid": JID, "id": "somebody else", "return": "done", "retcode": 0, "load": "x"}}
    assert reader.store_returns(JID, load_of(), kept) == frozenset({"a"})
    assert job_cache._call("salt_cache", "get_jid", JID)["a"] == {"return": "done", "retcode": 0}


def test_jobs_of_a_batch_and_jobs_without_stored_returns_are_kept_out():
    assert job_of(JID, load_of(batch=True), 1.0).kept_out
    assert job_of(JID, load_of(kwargs={"nocache": True}), 1.0).kept_out
    assert not job_of(JID, load_of(), 1.0).kept_out


@pytest.mark.parametrize(
    "wish, limits",
    [
        (None, Limits()),
        (False, Limits(off=True)),
        (True, Limits(given=True)),
        ({"ttl": "7d"}, Limits(given=True, ttl=604800.0)),
        ({"max_attempts": 2, "retry_interrupted": True}, Limits(given=True, max_attempts=2, retry_interrupted=True)),
        ({"ttl": "soon"}, Limits()),
        ({"max_attempts": 0}, Limits()),
        ({"colour": "red"}, Limits()),
        ("yes", Limits()),
    ],
)
def test_what_a_job_says_about_itself(wish, limits):
    assert limits_of(JID, {"job_retry": wish}) == limits


ACL = {"publisher_acl": {"bob": ["test.*", {"web*": ["state.apply"]}]}, "sudo_acl": True}


@pytest.mark.parametrize(
    "user, fun, minions, denied",
    [
        ("bob", "state.apply", ["web1", "web2"], []),
        ("bob", "state.apply", ["web1", "db1"], ["db1"]),
        ("bob", "cmd.run", ["web1"], ["web1"]),
        ("eve", "test.ping", ["web1"], ["web1"]),
        ("sudo_bob", "cmd.run", ["web1"], ["web1"]),
        ("sudo_bob", "test.arg", ["web1"], []),
        ("root", "cmd.run", ["web1"], []),
    ],
)
def test_the_access_of_a_publisher_is_checked_as_it_is_now(opts, user, fun, minions, denied):
    accept(opts, *minions)
    access = Access({**opts, **ACL})
    assert sorted(access.denials(load_of(user=user, fun=fun, arg=[]), minions)) == denied


def test_the_access_of_an_external_user_is_checked_as_it_is_now(opts):
    accept(opts, "web1")
    load = load_of(user="ann", fun="test.arg", arg=[], kwargs={"eauth": "pam", "username": "ann"})
    assert Access({**opts, "external_auth": {"pam": {"ann": ["test.*"]}}}).denials(load, ["web1"]) == {}
    assert "web1" in Access({**opts, "external_auth": {"pam": {"bob": ["test.*"]}}}).denials(load, ["web1"])
    assert "web1" in Access({**opts, "external_auth": {}}).denials(load, ["web1"])


@pytest.mark.parametrize("user", ["", "root", "master_user", "sudo_ann"])
def test_those_who_may_do_everything_are_not_checked(opts, user):
    assert Access({**opts, "user": "master_user"}).denials(load_of(user=user), ["a"]) == {}


def test_a_user_whom_no_access_list_governs_any_more_may_publish_nothing(opts):
    denied = Access(opts).denials(load_of(user="ann"), ["a"])
    assert denied == {"a": "ann may not publish state.apply to it any more"}


# -- the runner -------------------------------------------------------------------------------------------------------


@pytest.fixture
def runner(opts):
    return salt.loader.runner(opts)


def test_the_queue_is_listed_without_arguments(opts, runner):
    RetryStore(opts).write(Changes({JID: snapshot_of("a", "b")}, {(name, JID): record_of(name) for name in "ab"}))
    rows = runner["job_retry.list"]()
    assert [row["minion"] for row in rows] == ["a", "b"]
    assert rows[0] == {
        "minion": "a",
        "jid": JID,
        "fun": "state.apply",
        "state": "pending",
        "reason": "was away",
        "attempts": 0,
        "queued_at": "1970-01-01T00:01:40+00:00",
        "expires_at": "2286-11-20T17:46:40+00:00",
        "owner": "here_master",
    }
    assert runner["job_retry.list"](minion="b", jid=int(JID), state="pending,held") == rows[1:]
    assert runner["job_retry.list"](state="dead") == []
    assert runner["job_retry.show"]("a", JID)["arg"] == ["web"]
    assert runner["job_retry.stats"]()["states"] == {"pending": 2}


@pytest.mark.parametrize(
    "function, kwargs",
    [
        ("list", {"state": "sleeping"}),
        ("list", {"minion": "../a"}),
        ("list", {"jid": "a/b"}),
        ("cancel", {}),
        ("retry", {}),
        ("purge", {"state": "pending"}),
        ("enqueue", {"jid": "../x"}),
        ("enqueue", {"jid": JID, "minions": ["../a"]}),
        ("adopt", {"owner": "a/b"}),
    ],
)
def test_unusable_input_is_refused_before_anything_is_asked(runner, function, kwargs):
    with pytest.raises(SaltInvocationError):
        runner[f"job_retry.{function}"](**kwargs)


def test_an_entry_that_is_not_there_cannot_be_shown(runner):
    with pytest.raises(CommandExecutionError, match="a has no entry for job"):
        runner["job_retry.show"](minion="a", jid=JID)


def test_a_request_is_left_for_an_engine_that_is_down(opts, runner):
    assert runner["job_retry.cancel"](jid=JID) is None
    waiting = list(requests.Inbox(opts, ENGINE).take())
    assert [request for _, request in waiting] == [{"do": "cancel", "minion": None, "jid": JID}]


def test_every_function_has_an_example_for_the_command_line(runner):
    functions = [name for name in runner if name.startswith("job_retry.")]
    assert len(functions) == 11
    for name in functions:
        assert f"salt-run {name}" in runner[name].__doc__
        assert "CLI Example::" in runner[name].__doc__ or "CLI Example:" in runner[name].__doc__


# -- the engine's start -----------------------------------------------------------------------------------------------

START = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
from saltext.jobs.core.engine import process as engine
from saltext.jobs.engines import job_retry
engine.wait_for_the_end = lambda: print("WAITS")
engine.run = lambda *args: print("RUNS")
job_retry.__opts__ = {opts!r}
job_retry.start(**{options!r})
"""


@pytest.mark.parametrize(
    "opts, options, expected",
    [
        ({}, {}, ["INFO The job_retry engine is off", "WAITS"]),
        ({"job_retry": False}, {}, ["INFO The job_retry engine is off", "WAITS"]),
        ({"job_retry": True, "master_job_cache": "salt_cache"}, {}, ["RUNS"]),
        ({"job_retry": {"ttl": "2d"}, "master_job_cache": "salt_cache"}, {"rate": 5}, ["RUNS"]),
        ({"job_retry": True, "master_job_cache": "local_cache"}, {}, ["CRITICAL", "'local_cache'", "WAITS"]),
        ({"job_retry": {"trust_job_cache": True}, "master_job_cache": "local_cache"}, {}, ["RUNS"]),
        ({"job_retry": {"tll": 5}, "master_job_cache": "salt_cache"}, {}, ["CRITICAL", "'tll'", "5", "ttl", "WAITS"]),
        ({"job_retry": {"ttl": "soon"}, "master_job_cache": "salt_cache"}, {}, ["CRITICAL", "'soon'", "7d", "WAITS"]),
        ({"job_retry": "yes", "master_job_cache": "salt_cache"}, {}, ["CRITICAL", "'yes'", "WAITS"]),
        ({"job_retry": True, "master_job_cache": "salt_cache", "job_cache": False}, {}, ["CRITICAL", "WAITS"]),
    ],
)
def test_the_engine_starts_only_with_a_usable_configuration_and_says_why_not(opts, options, expected):
    code = START.format(opts=opts, options=options)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    lines = done.stdout.splitlines()
    assert len(lines) == (1 if expected == ["RUNS"] else 2)
    for text in expected:
        assert text in done.stdout


def test_an_option_is_read_from_the_section_and_the_engine_with_the_engine_winning():
    settings = read_settings(RetrySettings, "job_retry", {"ttl": "2d", "rate": 1}, {"rate": 3})
    assert (settings.ttl, settings.rate) == (172800.0, 3.0)
    with pytest.raises(SettingsError, match="triggers"):
        read_settings(RetrySettings, "job_retry", {"triggers": ["sometimes"]})


def test_a_store_that_is_away_is_reported_as_such(opts):
    store = RetryStore({**opts, "cache": "redis", "cache.redis.host": "127.0.0.1", "cache.redis.port": 1})
    with pytest.raises(StateError):
        list(store.snapshots())


def test_effects_and_facts_are_performed_and_handled_without_exception():
    from saltext.jobs.core.retry import effects as retry_effects
    from saltext.jobs.core.retry import machine as retry

    assert set(retry_effects._PERFORM) == set(facts.Effect.__args__)
    assert set(retry._HANDLERS) == set(facts.Fact.__args__)
