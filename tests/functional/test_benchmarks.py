"""Each benchmark runs, in its smallest form: a figure that can no longer be taken is found here."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from benchmarks import NEED_3008
from saltext.jobs.core import compat
from tests.waiting import stretched

ROOT = __file__.rsplit("/tests/", 1)[0]
#: What is typed after ``python -m benchmarks.`` or, where it is code, after ``python -c``; and how its last line begins.
BENCHMARKS = [
    (
        "from benchmarks.batch import per_return, per_unrelated_event, whole_run; "
        "print(whole_run(50, 10), per_return(50, 3, 50), per_unrelated_event(2, 10, 3, 3))",
        "[(",
    ),
    ("batch_live 100 20", "100 minions at 20"),
    ("job_cache --jobs 20 --returns 10 --drivers localfs", "| files and"),
    ("job_cache_sizes --sizes 20 --columns ours,sqlite", "wait in the slowest"),
    ("job_cache_wide --minions 5,60 --hour 10 --width 60 --rounds 1", "search by minion after"),
    ("job_cache_workers --workers 2 --rounds 1 --jobs 20 --seconds 0.2", "| 2 workers: memory"),
    ("job_cache_servers --jobs 20 --columns sqlite,postgresql", "| removal of"),
    ("site --records 20", "A sync of this disk alone takes"),
    ("recorder --returns 50 --outage 1", ""),
    ("job_once --jobs 5", "a job that is refused"),
    ("salt_run --pairs 1", "memory"),
    ("fleet.plain --minions 10 --jobs 1 --rounds 1 --kinds sqlite", "| sqlite"),
    ("retry return --minions 5 --jobs 1 --within 1", "  whole"),
    ("retry missing --minions 5", "  only storing"),
    ("retry foreign", "an event"),
    ("retry forged --minions 50", "  each"),
    ("retry big --entries 50", "  resident"),
    ("retry_live --minions 10 --jobs 1 --within 1 --rest 1 --workers 2", "entries that ran once"),
]


@pytest.mark.slow
@pytest.mark.parametrize("words, last", BENCHMARKS, ids=[words for words, _ in BENCHMARKS])
def test_a_benchmark_still_runs(words, last, tmp_path):
    command = ["-c", words] if words.startswith("from ") else ["-m", *f"benchmarks.{words}".split()]
    run = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=stretched(300), check=False
    )
    name = re.search(r"benchmarks\.\w+", command[1])[0]
    if name in NEED_3008 and not compat.HAS_NATIVE_BATCHES:
        assert run.returncode == 1 and re.fullmatch("Salt 300[67].* lacks .*\n", run.stderr), run.stderr[-2000:]
        return
    assert run.returncode == 0 and "Traceback" not in run.stderr, run.stderr[-2000:]
    lines = run.stdout.strip().splitlines()
    assert lines and lines[-1].startswith(last), run.stdout
