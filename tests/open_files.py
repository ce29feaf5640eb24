"""What a process has open. Files that other tests have left behind may be closed at any moment, so only a folder counts."""

from __future__ import annotations

import contextlib
import os


def open_files(folder):
    """Return the paths below a folder that this process has open, sorted, each as often as it is open."""
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            paths.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(path for path in paths if path.startswith(f"{os.path.realpath(folder)}/"))
