"""
Five minutes of everything at random on a real master: batches, jobs that are owed, restarts, kills of engines and of the
master, floods, a full disk and power cuts, judged against what the minions have noted. Few minions, so that most of it is
waiting.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from saltext.jobs.core import compat

ROOT = __file__.rsplit("/tests/", 1)[0]
WORDS = "random --minions 24 --seconds 300 --rate 200 --executor 0.3 --limit 300 --answer 30"
#: All that may happen; each of it at least once.
WHAT = {"batch", "job", "leave", "come_back", "restart", "kill", "burst", "full", "power_cut", "kill_master"}


@pytest.mark.slow
@pytest.mark.skipif(not compat.HAS_START_EVENT, reason="benchmarks/fleet speaks as minions of Salt 3008 do")
def test_in_five_minutes_of_everything_at_random_nothing_is_lost_doubled_or_reported_wrongly():
    words = [sys.executable, "-m", "benchmarks.fleet", *WORDS.split()]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    (done,) = [line for line in run.stdout.splitlines() if line.startswith("  what was done")]
    assert set(re.findall(r"\d+ (\w+)", done)) == WHAT
