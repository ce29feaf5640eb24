"""
Which jobs may be replayed now: those without a window, and those whose window is open.

It has no calendar: ``find`` tells when a window opens next. While that is not known, the window counts as shut. A job that
has reached its minion goes on when its window closes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Job, Limits
from saltext.jobs.core.retry.waiting import Timers
from saltext.jobs.core.windows import Period, next_opening

if TYPE_CHECKING:
    from saltext.jobs.core.options.engines import RetrySettings

#: Seconds until ``find`` is asked again if it failed.
_TROUBLED = 60.0

#: A text as core/windows.py reads it, and a time zone, which may be empty.
Hours = tuple[str, str]


def hours_of(limits: Limits, settings: RetrySettings) -> Hours | None:
    """Return a job's window: its own, else that of the options; None if it may be sent at any time."""
    window = settings.window if limits.window is None else limits.window
    timezone = settings.timezone if limits.timezone is None else limits.timezone
    return (window, timezone) if window else None


class Openings:
    """Sets the timers ``("opening", window, timezone)``."""

    def __init__(self, settings: RetrySettings, timers: Timers, want: Callable[[facts.Effect], object]) -> None:
        self._settings, self._timers, self._want = settings, timers, want
        self.find = next_opening  # tells when a window opens next
        self._found: dict[Hours, Period | None] = {}  # by window: when it is open next; None if that is not known

    def add(self, job: Job, now: float) -> None:
        """Watch the window of a job that is new in the queue."""
        hours = hours_of(job.limits, self._settings)
        if hours is not None and hours not in self._found:
            self._found[hours] = None
            self._timers.set(("opening", *hours), now)

    def may_be_sent(self, job: Job, now: float) -> bool:
        if not self._found:
            return True  # no job has a window: the usual case
        hours = hours_of(job.limits, self._settings)
        return hours is None or self._is_open(hours, now)

    def due(self, hours: Hours, jobs: Mapping[str, Job], now: float) -> list[str]:
        """Find when a window opens and closes next. Returns the jobs for which it is open now."""
        jids = [jid for jid, job in jobs.items() if hours_of(job.limits, self._settings) == hours]
        del self._found[hours]
        if not jids:
            return []
        self._found[hours] = None
        try:
            found = self._found[hours] = self.find(None, *hours, now)
        except ValueError as exc:
            self._timers.set(("opening", *hours), now + _TROUBLED)
            told = f"Jobs with the window {hours[0]!r} wait, since it is not known when it opens: {exc}"
            self._want(facts.Warn(told))
            return []
        is_open = self._is_open(hours, now)
        change = found.closes if is_open else found.opens
        if change is not None:
            self._timers.set(("opening", *hours), max(change, now + 1.0))
        return jids if is_open else []

    def _is_open(self, hours: Hours, now: float) -> bool:
        found = self._found.get(hours)
        return found is not None and found.opens <= now and (found.closes is None or now < found.closes)
