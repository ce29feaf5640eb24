"""What the queue learns of a job from the job cache and the keys."""

from __future__ import annotations

import shutil
import time

import pytest

from saltext.jobs.core.engine.proof import Returns
from saltext.jobs.core.ledger.records import publish_of
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry.entry import Key, Kind, Limits
from saltext.jobs.core.retry.facts import Kill
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.reader import JobReader, job_of, limits_of, of_record
from saltext.jobs.core.site import site_of
from tests.database import begin_another_log
from tests.faults import no_more_files
from tests.functional.retry.records import JID, accept, load_of, queue_of, returners


def publish(cache, minions, **more):
    cache.keep_load(JID, load_of(**more), minions)


def publish_again(opts, minions, **more):
    returners(opts)["salt_cache.save_load"](JID, load_of(**more), minions=minions)


def reader_of(opts):
    return JobReader(opts, Returns(site_of(opts), JobCache(opts)), queue_of(opts).done)


@pytest.fixture(params=["the log", "the job cache"])
def has_it(request, opts):
    """Call it once all was published: then only one of the two has it."""
    return lambda: begin_another_log(opts) if request.param == "the job cache" else None


def test_a_job_that_this_master_published_is_read_with_those_that_have_not_returned(opts, job_cache, has_it):
    accept(opts, "a", "b", "c")
    publish(job_cache, ["a", "b", "c"])
    job_cache.store_return({"jid": JID, "id": "a", "return": True, "retcode": 0})
    queue_of(opts).write({Key(Kind.DONE, JID, "c"): {"state": "done"}})  # its return was there, and is lost
    has_it()
    read = reader_of(opts).read(JID)
    assert read.missing == {"b"}
    assert (read.job.funs, read.job.load["arg"]) == (("state.apply",), ["web"])
    assert abs(read.job.published_at - time.time()) < 60
    begin_another_log(opts)  # the log knows nothing of these minions any more, though of the job
    publish_again(opts, ["d"])
    assert {"a", "b"} <= {minion for row in Returns(site_of(opts), job_cache).untold(0.0) for minion in row.minions}


def test_the_load_of_a_job_takes_as_much_room_in_the_queue_as_entries_of_its_size(opts, job_cache):
    publish(job_cache, ["a", "b"], arg=["x" * 10_000])
    job, queue = reader_of(opts).read(JID).job, Queue(RetrySettings(max_queue=10))
    first = queue.add(job, "a", "away", time.time())
    assert first is not None and queue.add(job, "b", "away", time.time()) is None
    queue.remove(first)
    assert queue.add(job, "b", "away", time.time()) is not None


def test_a_load_that_a_minion_or_syndic_brought_is_no_published_job(opts, job_cache):
    returners(opts)["salt_cache.save_load"](JID, load_of())
    returners(opts)["salt_cache.save_minions"](JID, ["a", "b"])
    assert reader_of(opts).read(JID).job is None


def test_a_job_that_another_master_published_into_the_same_cache_is_not_this_master_s(opts, job_cache):
    there = {**opts, "id": "there_master"}
    publish(JobCache(there), ["a"])
    begin_another_log(opts)
    assert reader_of(opts).read(JID).job is None
    assert job_cache.published_since(0) == []
    assert JobCache(there).published_since(0) == [JID]


def test_a_minion_that_was_added_to_a_job_from_outside_is_not_owed_it(opts, job_cache, has_it):
    accept(opts, "a", "b")
    returners(opts)["salt_cache.save_minions"](JID, ["b"])
    publish(job_cache, ["a"])
    returners(opts)["salt_cache.save_minions"](JID, ["b"])
    has_it()
    assert reader_of(opts).read(JID).missing == {"a"}


@pytest.mark.parametrize(
    "other", [{"fun": "test.ping"}, {"arg": ["db"]}, {"user": "fred"}, {"user": "root", "kwargs": {"eauth": "pam"}}]
)
@pytest.mark.parametrize("again", [False, True])
def test_no_minion_is_owed_a_job_because_another_one_was_published_under_its_jid(opts, job_cache, has_it, other, again):
    accept(opts, "a", "b")
    publish(job_cache, ["a"], user="sudo_anna")
    publish_again(opts, ["a", "b"], **{"user": "sudo_anna", **other})
    if again:
        publish_again(opts, ["b"], user="sudo_anna")
    has_it()
    read = reader_of(opts).read(JID)
    assert read.missing == ({"a", "b"} if again else {"a"})
    assert (read.job.load["fun"], read.job.load["user"]) == ("state.apply", "sudo_anna")


@pytest.mark.parametrize("user", ["root", "saltmaster"])
def test_the_parts_of_a_batch_that_the_master_publishes_in_its_own_name_belong_to_it(opts, has_it, user):
    opts["user"] = "saltmaster"
    accept(opts, "a", "b")
    publish(JobCache(opts), ["a"], user="fred")
    publish_again(opts, ["b"], user=user)
    has_it()
    assert reader_of(opts).read(JID).missing == {"a", "b"}


def test_a_minion_without_an_accepted_key_is_left_to_others(opts, job_cache):
    accept(opts, "a")
    accept(opts, "b", kind="minions_pre")
    reader = reader_of(opts)
    publish(job_cache, ["a", "b", "c"])
    assert reader.read(JID).missing == {"a"}
    assert reader.look_up(JID, ("a", "b"), load_of(), {}).barred == frozenset({"b"})
    assert reader.keys() == ({"a"}, {"a", "b"})


def test_jobs_of_a_batch_and_jobs_without_stored_returns_are_kept_out():
    assert job_of(JID, load_of(batch=True), 1.0).kept_out
    assert job_of(JID, load_of(kwargs={"nocache": True}), 1.0).kept_out
    assert not job_of(JID, load_of(), 1.0).kept_out


@pytest.mark.parametrize("odd", [{1: "a", "b": "c"}, {None: 1, "a": 2}, {b"x": 1}, {"x": float("nan")}])
def test_a_job_with_arguments_of_any_form_is_read_and_distinguished_from_another(opts, job_cache, odd):
    accept(opts, "a")
    publish(job_cache, ["a"], arg=[{"pillar": odd, "__kwarg__": True}])
    read = reader_of(opts).read(JID)
    assert read.missing == {"a"}
    assert read.job.digest == job_of(JID, read.job.load, 1.0).digest != job_of(JID, load_of(), 1.0).digest


@pytest.mark.parametrize(
    "wish, limits",
    [
        (None, Limits()),
        (False, Limits(off=True)),
        (True, Limits(given=True)),
        ({"ttl": "7d"}, Limits(given=True, ttl=604800.0)),
        ({"max_attempts": 2}, Limits(given=True, max_attempts=2)),
        ({"ttl": "soon"}, Limits(given=True)),
        ({"ttl": "7d", "max_attempts": "two"}, Limits(given=True, ttl=604800.0)),
        (
            {"window": "Sat 02:00-05:00", "timezone": "UTC"},
            Limits(given=True, window="Sat 02:00-05:00", timezone="UTC"),
        ),
        ({"window": ["02:00-05:00", "Sun 00:00-24:00"]}, Limits(given=True, window="02:00-05:00; Sun 00:00-24:00")),
        ({"window": ""}, Limits(given=True, window="")),
        ({"window": "02:00-05:00", "timezone": "Middle/Earth"}, Limits(given=True, window="02:00-05:00")),
        ({1: "red", "ttl": 60}, Limits(given=True, ttl=60.0)),
        ("yes", Limits()),
    ],
)
def test_a_job_may_set_its_own_limits(wish, limits):
    assert limits_of(JID, {"job_retry": wish}) == limits


def test_each_wrong_limit_of_a_job_is_named_once(caplog):
    limits_of(JID, {"job_retry": {"ttl": "7 days", "colour": "red", "max_attempts": 2}})
    (record,) = caplog.records
    assert "ttl: 7 days" in record.getMessage()
    assert "colour is not known" in record.getMessage()
    assert "max_attempts:" not in record.getMessage()


@pytest.mark.parametrize("fun, arg, jid", [("saltutil.kill_job", ["1"], "1"), ("saltutil.kill_all_jobs", [], "")])
def test_a_signal_that_this_master_published_says_for_which_job_and_minions_it_is(fun, arg, jid):
    (kill,) = of_record(publish_of(JID, load_of(fun=fun, arg=arg, user="ann"), ["a", "b"]))
    assert kill == Kill(jid, frozenset("ab"), "ann", kill.at)


@pytest.mark.parametrize("other", ["test.ping", "saltutil.running", "state.apply"])
def test_a_signal_that_a_permitted_function_carries_ends_nothing_that_is_owed_and_is_not_owed(opts, job_cache, other):
    accept(opts, "a")
    load = load_of(fun=[other, "saltutil.kill_all_jobs"], arg=[[], []])
    assert not any(isinstance(fact, Kill) for fact in of_record(publish_of(JID, load, ["a"])))
    job_cache.keep_load(JID, load, ["a"])
    assert reader_of(opts).read(JID).job is None


def test_a_load_is_never_read_where_minions_may_write(opts, job_cache):
    accept(opts, "a")
    publish(job_cache, ["a"])
    elsewhere = {**opts, "ext_job_cache": "local_cache"}
    forged = {**load_of(), "fun": "cmd.run", "arg": ["rm -rf /"], "Minions": ["a"]}
    returners(elsewhere)["local_cache.save_load"](JID, forged)
    read = reader_of(elsewhere).read(JID)
    assert (read.job.load["fun"], read.job.load["arg"]) == ("state.apply", ["web"])


def test_keys_that_cannot_be_read_do_not_count_as_deleted(opts, job_cache):
    accept(opts, "a")
    reader = reader_of(opts)
    assert reader.keys(fresh=True) == ({"a"}, {"a"})
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        reader.keys(fresh=True)
    shutil.rmtree(opts["pki_dir"])
    with pytest.raises(OSError, match="No such file"):
        reader.keys(fresh=True)
