"""
How a batch is waited for, and how its progress is shown: a bar that is redrawn on a terminal, plain lines elsewhere.

It writes to a stream and knows nothing of where summaries come from. That stream is standard error: standard output is for
the result alone.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from saltext.jobs.core.errors import Refused

#: Seconds without an engine after which nobody waits any longer: that of a master that restarts is back by then.
ENGINE_PATIENCE = 60.0
#: Least seconds between two looks at a batch.
_POLL = 0.25
_BAR = 30
_BAD = ("failed", "lost", "timed_out", "offline", "killed")

#: Returns the summary and the minions of the batch.
Look = Callable[[], tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]]]]


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
        # Pace and forecast change all the time: a terminal redraws them, but they are not worth a line each.
        width = shutil.get_terminal_size().columns - 1 if self._live else None
        text = progress_line(summary if self._live else {**summary, "rate": None, "eta_seconds": None}, width)
        if text == self._last:
            return
        self._last = text
        if self._live:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()
        else:
            self._line(text)

    def end(self) -> None:
        """Leave the bar as it stands."""
        if self._live and self._last:
            self._stream.write("\n")
            self._stream.flush()
            self._last = ""

    def _line(self, text: str) -> None:
        start = "\r\x1b[K" if self._live else ""
        self._stream.write(f"{start}{text}\n")
        self._stream.flush()
        if self._live:
            self._last = ""


def progress_line(summary: Mapping[str, Any], width: int | None = None) -> str:
    """
    Return one line that says how a batch stands.

    :param width: most characters; then the bar shrinks first, and after that what matters least is left out. A line that
        is longer than a terminal is wide could not be redrawn.
    """
    total = summary["total"] or 1
    bad = sum(summary.get(name) or 0 for name in _BAD)
    ended = summary["completed"] + bad
    engine = " (no engine)" if summary.get("engine") is False else ""
    parts = [f"{ended}/{summary['total']} {summary['state']}{engine}"]
    if summary.get("group"):
        parts.append(f"group {summary['group']} ({summary['group_number']}/{summary['groups']})")
    parts += [f"{summary[name]} {name}" for name in (*_BAD, "active", "completed") if summary.get(name)]
    if summary.get("rate"):
        parts.append(f"{summary['rate']:g}/min")
    if summary.get("eta_seconds"):
        parts.append(f"about {summary['eta_seconds']:.0f} s left")
    bar = _BAR
    if width is not None:
        while len(parts) > 1 and len(", ".join(parts)) + 13 > width:  # a bar of ten, its brackets and a blank
            parts.pop()
        bar = max(0, min(_BAR, width - 3 - len(", ".join(parts))))
    text = ", ".join(parts)
    line = f"[{'#' * (bar * ended // total):<{bar}}] {text}" if bar else text
    return line[:width]


def follow(
    jid: str,
    look: Look,
    over: tuple[str, ...],
    timeout: float | None,
    display: Display | None,
    poll: float = _POLL,
    engine_patience: float = ENGINE_PATIENCE,
) -> dict[str, Any]:
    """
    Wait until a batch has ended and return its summary. Blocks.

    :param look: returns how the batch stands.
    :param over: the states of a batch that has ended.
    :param timeout: seconds to wait; None for no limit.
    :param display: what shows the progress; None for nothing.
    :param poll: least seconds between two looks; the wait is longer where a look takes long.
    :param engine_patience: seconds without an engine after which nobody waits any longer.
    :raises Refused: when the time is up, when the wait is interrupted, and when no engine drives the batch for so long.
        The batch goes on.
    """
    try:
        with _interruptible():
            return _follow(jid, look, over, timeout, display, poll, engine_patience)
    except (KeyboardInterrupt, SystemExit):
        raise Refused(f"Batch {jid} goes on; salt-run batch.watch {jid} shows it again") from None
    finally:
        if display:
            display.end()


def _follow(
    jid: str,
    look: Look,
    over: tuple[str, ...],
    timeout: float | None,
    display: Display | None,
    poll: float,
    engine_patience: float,
) -> dict[str, Any]:
    began = driven = time.monotonic()
    while True:
        looked = time.monotonic()
        summary, minions = look()
        if display:
            display.show(summary, minions)
        if summary["state"] in over:
            return dict(summary)
        now = time.monotonic()
        if timeout is not None and now - began >= timeout:
            raise Refused(f"Batch {jid} has not ended within {timeout:g} s; it goes on")
        driven = now if summary.get("engine") is not False else driven
        if now - driven >= engine_patience:
            raise Refused(f"No engine drives batch {jid}; it goes on when the batch_manager engine runs again")
        # A look at a large batch is not free: spend a tenth of the time on it at most.
        time.sleep(max(poll, 9 * (now - looked)))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt. Salt's handler writes a line of its own and ends with status 0."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
