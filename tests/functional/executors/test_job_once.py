"""
The executor job_once through Salt's own loaders: what runs, what is returned, and what is on the disk meanwhile.

Its promises: a job is begun at most once, whatever is killed; it says when it begins; the minion answers what has run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import resource
import signal
import sys
import threading
import time

import pytest
import salt.exceptions
import salt.payload
import salt.utils.event

from tests.functional.executors.conftest import Minion, new_jid
from tests.waiting import wait_for

pytestmark = pytest.mark.story  # how Salt calls executors differs between the releases

EXECUTOR = pathlib.Path(__file__).resolve().parents[3] / "executors" / "job_once.py"
RERUN = {"executor_opts": {"job_once": {"rerun": True}}}
ACK = {"executor_opts": {"job_once": {"ack": True}}}


@pytest.fixture
def trace(minion):
    return str(minion.trace)


@pytest.fixture
def module(minion):
    return minion.it.executors["job_once.execute"].func.__globals__


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


@pytest.mark.parametrize("executors", [["job_once", "direct_call"], ["job_once"]])
@pytest.mark.parametrize("own", [{}, {"splaytime": 0.001}])
def test_options_for_the_executor_do_not_reach_the_function(minion, trace, executors, own):
    given = {"module_executors": executors, **({"executor_opts": own} if own else {})}
    first = dict(minion.deliver("1", "probe.told", trace, **given)[0])
    given["executor_opts"] = {**own, "job_once": {"ack": True, "keep": 60}}
    assert dict(minion.deliver("2", "probe.told", trace, **given)[0]) == {**first, "__pub_jid": "2"}
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


def test_a_known_jid_with_another_function_runs_nothing_and_the_return_says_so(minion, trace, jid):
    minion.deliver(jid, "test.echo", "of the first master")
    text, retcode = minion.deliver(jid, "probe.give", trace)
    assert (retcode, minion.runs()) == (1, 0)
    for part in (jid, "ran test.echo", "probe.give is not run", "a jid of its own"):
        assert part in text
    assert minion.deliver(jid, "test.echo", "of the first master") == ("of the first master", 0)


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


@pytest.mark.parametrize("name", ["büro-3.example", "a b", "x" * 200, "..", "anna."])
def test_a_minion_of_any_name_has_its_own_records(tmp_path, jid, name):
    for each in (name, "anna"):
        minion = Minion(tmp_path, id=each)
        for _ in range(2):
            minion.deliver(jid, "probe.give", str(minion.trace))
    assert minion.runs() == 2
    (folder,) = pathlib.Path(minion.opts["cachedir"]).iterdir()
    assert (folder.name, len(list(folder.iterdir()))) == ("job_once", 2)


# -- several functions -------------------------------------------------------------------------------------------------


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


# -- the minion's own queue of states ----------------------------------------------------------------------------------


def test_a_state_run_that_the_minion_queues_for_itself_is_run_when_its_turn_comes(minion, trace, jid):
    minion.deliver(jid, "probe.queued", trace)
    assert minion.seen(jid)[jid]["state"] == "never"
    minion.deliver(jid, "probe.give", trace, "state")
    assert minion.runs() == 2


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


# -- interrupted -------------------------------------------------------------------------------------------------------


def test_an_interrupted_job_is_not_run_again_and_its_return_says_what_to_do(minion, trace, jid):
    minion.interrupt(jid)
    text, retcode = minion.deliver(jid, "probe.die", trace)
    assert (retcode, minion.runs()) == (1, 1)
    for part in (jid, "was interrupted", "how far it got is not known", "new jid", "job_retry.retry"):
        assert part in text
    assert minion.seen(jid)[jid]["state"] == "interrupted"


def test_an_interrupted_job_runs_again_once_where_the_master_says_so(minion, trace, jid):
    minion.interrupt(jid)
    before = minion.seen(jid)[jid]["at"]
    for _ in range(2):
        assert minion.deliver(jid, "probe.give", trace, "second", **RERUN) == ("second", 0)
    assert minion.runs() == 2
    assert minion.deliver(jid, "probe.give", trace) == ("second", 0)
    assert minion.seen(jid)[jid]["at"] > before, "the record tells the runs apart"


def test_a_job_that_has_ended_does_not_run_again_even_where_the_master_says_so(minion, trace, jid):
    minion.deliver(jid, "probe.give", trace, "first")
    assert minion.deliver(jid, "probe.give", trace, **RERUN)[0] == "first"
    assert minion.runs() == 1


def test_a_job_runs_while_a_process_that_it_has_forked_lives_on(minion, trace, jid):
    minion.deliver_in_process(jid, "probe.die", trace, None, str(minion.gate)).join()
    assert minion.seen(jid)[jid]["state"] == "begun"
    minion.gate.touch()
    wait_for(lambda: minion.seen(jid)[jid]["state"] == "interrupted", what="that ends too")


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


# -- kill -9 and power cuts --------------------------------------------------------------------------------------------


#: What the executor asks of the operating system for a job, by the names of Python's functions.
_STEPS = {"open", "mkdir", "flock", "fstat", "seek", "read", "write", "fsync", "truncate", "utime", "close"}


def _killed_at(number):
    """Have this process killed right before, or after, its executor asks the operating system for the nth time."""
    left = iter(range(number))

    def trap(frame, event, called):
        ours = event in ("c_call", "c_return") and called.__name__ in _STEPS
        if ours and frame.f_code.co_filename.endswith("job_once.py") and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(trap)


@pytest.mark.parametrize("how", ["a first job", "a job", "a rerun"])
def test_a_minion_that_is_killed_at_any_step_of_a_job_never_runs_it_twice(minion, tmp_path, how):
    """At each step in turn; each time the job then arrives again."""
    if how != "a first job":
        minion.deliver(new_jid(), "test.ping")
    found, number, options = [], 0, RERUN if how == "a rerun" else {}
    while True:
        jid, trace = new_jid(), tmp_path / f"trace-{number}"
        if options:
            minion.interrupt(jid)

        def run(number=number, jid=jid, trace=trace):
            _killed_at(number)
            minion.deliver(jid, "probe.give", str(trace), "done", **options)
            sys.setprofile(None)

        if minion.in_process(run) == 0:
            break
        try:
            state, ran = minion.seen(jid)[jid]["state"], trace.exists()
        except KeyError:
            state, ran = "unknown", trace.exists()
        assert not (ran and state in ("never", "unknown")), f"after step {number} nothing says that it has run"
        value, retcode = minion.deliver(jid, "probe.give", str(trace), "done")
        assert trace.read_text() == "x" if trace.exists() else retcode == 1
        assert (value == "done") == (state in ("never", "unknown", "ended")), (number, state, value)
        found.append(state)
        number += 1
    assert {"interrupted", "ended"} <= set(found)
    assert number > 10


def test_a_job_is_on_the_disk_before_its_function_runs(minion, trace, jid, monkeypatch):
    synced, real = [], os.fsync

    def sync(fd):
        synced.append((os.path.basename(os.readlink(f"/proc/self/fd/{fd}")), minion.runs()))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    minion.deliver(jid, "probe.give", trace)
    assert synced == [(jid, 0), ("m1", 0), (jid, 1)], "the file, its name, the end"


def test_a_record_that_is_cut_anywhere_never_lets_the_job_run_again(minion, trace, jid):
    minion.deliver(jid, "probe.give", trace, {"a": ["value"]}, 3)
    (path,) = minion.records()
    whole, found = path.read_bytes(), []
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        found.append(minion.seen(jid)[jid]["state"])
        value, retcode = minion.deliver(jid, "probe.give", trace)
        assert (value, retcode) == ({"a": ["value"]}, 3) if found[-1] == "ended" else retcode == 1
        if length % 5 == 0:  # what a file system may leave besides
            path.write_bytes(whole[:length] + b"\x00" * 40)
            minion.deliver(jid, "probe.give", trace)
    assert minion.runs() == 1
    assert set(found[:-1]) == {"interrupted"}


@pytest.mark.parametrize("content", [b"\n", b"\x00" * 500, b"deadbeef {}", b"\xff\xfe", b"[1]\n5\n", b'{"fun": "x"}'])
def test_a_record_that_cannot_be_read_counts_as_begun(minion, trace, jid, content):
    minion.deliver(jid, "probe.give", trace)
    minion.records()[0].write_bytes(content)
    text, retcode = minion.deliver(jid, "probe.give", trace)
    assert (retcode, minion.runs()) == (1, 1)
    assert "interrupted" in text
    assert minion.deliver(jid, "probe.give", trace, "done", **RERUN) == ("done", 0)
    assert minion.seen(jid)[jid]["state"] == "ended"


# -- disks -------------------------------------------------------------------------------------------------------------


def test_a_full_disk_lets_the_job_run_with_one_warning(minion, trace, jid, monkeypatch, caplog):
    _fill_the_disk(monkeypatch)
    assert minion.deliver(jid, "probe.give", trace, "done") == ("done", 0)
    assert [record.levelname for record in caplog.records if "without a record" in record.message] == ["WARNING"]
    assert minion.seen(jid)[jid]["state"] == "never"


@pytest.mark.parametrize("after", [0, 1])
def test_on_a_full_disk_a_strict_minion_refuses_and_says_why(tmp_path, jid, monkeypatch, after):
    """Whether the file or its name cannot be synced. There is room again before the second function."""
    minion = Minion(tmp_path, job_once_strict=True)
    data = {"jid": jid, "fun": ["probe.give", "probe.give"], "arg": []}
    minion.deliver(new_jid(), "test.ping")
    with monkeypatch.context() as patch:
        _fill_the_disk(patch, after)
        with pytest.raises(salt.exceptions.CommandExecutionError, match=r"was not run.*No space left.*job_once_strict"):
            minion.call(data, "probe.give", [str(minion.trace)])
    with pytest.raises(salt.exceptions.CommandExecutionError, match="was not run"):
        minion.call(data, "probe.give", [str(minion.trace)])
    assert minion.runs() == 0
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
    # This process lives on, as that of a minion whose jobs are threads: a second delivery waits for no ended thread.
    text, retcode = minion.deliver(jid, "probe.fill", trace, "done")
    assert (retcode, minion.runs()) == (1, 1)
    assert "was interrupted" in text


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EMFILE])
def test_a_job_that_began_does_not_run_again_if_its_record_cannot_be_opened(minion, trace, jid, monkeypatch, number):
    minion.deliver(jid, "probe.give", trace, "first")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", _fails(number))
        with pytest.raises(salt.exceptions.CommandExecutionError, match="is not run again; its record cannot be read"):
            minion.deliver(jid, "probe.give", trace)
    assert minion.runs() == 1
    assert minion.seen(jid)[jid]["return"] == "first"


def _fails(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


def test_on_a_disk_that_has_become_read_only_a_minion_reports_no_job_as_never_begun(minion, trace, jid, monkeypatch):
    minion.deliver(new_jid(), "probe.give", trace)
    os.utime(minion.records()[0].with_name(".since"), (0, 0))
    assert minion.seen(jid)[jid]["recorded_for"] > 86400
    real = os.open

    def read_only(path, flags, *args, **kwargs):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and "job_once" in str(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "utime", _fails(errno.EROFS))
    assert minion.deliver(jid, "probe.give", trace, "done") == ("done", 0)
    assert minion.seen(jid)[jid] == {"state": "never", "recorded_for": 0}


def test_no_other_user_may_put_records_there_under_any_umask_of_the_minion(tmp_path, jid):
    before = os.umask(0)
    try:
        minion = Minion(tmp_path)
        minion.deliver(jid, "probe.give", str(minion.trace))
    finally:
        os.umask(before)
    (path,) = minion.records()
    assert [each.stat().st_mode & 0o777 for each in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o755]


# -- values ------------------------------------------------------------------------------------------------------------


def test_a_return_that_is_too_large_is_not_kept_and_the_next_delivery_says_so(minion, trace, jid):
    value, _ = minion.deliver(jid, "probe.give", trace, None, 5, 3 << 20)
    assert len(value) == 3 << 20
    text, retcode = minion.deliver(jid, "probe.give", trace, None, 5, 3 << 20)
    assert (retcode, minion.runs()) == (5, 1)
    assert "too large to be kept" in text
    assert minion.records()[0].stat().st_size < 2000


def test_what_ended_is_reported_as_ended_though_its_return_cannot_be_kept_or_read(minion, trace, jid):
    other = new_jid()
    minion.deliver(jid, "probe.give", trace, object())
    minion.deliver(other, "probe.give", trace, {("a", "b"): 1})
    told = minion.seen(jid, other)
    assert [about["state"] for about in told.values()] == ["ended", "ended"]
    assert "could not be kept" in told[jid]["return"]
    assert "cannot be read" in told[other]["return"]
    assert minion.deliver(jid, "probe.give", trace)[0] == told[jid]["return"]
    assert minion.runs() == 2


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


def _age(path, days):
    at = time.time() - days * 86400
    os.utime(path, (at, at))


def test_there_are_never_more_records_than_the_bound_and_the_oldest_go(minion, trace, module, monkeypatch):
    jids = [new_jid() for _ in range(6)]
    for age, jid in enumerate(reversed(jids)):
        minion.deliver(jid, "probe.give", trace)
        _age(minion.records()[-1 - age], age + 1)
    _age(minion.records()[0].with_name(".since"), 100)
    monkeypatch.setitem(module, "SWEEP_ONE_OF", 1)
    monkeypatch.setitem(module, "MOST", 4)
    minion.deliver(new_jid(), "probe.give", trace)
    assert [minion.seen(jid)[jid]["state"] for jid in jids] == 3 * ["never"] + 3 * ["ended"]
    # It no longer claims to know about the time of records that it has dropped.
    assert 3 * 86400 < minion.seen("none")["none"]["recorded_for"] < 5 * 86400


def test_a_job_that_still_runs_is_not_dropped(minion, trace, jid, module, monkeypatch):
    process = minion.deliver_in_process(jid, "probe.wait", trace, str(minion.gate))
    try:
        wait_for(minion.runs, what="the job runs")
        _age(minion.records()[0], 30)
        monkeypatch.setitem(module, "SWEEP_ONE_OF", 1)
        monkeypatch.setitem(module, "MOST", 0)
        minion.deliver(new_jid(), "test.ping")
        assert minion.seen(jid)[jid]["state"] == "begun"
    finally:
        minion.gate.touch()
        process.join()


def test_many_large_returns_are_bounded_by_their_bytes(minion, trace, module, monkeypatch):
    monkeypatch.setitem(module, "MOST_BYTES", 1 << 20)
    for _ in range(12):  # each takes an eighth of the bytes that may be kept, so each sweeps
        data = {"jid": new_jid(), "fun": ["probe.give", "test.echo"], "arg": []}
        minion.call(data, "probe.give", [trace, None, 0, 200 << 10])
        minion.call(data, "test.echo", ["small"])
    assert sum(path.stat().st_size for path in minion.records()) <= 1 << 20
    assert len(minion.records()) >= 3


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


@pytest.mark.parametrize("how", ["without a record", "dropped"])
def test_since_when_the_records_are_complete_outlives_a_power_cut(minion, trace, jid, module, monkeypatch, how):
    minion.deliver(new_jid(), "probe.give", trace)
    since, synced, real = minion.records()[0].with_name(".since"), [], os.fsync
    _age(since, 3)

    def sync(fd):
        path = os.readlink(f"/proc/self/fd/{fd}")
        synced.append((path, since.stat().st_mtime))
        if how == "without a record" and path != str(since):
            raise OSError(errno.ENOSPC, "full")
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    if how == "dropped":
        monkeypatch.setitem(module, "SWEEP_ONE_OF", 1)
        monkeypatch.setitem(module, "MOST", 0)
    minion.deliver(jid, "probe.give", trace)
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


# -- the acknowledgement -----------------------------------------------------------------------------------------------


@pytest.fixture
def heard(monkeypatch):
    """The events that a job gives to the minion's main process, in order: tag and payload."""
    events = []

    class Bus(contextlib.nullcontext):
        def fire_event(self, event, tag):
            assert tag == "fire_master"
            events.append((event["tag"], event["data"]))

    monkeypatch.setattr(salt.utils.event, "MinionEvent", lambda *_, **__: contextlib.nullcontext(Bus()))
    return events


def test_the_master_hears_of_a_start_if_it_has_asked_for_that(minion, trace, jid, heard):
    wish = {**ACK, "tgt": "*", "tgt_type": "glob", "user": "root"}
    minion.deliver(jid, "probe.give", trace, **wish)
    about = {"id": "m1", "jid": jid, "fun": "probe.give", "tgt": "*", "tgt_type": "glob", "user": "root"}
    assert heard == [(f"salt/job/{jid}/start/m1", about)]
    minion.deliver(jid, "probe.give", trace, **wish)
    minion.deliver(new_jid(), "probe.give", trace)
    assert len(heard) == 1


def test_the_executor_of_a_proxy_reports_the_start_because_no_release_of_salt_does(tmp_path, jid, heard):
    proxy = Minion(tmp_path, proxy={"proxytype": "dummy"}, multiprocessing=False)
    proxy.deliver(jid, "probe.give", str(proxy.trace), start_event=True, **ACK)
    assert [tag for tag, _ in heard] == [f"salt/job/{jid}/start/m1"]


@pytest.fixture
def soon(module, monkeypatch):
    """Acknowledgements are repeated soon."""
    monkeypatch.setitem(module, "REPEATS", (0.05, 0.05, 0.05))


def _all_repeats(heard, calls):
    """Run the calls; before the last one all repeats have been heard."""
    *first, last = calls
    for call in first:
        call()
    wait_for(lambda: len(heard) == 4, what="the start was reported, and three times again")
    last()
    assert heard == 4 * heard[:1]


@pytest.mark.parametrize("kind", ["one function", "several functions", "a generator"])
def test_a_job_repeats_its_start_a_few_times_while_it_runs(minion, trace, jid, heard, soon, kind):
    data = {"jid": jid, "fun": ["probe.give", "probe.give"], "arg": [], **ACK}
    if kind == "one function":
        process = threading.Thread(target=minion.deliver, args=(jid, "probe.wait", trace, str(minion.gate)), kwargs=ACK)
        _all_repeats(heard, [process.start, minion.gate.touch])
        process.join()
    elif kind == "several functions":
        _all_repeats(heard, 2 * [lambda: minion.call(data, "probe.give", [trace])])
    else:
        values, _ = minion.deliver(jid, "probe.steps", trace, **ACK)
        _all_repeats(heard, [lambda: None, lambda: list(values)])


def test_a_job_runs_even_without_a_bus(minion, trace, jid, monkeypatch, soon):
    monkeypatch.setattr(salt.utils.event, "MinionEvent", _fails(errno.ENOENT))
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


def _fill_the_disk(monkeypatch, after=0):
    """Have all syncs but the first few fail as on a full disk."""
    real, left = os.fsync, iter(range(after))

    def full(fd):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
