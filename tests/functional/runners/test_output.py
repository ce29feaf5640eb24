"""What ``salt-run`` prints: tables for people, whole data for programs, and plain data for all other callers of a runner."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import salt.loader
import salt.output
import salt.runner

from saltext.jobs.core.display.text import width_of
from tests.unit.batch.test_tables import minions, standing
from tests.unit.display.test_text import HARMFUL
from tests.unit.retry.test_tables import entry
from tests.waiting import stretched

pytestmark = pytest.mark.story

JID = "20260516101112131415"
STATS = {"bus_gaps": 0, "returners": {"pgjsonb": {"delivered": 120, "lag": 3.2, "set_aside": 0, "trouble": None}}}
#: The colours of a state, which are all that may ever be sent to a terminal beside text.
COLOUR = re.compile(r"\x1b\[(?:0|3[123])m", re.ASCII)


@pytest.fixture
def shown(opts, monkeypatch):
    """Show data with the outputter as Salt loads it."""

    def show(function, data, width=80, **more):
        monkeypatch.setenv("COLUMNS", str(width))
        return salt.output.out_format(data, "jobs_table", {**opts, "fun": function, **more})

    return show


@pytest.fixture
def jobs(opts):
    """A job in the job cache, with a function and a target that a terminal would obey."""
    returners = salt.loader.returners(opts, {})
    load = {"jid": JID, "fun": "test.\x1b[2J", "arg": [], "tgt": "web*\r", "tgt_type": "glob", "user": "anna"}
    returners["salt_cache.save_load"](JID, load, minions=["web1"])
    return returners


def test_people_get_a_table_and_programs_the_same_data_as_ever(salt_run, jobs):
    # Salt stores calls of runners as jobs, too.
    printed, _, returned = salt_run("job_cache.search", "fun=test.*")
    head, titles, line, last = printed.split("\n")
    assert (head.split(",")[0], titles.split()[:2]) == ("1 job", ["JID", "FUNCTION"])
    assert line.startswith(f"{JID}  test.\\x1b[2J  web*\\r")
    assert last == "Next: salt-run job_cache.outcome JID (or jobs.lookup_jid)"
    assert [job["JID"] for job in returned["return"]["jobs"]] == [JID]
    as_json, _, again = salt_run("job_cache.search", "fun=test.*", output="json")
    assert json.loads(as_json) == returned["return"] == again["return"]


def test_the_next_command_has_the_jid_that_the_call_named(shown):
    for arg, named in (([JID], JID), ([f"jid={JID}"], JID), ([], "JID")):
        text = shown("batch.minions", {"a": {"state": "failed", "since": 0.0, "retcode": 1}}, arg=arg)
        assert text.endswith(f"salt-run batch.failures {named} (or retry, jobs.lookup_jid)")


def test_the_event_of_the_job_and_its_record_in_the_job_cache_hold_plain_data(salt_run, jobs):
    printed, _, returned = salt_run("batch.list")
    assert printed.startswith("No batch was found.")
    assert (returned["return"], returned["success"]) == ([], True)
    assert jobs["salt_cache.get_jid"](returned["jid"])["m_master"]["return"]["return"] == []


def test_callers_in_python_the_api_and_orchestrations_get_plain_data(opts):
    with salt.runner.RunnerClient(opts) as client:
        for print_event in (True, False):
            assert client.cmd("batch.list", [], print_event=print_event) == []
        assert client.functions["batch.list"]() == []


def test_a_terminal_gets_colours_unless_they_are_switched_off(shown, monkeypatch):
    halted = [standing(state="halted")]
    coloured = shown("batch.list", halted, color=True)
    assert "\x1b[31mhalted" in coloured
    plain = shown("batch.list", halted, color=False)
    assert COLOUR.sub("", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown("batch.list", halted, color=True) == plain
    assert shown("batch.list", halted, color=True, force_color=True) == coloured


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_table_is_as_wide_as_the_terminal(shown, width):
    for function, data in (
        ("batch.list", [standing()]),
        ("batch.status", standing()),
        ("batch.minions", minions(failed=3, completed=101)),
        ("job_retry.list", [entry(f"web{number}.example.com") for number in range(100)]),
        ("job_recorder.stats", STATS),
    ):
        lines = shown(function, data, width).split("\n")
        assert max(map(width_of, lines)) <= width
        assert "JID" in lines[1] or function != "batch.list"


@pytest.mark.parametrize("harmful", HARMFUL, ids=ascii)
def test_nothing_that_a_terminal_obeys_is_printed_whatever_returned_it(shown, harmful):
    for name in ("batch.list", "batch.status", "batch.minions", "job_retry.show", "job_retry.stats", "job_cache.stats"):
        for data in (harmful, [harmful], {harmful: harmful}, {harmful: [{harmful: harmful}]}):
            assert all(line.isprintable() for line in shown(name, data).split("\n"))


@pytest.mark.parametrize("data", [None, True, [], {}, "refused", ["a"], {"a": {"b": 1}}, [None], {"jobs": None}, 3])
@pytest.mark.parametrize("function", ["batch.status", "job_retry.list", "job_cache.search", "job_recorder.stats"])
def test_data_of_another_shape_are_still_shown(shown, function, data):
    assert shown(function, data) is not None


def test_returns_of_other_functions_are_shown_as_before(shown, opts):
    data = {"a": {"b": [1, "x"]}}
    assert shown("jobs.list_jobs", data) == salt.output.out_format(data, "nested", dict(opts))
    assert shown("jobs.list_jobs", data, output="jobs_table") == shown("jobs.list_jobs", data)


def test_the_command_itself_prints_a_table_into_a_pipe_in_whatever_encoding_and_ends_as_a_doctor_says(config, tmp_path):
    master = {**json.loads((config / "master").read_text()), "engines": [{"batch_manager": {}}]}
    (tmp_path / "master").write_text(json.dumps(master))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    told = {"job_cache.doctor": (0, "Nothing is wrong."), "batch.doctor": (1, "1 fault:")}
    for function, ending in told.items():
        done = subprocess.run(
            [os.path.join(os.path.dirname(sys.executable), "salt-run"), "-c", str(tmp_path), function],
            capture_output=True,
            text=True,
            timeout=stretched(120),
            check=False,
            env={**env, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        )
        assert (done.returncode, done.stdout.split("\n")[0]) == ending
        assert all(len(line) <= 80 and line.isascii() and line.isprintable() for line in done.stdout.splitlines())
