"""
Waits for a batch and shows its progress: on a terminal a bar that is redrawn, elsewhere plain lines. It writes to standard
error: standard output is for the result alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from saltext.jobs.core.batch.catalog import Found
from saltext.jobs.core.batch.summary import BAD, OVER, Returns, engine_trouble, in_numbers, pace, progress, waits, word
from saltext.jobs.core.display.text import clean, cut, is_terminal, local, span, width_of_terminal
from saltext.jobs.core.errors import JobCacheError, Refused, SiteAway
from saltext.jobs.core.reasons import text_of

#: Seconds without an engine, or a database, after which the wait ends. The engine of a restarted master is back by then.
ENGINE_PATIENCE = 60.0
#: Shortest pause in seconds between two looks at a batch.
_POLL = 0.25
#: Most minions that are named if many have failed alike since the last look.
_NAMED = 10
#: Most characters of a line about a minion.
_LONGEST = 200
#: Moves to the beginning of the line and clears it.
_ANEW = "\r\x1b[K"


class Display:
    """A bar, if ``stream`` is a terminal that can redraw a line. ``returns``: reads returns; None: no reasons are shown."""

    def __init__(self, stream: TextIO, returns: Returns | None = None) -> None:
        self._returns = returns or (lambda names: iter(()))
        self._stream, self._live = stream, is_terminal(stream)
        self._told: set[str] = set()  # the minions that were named
        self._waits = self._last = ""

    def show(self, summary: Mapping[str, Any], minions: Mapping[str, Mapping[str, Any]]) -> None:
        """Show the state of a batch, why it waits, and what has failed since the last call."""
        self._tell_of(minions)
        before, self._waits = self._waits, waiting_line(summary)
        if self._waits and self._waits != before:
            self._line(self._waits)
        # Pace and forecast change all the time: a terminal redraws them, but they are not worth a new line.
        width = width_of_terminal(self._stream) - 1 if self._live else None
        left_out = () if self._live else ("rate", "eta_seconds", "created", "first_sent")
        text = progress_line({**summary, **dict.fromkeys(left_out)}, width)
        if text != self._last and self._live:
            self._write(text)
        elif text != self._last:
            self._line(f"{text}{_elapsed(summary)}")
        self._last = text

    def end(self) -> None:
        """Leave the bar as it stands."""
        if self._live and self._last:
            self._stream.write("\n")
            self._stream.flush()
            self._last = ""

    def _tell_of(self, minions: Mapping[str, Mapping[str, Any]]) -> None:
        """Name the minions that have failed since the last call; if many failed alike, only the first few."""
        news: dict[str, list[str]] = {}
        for minion, record in minions.items():
            if record["state"] in BAD and minion not in self._told:
                self._told.add(minion)
                code = "" if record.get("retcode") is None else f" (retcode {record['retcode']})"
                news.setdefault(f"{record['state']}{code}", []).append(minion)
        for what, names in news.items():
            few = names if len(names) <= _NAMED else names[: _NAMED - 1]
            why = dict[str, str]()
            with contextlib.suppress(JobCacheError):  # the wait goes on without the reasons
                why.update((minion, " ".join(text_of(ret).split())) for minion, ret in self._returns(few) if ret)
            for minion in few:
                self._line(cut(f"{minion}: {what}{': ' if minion in why else ''}{why.get(minion, '')}", _LONGEST))
            if len(names) > len(few):
                self._line(f"and {len(names) - len(few):,} more: {what}")

    def _line(self, text: str) -> None:
        self._write(f"{clean(text)}\n")
        if self._live:
            self._last = ""

    def _write(self, text: str) -> None:
        self._stream.write(f"{_ANEW if self._live else ''}{text}")
        self._stream.flush()


def waiting_line(summary: Mapping[str, Any]) -> str:
    """Return why a batch sends to no minion now, and what an operator can do; empty if it does send."""
    # How others hold it up changes with each of their minions: that is worth a line only if this batch stands still.
    sends = summary.get("blocked_reason") and summary.get("active")
    reason = engine_trouble(summary) or ("" if sends else waits(summary, lambda time: local(time, None)))
    if not reason:
        return ""
    steps = f"; salt-run batch.approve {summary['jid']} lets it go on" if summary.get("approve") is not None else ""
    return f"{word(summary)}: {reason}{steps}"


def progress_line(summary: Mapping[str, Any], width: int | None = None) -> str:
    """Return the state of a batch in one line of at most ``width`` columns, as a wider one could not be redrawn."""
    stands = f"{progress(summary, width)} {word(summary)}{_elapsed(summary)}"
    text = clean("; ".join(filter(None, (stands, in_numbers(summary, (*BAD, "active", "completed")), pace(summary)))))
    return text if width is None else cut(text, width, middle=False)


def _elapsed(summary: Mapping[str, Any]) -> str:
    until = summary.get("finished") or (summary.get("last_progress") or 0.0) + (summary.get("age_seconds") or 0.0)
    since = summary.get("first_sent", summary.get("created"))
    return f" after {span(until - since)}" if until and since else ""


def follow(
    jid: str,
    look: Callable[[], Found],
    timeout: float | None,
    display: Display | None,
    poll: float = _POLL,
    engine_patience: float = ENGINE_PATIENCE,
) -> dict[str, Any]:
    """
    Wait until a batch has ended, for at most ``timeout`` seconds, and return its summary. Blocks.

    :raises Refused: if the time is up, the wait is interrupted, or no engine has driven it, or the database could not be
        read, for ``engine_patience`` seconds.
    """
    began = driven = time.monotonic()
    try:
        while True:
            looked = time.monotonic()
            trouble = Refused(f"No engine drives batch {jid}; it goes on when the batch_manager engine runs again")
            try:
                found = look()
                if display:
                    display.show(found.summary, found.minions())
                if found.summary["state"] in OVER:
                    return found.summary
                driven = driven if engine_trouble(found.summary) else time.monotonic()
            except SiteAway as exc:
                trouble = Refused(str(exc))
            now = time.monotonic()
            if timeout is not None and now - began >= timeout:
                raise Refused(f"Batch {jid} has not ended within {timeout:g} s; that ends the waiting only")
            if now - driven >= engine_patience:
                raise trouble
            # A look at a large batch has a cost: spend at most a tenth of the time on looks.
            time.sleep(max(poll, 9 * (now - looked)))
    except (KeyboardInterrupt, SystemExit):  # Salt's own handler of Ctrl-C says so, and exits
        raise Refused(f"That ends the waiting only; salt-run batch.watch {jid} shows the batch again") from None
    finally:
        if display:
            display.end()
