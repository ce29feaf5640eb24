"""Jobs that this master's publish does not know of."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.integration.conftest import COMMAND, ask_runner, make_master, minions
from tests.missing import missing
from tests.waiting import stretched

pytestmark = pytest.mark.story


def test_a_job_of_salt_ssh_is_listed_with_those_who_answered(salt_factories, tmp_path):
    if shutil.which("ssh") is None:
        missing("ssh is not installed")
    master = make_master(salt_factories, engines=[])
    roster = tmp_path / "roster"
    # Nothing listens on this port: an unreachable box is an answer too.
    roster.write_text("box:\n  host: 127.0.0.1\n  port: 1\n  user: nobody\n", encoding="utf-8")
    with master.started(), minions(master, "alpha"):
        salt_ssh = pathlib.Path(sys.executable).with_name("salt-ssh")
        command = [str(salt_ssh), "-c", str(master.config_dir), "--roster-file", str(roster), "-i", "--no-host-keys"]
        subprocess.run(
            [*command, "*", "test.echo", "over ssh"],
            capture_output=True,
            text=True,
            timeout=stretched(COMMAND),
            check=False,
        )
        (jid,) = ask_runner(master, "jobs.list_jobs", "search_function=test.echo")
        job = ask_runner(master, "jobs.list_job", jid)
        assert (job["Target"], job["Arguments"], job["Target-type"]) == ("*", ["over ssh"], "glob")
        assert list(job["Result"]) == ["box"]
        assert job["Minions"] == ["box"], "not those whose keys are accepted"
