"""
How a batch's progress is shown: a bar that is redrawn on a terminal, plain lines elsewhere, each failure once.

It writes to a stream and knows nothing of where summaries come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

_WIDTH = 30
_BAD = ("failed", "lost", "offline", "killed")


class Display:
    """
    :param stream: where to write; a bar is drawn if it is a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._told: set[str] = set()
        self._last = ""

    def show(self, summary: Mapping[str, Any], minions: Mapping[str, Mapping[str, Any]]) -> None:
        """Show how a batch stands, and whatever has failed since the last call."""
        for minion, record in minions.items():
            if record["state"] in _BAD and minion not in self._told:
                self._told.add(minion)
                code = "" if record.get("retcode") is None else f" (retcode {record['retcode']})"
                self._line(f"{minion}: {record['state']}{code}")
        text = progress_line(summary)
        # Pace and forecast change all the time: a terminal redraws them, but they are not worth a line each.
        news = text if self._live else progress_line({**summary, "rate": None, "eta_seconds": None})
        if news == self._last:
            return
        self._last = news
        if self._live:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
        else:
            self._line(text)

    def end(self) -> None:
        """Leave the bar as it stands."""
        if self._live:
            self._stream.write("\n")
            self._stream.flush()

    def _line(self, text: str) -> None:
        start = "\r\x1b[K" if self._live else ""
        self._stream.write(f"{start}{text}\n")
        self._stream.flush()
        if self._live:
            self._last = ""


def progress_line(summary: Mapping[str, Any]) -> str:
    """Return one line that says how a batch stands."""
    total = summary["total"] or 1
    bad = sum(summary.get(name) or 0 for name in _BAD)
    ended = summary["completed"] + bad
    bar = "#" * (_WIDTH * ended // total)
    parts = [f"[{bar:<{_WIDTH}}] {ended}/{summary['total']} {summary['state']}"]
    parts += [f"{summary[name]} {name}" for name in ("completed", "active", *_BAD) if summary.get(name)]
    if summary.get("rate"):
        parts.append(f"{summary['rate']:g}/min")
    if summary.get("eta_seconds"):
        parts.append(f"about {summary['eta_seconds']:.0f} s left")
    return ", ".join(parts)
