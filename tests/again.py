"""
Run the tests that failed last again, each alone and a few times, and list how often each failed: ``make again``.

    python -m tests.again CACHE [TIMES]

``CACHE`` is the folder that pytest was given as ``cache_dir``. The exit status is 1 if a test failed again.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

#: How often, unless another number is given.
TIMES = 5
#: What pytest returns if all is well, and if there is no such test any more.
_WELL, _GONE = 0, 4


def failed(cache: pathlib.Path) -> list[str]:
    """Return the ids of the tests that failed last."""
    try:
        return sorted(json.loads((cache / "v/cache/lastfailed").read_text()))
    except FileNotFoundError:  # none has failed so far
        return []


def count(test: str, times: int) -> int:
    """Run a test so many times, and return how often it failed."""
    # Without the cache, which would forget that it failed.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    return sum(subprocess.run(command, check=False).returncode not in (_WELL, _GONE) for _ in range(times))


def main(cache: str, times: str = str(TIMES)) -> int:
    counts = {test: count(test, int(times)) for test in failed(pathlib.Path(cache))}
    print("\n=== In how many runs each test failed, alone:")
    for test, often in counts.items():
        print(f"{often} of {times}: {test}")
    return int(any(counts.values()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
