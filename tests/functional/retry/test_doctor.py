"""What ``job_retry.doctor`` finds."""

from __future__ import annotations

import pathlib
import time

import pytest

from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.retry import doctor
from saltext.jobs.core.retry.entry import PAUSED, Entry
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of
from tests.found import SIGNED, said
from tests.functional.retry.records import JID, accept, changes, load_of, queue_of, record_of, snapshot_of
from tests.leading import lock_of, single_holder


@pytest.fixture
def opts(opts):
    (pathlib.Path(opts["pki_dir"]) / "minions" / "a").write_text("x")
    return {**opts, "job_retry": True, **SIGNED}


@pytest.fixture
def running(opts):
    with single_holder(lock_of(opts, JOB_RETRY)):
        yield


def finding(opts, part):
    found = [sentence for sentence in said(doctor.examine(opts)) if part in sentence]
    assert len(found) == 1, doctor.examine(opts)
    return found[0]


def test_nothing_is_found_where_all_is_well(opts, running):
    JobCache(opts).keep_load(JID, load_of(), ["a"])
    unknown = dict.fromkeys(("engine_silent_seconds", "engine_master", "process", "since"))
    assert doctor.examine(opts) == {"engine": True, **unknown, "findings": [], "faults": 0, "retcode": 0}


def test_a_syndic_is_found_that_jobs_are_owed_to(opts, running):
    JobCache(opts).keep_load(JID, load_of(), ["a"])
    accept(opts, "b")
    jobs = {JID: {**snapshot_of(), "published_at": time.time()}}
    queue_of(opts).write(changes(jobs, {(name, JID): record_of(name) for name in "ab"}))
    seen = pathlib.Path(opts["cachedir"], "syndics")
    seen.mkdir()
    for name in ("a", "eu_master"):  # nothing waits for "eu_master"
        (seen / name).touch()
    assert finding(opts, "syndic") == "a: a syndic, to which jobs are owed: name it under job_retry, in syndics"
    opts["job_retry"] = {"syndics": ["a"]}
    assert not [sentence for sentence in said(doctor.examine(opts)) if "syndic" in sentence]


@pytest.mark.parametrize("limit", ["max_queue", "max_queue_per_minion"])
def test_a_queue_that_takes_no_further_job_is_a_fault(opts, running, limit):
    queue_of(opts).write(changes({JID: {**snapshot_of(), "published_at": time.time()}}, {("a", JID): record_of("a")}))
    assert finding({**opts, "job_retry": {limit: 1}}, f"{limit} is reached")


def test_ids_to_which_jobs_are_owed_in_vain_are_named(opts, running):
    """``a`` was away for long, ``b`` has no key, ``c`` and ``d`` are owed nothing any more, and ``e`` has six days more."""
    JobCache(opts).keep_load(JID, load_of(), ["a"])
    accept(opts, "d", "e")
    other, now = "20260516101112131416", time.time()
    held = {**record_of("c"), "state": "held"}
    late = Entry("a", JID, now - 80000, now + 6400, "was away").as_record()
    fresh = Entry("e", other, now - 86400, now + 6 * 86400, "was away").as_record()
    queue_of(opts).write(
        changes(
            {JID: snapshot_of(), other: {**snapshot_of(), "published_at": now - 86400}},
            {("a", JID): late, ("b", JID): record_of("b"), ("c", JID): held, ("e", other): fresh},
        )
    )
    assert finding(opts, "half of its time to live").startswith("a: ")
    assert finding(opts, "its key is not accepted").startswith("b: ") and finding(opts, "1 entry held or dead")


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"engines": [JOB_RETRY]}, "no job_retry engine runs: restart the master if it is new in the configuration"),
        ({"job_retry": None, "engines": [JOB_RETRY]}, "the engine is off"),
        ({"job_retry": {"ttl": "soon"}}, "'soon'"),
        ({"engines": [{"job_retry": {"rate": "fast"}}]}, "'fast'"),
        ({"ext_job_cache": "redis"}, "the engine does not start: ext_job_cache is 'redis'"),
        ({"keep_jobs_seconds": "30d"}, "the engine does not start: keep_jobs_seconds is '30d'; accepted is a number"),
        ({"require_minion_sign_messages": False}, "another's name"),
    ],
)
def test_missing_configuration_is_reported(opts, changes, part):
    finding({**opts, **changes}, part)


def test_unreadable_keys_are_reported(opts, running):
    keys = pathlib.Path(opts["pki_dir"]) / "minions"
    (keys / "a").unlink()
    keys.rmdir()
    finding(opts, "can be read")


def test_a_pause_is_reported(opts):
    RetryStore(site_of(opts)).write({PAUSED: {}})
    finding(opts, "the queue is paused")
