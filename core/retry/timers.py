"""
Times at which something is due, by key. Pure: time is an argument, nothing here waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

#: Seconds to wait for a return that is on its way, and until a read or a question that failed is tried again.
GRACE, AGAIN = 3.0, 10.0

Key = tuple[str, ...]


class Timers:
    """One time for each key; setting it again replaces it. On average an operation takes logarithmic time at most."""

    def __init__(self) -> None:
        self._times: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []

    def set(self, key: Key, at: float) -> None:
        """Make ``key`` due at ``at``, and at no other time."""
        if self._times.get(key) == at:
            return
        self._times[key] = at
        heapq.heappush(self._heap, (at, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._times):
            self._heap = [(time, key) for key, time in self._times.items()]
            heapq.heapify(self._heap)

    def no_later(self, key: Key, at: float) -> None:
        """Make ``key`` due at ``at``, unless it is due sooner already."""
        self.set(key, min(at, self._times.get(key, at)))

    def cancel(self, key: Key) -> None:
        """Make ``key`` no longer due."""
        self._times.pop(key, None)

    def next(self) -> float | None:
        """Return the earliest time at which something is due."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[Key]:
        """Yield each key that is due, and forget its time. Keys that are set meanwhile are yielded too, if due."""
        while (at := self.next()) is not None and at <= now:
            key = heapq.heappop(self._heap)[1]
            del self._times[key]
            yield key
