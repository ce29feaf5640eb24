"""
What the installed extension costs each ``salt-run`` that does not use it: CPU time and memory.

    python -m benchmarks.salt_run [--pairs N]

Salt imports all runners for each ``salt-run``. The command is ``salt-run test.arg``, and instead of a master there is a
socket that takes its events. It is run with the extension and without it in turn; without it means that Salt does not see
its entry point.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import socketserver
import statistics
import subprocess
import sys
import tempfile
import threading

_COMMAND = """
import sys
if sys.argv.pop(1) == "without":
    import salt.utils.entrypoints as found
    every = found.iter_entry_points
    found.iter_entry_points = lambda group, name=None: [one for one in every(group, name) if one.name != "saltext.jobs"]
import salt.scripts
salt.scripts.salt_run()
"""
_ROUNDS = ("without", "with")


def cost(which: str, folder: pathlib.Path) -> tuple[float, float]:
    """Milliseconds of CPU time, and MB of memory at most, of one command."""
    command = [sys.executable, "-c", _COMMAND, which, f"--config-dir={folder}", "test.arg", "a"]
    # With PYTHONDONTWRITEBYTECODE each command would compile what it imports.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, f"the command {which} the extension failed"
    return (used.ru_utime + used.ru_stime) * 1e3, used.ru_maxrss / 1024


class _Swallow(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while self.request.recv(1 << 16):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "var/cache/salt/master/proc").mkdir(parents=True)
        (folder / "sockets").mkdir()
        (folder / "master").write_text(f"root_dir: {folder}\nfile_roots: {{}}\nsock_dir: /sockets\n")
        bus = socketserver.ThreadingUnixStreamServer(str(folder / "sockets/master_event_pull.ipc"), _Swallow)
        threading.Thread(target=bus.serve_forever, daemon=True).start()
        for which in _ROUNDS:
            cost(which, folder)  # compiles what was not compiled yet
        costs = [[cost(which, folder) for which in _ROUNDS] for _ in range(pairs)]
    for what, unit, column in (("CPU", "ms", 0), ("memory", "MB", 1)):
        before, after = (statistics.median(pair[which][column] for pair in costs) for which in range(2))
        more = statistics.median(pair[1][column] - pair[0][column] for pair in costs)
        print(
            f"{what}: {before:.1f} {unit} without it, {after:.1f} with it: {more:+.1f}, {1 + more / before:.3f} times"
        )


if __name__ == "__main__":
    main()
