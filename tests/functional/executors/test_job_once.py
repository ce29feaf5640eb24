"""The executor job_once through Salt's own loaders: what runs, what is returned, and what is on the disk meanwhile."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import pathlib
import re
import resource
import tempfile
import threading
import time
import zlib

import pytest
import salt.exceptions
import salt.utils.event

from tests.faults import no_more_files
from tests.functional.executors.conftest import Minion, new_jid
from tests.missing import missing
from tests.waiting import wait_for

pytestmark = pytest.mark.story  # how Salt calls executors differs between the releases

EXECUTOR = pathlib.Path(__file__).resolve().parents[3] / "executors" / "job_once.py"


@pytest.fixture
def trace(minion):
    return str(minion.trace)


# -- once --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "retcode"),
    [("done", 0), (None, 0), (None, 3), ({"a": [1, None, {"b": 2.5}]}, 0), (False, 0), ("", 7), ("ö" * 5000, 0)],
)
def test_a_job_that_arrives_again_is_not_run_and_returns_what_it_returned(minion, trace, jid, value, retcode):
    first = minion.deliver(jid, "probe.give", trace, value, retcode)
    minion.start()
    assert first == minion.deliver(jid, "probe.give", trace, value, retcode) == (value, retcode)
    assert minion.runs() == 1


def test_another_job_with_the_same_function_is_run(minion, trace):
    for _ in range(3):
        minion.deliver(new_jid(), "probe.give", trace)
    assert minion.runs() == 3


@pytest.mark.parametrize("executors", [["job_once", "direct_call"], ["job_once"]])
@pytest.mark.parametrize("own", [{}, {"splaytime": 0.001}])
def test_options_for_the_executor_do_not_reach_the_function(minion, trace, executors, own):
    given = {"module_executors": executors, **({"executor_opts": own} if own else {})}
    first = dict(minion.deliver("1", "probe.told", trace, **given)[0])
    given["executor_opts"] = {**own, "job_once": {"ack": True, "keep": 60}}
    later = dict(minion.deliver("2", "probe.told", trace, **given)[0])
    assert later == {**first, "__pub_jid": "2"}
    assert first.get("__pub_executor_opts", {}) == own


@pytest.mark.parametrize(
    "executors",
    [
        ["job_once"],
        ["job_once", "direct_call"],
        ["job_once", "splay", "direct_call"],
        ["splay", "job_once", "direct_call"],
        ["job_once", "job_once", "direct_call"],
    ],
)
def test_a_function_that_returns_nothing_runs_once_whatever_executors_follow(tmp_path, executors):
    minion = Minion(tmp_path, module_executors=executors)
    options = {"executor_opts": {"splaytime": 0.001}}
    jids = [new_jid() for _ in range(3)]
    for jid in (*jids, *jids):
        assert minion.deliver(jid, "probe.give", str(minion.trace), **options) == (None, 0)
    assert minion.runs() == 3


def test_a_function_that_an_earlier_executor_has_run_is_not_run_again_and_the_order_is_reported(tmp_path, caplog):
    minion = Minion(tmp_path, module_executors=["direct_call", "job_once"])
    assert minion.deliver(new_jid(), "probe.give", str(minion.trace)) == (None, 0)
    assert (minion.runs(), minion.records()) == (1, [])
    assert "unless 'job_once' comes first" in caplog.text


def test_the_executors_of_the_job_itself_count(minion, trace, jid):
    for _ in range(2):
        minion.deliver(jid, "probe.give", trace, module_executors=["direct_call"])
    assert minion.runs() == 2
    minion.deliver(jid, "probe.give", trace, module_executors=["job_once"])
    assert (minion.runs(), minion.seen(jid)[jid]["state"]) == (3, "ended")


@pytest.mark.parametrize(
    ("kind", "raised", "text"),
    [
        ("CommandExecutionError", salt.exceptions.CommandExecutionError, "no such thing"),
        ("SaltInvocationError", salt.exceptions.SaltInvocationError, "no such thing"),
        ("CommandNotFoundError", salt.exceptions.CommandNotFoundError, "no such thing"),
        ("ZeroDivisionError", salt.exceptions.CommandExecutionError, "ZeroDivisionError: no such thing"),
    ],
)
def test_an_exception_of_a_function_is_raised_again(minion, trace, jid, kind, raised, text):
    with pytest.raises(Exception, match="no such thing") as first:
        minion.deliver(jid, "probe.fail", trace, "no such thing", kind)
    with pytest.raises(raised) as second:
        minion.deliver(jid, "probe.fail", trace, "no such thing", kind)
    assert (first.typename, str(second.value), minion.runs()) == (kind, text, 1)
    told = minion.seen(jid)[jid]
    assert (told["state"], told["retcode"], told["return"]) == ("ended", 1, "ERROR: no such thing")


def test_values_that_a_function_yields_are_returned_as_a_whole_the_second_time(minion, trace, jid):
    values, _ = minion.deliver(jid, "probe.steps", trace)
    assert list(values) == [{"a": 1}, {"b": 2}]
    assert minion.deliver(jid, "probe.steps", trace)[0] == {"a": 1, "b": 2}
    assert minion.runs() == 1


def test_a_function_that_fails_while_it_yields_is_not_run_again_either(minion, trace, jid):
    values, _ = minion.deliver(jid, "probe.steps", trace, True)
    with pytest.raises(ValueError, match="half way"):
        list(values)
    with pytest.raises(salt.exceptions.CommandExecutionError, match="ValueError: half way"):
        minion.deliver(jid, "probe.steps", trace, True)
    assert minion.runs() == 1


def test_a_known_jid_with_another_function_runs_nothing_and_the_return_says_so(minion, trace, jid):
    minion.deliver(jid, "test.echo", "of the first master")
    text, retcode = minion.deliver(jid, "probe.give", trace)
    assert (retcode, minion.runs()) == (1, 0)
    for part in (jid, "ran test.echo", "probe.give is not run", "a jid of its own"):
        assert part in text
    assert minion.deliver(jid, "test.echo", "of the first master") == ("of the first master", 0)


def test_a_job_of_several_functions_counts_as_one(minion, trace, jid):
    def deliver():
        data = {"jid": jid, "fun": ["probe.give", "probe.give", "probe.fail"], "arg": []}
        first = minion.call(data, "probe.give", [trace, "one"])
        second = minion.call(data, "probe.give", [trace, None, 4])
        with pytest.raises(salt.exceptions.CommandExecutionError, match="three"):
            minion.call(data, "probe.fail", [trace, "three"])
        return first, second

    assert deliver() == deliver() == (("one", 0), (None, 4))
    assert minion.runs() == 3
    assert minion.seen(jid)[jid]["state"] == "ended"


def test_a_question_among_the_functions_of_a_job_is_one_of_them(minion, trace, jid):
    def deliver():
        data = {"jid": jid, "fun": ["saltutil.find_cached_job", "job_once.seen", "probe.give"], "arg": []}
        minion.call(data, "saltutil.find_cached_job", ["0"])
        minion.call(data, "job_once.seen", ["0"])
        return minion.call(data, "probe.give", [trace, "done", 2])

    assert deliver() == deliver() == ("done", 2)
    assert minion.runs() == 1
    assert minion.seen(jid)[jid]["state"] == "ended"


def test_an_interrupted_job_of_several_functions_reports_which_of_them_ran(minion, trace, jid):
    data = {"jid": jid, "fun": ["probe.give", "probe.give"], "arg": []}
    minion.call(data, "probe.give", [trace, "one"])
    _age_process(minion)
    again = dict(data)
    assert minion.call(again, "probe.give", [trace, "one"]) == ("one", 0)
    text, retcode = minion.call(again, "probe.give", [trace, "two"])
    assert (retcode, minion.runs()) == (1, 1)
    assert "interrupted" in text


def test_a_state_run_that_the_minion_queues_for_itself_is_run_when_its_turn_comes(minion, trace, jid):
    minion.deliver(jid, "probe.queued", trace)
    assert minion.seen(jid)[jid]["state"] == "never"
    minion.deliver(jid, "probe.give", trace, "state")
    assert minion.runs() == 2


def _as_salt_does(minion, jid, *calls):
    """Have a job of several functions arrive (``Minion._thread_multi_return``): what each returns, or its error."""
    data = {"jid": jid, "fun": [fun for fun, *_ in calls], "arg": [args for _, *args in calls]}
    returned = []
    for fun, *args in calls:
        try:
            returned.append(minion.call(data, fun, args)[0])
        except Exception as exc:
            returned.append(str(exc))
    return returned


WRONG = {"__kwarg__": True, "no_such": 1}


@pytest.mark.parametrize("wrong", [[0], [1], [2], [0, 1], [1, 2], [0, 2]])
def test_a_job_of_several_functions_ends_even_if_salt_does_not_call_some_of_them(minion, trace, jid, wrong):
    calls = [["probe.give", trace, name] for name in ("one", "two", "three")]
    for part in wrong:
        calls[part].append(WRONG)
    first = _as_salt_does(minion, jid, *calls)
    told = minion.seen(jid)[jid]
    assert told["state"] == "ended"
    assert _as_salt_does(minion, jid, *calls) == first
    assert [name for name in ("one", "two", "three") if name in first] == [
        name for part, name in enumerate(("one", "two", "three")) if part not in wrong
    ]
    assert minion.runs() == 3 - len(wrong)


def test_the_return_says_why_salt_does_not_call_a_function(minion, trace, jid):
    _as_salt_does(minion, jid, ("probe.give", trace, "one"), ("test.echo", "two", WRONG))
    told = minion.seen(jid)[jid]
    assert told["retcode"] == {"probe.give": 0, "test.echo": 1}
    assert told["return"]["probe.give"] == "one"
    assert "no_such" in told["return"]["test.echo"]


@pytest.mark.parametrize("there", [False, True])
def test_a_function_may_install_the_next_function_of_the_job(minion, jid, there):
    modules = pathlib.Path(minion.opts["extension_modules"], "modules")
    late, text = modules / "late.py", "def go(fast=False):\n    return 'new'\n"
    (modules / "tool.py").write_text(
        f"def bring():\n    open({str(late)!r}, 'w').write({text!r})\n    return 'brought'\n"
    )
    late.write_text("def go():\n    return 'old'\n" if there else "def __virtual__():\n    return False\n")
    minion.start()
    kwargs = {"__kwarg__": True, "fast": True}
    assert _as_salt_does(minion, jid, ("tool.bring",), ("late.go", kwargs)) == ["brought", "new"]
    assert minion.seen(jid)[jid]["state"] == "ended"


def test_functions_that_a_blackout_lets_pass_are_all_of_a_job_that_counts(minion, trace, jid):
    calls = [("test.echo", "one"), ("probe.give", trace, "two"), ("test.echo", "three")]
    minion.opts["grains"].update(minion_blackout=True, minion_blackout_whitelist=["probe.give", "job_once.seen"])
    assert _as_salt_does(minion, jid, *calls)[1] == "two"
    assert minion.seen(jid)[jid]["state"] == "ended"
    assert _as_salt_does(minion, jid, *calls)[1] == "two"
    assert minion.runs() == 1


def test_a_function_that_salt_calls_after_all_is_run(minion, trace, jid, monkeypatch):
    module = minion.it.executors["job_once.execute"].func.__globals__
    monkeypatch.setitem(module, "_is_blacked_out", lambda opts, name: name == "test.echo")
    calls = [("test.echo", "one"), ("probe.give", trace, "two"), ("test.echo", "three")]
    for _ in range(2):
        assert _as_salt_does(minion, jid, *calls) == ["one", "two", "three"]
    assert minion.runs() == 1


def _with_a_state_run_between(minion, jid):
    """Have a job of three functions arrive: what each returns."""
    calls = [("probe.give", "one", 3), ("probe.queued", str(minion.gate)), ("probe.give", "three")]
    data = {"jid": jid, "fun": [fun for fun, *_ in calls], "arg": []}
    return [minion.call(data, fun, [str(minion.trace), *args])[0] for fun, *args in calls]


def test_of_several_functions_only_the_one_that_the_minion_queued_for_itself_runs_again(minion, jid):
    assert _with_a_state_run_between(minion, jid)[::2] == ["one", "three"]
    assert minion.seen(jid)[jid]["state"] == "begun"
    minion.start()
    assert _with_a_state_run_between(minion, jid)[1]["queued"], "it has to wait once more"
    assert minion.runs() == 4
    minion.gate.touch()
    for _ in range(2):
        assert _with_a_state_run_between(minion, jid) == ["one", "its turn", "three"]
    assert minion.runs() == 5
    assert minion.seen(jid)[jid]["retcode"] == {"probe.give": 0, "probe.queued": 0}


def test_a_job_that_was_cut_after_it_had_queued_a_function_is_interrupted(minion, trace, jid):
    data = {"jid": jid, "fun": ["probe.queued", "probe.give"], "arg": []}
    minion.call(data, "probe.queued", [trace])
    _age_process(minion)
    assert minion.seen(jid)[jid]["state"] == "interrupted"
    text, retcode = minion.call(dict(data), "probe.queued", [trace, str(minion.gate)])
    assert ("was interrupted" in text, retcode, minion.runs()) == (True, 1, 1)


def test_a_job_that_waits_in_the_queue_of_the_minion_runs_nothing_else_under_its_jid(minion, trace, jid):
    _with_a_state_run_between(minion, jid)
    text, retcode = minion.deliver(jid, "probe.give", trace)
    assert ("ran probe.give,probe.queued,probe.give, so probe.give is not run" in text, retcode) == (True, 1)
    assert minion.runs() == 3


@pytest.mark.parametrize("fun", ["saltutil.refresh_grains", "sys.list_modules"])
def test_functions_that_manage_the_minion_are_neither_recorded_nor_kept_from_running_again(minion, jid, fun):
    minion.it.functions[fun]
    minion.deliver(jid, "sys.list_functions", "test")
    assert minion.records() == []
    assert minion.deliver(jid, "sys.list_functions", "test")[0]


def test_jobs_without_a_jid_and_questions_are_not_recorded(minion, trace, jid):
    for _ in range(2):
        assert minion.call({"fun": "probe.give", "arg": []}, "probe.give", [trace, "local"]) == ("local", 0)
        minion.deliver(jid, "probe.give", trace, executor_opts={"job_once": {"question": True}})
    assert (minion.runs(), minion.records()) == (4, [])


def test_an_argument_of_salt_call_is_no_jid(tmp_path, jid):
    minion = Minion(tmp_path, __cli="salt-call")
    for _ in range(2):
        minion.call({"fun": "probe.give", "arg": [], "jid": jid}, "probe.give", [str(minion.trace)])
    assert (minion.runs(), minion.records()) == (2, [])


@pytest.mark.parametrize("opts", ["text", ["a", "list"], {"job_once": "text"}, {"job_once": {"keep": "long"}}, None])
def test_executor_options_of_any_form_harm_nothing(minion, trace, jid, opts):
    assert minion.deliver(jid, "probe.give", trace, "done", executor_opts=opts) == ("done", 0)


@pytest.mark.parametrize("jid", ["../../x", "a/b", "~2", "x~2", ".since", "ü", "=", "A" * 300, "req", "\ud800"])
def test_any_jid_stays_in_the_folder_and_apart_from_others(minion, trace, jid):
    others = ["x", "since", "2"]
    for each in (*others, jid, jid, *others):
        minion.deliver(each, "probe.give", trace, each.encode("utf-8", "replace"))
    assert minion.runs() == 4
    assert len(minion.records()) == 4


# -- interrupted -------------------------------------------------------------------------------------------------------


def test_an_interrupted_job_is_not_run_again_and_its_return_says_what_to_do(minion, trace, jid):
    minion.interrupt(jid)
    text, retcode = minion.deliver(jid, "probe.die", trace)
    assert (retcode, minion.runs()) == (1, 1)
    for part in (jid, "was interrupted", f"salt 'm1' job_once.forget {jid}", "new jid", "job_retry.retry"):
        assert part in text
    assert minion.seen(jid)[jid]["state"] == "interrupted"


def test_an_interrupted_job_runs_again_once_where_the_master_says_so(minion, trace, jid):
    minion.interrupt(jid)
    again = {"executor_opts": {"job_once": {"rerun": True}}}
    for _ in range(2):
        assert minion.deliver(jid, "probe.give", trace, "second", **again) == ("second", 0)
    assert minion.runs() == 2
    assert minion.deliver(jid, "probe.give", trace) == ("second", 0)


def test_a_job_that_has_ended_does_not_run_again_even_where_the_master_says_so(minion, trace, jid):
    minion.deliver(jid, "probe.give", trace, "first")
    assert minion.deliver(jid, "probe.give", trace, executor_opts={"job_once": {"rerun": True}})[0] == "first"
    assert minion.runs() == 1


def test_a_forgotten_job_runs_again_under_its_jid(minion, trace, jid):
    minion.interrupt(jid)
    assert minion.deliver(new_jid(), "job_once.forget", jid, "other")[0] == {jid: True, "other": False}
    assert minion.deliver(jid, "probe.give", trace, "now") == ("now", 0)


def test_a_job_that_runs_is_not_forgotten(minion, trace, jid):
    process = minion.deliver_in_process(jid, "probe.wait", trace, str(minion.gate))
    try:
        wait_for(minion.runs, what="the job runs")
        with pytest.raises(salt.exceptions.CommandExecutionError, match="runs here"):
            minion.deliver(new_jid(), "job_once.forget", jid)
    finally:
        minion.gate.touch()
        process.join()


# -- at the same time --------------------------------------------------------------------------------------------------


def test_one_of_many_deliveries_at_once_runs_and_all_return_the_same(minion, trace, jid):
    processes = [minion.deliver_in_process(jid, "probe.wait", trace, str(minion.gate)) for _ in range(8)]
    wait_for(minion.runs, what="one of them runs")
    assert minion.seen(jid)[jid]["state"] == "begun"
    minion.gate.touch()
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0}
    assert minion.runs() == 1
    assert minion.deliver(jid, "probe.wait", trace, str(minion.gate)) == ("gate open", 0)


def test_a_delivery_that_waits_for_the_first_one_is_told_when_that_is_killed(minion, trace, jid):
    first = minion.deliver_in_process(jid, "probe.wait", trace, str(minion.gate))
    wait_for(minion.runs, what="the first runs")
    second = minion.deliver_in_process(jid, "probe.wait", trace, str(minion.gate))
    time.sleep(0.2)
    assert second.is_alive()
    first.kill()
    first.join()
    second.join()
    assert (second.exitcode, minion.runs()) == (0, 1)


def test_on_a_disk_without_links_one_delivery_still_wins(minion, trace, jid, monkeypatch):
    monkeypatch.setattr(os, "link", _no_links)
    processes = [minion.deliver_in_process(jid, "probe.give", trace, "done") for _ in range(4)]
    for process in processes:
        process.join()
    assert minion.runs() == 1
    assert minion.seen(jid)[jid]["return"] == "done"


def test_on_a_disk_without_links_a_second_delivery_waits_for_a_record_that_is_just_being_made(
    minion, trace, jid, monkeypatch
):
    module = minion.it.executors["job_once.execute"].func.__globals__
    monkeypatch.setattr(os, "link", _no_links)
    monkeypatch.setitem(module, "MAKING", 3600)
    with monkeypatch.context() as patch:

        def slowly(self, path, lines):
            pathlib.Path(path).touch()
            wait_for(minion.gate.exists, what="it may go on")
            with open(path, "wb", 0) as file:
                for line in lines:
                    module["_write"](file, line)

        patch.setattr(module["Records"], "_new_without_link", slowly)
        first = minion.deliver_in_process(jid, "probe.give", trace, "done")
    wait_for(minion.records, what="the first makes its record")
    second = minion.deliver_in_process(jid, "probe.give", trace, "done")
    time.sleep(0.3)
    assert second.is_alive()
    assert minion.seen(jid)[jid]["state"] == "begun"
    minion.gate.touch()
    first.join()
    second.join()
    assert (minion.runs(), minion.seen(jid)[jid]["state"]) == (1, "ended")


def test_an_empty_record_that_stays_empty_counts_as_interrupted(minion, trace, jid, monkeypatch):
    minion.deliver(jid, "probe.give", trace)
    minion.records()[0].write_bytes(b"")
    module = minion.it.executors["job_once.execute"].func.__globals__
    monkeypatch.setitem(module, "MAKING", 3600)
    assert minion.seen(jid)[jid]["state"] == "begun"
    monkeypatch.setitem(module, "MAKING", 0.2)
    text, retcode = minion.deliver(jid, "probe.give", trace)
    assert ("interrupted" in text, retcode, minion.runs()) == (True, 1, 1)


def test_a_job_that_ends_while_another_delivery_looks_at_its_record_does_not_count_as_interrupted(
    minion, trace, jid, monkeypatch
):
    first = minion.deliver_in_process(jid, "probe.wait", trace, str(minion.gate))
    wait_for(minion.runs, what="it runs")
    real = open

    def it_ends_before_its_process_is_looked_at(path, *args, **kwargs):
        if path == f"/proc/{first.pid}/stat" and not minion.gate.exists():
            minion.gate.touch()
            first.join()
        return real(path, *args, **kwargs)

    monkeypatch.setattr("builtins.open", it_ends_before_its_process_is_looked_at)
    again = {"executor_opts": {"job_once": {"rerun": True}}}
    assert minion.deliver(jid, "probe.wait", trace, str(minion.gate), **again) == ("gate open", 0)
    assert minion.runs() == 1


# -- on the disk -------------------------------------------------------------------------------------------------------


def test_a_job_is_on_the_disk_before_its_function_runs(minion, trace, jid, monkeypatch):
    done = []
    for name in ("fsync", "link"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, name=name, real=real: (done.append((name, minion.runs())), real(*args))
        )
    minion.deliver(jid, "probe.give", trace)
    # the file, its name, the folder; then the end
    assert done == [("fsync", 0), ("link", 0), ("fsync", 0), ("fsync", 1)]


def test_a_torn_end_leaves_an_interrupted_job_and_a_whole_file_for_the_next(minion, trace, jid):
    minion.deliver(jid, "probe.give", trace, "first")
    (path,) = minion.records()
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    _age_process(minion)
    assert minion.seen(jid)[jid]["state"] == "interrupted"
    assert minion.deliver(jid, "probe.give", trace)[1] == 1
    assert minion.runs() == 1


def test_a_record_of_a_later_version_is_left_as_it_is_and_its_job_is_not_run_again(minion, trace, jid, caplog):
    minion.deliver(jid, "probe.give", trace, "first")
    (path,) = minion.records()
    first, *more = path.read_bytes().split(b"\n")[1:]
    about = json.loads(first[9:])
    assert about["format"] == 1
    line = json.dumps({**about, "format": 2}).encode()
    path.write_bytes(b"\n".join((b"", b"%08x %s" % (zlib.crc32(line), line), *more)))
    before = path.read_bytes()
    assert minion.seen(jid)[jid]["state"] == "interrupted"
    text, retcode = minion.deliver(jid, "probe.give", trace)
    assert ("was interrupted" in text, retcode, minion.runs()) == (True, 1, 1)
    assert minion.records() == [path] and path.read_bytes() == before
    assert f"{path} is of format 2, from a later version of saltext-jobs, and this one knows 1" in caplog.text


def test_a_record_that_is_cut_anywhere_never_lets_the_job_run_again(minion, trace, jid):
    minion.deliver_in_process(jid, "probe.give", trace, {"a": ["value"]}, 3).join()
    (path,) = minion.records()
    whole = path.read_bytes()
    found = []
    for length in (*range(1, len(whole) - 3, 5), len(whole) - 3, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        found.append(minion.seen(jid)[jid]["state"])
        value, retcode = minion.deliver(jid, "probe.give", trace)
        assert (value, retcode) == ({"a": ["value"]}, 3) if found[-1] == "ended" else retcode == 1
        if length % 25 == 0:  # what a file system may leave besides
            for part in (whole[:length] + b"\x00" * 40, whole[:length] + whole[length + 1 :]):
                path.write_bytes(part)
                minion.deliver(jid, "probe.give", trace)
    assert minion.runs() == 1
    assert set(found[:-1]) == {"interrupted"}


def test_a_job_that_was_killed_between_its_record_and_its_function_is_not_run(minion, trace, jid):
    def killed_then():
        module = minion.it.executors["job_once.execute"].func.__globals__
        module["Job"].run = lambda *_: os.kill(os.getpid(), 9)
        minion.deliver(jid, "probe.give", trace)

    process = multiprocessing.get_context("fork").Process(target=killed_then)
    process.start()
    process.join()
    assert (process.exitcode, minion.runs(), minion.seen(jid)[jid]["state"]) == (-9, 0, "interrupted")
    text, retcode = minion.deliver(jid, "probe.give", trace)
    assert (retcode, minion.runs()) == (1, 0)
    assert "how far it got is not known" in text


@pytest.mark.parametrize("at", ["fsync", "link"])
def test_a_job_that_was_killed_before_its_record_stood_is_run(minion, trace, jid, at):
    minion.deliver(new_jid(), "test.ping")

    def killed_then():
        setattr(os, at, lambda *_: os.kill(os.getpid(), 9))
        minion.deliver(jid, "probe.give", trace)

    process = multiprocessing.get_context("fork").Process(target=killed_then)
    process.start()
    process.join()
    assert (process.exitcode, minion.runs(), minion.seen(jid)[jid]["state"]) == (-9, 0, "never")
    assert minion.deliver(jid, "probe.give", trace, "done") == ("done", 0)
    assert minion.runs() == 1


@pytest.mark.parametrize("birth", ["another", ""])
def test_another_process_with_the_same_number_is_not_mistaken_for_the_one_that_began_the_job(minion, trace, jid, birth):
    minion.deliver(jid, "probe.give", trace)
    _age_process(minion, birth, ended=False)  # the number is that of this process
    assert minion.seen(jid)[jid]["state"] == "interrupted"
    assert minion.deliver(jid, "probe.give", trace)[1] == 1
    assert minion.runs() == 1


def test_a_clock_that_was_set_back_or_ahead_runs_nothing_again(minion, trace, jid, monkeypatch):
    minion.deliver(jid, "probe.give", trace, "first")
    real = time.time
    for shift in (-10 * 365 * 86400, 6 * 86400):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda shift=shift: real() + shift)
            assert minion.deliver(jid, "probe.give", trace) == ("first", 0)
            assert minion.seen("20300101000000000000")["20300101000000000000"]["recorded_for"] <= 7 * 86400
    assert minion.runs() == 1


@pytest.mark.parametrize("content", [b"", b"\n", b"\x00" * 500, b"deadbeef {}", b'\n00000000 {"pid": 1}\n'])
def test_a_record_that_cannot_be_read_counts_as_begun(minion, trace, jid, content):
    minion.deliver(jid, "probe.give", trace)
    minion.records()[0].write_bytes(content)
    _age(minion.records()[0], 1)
    text, retcode = minion.deliver(jid, "probe.give", trace)
    assert (retcode, minion.runs()) == (1, 1)
    assert "interrupted" in text


def test_only_the_user_of_the_minion_can_read_kept_returns(minion, trace, jid):
    minion.deliver(jid, "probe.give", trace, "secret")
    (path,) = minion.records()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_no_other_user_may_put_records_there_under_any_umask_of_the_minion(tmp_path, jid):
    before = os.umask(0)
    try:
        minion = Minion(tmp_path)
        minion.deliver(jid, "probe.give", str(minion.trace))
    finally:
        os.umask(before)
    (path,) = minion.records()
    modes = [each.stat().st_mode & 0o777 for each in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o755]


def test_a_return_that_is_too_large_is_not_kept_and_the_next_delivery_says_so(minion, trace, jid):
    value, _ = minion.deliver(jid, "probe.give", trace, None, 5, 3 << 20)
    assert len(value) == 3 << 20
    text, retcode = minion.deliver(jid, "probe.give", trace, None, 5, 3 << 20)
    assert (retcode, minion.runs()) == (5, 1)
    assert "too large to be kept" in text
    assert minion.records()[0].stat().st_size < 2000


def test_a_full_disk_lets_the_job_run_with_one_warning(minion, trace, jid, monkeypatch, caplog):
    _fill_the_disk(monkeypatch)
    assert minion.deliver(jid, "probe.give", trace, "done") == ("done", 0)
    assert [record.levelname for record in caplog.records if "without a record" in record.message] == ["WARNING"]
    assert minion.records() == []


def test_on_a_full_disk_a_strict_minion_refuses_and_says_why(tmp_path, jid, monkeypatch):
    minion = Minion(tmp_path, job_once_strict=True)
    _fill_the_disk(monkeypatch)
    with pytest.raises(salt.exceptions.CommandExecutionError, match=r"was not run.*No space left.*job_once_strict"):
        minion.deliver(jid, "probe.give", str(minion.trace))
    assert minion.runs() == 0
    monkeypatch.undo()
    assert minion.deliver(jid, "probe.give", str(minion.trace), "later") == ("later", 0)


def test_a_record_cut_short_by_a_full_disk_without_links_is_no_record(tmp_path, jid, monkeypatch):
    minion = Minion(tmp_path, job_once_strict=True)
    minion.deliver(new_jid(), "test.ping")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", _no_links)
        _fill_the_disk(patch, after=1)
        with pytest.raises(salt.exceptions.CommandExecutionError, match="was not run"):
            minion.deliver(jid, "probe.give", str(minion.trace))
    assert minion.deliver(jid, "probe.give", str(minion.trace), "later") == ("later", 0)


@pytest.mark.parametrize("in_thread", [False, True])
def test_if_the_disk_fills_while_a_job_runs_only_the_record_of_its_end_is_lost(minion, trace, jid, caplog, in_thread):
    returned = []
    thread = threading.Thread(target=lambda: returned.append(minion.deliver(jid, "probe.fill", trace, "done")))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if in_thread:
            thread.start()
            thread.join()
        else:
            thread.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert returned == [("done", 0)]
    assert "could not be recorded" in caplog.text
    # This process lives on, as that of a minion whose jobs are threads: a second delivery must not wait for a thread
    # that ended.
    text, retcode = minion.deliver(jid, "probe.fill", trace, "done")
    assert (retcode, minion.runs()) == (1, 1)
    assert "was interrupted" in text


def test_a_user_who_is_not_root_runs_a_job_once_and_a_strict_minion_refuses_if_it_may_not_write(minion, jid):
    """As the user nobody, in its own process. Modules that are loaded by then need no rights."""
    if os.geteuid() != 0:
        missing("the rights of root, to become another user")
    minion.deliver(new_jid(), "probe.give", str(minion.trace))
    nobody, ours = 65534, new_jid()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.chown(folder, nobody, nobody)
        trace = f"{folder}/trace"

        def as_nobody():
            os.setgroups([])
            os.setgid(nobody)
            os.setuid(nobody)
            for cachedir, strict, number in ((folder, True, jid), (folder, True, jid), ("/usr", False, ours)):
                minion.opts.update(cachedir=cachedir, job_once_strict=strict)
                assert minion.deliver(number, "probe.give", trace, "done") == ("done", 0)
            minion.opts.update(job_once_strict=True)
            with pytest.raises(salt.exceptions.CommandExecutionError, match=r"cannot be recorded.*denied"):
                minion.deliver(ours, "probe.give", trace)

        process = multiprocessing.get_context("fork").Process(target=as_nobody)
        process.start()
        process.join()
        (path,) = pathlib.Path(folder, "job_once", "m1").glob("[!.]*")
        about = path.stat()
        assert (process.exitcode, about.st_uid, about.st_mode & 0o777) == (0, nobody, 0o600)
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert pathlib.Path(trace).read_text() == "xx", "once where it was recorded, once where it could not be"


# -- other ways to run a function --------------------------------------------------------------------------------------


def test_proxies_that_share_a_folder_run_a_job_once_each(tmp_path, jid):
    for name in ("p1", "p2"):
        proxy = Minion(tmp_path, id=name, proxy={"proxytype": "dummy"}, multiprocessing=False)
        for _ in range(2):
            assert proxy.deliver(jid, "probe.give", str(proxy.trace), name) == (name, 0)
        proxy.start()
        assert proxy.deliver(jid, "probe.give", str(proxy.trace), name) == (name, 0)
        assert len(proxy.records()) == 1
        assert proxy.deliver(new_jid(), "saltutil.find_cached_job", jid)[0]["job_once"]["state"] == "ended"
    assert proxy.runs() == 2


def test_a_job_that_a_minion_runs_by_sudo_runs_once(tmp_path, jid, monkeypatch):
    (tmp_path / "bin").mkdir()
    sudo = tmp_path / "bin" / "sudo"
    sudo.write_text(f"""#!/bin/sh
printf x >> '{tmp_path}/trace'
echo '{{"local": {{"return": "by '$2'", "retcode": 3}}}}'
""")
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    minion = Minion(tmp_path, sudo_user="somebody", config_dir=str(tmp_path))
    for _ in range(2):
        assert minion.deliver(jid, "test.echo", "hello") == ("by somebody", 3)
        minion.start()
    assert minion.runs() == 1
    assert minion.seen(jid)[jid]["return"] == "by somebody"


# -- what is dropped ---------------------------------------------------------------------------------------------------


def _sweep_now(minion):
    """Have the next job sweep."""
    for path in pathlib.Path(minion.opts["cachedir"], "job_once", "m1").glob(".swept"):
        os.utime(path, (0, 0))
    minion.deliver(f"{time.strftime('%Y%m%d%H%M%S', time.gmtime())}{new_jid()[14:]}", "probe.give", str(minion.trace))


def _age(path, days):
    at = time.time() - days * 86400
    os.utime(path, (at, at))


def test_records_go_after_a_week(minion, trace):
    jids = [new_jid() for _ in range(2)]
    for jid, days in zip(jids, (6.9, 7.1), strict=True):
        minion.deliver(jid, "probe.give", trace)
        _age(minion.records()[-1], days)
    _sweep_now(minion)
    assert [minion.seen(jid)[jid]["state"] for jid in jids] == ["ended", "never"]


def test_a_job_older_than_a_dropped_record_is_not_reported_as_never_begun(minion, trace, jid):
    minion.deliver(jid, "probe.give", trace)
    _age(minion.records()[0], 7.1)
    _age(minion.records()[0].with_name(".since"), 100)
    assert minion.seen("1")["1"]["recorded_for"] <= 7 * 86400
    minion.opts["job_once_keep"] = 50 * 86400
    assert minion.seen("1")["1"]["recorded_for"] == 50 * 86400
    minion.opts["job_once_keep"] = 7 * 86400
    _sweep_now(minion)
    minion.opts["job_once_keep"] = 50 * 86400  # longer from now on; dropped records stay dropped
    told = minion.seen(jid)[jid]
    assert told["state"] == "never" and told["recorded_for"] < 7.2 * 86400


def test_the_option_and_the_master_say_how_long_records_are_kept(tmp_path):
    minion = Minion(tmp_path, job_once_keep=3600)
    jids = [new_jid() for _ in range(2)]
    for jid, days in zip(jids, (9, 11), strict=True):
        told = {"job_once": {"keep": 10 * 86400}}
        minion.deliver(jid, "probe.give", str(minion.trace), executor_opts=told)
        _age(minion.records()[-1], days)
    _sweep_now(minion)
    assert [minion.seen(jid)[jid]["state"] for jid in jids] == ["ended", "never"]


@pytest.mark.parametrize("value", ["7d", -1, True, None])
def test_an_option_that_is_no_number_of_seconds_is_reported_and_replaced(tmp_path, value, caplog):
    minion = Minion(tmp_path, job_once_keep=value)
    minion.deliver(new_jid(), "probe.give", str(minion.trace))
    assert f"job_once_keep is {value!r} and must be a number of seconds" in caplog.text
    assert len(minion.records()) == 1


def test_the_record_of_a_job_from_before_the_clock_was_set_is_kept_while_its_jid_is_young(minion, trace):
    young = time.strftime("%Y%m%d%H%M%S123456", time.gmtime())
    old, odd, future = new_jid(), "a-jid-of-another-form", "29990101000000123456"
    for jid in (young, old, odd, future):
        minion.deliver(jid, "probe.give", trace)
    for path in minion.records():
        os.utime(path, (86400, 86400))  # as on a machine that begins in 1970
    _sweep_now(minion)
    assert [minion.seen(jid)[jid]["state"] for jid in (young, old, odd, future)] == ["ended", *3 * ["never"]]


def test_the_runs_of_one_job_go_together(minion, trace, jid):
    minion.interrupt(jid)
    minion.deliver(jid, "probe.give", trace, executor_opts={"job_once": {"rerun": True}})
    first, second = minion.records()
    _age(first, 8)
    _sweep_now(minion)
    assert {first, second} <= set(minion.records())
    _age(second, 8)
    _age(first, 8)
    _sweep_now(minion)
    assert not {first, second} & set(minion.records())


def test_a_job_that_still_runs_is_not_dropped(minion, trace, jid):
    process = minion.deliver_in_process(jid, "probe.wait", trace, str(minion.gate))
    try:
        wait_for(minion.runs, what="the job runs")
        _age(minion.records()[0], 30)
        _sweep_now(minion)
        assert minion.seen(jid)[jid]["state"] == "begun"
    finally:
        minion.gate.touch()
        process.join()


def test_there_are_never_more_records_than_the_bound_and_the_oldest_go(minion, trace, caplog):
    module = minion.it.executors["job_once.execute"].func.__globals__
    jids = [new_jid() for _ in range(6)]
    minion.deliver(jids[0], "probe.give", trace)
    before = minion.seen("none")["none"]["recorded_for"]
    most, module["MOST"] = module["MOST"], 4
    try:
        for jid in reversed(jids[1:]):
            minion.deliver(jid, "probe.give", trace)
        for age, jid in enumerate(reversed(jids)):
            (path,) = [path for path in minion.records() if path.name == jid]
            _age(path, 0.01 * (age + 1))
        _sweep_now(minion)
    finally:
        module["MOST"] = most
    kept = [jid for jid in jids if minion.seen(jid)[jid]["state"] == "ended"]
    assert kept == jids[-3:]
    assert caplog.text.count("were dropped early") == 1, "a line for each sweep, not for each record"
    # It no longer claims to know about the time of records that it has dropped.
    assert before >= 0 and minion.seen("none")["none"]["recorded_for"] <= 0.01 * 86400 * 5


# -- questions ---------------------------------------------------------------------------------------------------------


def test_a_minion_reports_many_jobs_at_once(minion, trace):
    ended, cut, never = (new_jid() for _ in range(3))
    minion.deliver(ended, "probe.give", trace, {"a": 1}, 2)
    minion.interrupt(cut)
    told = minion.seen(ended, cut, never)
    assert {jid: about["state"] for jid, about in told.items()} == {ended: "ended", cut: "interrupted", never: "never"}
    assert (told[ended]["return"], told[ended]["retcode"], told[ended]["success"]) == ({"a": 1}, 2, False)
    assert told[ended]["fun"] == "probe.give" and told[ended]["at"] <= told[ended]["ended_at"] <= time.time()
    assert 0 <= told[never]["recorded_for"] < 600


def test_a_job_from_before_the_executor_was_there_is_not_reported_as_never_begun(minion, jid):
    assert minion.seen(jid)[jid]["state"] == "unknown"  # it has not recorded anything yet
    minion.deliver(new_jid(), "probe.give", str(minion.trace))
    assert minion.seen(jid)[jid]["recorded_for"] < 86400


def test_a_minion_reports_what_it_has_not_begun_from_the_first_question_of_an_engine_on(minion, jid):
    minion.deliver(new_jid(), "test.ping", executor_opts={"job_once": {"question": True}})
    assert minion.seen(jid)[jid]["state"] == "never"
    assert minion.records() == []


def test_after_a_job_without_a_record_the_records_are_complete_only_from_then_on(minion, trace, jid, monkeypatch):
    minion.deliver(new_jid(), "probe.give", trace)
    since = pathlib.Path(minion.opts["cachedir"], "job_once", "m1", ".since")
    _age(since, 3)
    assert minion.seen(jid)[jid]["recorded_for"] > 2 * 86400
    with monkeypatch.context() as patch:
        _fill_the_disk(patch)
        minion.deliver(jid, "probe.give", trace)
    assert minion.seen(jid)[jid]["recorded_for"] < 86400


def test_a_job_that_runs_while_no_file_can_be_opened_counts_as_one_without_a_record(minion, jid):
    minion.deliver(new_jid(), "test.ping")
    _age(pathlib.Path(minion.opts["cachedir"], "job_once", "m1", ".since"), 3)
    with no_more_files():
        assert minion.deliver(jid, "test.ping")[0] is True
    assert minion.seen(jid)[jid]["recorded_for"] < 86400


@pytest.mark.parametrize("how", ["without a record", "dropped early"])
def test_since_when_the_records_are_complete_outlives_a_power_cut(minion, trace, jid, monkeypatch, how):
    minion.deliver(new_jid(), "probe.give", trace)
    since, synced, real = minion.records()[0].with_name(".since"), [], os.fsync
    module = minion.it.executors["job_once.execute"].func.__globals__
    _age(since, 3)

    def sync(fd):
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), since.stat().st_mtime))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    if how == "without a record":
        monkeypatch.setattr(module["Records"], "_new", _fails_for_want_of_space)
        minion.deliver(jid, "probe.give", trace)
    else:
        monkeypatch.setitem(module, "MOST", 0)
        _sweep_now(minion)
    assert [at for path, at in synced if path == str(since)] == [since.stat().st_mtime]
    assert since.stat().st_mtime > time.time() - 86400


def test_find_cached_job_answers_from_the_records_without_cache_jobs(minion, trace, jid):
    never = new_jid()
    minion.deliver(jid, "probe.give", trace, "done", 3)
    found = minion.deliver(new_jid(), "saltutil.find_cached_job", jid)[0]
    assert (found["jid"], found["return"], found["retcode"], found["fun"]) == (jid, "done", 3, "probe.give")
    assert found["job_once"]["state"] == "ended"
    found = minion.deliver(new_jid(), "saltutil.find_cached_job", never)[0]
    assert found.keys() == {"jid", "job_once"} and found["job_once"]["state"] == "never"


def test_a_question_names_jids(minion):
    with pytest.raises(salt.exceptions.SaltInvocationError, match="takes one or more jids"):
        minion.seen()


def test_several_functions_are_reported_as_salt_returns_them(minion, trace, jid):
    data = {"jid": jid, "fun": ["probe.give", "test.echo"], "arg": []}
    minion.call(data, "probe.give", [trace, "one", 2])
    minion.call(data, "test.echo", ["two"])
    told = minion.seen(jid)[jid]
    assert told["return"] == {"probe.give": "one", "test.echo": "two"}
    assert told["retcode"] == {"probe.give": 2, "test.echo": 0}


# -- the acknowledgement -----------------------------------------------------------------------------------------------


class Bus:
    """The minion's own bus, with its main process at the other end, as a job's process sees it."""

    def __init__(self):
        self.events = []  # the events given to the main process, in order, each with its tag
        self.requests = []  # the events that it had to send as a request
        self.answers = []  # its answer to each request; then none

    def open(self, *_, **__):
        return contextlib.nullcontext(self)

    def fire_event(self, data, tag):
        if tag == "fire_master":
            self.events.append((data["tag"], data["data"]))
        else:
            assert re.fullmatch(r"__master_req_channel_payload/[-0-9a-f]{36}/salt", tag)
            assert (data["cmd"], data["id"]) == ("_minion_event", "m1")
            self.requests.append((data["tag"], data["data"]))
            self.waits_for = tag.split("/")[1]

    def get_event(self, wait, tag):
        assert tag == f"__master_req_channel_return/{self.waits_for}"
        return self.answers.pop(0) if self.answers else time.sleep(0.05)


@pytest.fixture
def bus(monkeypatch):
    bus = Bus()
    for name in ("MinionEvent", "get_event"):
        monkeypatch.setattr(salt.utils.event, name, bus.open)
    return bus


@pytest.fixture
def soon(minion, monkeypatch):
    """Acknowledgements are repeated soon."""
    module = minion.it.executors["job_once.execute"].func.__globals__
    monkeypatch.setitem(module, "REPEATS", (0.05, 0.1, 0.15))
    monkeypatch.setitem(module, "ANSWER", 0.1)


ACK = {"executor_opts": {"job_once": {"ack": True}}}


def test_the_master_hears_of_a_start_if_it_has_asked_for_that(minion, trace, jid, bus):
    wish = {**ACK, "tgt": "*", "tgt_type": "glob", "user": "root"}
    minion.deliver(jid, "probe.give", trace, **wish)
    about = {"id": "m1", "jid": jid, "fun": "probe.give", "tgt": "*", "tgt_type": "glob", "user": "root"}
    assert bus.events == [(f"salt/job/{jid}/start/m1", about)]
    minion.deliver(jid, "probe.give", trace, **wish)
    minion.deliver(new_jid(), "probe.give", trace)
    assert len(bus.events) == 1


def test_the_master_also_hears_of_a_job_that_runs_without_a_record(minion, trace, jid, bus, monkeypatch):
    _fill_the_disk(monkeypatch)
    minion.deliver(jid, "probe.give", trace, **ACK)
    assert [tag for tag, _ in bus.events] == [f"salt/job/{jid}/start/m1"]
    with pytest.raises(salt.exceptions.CommandExecutionError, match="not run"):
        minion.opts["job_once_strict"] = True
        minion.deliver(new_jid(), "probe.give", trace, **ACK)
    assert (len(bus.events), minion.runs()) == (1, 1), "not of one that is refused"


def test_the_executor_of_a_proxy_reports_the_start_because_no_release_of_salt_does(tmp_path, jid, bus):
    proxy = Minion(tmp_path, proxy={"proxytype": "dummy"}, multiprocessing=False)
    proxy.deliver(jid, "probe.give", str(proxy.trace), start_event=True, **ACK)
    assert [tag for tag, _ in bus.events] == [f"salt/job/{jid}/start/m1"]


@contextlib.contextmanager
def gate_opens_once_nothing_repeats(minion):
    """The gate opens once the job that begins in the block repeats its start no more."""
    before, runs = set(threading.enumerate()), minion.runs()

    def open_it():
        try:
            wait_for(lambda: minion.runs() > runs, what="the job has begun")
            known = {*before, threading.current_thread()}
            wait_for(lambda: set(threading.enumerate()) <= known, what="its start is repeated no more")
        finally:
            minion.gate.touch()

    opener = threading.Thread(target=open_it)
    opener.start()
    yield
    opener.join()


def test_the_acknowledgement_is_repeated_until_the_master_has_it(minion, jid, bus, soon):
    bus.answers = [{"ret": None, "error": "timeout"}, {"ret": None}]
    with gate_opens_once_nothing_repeats(minion):
        minion.deliver(jid, "probe.wait", str(minion.trace), str(minion.gate), **ACK)
    assert len(bus.requests) == 2, "the master was away once"
    assert bus.requests[0] == bus.events[0], "tag and payload are those of the first one"
    assert len(bus.events) == 1, "what is sent as a request is not fired as well"


@pytest.mark.parametrize("answer", [None, {"ret": {}}, {"ret": ""}])
def test_if_no_request_gets_through_the_start_is_fired_again_a_few_times(minion, trace, jid, bus, soon, answer):
    bus.answers = [answer] if answer else []
    with gate_opens_once_nothing_repeats(minion):
        minion.deliver(jid, "probe.wait", str(minion.trace), str(minion.gate), **ACK)
    assert (len(bus.requests), len(bus.events)) == (1, 3)
    assert {tag for tag, _ in bus.events} == {f"salt/job/{jid}/start/m1"}


@contextlib.contextmanager
def no_repeat(bus):
    """The start is reported in the block; then nothing is left that would repeat it."""
    before = set(threading.enumerate())
    yield
    wait_for(lambda: set(threading.enumerate()) <= before, what="nothing waits to repeat the start")
    assert (len(bus.requests), len(bus.events)) == (0, 1)


def test_after_the_end_nothing_is_repeated(minion, trace, bus):
    with no_repeat(bus):
        minion.deliver(new_jid(), "probe.give", trace, **ACK)


def test_the_start_is_repeated_until_the_last_of_several_functions_has_ended(minion, trace, jid, bus, soon):
    data = {"jid": jid, "fun": ["probe.give", "probe.wait"], "arg": [], **ACK}
    with gate_opens_once_nothing_repeats(minion):
        minion.call(data, "probe.give", [trace])
        minion.call(data, "probe.wait", [trace, str(minion.gate)])
    assert (len(bus.requests), len(bus.events)) == (1, 3)


def test_the_start_is_repeated_until_all_values_of_a_generator_are_collected(minion, trace, jid, bus, soon):
    before = set(threading.enumerate())
    values, _ = minion.deliver(jid, "probe.steps", trace, **ACK)
    wait_for(lambda: set(threading.enumerate()) <= before, what="the start is repeated no more")
    assert (len(bus.requests), len(bus.events)) == (1, 3)
    assert list(values)


@pytest.mark.parametrize("fails", [False, True])
def test_the_start_is_not_repeated_after_the_end_of_a_generator(minion, trace, bus, fails):
    with no_repeat(bus):
        values, _ = minion.deliver(new_jid(), "probe.steps", trace, fails, **ACK)
        with pytest.raises(ValueError) if fails else contextlib.nullcontext():
            list(values)


def test_a_job_runs_even_without_a_bus(minion, trace, jid, monkeypatch, soon):
    def fail(*_, **__):
        raise OSError("no such socket")

    for name in ("MinionEvent", "get_event"):
        monkeypatch.setattr(salt.utils.event, name, fail)
    assert minion.deliver(jid, "test.sleep", 0.3, **ACK) == (True, 0)


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_executor_imports_nothing_of_this_extension():
    assert not re.search(r"^\s*(from|import) (saltext|\.)|saltext\.jobs", EXECUTOR.read_text(), re.MULTILINE)


def test_the_executor_works_as_a_file_that_salt_has_synced(tmp_path, jid):
    folder = tmp_path / "extmods" / "executors"
    folder.mkdir(parents=True)
    (folder / "job_once.py").write_text(EXECUTOR.read_text())
    minion = Minion(tmp_path)
    assert minion.it.executors["job_once.execute"].func.__globals__["__file__"].startswith(str(folder))
    for _ in range(2):
        assert minion.deliver(jid, "probe.give", str(minion.trace)) == (None, 0)
    assert minion.runs() == 1


# -- helpers -----------------------------------------------------------------------------------------------------------


def _age_process(minion, birth="another", ended=True):
    """Make the newest record that of a process that is gone."""
    path = max(minion.records(), key=lambda path: path.stat().st_mtime)
    module = minion.it.executors["job_once.execute"].func.__globals__
    lines = [module["_line"](line) for line in path.read_bytes().split(b"\n")]
    lines = [line for line in lines if line is not None]
    lines[0]["birth"] = birth
    lines = lines if ended else lines[:1]
    with path.open("wb", 0) as file:
        for line in lines:
            module["_write"](file, line)


def _no_links(*_):
    raise OSError(errno.EPERM, "no links here")


def _fails_for_want_of_space(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def _fill_the_disk(monkeypatch, after=0):
    """Have all syncs but the first few fail as on a full disk."""
    real, left = os.fsync, iter(range(after))

    def full(fd):
        if next(left, None) is None:
            _fails_for_want_of_space()
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
