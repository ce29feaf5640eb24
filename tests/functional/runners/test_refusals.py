"""What an operator sees when a call is wrong: one line on standard error, and a status that is not zero."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import salt.loader
import salt.runner
import salt.utils.schedule

from saltext.jobs.core.batch.pace import PausedBy
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.errors import Refused
from tests.unit.batch.bench import Bench
from tests.waiting import stretched

pytestmark = pytest.mark.story

#: A call, and what its line has to say.
WRONG = [
    (["batch.wait", "UNKNOWN"], "UNKNOWN is no batch"),
    (["batch.status", "20200101000000000000"], "20200101000000000000 is no batch"),
    (["batch.stop"], "batch.stop needs jid"),
    (["batch.stop", "1", "kill=perhaps"], "kill is 'perhaps'; accepted is True or False"),
    (["batch.list", "limt=5"], "did you mean limit?"),
    (["batch.start", "nosuch*", "test.ping"], "matches no accepted minion"),
    (["batch.start", "nosuch", "test.ping", "tgt_type=nodegroup"], "there is no nodegroup nosuch; the master's"),
    (["batch.start", "N@canary", "test.ping"], "a compound target needs tgt_type=compound"),
    (["batch.start", "web1 or web2", "test.ping"], "a compound target needs tgt_type=compound"),
    (["job_retry.show", "20200101000000000000", "web1"], "web1 is not owed job 20200101000000000000"),
    (["job_retry.show", "20200101000000000000"], "job_retry.show needs minion beside jid=20200101000000000000; salt"),
    (["job_retry.purge"], "state is not given; accepted is one or more of held, expired, cancelled, dead"),
    (["batch.retry", "1", "which=failed,kiled"], "accepted is one or more of failed, timed_out, lost, killed, offline"),
    (["batch.start", "*", "test.ping,test.version"], "fun is 'test.ping,test.version'; a batch runs one function"),
    (["batch.start", "*", "test.ping", "tgt_type=foo"], "tgt_type is 'foo'; accepted is one of glob, list, grain"),
    (["batch.run", "*", "test.ping", "fail_hard=True"], "did you mean max_failures=0?"),
    (["job_retry.show", "web1", "20200101000000000000"], "web1 is not owed job"),
    (["job_retry.list", "state=sleeping"], "state is 'sleeping'"),
    (["batch.list", "limit=0"], "limit is 0; accepted is a whole number of at least 1"),
    (["job_cache.search", "fun="], "fun is ''; accepted is one or more names"),
    (["job_cache.search", "kind=nosuch"], "kind is 'nosuch'; accepted is one of"),
]


def told(stderr):
    """
    What is on standard error, without Salt's own lines: about its own objects, after every command (3008), and about what a
    later Python removes (Python 3.12), with the line of its code.
    """
    lines, of_salt = stderr.splitlines(), ("unclosed ", "/salt/")
    said = [line for line in lines if not any(part in line for part in of_salt)]
    return [line for line in said if "DeprecationWarning" not in stderr or not line.startswith("  ")]


@pytest.mark.parametrize(("call", "line"), WRONG, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_a_wrong_call_is_one_line_on_standard_error_and_no_success(salt_run, call, line):
    printed, complaint, returned = salt_run(*call)
    assert (printed, returned["success"], returned["retcode"]) == ("", False, 1)
    assert len(told(complaint)) == 1
    assert line in complaint


def test_what_is_approved_already_and_what_a_resume_cannot_change_is_said(salt_run, opts, tmp_path):
    (tmp_path / "proc").mkdir()
    jid, own = "20260516101112131415", {"cachedir": str(tmp_path)}
    bench = Bench("abc", jid=jid, batch="1,1,100%", check={"kind": "approve", "fun": "", "arg": [], "kwargs": {}})
    bench.batch.pace.checking = 1
    bench.batch.pause(PausedBy.PERMISSION, "web2: no right")
    bench.keep(BatchStore({**opts, **own}))
    told = f"Stage 1 of batch {jid} is approved; batch.approve {jid} stage=2 approves the next"
    assert salt_run("batch.approve", jid, "stage=1", **own)[1] == told
    assert "It pauses again if this still holds: web2: no right" in salt_run("batch.resume", jid, **own)[1]


@pytest.mark.parametrize("output, said", [("json", "false"), ("yaml", "false"), ("raw", "False"), ("jobs_table", "")])
def test_a_script_that_asks_for_an_outputter_gets_false_on_standard_output(salt_run, output, said):
    printed, complaint, returned = salt_run("batch.stop", "20200101000000000000", output=output)
    assert (printed.splitlines()[:1], returned["success"], returned["retcode"]) == ([said] if said else [], False, 1)
    assert "20200101000000000000 is no batch" in complaint


def test_the_command_itself_says_so_too_and_ends_with_its_status_and_prints_nothing_else_for_a_right_call(config):
    command = [os.path.join(os.path.dirname(sys.executable), "salt-run"), "-c", str(config), "--out=json"]

    def run(*words):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=stretched(120), check=False)
        return done.returncode, done.stdout.strip(), told(done.stderr)

    status, printed, complaint = run("batch.list", "limt=5")
    assert (status, printed) == (1, "false")
    assert len(complaint) == 1
    assert "did you mean limit?" in complaint[0]
    assert run("batch.list") == (0, "[]", [])


def test_a_refusal_that_nobody_reads_is_in_the_log(opts, caplog):
    line = "batch.wait was refused: UNKNOWN is no batch"

    def refuse(**pub_data):
        client = salt.runner.RunnerClient(opts)
        return client.cmd("batch.wait", ["UNKNOWN"], pub_data=pub_data, print_event=False)

    refuse(user="anna")
    assert line not in caplog.text, "whoever calls gets the answer"
    refuse(user="Reactor")
    assert line in caplog.text
    caplog.clear()
    functions = salt.runner.RunnerClient(opts).functions_dict()
    schedule = salt.utils.schedule.Schedule(opts, functions, salt.loader.returners(opts, {}), new_instance=True)
    job = {"function": "batch.wait", "args": ["UNKNOWN"], "name": "nightly", "jid_include": False}
    schedule.handle_func(False, "batch.wait", job)
    assert line in caplog.text


def test_a_caller_in_python_and_an_orchestration_get_the_message_and_no_success(opts):
    client = salt.runner.RunnerClient(opts)
    answer = client.cmd("batch.wait", ["UNKNOWN"], print_event=False, full_return=True)
    assert answer["success"] is False
    assert answer["return"].startswith("UNKNOWN is no batch")
    with pytest.raises(Refused, match="UNKNOWN is no batch"):
        client.functions["batch.wait"]("UNKNOWN")
