"""
What the entries of the queue wait for, as an operator is told: the window of their job, and when that opens.

Pure: the time is an argument. It must never tell another window than the one by which the machine goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saltext.jobs.core.retry.entry import Entry, State
from saltext.jobs.core.retry.limits import limits_of
from saltext.jobs.core.retry.openings import Hours, hours_of
from saltext.jobs.core.windows import next_opening

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings


class Waiting:
    """
    :param settings: the options under ``job_retry``.
    :param now: Unix time.
    """

    def __init__(self, settings: RetrySettings, now: float) -> None:
        self._settings, self._now = settings, now
        self._hours: dict[str, Hours | None] = {}  # by jid
        self._opens: dict[Hours, float | None] = {}

    def of(self, entry: Entry, load: Mapping[str, Any]) -> tuple[str | None, float | None]:
        """
        Return what a pending entry waits for beside its minion, and the Unix time at which that comes, where it is known.

        :param load: the load of its job.
        """
        if entry.jid not in self._hours:
            options = load.get("kwargs")
            metadata = options.get("metadata") if isinstance(options, Mapping) else None
            self._hours[entry.jid] = hours_of(limits_of(entry.jid, metadata), self._settings)
        hours = self._hours[entry.jid]
        if hours is None or entry.state is not State.PENDING:
            return None, None
        if hours not in self._opens:
            try:
                self._opens[hours] = next_opening(None, *hours, self._now).opens
            except ValueError:
                self._opens[hours] = None
        opens = self._opens[hours]
        if opens is not None and opens <= self._now:
            return None, None
        zone = f" ({hours[1]})" if hours[1] else ""
        when = ", which opens at no known time" if opens is None else ", which opens after it expires"
        return f"its window {hours[0]}{zone}{when if opens is None or opens >= entry.expires_at else ''}", opens
