"""
Which jobs may be replayed now: those without a window, and those whose window is open. Part of the retry machine, and as
pure as it.

It has no calendar: it asks when a window opens and closes next, and again each time that it does. Where that is not known,
the window counts as shut. What reached a minion while its window was open goes on when that closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Job, Limits
from saltext.jobs.core.retry.timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds after which it is asked again at the latest when a window opens: the clock on the wall may have been set.
ASK_AGAIN = 600.0
#: Seconds after which it is asked again where that could not be said.
_TROUBLED = 60.0
#: Seconds by which an answer may be wrong, since it is converted from one clock to another.
_SLACK = 0.001

#: A text as core/windows.py reads it, and a time zone; either may be empty.
Hours = tuple[str, str]


def hours_of(limits: Limits, settings: RetrySettings) -> Hours | None:
    """Return the window that holds for a job, its own before that of the options; None where it may go at any time."""
    window = settings.window if limits.window is None else limits.window
    timezone = settings.timezone if limits.timezone is None else limits.timezone
    return (window, timezone) if window else None


class Openings:
    """
    :param settings: the options under ``job_retry``.
    :param timers: the machine's; the keys ``("opening", window, timezone)`` are set here.
    """

    def __init__(self, settings: RetrySettings, timers: Timers) -> None:
        self._settings, self._timers = settings, timers
        self._jobs: dict[Hours, dict[str, None]] = {}  # the jids of the jobs for which each window holds
        self._found: dict[Hours, facts.OpeningFound] = {}  # the newest answer about each of those windows
        self._open: set[Hours] = set()  # those that were open when it came

    def add(self, job: Job, now: float) -> None:
        """Heed the window of a job that has come into the queue."""
        hours = hours_of(job.limits, self._settings)
        if hours is not None:
            if hours not in self._jobs:
                self._timers.set(("opening", *hours), now)
            self._jobs.setdefault(hours, {})[job.jid] = None

    def remove(self, job: Job) -> None:
        """Forget a job that nobody is owed any more."""
        hours = hours_of(job.limits, self._settings)
        if hours is None or hours not in self._jobs:
            return
        self._jobs[hours].pop(job.jid, None)
        if not self._jobs[hours]:
            del self._jobs[hours]
            self._found.pop(hours, None)
            self._open.discard(hours)
            self._timers.cancel(("opening", *hours))

    def may_be_sent(self, job: Job, now: float) -> bool:
        """Tell whether a job may be replayed at ``now``."""
        if not self._jobs:
            return True  # as a rule no job has a window
        hours = hours_of(job.limits, self._settings)
        return hours is None or _is_open(self._found.get(hours), now)

    def due(self, window: str, timezone: str, now: float) -> facts.FindOpening:
        """Ask when a window opens next."""
        self._timers.set(("opening", window, timezone), now + _TROUBLED)  # where the answer does not come
        return facts.FindOpening(window, timezone)

    def found(self, fact: facts.OpeningFound, now: float) -> tuple[bool, list[str]]:
        """
        Take the answer. Returns whether the window is open now, and its jobs, unless it has been open before.
        """
        hours = fact.window, fact.timezone
        if hours not in self._jobs:
            return False, []
        before, is_open = self._found.get(hours), _is_open(fact, now)
        # A window that opens only now is new, also where the answer before said that it would open by now.
        was_open = hours in self._open and _is_open(before, now)
        self._found[hours] = fact
        (self._open.add if is_open else self._open.discard)(hours)
        change = fact.closes if is_open else fact.opens
        wait = _TROUBLED if fact.opens is None else ASK_AGAIN
        at = now + wait if change is None else min(now + wait, max(change, now + 1.0))
        self._timers.set(("opening", *hours), at)
        return is_open, [] if was_open else list(self._jobs[hours])


def _is_open(found: facts.OpeningFound | None, now: float) -> bool:
    if found is None or found.opens is None:
        return False
    return found.opens <= now + _SLACK and (found.closes is None or now < found.closes)
