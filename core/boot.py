"""The machine's boot, and a clock that begins with it. Nobody can set it."""

from __future__ import annotations

import functools
import pathlib
import time


@functools.cache
def boot() -> str:
    """Return the id that Linux has made for this boot; empty if there is none."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def since_boot() -> float:
    """Return the seconds since the machine was started, including those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
