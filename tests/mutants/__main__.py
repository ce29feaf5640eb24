"""
Break the code in each way of the list, and demand that a test fails: make test-mutants.

Each mutant is one patch in a copy of the checkout, and only the tests that it names are run there. It must never touch the
checkout itself. The tests must pass on unbroken code, which `make test` shows.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import os
import pathlib
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tests.mutants.table import MUTANTS, Mutant
from tests.waiting import stretched

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
#: Where a copy has the folders under the name that they are installed as.
INSTALLED = "installed"
#: Seconds after which the tests of a mutant are stopped: they hang, which is no failure.
LONGEST = 120
#: Errors of a patch that breaks more than it means to.
CARELESS = re.compile(r"(Syntax|Import|ModuleNotFound|Name|Indentation)Error")


def copy(to: pathlib.Path) -> pathlib.Path:
    """Copy all files that git knows or would take, and return where the copy is."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (CHECKOUT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, to / name)
    package = to / INSTALLED / "saltext/jobs"
    package.mkdir(parents=True)
    packages = {each.parent for each in to.glob("*/__init__.py")} | {to / "console", to / "minion", to / "reactor"}
    for each in [*(packages - {to / "tests", to / "package"}), *(to / "package").iterdir()]:
        (package / each.name).symlink_to(each)
    _, found = python(to, "-c", "import saltext.jobs.core.site as site; print(site.__file__)")
    assert pathlib.Path(found.strip()).resolve() == to / "core/site.py", f"the copy would test {found}"
    return to


def python(where: pathlib.Path, *arguments: str) -> tuple[int | None, str]:
    """Run Python in a copy, with the modules of that copy. Returns its status, None if it hung, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(where / INSTALLED)}
    command = [sys.executable, *arguments]
    with open(where / "printed", "w+", errors="replace") as printed:  # no pipe: what a test leaves behind holds it open
        process = subprocess.Popen(
            command, cwd=where, env=environment, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(stretched(LONGEST))
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        printed.seek(0)
        return status, printed.read()


def verdict(mutant: Mutant, where: pathlib.Path) -> tuple[bool, str]:
    """Return whether a test has noticed the mutant, and the first that did or else what happened."""
    file = where / mutant.file
    whole = file.read_text() if file.is_file() else ""
    if whole.count(mutant.old) != 1:
        return False, f"DOES NOT APPLY: {mutant.file} has its text {whole.count(mutant.old)} times"
    kept = file.with_name(f"{file.name}.kept")
    file.rename(kept)
    try:
        file.write_text(whole.replace(mutant.old, mutant.new))
        options = ("-x", "-q", "--tb=no", "-rf", "-p", "no:cacheprovider", "-m", "slow or not slow")
        status, printed = python(where, "-m", "pytest", *options, *shlex.split(mutant.tests))
    finally:
        kept.rename(file)
    failed = re.search(r"^FAILED (.*)", printed, re.MULTILINE)
    if status == 0:
        return False, "SURVIVES"
    if status != 1 or not failed or CARELESS.search(failed[1]):
        return False, f"BREAKS THE TESTS (status {status}): {' '.join(printed.split()[-40:])}"
    return True, failed[1].split(" - ")[0].removeprefix("tests/")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of mutants; without any, all")
    parser.add_argument("-j", type=int, default=2, metavar="N", help="mutants at a time (default: 2)")
    arguments = parser.parse_args()
    chosen = [each for each in MUTANTS if not arguments.names or any(name in each.name for name in arguments.names)]
    root = pathlib.Path(tempfile.mkdtemp(prefix="sj-mutants-")).resolve()
    copies: queue.Queue[pathlib.Path] = queue.Queue()

    def run(mutant: Mutant) -> bool:
        where, began = copies.get(), time.monotonic()
        try:
            noticed, by = verdict(mutant, where)
        finally:
            copies.put(where)
        print(f"{time.monotonic() - began:5.1f} s  {mutant.name:<64}  {by}", flush=True)
        return noticed

    try:
        for number in range(min(arguments.j, len(chosen))):
            copies.put(copy(root / str(number)))
        with concurrent.futures.ThreadPoolExecutor(arguments.j) as pool:
            noticed = list(pool.map(run, chosen))
    finally:
        shutil.rmtree(root, ignore_errors=True)
        if sys.pycache_prefix:  # what Python has compiled of the copies (Makefile)
            shutil.rmtree(pathlib.Path(sys.pycache_prefix) / root.relative_to("/"), ignore_errors=True)
    print(f"{sum(noticed)} of {len(chosen)} mutants are noticed")
    return 0 if all(noticed) else 1


if __name__ == "__main__":
    sys.exit(main())
