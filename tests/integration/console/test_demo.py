"""``make console``: a fleet with the console, from its first line to the end of its last process."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request

import psutil
import pytest

from tests.waiting import stretched, wait_for

pytestmark = pytest.mark.slow

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def demo(tmp_path):
    """The demo without a terminal and with next to nothing in its environment, what it prints, and where its files are."""
    place = tempfile.mkdtemp(prefix="d", dir="/tmp")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": place}
    with (tmp_path / "printed").open("w+") as printed:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo", "console"],
            cwd=CHECKOUT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        yield process, tmp_path / "printed", pathlib.Path(place)
        process.terminate()
        process.wait(stretched(60))
    os.rmdir(place)


def test_the_demo_prints_a_login_that_works_and_leaves_nothing_behind(demo):
    process, path, place = demo
    printed = wait_for(lambda: "Ctrl-C" in path.read_text() and path.read_text(), 120, path.read_text)
    found = {name: re.search(rf"^{name}: +(\S+)$", printed, re.M)[1] for name in ("The console", "Password")}
    as_browser = urllib.request.Request(found["The console"], headers={"Accept": "text/html"})
    with urllib.request.urlopen(as_browser) as page:
        assert b"<title>Salt jobs</title>" in page.read()
    login = {"username": "admin", "password": found["Password"], "eauth": "sharedsecret"}
    calls = [{"client": "runner", "fun": fun, **login} for fun in ("batch.list", "job_retry.list")]
    address = found["The console"].replace("console/", "run")
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, json.dumps(calls).encode(), headers)) as answer:
        batches, entries = json.load(answer)["return"]
    standing = {batch["fun"]: batch["state"] for batch in batches}
    assert (standing["test.version"], standing["test.sleep"]) == ("complete", "running")
    assert [(entry["minion"], entry["state"]) for entry in entries] == [("douglas", "pending")]
    ours = psutil.Process(process.pid).children(recursive=True)
    assert len(ours) > 10
    process.send_signal(signal.SIGINT)
    assert process.wait(stretched(60)) == 128 + signal.SIGINT
    assert "everything is stopped" in path.read_text()
    assert [one for one in ours if one.is_running() and one.status() != psutil.STATUS_ZOMBIE] == []
    assert list(place.iterdir()) == []
