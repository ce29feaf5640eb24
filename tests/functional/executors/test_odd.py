"""The executor job_once in odd conditions: faulty disks, process numbers used again, values of any form and size."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import pathlib
import re
import shutil
import stat
import time

import pytest
import salt.exceptions
from salt.minion import Minion as SaltMinion

from tests.functional.executors.conftest import Minion, new_jid
from tests.waiting import wait_for

pytestmark = pytest.mark.story  # how Salt calls executors differs between the releases


@pytest.fixture
def trace(minion):
    return str(minion.trace)


def _fails(number):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    return fail


# -- disks --------------------------------------------------------------------------------------------------------------


def test_a_job_that_was_begun_does_not_run_again_if_nothing_can_be_written(minion, trace, jid, monkeypatch):
    minion.deliver(jid, "probe.give", trace, "first")
    monkeypatch.setattr(os, "replace", _fails(errno.EROFS))
    longer = {"executor_opts": {"job_once": {"keep": 30 * 86400}}}
    assert minion.deliver(jid, "probe.give", trace, **longer) == ("first", 0)
    assert minion.runs() == 1


def test_a_job_that_was_begun_does_not_run_again_if_its_record_cannot_be_read(minion, trace, jid, monkeypatch):
    minion.deliver(jid, "probe.give", trace)
    (record,), real = minion.records(), open

    def broken(path, *args, **kwargs):
        if str(path) == str(record):
            raise OSError(errno.EIO, "broken")
        return real(path, *args, **kwargs)

    monkeypatch.setattr("builtins.open", broken)
    with pytest.raises(salt.exceptions.CommandExecutionError, match="cannot be read"):
        minion.deliver(jid, "probe.give", trace)
    assert minion.runs() == 1


@pytest.mark.parametrize("strict", [False, True])
def test_a_folder_that_cannot_be_synced_leaves_no_job_that_looks_interrupted(tmp_path, jid, monkeypatch, strict):
    minion, real = Minion(tmp_path, job_once_strict=strict), os.fsync

    def no_folders(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "broken")
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_folders)
        with pytest.raises(salt.exceptions.CommandExecutionError) if strict else contextlib.nullcontext():
            minion.deliver(jid, "probe.give", str(minion.trace), "done")
    assert minion.seen(jid)[jid]["state"] == ("never" if strict else "ended")
    assert minion.deliver(jid, "probe.give", str(minion.trace), "done") == ("done", 0)
    assert minion.runs() == 1


def test_a_job_of_several_functions_whose_first_was_refused_is_refused_as_a_whole(tmp_path, jid, monkeypatch):
    minion = Minion(tmp_path, job_once_strict=True)
    data = {"jid": jid, "fun": ["probe.give", "probe.give"], "arg": []}
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", _fails(errno.ENOSPC))
        patch.setattr(os, "fsync", _fails(errno.ENOSPC))
        with pytest.raises(salt.exceptions.CommandExecutionError, match="was not run"):
            minion.call(data, "probe.give", [str(minion.trace)])
    with pytest.raises(salt.exceptions.CommandExecutionError, match="was not run"):  # there is room again
        minion.call(data, "probe.give", [str(minion.trace)])
    assert (minion.runs(), minion.records()) == (0, [])


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


def _a_file(folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("")


def _a_link_to_nowhere(folder):
    folder.parent.mkdir(parents=True)
    folder.symlink_to("nowhere")


def _a_link_to_another_disk(folder):
    folder.parent.mkdir(parents=True)
    other = folder.with_name("other")
    other.mkdir()
    folder.symlink_to(other)


@pytest.mark.parametrize("made", [_a_file, _a_link_to_nowhere])
def test_if_no_folder_can_be_made_jobs_run_with_a_warning_and_nothing_is_claimed(minion, trace, jid, made, caplog):
    made(pathlib.Path(minion.opts["cachedir"], "job_once"))
    assert minion.deliver(jid, "probe.give", trace, "done") == ("done", 0)
    assert f"Job {jid!r} runs without a record" in caplog.text
    assert minion.seen(jid)[jid]["state"] == "unknown"
    found = minion.deliver(new_jid(), "saltutil.find_cached_job", jid)[0]
    assert found["job_once"]["state"] == "unknown"


def test_the_folder_of_the_records_may_be_a_link_to_another_disk(minion, trace, jid):
    _a_link_to_another_disk(pathlib.Path(minion.opts["cachedir"], "job_once"))
    for _ in range(2):
        assert minion.deliver(jid, "probe.give", trace, "done") == ("done", 0)
    assert minion.runs() == 1


def test_records_that_are_removed_while_a_job_runs_cost_the_job_nothing(minion, trace, jid):
    process = minion.deliver_in_process(jid, "probe.wait", trace, str(minion.gate))
    wait_for(minion.runs, what="it runs")
    shutil.rmtree(minion.opts["cachedir"])
    minion.gate.touch()
    process.join()
    assert (process.exitcode, minion.runs()) == (0, 1)
    assert minion.deliver(new_jid(), "test.ping") == (True, 0)
    assert minion.seen(jid)[jid]["recorded_for"] < 60, "the records say nothing about earlier jobs"


@pytest.mark.parametrize("name", ["büro-3.example", "a b", "x" * 200, "..", "anna."])
def test_a_minion_of_any_name_has_its_own_records(tmp_path, jid, name):
    for each in (name, "anna"):
        minion = Minion(tmp_path, id=each)
        for _ in range(2):
            minion.deliver(jid, "probe.give", str(minion.trace))
    assert minion.runs() == 2
    (folder,) = pathlib.Path(minion.opts["cachedir"]).iterdir()
    assert (folder.name, len(list(folder.iterdir()))) == ("job_once", 2)


# -- clocks -------------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_ahead_by_years_for_a_while_drops_no_records(minion, trace, monkeypatch):
    now = time.time()
    jids = [time.strftime("%Y%m%d%H%M%S", time.gmtime(now + ahead)) + "000001" for ahead in range(3)]
    minion.deliver(jids[0], "probe.give", trace)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now + 10 * 365 * 86400)
        minion.deliver(jids[1], "probe.give", trace)  # which sweeps, since the last time is long ago
    minion.deliver(jids[2], "probe.give", trace)
    assert [minion.seen(jid)[jid]["state"] for jid in jids] == 3 * ["ended"]


def test_the_master_may_want_records_kept_for_years(minion, trace, jid):
    ten_years = 10 * 365 * 86400
    minion.deliver(jid, "probe.give", trace, executor_opts={"job_once": {"keep": ten_years}})
    minion.deliver(new_jid(), "probe.give", trace, executor_opts={"job_once": {"keep": float("inf")}})
    minion.deliver(new_jid(), "probe.give", trace, executor_opts={"job_once": {"keep": float("nan")}})
    since = minion.records()[0].with_name(".since")
    os.utime(since, (0, 0))
    assert ten_years < minion.seen("1")["1"]["recorded_for"] <= time.time()


# -- processes ----------------------------------------------------------------------------------------------------------


def test_a_record_that_a_killed_process_has_left_is_not_written_to(minion, trace, jid, monkeypatch):
    minion.deliver(new_jid(), "test.ping")

    def killed_then():
        os.unlink = lambda *_, **__: os.kill(os.getpid(), 9)
        minion.deliver(jid, "probe.give", trace)

    process = multiprocessing.get_context("fork").Process(target=killed_then)
    process.start()
    process.join()
    monkeypatch.setattr(os, "getpid", lambda: process.pid)  # its number comes again
    minion.deliver(new_jid(), "probe.give", trace, "other")
    assert minion.seen(jid)[jid]["state"] == "interrupted"


def test_a_rerun_that_the_minion_queues_for_itself_runs_when_its_turn_comes(minion, trace, jid):
    minion.interrupt(jid)
    minion.deliver(jid, "probe.queued", trace, executor_opts={"job_once": {"rerun": True}})
    assert minion.deliver(jid, "probe.give", trace, "state") == ("state", 0)  # Salt's queue has lost the options
    assert minion.runs() == 3


# -- resources of a minion of 3008 --------------------------------------------------------------------------------------


def test_a_state_run_that_fails_before_the_runs_of_its_resources_counts_as_ended(minion, trace, jid):
    data = {"jid": jid, "fun": "state.apply", "arg": [], "resource_targets": [{"id": "r", "type": "dummy"}]}
    minion.call(data, "probe.give", [trace, ["rendering failed"], 1])
    assert minion.seen(jid)[jid]["state"] == "ended"


@pytest.mark.skipif(not hasattr(SaltMinion, "_MERGE_RESOURCE_FUNS"), reason="resources came with 3008")
def test_resources_of_two_types_with_one_id_run_both(minion, trace, jid):
    for kind in ("ssh", "dummy"):
        minion.deliver(jid, "probe.give", trace, kind, resource_target={"id": "r", "type": kind})
    assert minion.runs() == 2


@pytest.mark.skipif(not hasattr(SaltMinion, "_MERGE_RESOURCE_FUNS"), reason="resources came with 3008")
def test_an_interrupted_job_of_a_resource_says_how_to_forget_just_that(minion, trace, jid):
    def deliver(name):
        return minion.deliver(jid, "probe.die", trace, resource_target={"id": name, "type": "dummy"})

    for name in ("r1", "r2"):
        process = multiprocessing.get_context("fork").Process(target=deliver, args=(name,))
        process.start()
        process.join()
    text, _ = deliver("r1")
    key = re.search(r"job_once\.forget ([^\s)]+)", text)[1]
    assert minion.deliver(new_jid(), "job_once.forget", key)[0] == {key: True}
    assert [path.name for path in minion.records()] == [f"{jid}@dummy@r2"]


# -- values -------------------------------------------------------------------------------------------------------------


def test_the_beginning_of_a_long_exception_text_is_kept(minion, trace, jid):
    with pytest.raises(salt.exceptions.CommandExecutionError):
        minion.deliver(jid, "probe.fail", trace, "x" * (3 << 20))
    assert max(path.stat().st_size for path in minion.records() if path.name == jid) < 100_000


def test_values_of_strange_forms_disturb_neither_the_job_nor_other_answers(minion, trace, jid):
    other = new_jid()
    assert minion.deliver(jid, "probe.give", trace, "done", b"odd") == ("done", b"odd")
    minion.deliver(other, "probe.give", trace, {("a", "b"): 1})
    told = minion.seen(jid, other)
    assert (told[jid]["state"], told[other]["state"]) == ("ended", "unknown")


def test_many_large_returns_are_bounded_by_their_bytes_before_the_hour_is_over(minion, trace, monkeypatch):
    module = minion.it.executors["job_once.execute"].func.__globals__
    monkeypatch.setitem(module, "MOST_BYTES", 1 << 20)
    for _ in range(12):  # each takes an eighth of the bytes that may be kept, so each sweeps
        data = {"jid": new_jid(), "fun": ["probe.give", "test.echo"], "arg": []}
        minion.call(data, "probe.give", [trace, None, 0, 200 << 10])
        minion.call(data, "test.echo", ["small"])
    assert sum(path.stat().st_size for path in minion.records()) <= 1 << 20
    assert len(minion.records()) >= 3
