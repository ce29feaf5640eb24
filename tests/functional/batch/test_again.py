"""A batch like another batch, or like a job."""

from __future__ import annotations

import dataclasses

import pytest

from saltext.jobs.core.batch.spec import OPTIONS
from saltext.jobs.core.batch.starting import asked_again, of_batch, of_job
from saltext.jobs.core.batch.summary import preview
from saltext.jobs.core.errors import Refused
from tests.functional.batch.test_starting import ROOT, asked_for, new_batch, opts  # noqa: F401 (a fixture)

#: The fields in which two like batches may differ.
OF_ITS_OWN = {"jid", "owner"}
WAYS = [
    {},
    {"batch": "1,50%", "max_failures": "10%", "batch_wait": "90s", "timeout": 7},
    {"batch": "1,100%", "check": "test.arg 7 'a b' c=[1,2] d='x y'", "check_timeout": "10m"},
    {"batch": "1,100%", "check": "runner:jobs.active 'a b' {jid}"},
    {"batch": "1,100%", "check": "approve", "approve_by": "anna"},
    {"window": ["Sat,Sun 02:00-05:00", "Mon 01:00-02:00"], "timezone": "Europe/Berlin", "max_runtime": "1h"},
    {"by": "nodegroups:[canary,rest]", "presence": "none", "offline": "fail", "ret": "mysql"},
    {"metadata": {"ticket": 7}, "module_executors": ["direct_call"], "kwarg": {"timeout": 3, "pillar": {"a": [1]}}},
    {"arg": ["nginx", 7, {"a": 1}], "test": True},
]


@pytest.fixture
def site(opts):  # noqa: F811
    return {**opts, "nodegroups": {"canary": "L@web2", "rest": "*"}}


def same(site, before, *args, **given):
    return new_batch(site, ROOT, args, asked_again(before, given))


@pytest.mark.parametrize("given", WAYS, ids=lambda given: "-".join(given) or "nothing")
def test_a_batch_like_another_one_differs_only_in_what_is_its_own(site, given):
    first = asked_for(site, "*", fun="state.apply", **given)
    again = same(site, of_batch(first))
    assert {name for name, value in again.as_dict().items() if value != first.as_dict()[name]} <= OF_ITS_OWN


def test_every_option_is_shown_by_its_name(site):
    assert preview(asked_for(site, "*"), None, 1.0)["options"].keys() == OPTIONS.keys()


def test_the_start_time_of_the_other_batch_is_taken_over_while_it_is_to_come(site):
    first = asked_for(site, "*", start_at="+90m")
    assert same(site, of_batch(first)).start_at == first.start_at
    assert same(site, of_batch(dataclasses.replace(first, start_at=1.0))).start_at is None


def test_a_given_option_replaces_that_of_the_other_batch(site):
    first = asked_for(site, "web*", "nginx", fun="state.apply", batch="1,50%", max_failures=0, saltenv="dev")
    again = same(site, of_batch(first), batch=1, max_failures=3, saltenv="base", test=True)
    assert (again.sizes, again.max_failures, again.arg) == ([1], 3, ("nginx",))
    assert again.kwargs == {"saltenv": "base", "test": True}
    with pytest.raises(Refused, match="kwarg is 'test'"):
        same(site, of_batch(first), kwarg="test")


def test_a_new_target_brings_its_own_type_and_a_new_function_its_own_arguments(site):
    first = asked_for(site, "web1,web2", "nginx", fun="state.apply", tgt_type="list", saltenv="dev")
    assert same(site, of_batch(first), tgt="1001").minions == ("1001",)
    other = same(site, of_batch(first), "uptime", fun="cmd.run")
    assert (other.tgt, other.fun, other.arg, other.kwargs) == (["web1", "web2"], "cmd.run", ("uptime",), {})


def test_a_given_option_takes_no_argument_of_that_name_from_the_function(site):
    wanted = {"tgt": "db*", "tgt_type": "glob", "timeout": 7}
    first = asked_for(site, "*", "ip", fun="mine.get", kwarg=wanted)
    assert same(site, of_batch(first), tgt=["web1"], tgt_type="list", timeout=30).kwargs == wanted


def test_a_batch_like_a_job_runs_the_function_of_that_job(site):
    load = {
        "fun": "state.apply",
        "tgt": "web1",
        "tgt_type": "glob",
        "ret": "",
        "user": "anna",
        "jid": "x",
        "arg": ["nginx", {"__kwarg__": True, "test": True}],
        "kwargs": {"metadata": {"ticket": 7}, "delimiter": ":", "module_executors": ["sudo"], "ret_config": "audit"},
    }
    found = same(site, of_job("x", load), batch=1)
    assert (found.fun, found.arg, found.kwargs, found.minions) == ("state.apply", ("nginx",), {"test": True}, ("web1",))
    assert found.options == {"metadata": {"ticket": 7}, "module_executors": ["sudo"], "ret_config": "audit"}


@pytest.mark.parametrize("fun", ["runner.batch.list", ["test.ping", "test.version"], None])
def test_a_job_that_no_batch_can_run_is_refused(fun):
    with pytest.raises(Refused, match="like is x, which is not a job of one function on minions"):
        of_job("x", {"fun": fun, "arg": [], "tgt": "*"})
