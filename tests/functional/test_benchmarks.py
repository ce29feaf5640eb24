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


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, last",
    [
        (["-c", "from benchmarks.batch import whole_run; print(whole_run(50, 10))"], "[("),
        (["-c", "from benchmarks.batch import per_return; print(per_return(50, 3, 50))"], "(("),
        (["-c", "from benchmarks.batch import per_unrelated_event; print(per_unrelated_event(2, 10, 3, 3))"], "("),
        (["-m", "benchmarks.batch_live", "100", "20"], "100 minions at 20"),
        (["-m", "benchmarks.job_cache", "--jobs", "20", "--returns", "10", "--drivers", "localfs"], "| files and"),
        (["-m", "benchmarks.job_cache_sizes", "--sizes", "20", "--columns", "ours,sqlite"], "wait in the slowest"),
        (["-m", "benchmarks.job_cache_sizes", "--overview"], "| files and directories a job |"),
        (
            ["-m", "benchmarks.job_cache_wide", "--minions", "10,60", "--hour", "10", "--width", "60", "--rounds", "1"],
            "search by minion after",
        ),
        (["-m", "benchmarks.job_cache_workers", "--workers", "2", "--rounds", "1"], "| 2 workers: memory"),
        (["-m", "benchmarks.job_cache_servers", "--jobs", "20", "--columns", "sqlite,postgresql"], "| removal of"),
        (["-m", "benchmarks.log", "--records", "50"], "reading"),
        (["-m", "benchmarks.site", "--records", "20"], "A sync of this disk alone takes"),
        (["-m", "benchmarks.recorder", "--returns", "50", "--outage", "1"], ""),
        (["-m", "benchmarks.job_once", "--jobs", "5"], "a job that is refused"),
        (["-m", "benchmarks.retry", "missing", "--minions", "5"], "  only storing"),
        (["-m", "benchmarks.retry", "foreign"], "an event"),
        (["-m", "benchmarks.retry", "forged", "--minions", "50"], "  each"),
        (["-m", "benchmarks.retry", "big", "--entries", "50"], "  resident"),
        (
            ["-m", "benchmarks.retry_live", "--minions", "10", "--jobs", "1", "--within", "1"],
            "entries that ran once",
        ),
    ],
    ids=lambda value: " ".join(value[1:3]).removeprefix("benchmarks.") if isinstance(value, list) else "",
)
def test_a_benchmark_still_runs(words, last, tmp_path):
    run = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=stretched(300), check=False
    )
    name = re.search(r"benchmarks\.\w+", words[1])[0]
    if name in NEED_3008 and not compat.HAS_NATIVE_BATCHES:
        assert run.returncode == 1 and re.fullmatch("Salt 300[67].* lacks .*\n", run.stderr), run.stderr[-2000:]
        return
    assert run.returncode == 0, run.stderr[-2000:]
    lines = run.stdout.strip().splitlines()
    assert lines and lines[-1].startswith(last), run.stdout
