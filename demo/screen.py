"""
What the demo prints: plain lines, and a bar for what moves, where a terminal can show one.

It must never print control characters into a pipe or a file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

_WIDTH = 24


def title(number: int, text: str) -> None:
    """Begin a step."""
    print(f"\n{number}. {text}", flush=True)


def say(text: str) -> None:
    """Say in one or more lines what is done or seen."""
    for line in text.splitlines():
        print(f"   {line}", flush=True)


def command(words: list[str]) -> None:
    """Show a command as the operator would type it."""
    print(f"   $ {' '.join(words)}", flush=True)


class Bar:
    """The progress of one batch: redrawn in place on a terminal, one line per change elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._shown = ""

    def show(self, summary: Mapping[str, Any]) -> None:
        """Show the counts of ``batch.status``, if they have changed."""
        text = _counts(summary)
        if text == self._shown:
            return
        self._shown = text
        if self._live:
            print(f"\r\x1b[K   {_bar(summary)} {text}", end="", flush=True)
        else:
            say(text)

    def close(self) -> None:
        """Leave the last state standing."""
        if self._live and self._shown:
            print(flush=True)


def _counts(summary: Mapping[str, Any]) -> str:
    parts = [f"{summary[name]} {name}" for name in ("completed", "active", "pending")]
    parts += [f"{summary[name]} {name}" for name in ("failed", "lost", "killed") if summary[name]]
    return f"{', '.join(parts)} of {summary['total']}: {summary['state']}"


def _bar(summary: Mapping[str, Any]) -> str:
    total = max(1, summary["total"])
    done = _WIDTH * (summary["total"] - summary["active"] - summary["pending"]) // total
    busy = _WIDTH * summary["active"] // total
    return f"[{'#' * done}{'>' * busy}{'.' * (_WIDTH - done - busy)}]"
