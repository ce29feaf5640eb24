"""
What waits, and until when: times at which something is due, minions that wait for each other, and publishes that keep to the
rate. Pure: time is an argument, nothing here waits. It decides nothing: others know what something waits for.
"""

from __future__ import annotations

import enum
import heapq
import math
from collections.abc import Iterable, Iterator

#: Seconds to wait for a return that is on its way, and until a read or a question that failed is tried again.
GRACE, AGAIN = 3.0, 10.0
#: Seconds for which minions that may have the job already are gathered.
DOUBTED = 0.3
#: Minions wait for each other for this share of the time since the first came in, and for this many seconds at most.
_SHARE, LONGEST = 0.5, 15.0
#: A gap of this many seconds starts a new wave; longer than the longest wait, after which minions come in together.
_PAUSE = 2 * LONGEST
#: Tolerance for rounding errors in the sum of tokens, in publishes.
_EPSILON = 1e-6

Key = tuple[str, ...]


class Timers:
    """One time for each key; setting it again replaces it. On average an operation takes logarithmic time at most."""

    def __init__(self) -> None:
        self._times: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []

    def set(self, key: Key, at: float) -> None:
        if self._times.get(key) == at:
            return
        self._times[key] = at
        heapq.heappush(self._heap, (at, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._times):
            self._heap = [(time, key) for key, time in self._times.items()]
            heapq.heapify(self._heap)

    def no_later(self, key: Key, at: float) -> None:
        self.set(key, min(at, self._times.get(key, at)))

    def cancel(self, key: Key) -> None:
        self._times.pop(key, None)

    def next(self) -> float | None:
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[Key]:
        """Yield each key that is due, and forget its time. Keys that are set meanwhile are yielded too, if due."""
        while (at := self.next()) is not None and at <= now:
            key = heapq.heappop(self._heap)[1]
            del self._times[key]
            yield key


class Gatherings:
    """Minions that wait for the same thing, and get it together. A key says what that is, and of which job."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        # The minions; and when the first of them is due at the latest.
        self._minions: dict[Key, dict[str, None]] = {}
        self._latest: dict[Key, float] = {}
        # When the first minion came in, and when the last one did; in the order of the last ones.
        self.waves: dict[Key, tuple[float, float]] = {}

    def longest(self, key: Key, now: float, least: float) -> float:
        """
        Take note that a minion comes in. Returns for how many seconds it may wait if no other waits yet: ``least`` or more.

        Every minion decrypts each publish. Two seconds gather most of a fleet that comes back at once, but few minions if
        the master is slow to forward, or the fleet comes back over minutes. So the longer a wave lasts, the longer the wait.
        """
        while self.waves and now > next(iter(self.waves.values()))[1] + _PAUSE:
            del self.waves[next(iter(self.waves))]
        first, _ = self.waves.pop(key, (now, now))
        self.waves[key] = first, now
        return max(least, min(LONGEST, _SHARE * (now - first)))

    def join(self, key: Key, minion: str, now: float, wait: float, longest: float = LONGEST) -> None:
        """Add a minion, and put off all of them for ``wait`` seconds, but the first one for no longer than ``longest``."""
        self._minions.setdefault(key, {})[minion] = None
        self._timers.set(key, min(now + wait, self._latest.setdefault(key, now + longest)))

    def add(self, key: Key, minion: str, at: float) -> None:
        """Add a minion that is due at ``at``, or a moment later, together with others."""
        at = math.ceil(at / DOUBTED) * DOUBTED
        self._minions.setdefault((*key, str(at)), {})[minion] = None
        self._timers.set((*key, str(at)), at)

    def hasten(self, key: Key, at: float) -> None:
        """Have the minions of a key be due at ``at`` at the latest."""
        if key in self._minions:
            self._timers.no_later(key, at)

    def take(self, key: Key) -> Iterable[str]:
        """Return the minions that are due, and forget them."""
        self._latest.pop(key, None)
        return self._minions.pop(key, ())


class Purpose(enum.Enum):
    """What is published; what comes first here goes first."""

    JOB = "job"
    PING = "ping"
    SURVEY = "survey"  # its minions are found when its turn comes
    QUESTION = "question"


class Outbox:
    """
    What waits to be published, at most ``rate`` a second; minions that wait for the same job go together. Nothing is taken
    back: who publishes leaves out minions for which it is no longer wanted.
    """

    def __init__(self, rate: float, timers: Timers) -> None:
        self._rate, self._timers = rate, timers
        self._tokens, self._filled = max(1.0, rate), 0.0
        # By purpose and jid: the minions.
        self._waiting: dict[Purpose, dict[str, dict[str, None]]] = {purpose: {} for purpose in Purpose}

    def line_up(self, purpose: Purpose, jid: str = "", minions: Iterable[str] = ()) -> None:
        """Line up a publish to minions. A ping and a survey have no jid, and a survey has no minions."""
        wanted = dict.fromkeys(minions)
        if wanted or purpose is Purpose.SURVEY:
            self._waiting[purpose].setdefault(jid, {}).update(wanted)

    def release(self, now: float) -> Iterator[tuple[Purpose, str, tuple[str, ...]]]:
        """Yield purpose, jid and minions of what may be published by now."""
        gained = (now - self._filled) * self._rate
        self._tokens, self._filled = min(max(1.0, self._rate), self._tokens + gained), now
        while any(self._waiting.values()):
            if self._tokens < 1 - _EPSILON:
                self._timers.set(("rate",), now + (1 - self._tokens) / self._rate)
                return
            self._tokens -= 1
            purpose = next(purpose for purpose in Purpose if self._waiting[purpose])
            jid = next(iter(self._waiting[purpose]))
            yield purpose, jid, tuple(self._waiting[purpose].pop(jid))
