"""
A minute and a half of everything at random on a real master: batches, jobs that are owed, restarts, kills of engines and
of the master, floods, a full disk and power cuts, judged against what the minions have noted. And three masters, whose
leader is killed. Few minions, so that most of it is waiting.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from saltext.jobs.core import compat
from tests.functional.cache_servers import cache_servers as cache_servers
from tests.waiting import stretched

ROOT = __file__.rsplit("/tests/", 1)[0]
WORDS = "random --minions 24 --seconds 90 --rate 200 --executor 0.3 --limit 300 --answer 30"
#: All that may happen; each of it at least once.
WHAT = {"batch", "job", "leave", "come_back", "restart", "kill", "burst", "full", "power_cut", "kill_master"}


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not compat.HAS_START_EVENT, reason="benchmarks/fleet speaks as minions of Salt 3008 do"),
]


def played(words):
    command = [sys.executable, "-m", "benchmarks.fleet", *words.split()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=stretched(600), check=False)
    lines = run.stdout.splitlines()
    wrong = [line for line in lines if line.startswith("  WRONG")]  # first, because a report has room for little
    assert run.returncode == 0, "\n".join([*wrong, run.stderr[-2000:], *lines])
    return lines


def test_in_a_minute_and_a_half_of_everything_at_random_nothing_is_lost_doubled_or_reported_wrongly():
    (done,) = [line for line in played(WORDS) if line.startswith("  what was done")]
    assert set(re.findall(r"\d+ (\w+)", done)) == WHAT


def test_three_masters_go_on_with_all_that_their_leader_had_begun(cache_servers):
    cache_servers("postgresql")  # or the reason is given why there can be none
    told = played(
        "masters --minions 24 --size 5 --kills 1 --rounds 0 --executor 0.5 --workers 2 --limit 300 --answer 30"
    )
    assert any(line.startswith("  the leader killed: taken over") for line in told)
