"""What a minion's own records say of a job, and which jobs they have."""

from __future__ import annotations

import pytest

from saltext.jobs.core.delivery.asking import said_of
from saltext.jobs.core.delivery.known import Said
from saltext.jobs.core.master.once import LACKS, NOTHING_RUNS, Record, is_recorded, is_return_of, lack_of, record_of


@pytest.mark.parametrize("answer", [None, "text", {}, {"job_once": "never"}, {"job_once": {"state": ["never"]}}])
def test_an_answer_without_a_record_gives_no_record(answer):
    assert record_of(answer) is None


@pytest.mark.parametrize("seconds", [None, "9", True, float("nan"), float("inf"), -3])
def test_an_invalid_time_vouches_for_nothing(seconds):
    assert record_of({"job_once": {"state": "never", "recorded_for": seconds}}) == Record("never", 0.0)


def test_the_state_never_is_believed_only_for_a_job_younger_than_the_records():
    record = record_of({"job_once": {"state": "never", "recorded_for": 100}})
    assert [said_of(record, age) for age in (0.0, 90.0, 99.0, 1000.0)] == [Said.NEVER] * 2 + [Said.NOT_SURE] * 2
    assert said_of(Record("interrupted"), 1000.0) is Said.INTERRUPTED


@pytest.mark.parametrize(
    ("funs", "options", "recorded"),
    [
        (["cmd.run"], None, True),
        (["saltutil.sync_all"], {}, False),
        (["sys.doc", "saltutil.sync_all"], {}, False),
        (["saltutil.sync_all", "state.apply"], {}, True),
        (["cmd.run"], {"module_executors": ["direct_call"]}, False),
        (["cmd.run"], {"module_executors": "direct_call"}, False),
        (["cmd.run"], {"module_executors": ["job_once", "sudo"]}, True),
        (["cmd.run"], {"module_executors": ["direct_call", "job_once"]}, False),
        (["cmd.run"], {"module_executors": ["ours", "job_once", "direct_call"]}, False),
        (["cmd.run"], {"module_executors": ["job_once"]}, False),
        (["cmd.run"], {"module_executors": "job_once"}, False),
        (["cmd.run"], {"module_executors": 5}, False),
        (["cmd.run"], {"module_executors": {"job_once": 1}}, False),
        (["cmd.run"], {"executor_opts": {"job_once": {"question": True}}}, False),
        (["cmd.run"], {"executor_opts": {"job_once": {"ack": True}}}, True),
        (["cmd.run"], {"executor_opts": "text"}, True),
    ],
)
def test_functions_that_the_executor_lets_pass_are_not_on_record(funs, options, recorded):
    assert is_recorded(funs, options) is recorded


@pytest.mark.parametrize(
    ("fun", "told", "its"),
    [
        ("state.apply", {"fun": "state.apply"}, True),
        ("state.apply", {}, True),
        (["state.apply", "test.ping"], {"fun": ["state.apply", "test.ping"]}, True),
        (["state.apply", "test.ping"], {"fun": "state.apply,test.ping"}, True),
        ("state.apply", {"fun": "cmd.run"}, False),
        ("state.apply", {"fun": ["state.apply", "cmd.run"]}, False),
        ("state.apply", {"fun": 5}, False),
    ],
)
def test_a_return_to_another_master_under_the_same_jid_is_no_return_of_the_job(fun, told, its):
    assert is_return_of(fun, told) is its


@pytest.mark.parametrize(
    ("told", "lack"),
    [
        ({"jid": "0", "job_once": {"state": "never", "recorded_for": 9.0}}, ""),
        ("Local jobs cache directory not found; you may need to enable cache_jobs on this minion", LACKS),
        ("ERROR executing ...: Executor 'job_once' is not available", NOTHING_RUNS),
        (None, LACKS),
        ({"job_once": "text"}, LACKS),
    ],
)
def test_the_answer_of_a_minion_shows_what_it_lacks(told, lack):
    assert lack_of(told) == lack
