"""
One minion's part in the retry queue: what it is owed, the replay that is under way, and when it last showed itself.

Pure: stdlib only. It decides nothing.
"""

from __future__ import annotations

from saltext.jobs.core.retry.entry import ENDED, Entry
from saltext.jobs.core.retry.knowledge import Signs
from saltext.jobs.core.retry.steps import Replay


class Backlog(Signs):
    """What one minion is owed, and what is known of it. Times are Unix time in seconds, 0 for never."""

    __slots__ = (
        "at_any_time",
        "delayed",
        "entries",
        "not_before",
        "replay",
        "urged",
    )

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, Entry] = {}
        self.replay: Replay | None = None
        self.not_before = 0.0  # no new replay earlier
        self.delayed = 0.0  # since when its starts have kept the next replay from beginning
        self.urged = 0.0  # when an operator last asked for a replay now
        self.at_any_time: set[str] = set()  # the jobs that he asked for then: their windows need not be open

    @property
    def open(self) -> int:
        """How much of it has not ended."""
        return sum(entry.state not in ENDED for entry in self.entries.values())
