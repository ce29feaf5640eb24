"""
Searches of the job cache for jobs that the log may lack.

A search finds the jobs that were published since a time. ``latest`` seconds later it is repeated, for jobs that the master
stored late; until then it is not over. One search reads the job cache at a time.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any


class Searches:
    """
    :param latest: seconds after which a search is repeated.
    :param read: returns ``{jid: time of its newest record}`` of the jobs published since a time; waits for the job
        cache.
    :param found: is given each job whose newest record is newer than what earlier searches have found, the oldest first.
    """

    def __init__(
        self,
        loop: Any,
        latest: float,
        read: Callable[[float], Awaitable[dict[str, float]]],
        found: Callable[[str, float], None],
    ) -> None:
        self._loop, self._latest, self._read, self._found = loop, latest, read, found
        # For each open search (one that is not over): the time from which it looks for jobs.
        self._open: list[float] = []
        # The same for the search that reads now, and for the one to follow it; infinite if there is none.
        self._now = self._next = math.inf
        self._known: dict[str, float] = {}  # by jid: the time of the newest record that was found

    @property
    def since(self) -> float:
        """The earliest time from which an open search looks for jobs: the next engine must search from there."""
        return min(self._now, self._next, *self._open)

    def begin(self, since: float) -> None:
        """Count a search as not over from now on, however long the job cache is away."""
        self._open.append(since)
        self._loop.call_later(self._latest, self._loop.spawn_callback, self._repeat, since)

    async def run(self, since: float) -> None:
        """Read the job cache, or leave that to the search that reads now."""
        self._next = min(since, self._next)
        if self._now < math.inf:
            return
        try:
            while self._next < math.inf:
                self._now, self._next = self._next, math.inf
                newest = await self._read(self._now)
                for jid, last in sorted(newest.items(), key=lambda item: item[1]):
                    if last > self._known.get(jid, -math.inf):
                        self._known[jid] = last
                        self._found(jid, last)
        finally:
            self._now = math.inf

    def forget(self, until: float) -> None:
        """Forget the records that were found up to a time: no later search begins earlier."""
        self._known = {jid: last for jid, last in self._known.items() if last > until}

    async def _repeat(self, since: float) -> None:
        await self.run(since)
        self._open.remove(since)
