"""Calling a runner function from an engine, in a process of its own."""

from __future__ import annotations

import os
import signal
import time

import pytest

from saltext.jobs.core import compat
from saltext.jobs.core.batch.effects import call_runner
from saltext.jobs.core.master.caller import Caller
from saltext.jobs.core.users import PASSWORD, Identity
from tests.waiting import SOON, stretched

RUNNER = """
import subprocess, sys


def told(*args, **kwargs):
    print("noise on stdout")
    sys.stderr.write("noise on stderr")
    return {"args": list(args), "kwargs": {name: value for name, value in kwargs.items() if not name.startswith("__")}}


def no():
    return False


def who():
    from saltext.jobs.core.master import caller

    found = caller.caller(__opts__, "root")
    return [found.name, found.grants, found.owner().get("backends")]


def seen_by_all(*args):
    import pathlib

    return [pathlib.Path("/proc/self", name).read_text().replace("\\0", " ") for name in ("cmdline", "environ")]


def reads():
    return sys.stdin.read()


def broken():
    raise RuntimeError("out of order")


def leaves():
    return subprocess.Popen(["sleep", "300"]).pid
"""


@pytest.fixture
def call(tmp_path, deaf_bus):
    runners = tmp_path / "runners"
    runners.mkdir()
    (runners / "survey.py").write_text(RUNNER)
    (tmp_path / "var/cache/salt/master/proc").mkdir(parents=True)  # a master has one
    config = tmp_path / "master"
    (tmp_path / "bus").symlink_to(deaf_bus)
    # Salt takes another sock_dir than it is told if that is longer than the cachedir it is told.
    places = f"root_dir: {tmp_path}\ncachedir: {tmp_path / 'var/cache/salt/master'}\nsock_dir: {tmp_path / 'bus'}\n"
    places += f"log_file: {tmp_path / 'log'}\n"
    config.write_text(f"{places}runner_dirs: [{runners}]\nuser: root\n")
    loop = compat.new_loop()

    def called(fun, *words, timeout=None, on_behalf=None, **more):
        opts, timeout = {"conf_file": str(config)}, timeout or stretched(2 * SOON)
        return loop.run_sync(lambda: call_runner(opts, loop, fun, words, timeout, on_behalf, **more))

    yield called
    loop.close(all_fds=True)


def test_a_runner_is_called_with_its_arguments_as_on_a_command_line_wherever_the_master_was_started(
    call, tmp_path, monkeypatch
):
    (tmp_path / "json.py").write_text("raise SystemExit(3)")  # anybody may have put it there
    monkeypatch.chdir(tmp_path)
    assert call("survey.told", "eu", "7", "site=a b", "--config-dir=/x") == (
        {"args": ["eu", 7, "--config-dir=/x"], "kwargs": {"site": "a b"}},
        True,
    )


def test_a_runner_that_is_called_for_a_user_has_the_rights_of_that_user(call):
    anna = Caller("pam:root", ({"a*": ["test.*"]},), who=Identity(PASSWORD, "root", ("pam",)))
    assert call("survey.who", on_behalf=anna.limits()) == (["pam:root", [{"a*": ["test.*"]}], ["pam"]], True)
    assert call("survey.who", on_behalf=Caller("bert", ()).limits()) == (["bert", [], None], True)
    assert call("survey.who", on_behalf=Caller("root").limits()) == (["root", None, []], True)


def test_no_other_user_of_the_machine_can_read_anything_of_a_call(call):
    anna = Caller("anna", ({"a*": ["test.secret_of_anna"]},))
    (command, environ), success = call("survey.seen_by_all", "a word of anna", on_behalf=anna.limits())
    assert success is True
    assert "import json" in command
    assert "anna" not in command + environ
    assert "survey" not in command


def test_a_runner_reads_nothing_from_its_standard_input_and_may_leave_a_process_behind(call):
    assert call("survey.reads") == ("", True)
    pid, success = call("survey.leaves")
    os.kill(pid, signal.SIGKILL)
    assert success is True


def test_a_runner_that_fails_is_no_success_and_one_that_is_missing_is_reported_by_its_name(call):
    assert call("survey.broken")[1] is not True
    assert call("survey.missing") == (
        None,
        "this master has no such runner function: 'survey.missing' is not available.",
    )


def test_a_process_that_ends_without_an_answer_is_reported_with_its_last_words(call, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2\necho 'out of memory' >&2\nexit 9\n")
    python.chmod(0o755)
    assert call("survey.no", python=str(python)) == (None, "it cannot be called: exit status 9, out of memory")


def test_a_runner_that_hangs_is_killed(call):
    began = time.monotonic()
    assert call("test.sleep", "300", timeout=0.5) == (None, "no answer within 0.5 s")
    assert time.monotonic() - began < stretched(60)
