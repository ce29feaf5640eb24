"""
What the executor job_once costs a minion for each job: CPU and wall time, and the system calls if strace is installed.

    python -m benchmarks.job_once [--jobs N] [--folder F]

One process calls a function that does nothing through Salt's own ``Minion._execute_job_function``, without the executor
and with it, on the disk of ``--folder`` (by default that of the temporary files). A real job also forks a process.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types

import salt.config
import salt.loader
import salt.minion

_numbers = itertools.count(1)
_FIELDS = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)(?:\s+\d+)?\s+(\w+)$", re.MULTILINE)


def minion(folder: pathlib.Path, executors: list[str]):
    """A function ``deliver(jid)`` of a minion without a daemon."""
    opts = salt.config.DEFAULT_MINION_OPTS.copy()
    opts.update(id="bench", cachedir=str(folder), grains={}, pillar={}, module_executors=executors)
    context: dict = {}
    functions = salt.loader.minion_mods(opts, context=context)
    executors_of = salt.loader.executors(opts, functions, context=context)
    it = types.SimpleNamespace(opts=opts, functions=functions, executors=executors_of, connected=False)

    def deliver(jid):
        data = {"jid": jid, "fun": "test.ping", "arg": []}
        return salt.minion.Minion._execute_job_function(it, "test.ping", [], executors, opts, data)

    deliver("20260101000000000000")
    return deliver


def cost(deliver, jids) -> tuple[float, float]:
    """Microseconds of wall time and of CPU time for each of the jobs."""
    wall, cpu = time.perf_counter(), time.process_time()
    for jid in jids:
        assert deliver(jid) is True
    count = len(jids)
    return (time.perf_counter() - wall) / count * 1e6, (time.process_time() - cpu) / count * 1e6


def new_jids(count: int) -> list[str]:
    return [f"20260102{next(_numbers):012d}" for _ in range(count)]


def system_calls(folder: pathlib.Path, executors: str) -> dict[str, int]:
    """How often each system call is made for 20 jobs, the start of the process included."""
    command = ["strace", "-f", "-c", "-o", str(folder / "calls"), sys.executable, "-m", "benchmarks.job_once"]
    subprocess.run([*command, "--only", executors, "--jobs", "20", "--folder", str(folder)], check=True)
    return {name: int(calls) for calls, name in _FIELDS.findall((folder / "calls").read_text())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--folder", type=pathlib.Path, default=None)
    parser.add_argument("--only", choices=("direct_call", "job_once"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        with_it = ["job_once", "direct_call"]
        if options.only:
            cost(minion(folder, with_it if options.only == "job_once" else ["direct_call"]), new_jids(options.jobs))
            return
        plain, once = minion(folder / "plain", ["direct_call"]), minion(folder / "once", with_it)
        jids = new_jids(options.jobs)
        before, first, again = cost(plain, jids), cost(once, jids), cost(once, jids)
        if shutil.which("strace"):
            less, more = (system_calls(folder, name) for name in ("direct_call", "job_once"))
            extra = {name: (more.get(name, 0) - less.get(name, 0)) / 20 for name in more}
            print("system calls more:", ", ".join(f"{n} {c:.1f}" for n, c in extra.items() if c >= 0.5))
        print(f"without it: {before[0]:.0f} µs, CPU {before[1]:.0f} µs")
        print(f"a job that runs: {first[0] - before[0]:.0f} µs more, CPU {first[1] - before[1]:.0f} µs more")
        print(f"a job that is refused: {again[0]:.0f} µs, CPU {again[1]:.0f} µs")


if __name__ == "__main__":
    main()
