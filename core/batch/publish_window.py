"""
For how long the slots that minions free are gathered into one publish.

Every publish is decrypted by every minion, so returns that come one by one must not lead to one publish each. On the other
hand a slot that waits is idle. So the longer the batch's jobs run, the longer slots are gathered, and only where more of
them can be expected meanwhile. What is bounded is the sum of the seconds for which the slots of one publish wait: where
fewer come than were expected, each of them may wait longer, up to the longest wait. Pure: stdlib only.
"""

from __future__ import annotations

import collections
import dataclasses

from saltext.jobs.core.batch.kept import Kept, kept
from saltext.jobs.core.batch.spec import Spec

#: The share of the median run time for which the slots of a publish may be idle, on average.
IDLE = 0.02
#: The longest that a slot waits for others: this share of the median run time, and never more than so many seconds.
LONGEST = 2 * IDLE
LONGEST_SECONDS = 5.0
#: Of how many minions the run time is kept: those that returned last.
_SAMPLE = 101


@dataclasses.dataclass(slots=True)
class PublishWindow(Kept):
    """
    :param spec: what was asked for.
    """

    spec: Spec
    # Run times in seconds, of the minions that returned last.
    runs: collections.deque[float] = kept(
        lambda: collections.deque(maxlen=_SAMPLE), list, lambda values: collections.deque(values, maxlen=_SAMPLE)
    )
    # The slots that wait for a publish: when the first was freed, and for how long they have waited together by then.
    first: float | None = kept(lambda: None)
    count: int = kept(int)
    later: float = kept(float)  # the sum of the seconds by which they were freed after the first

    def ran(self, seconds: float) -> None:
        """Note how long a minion ran the job."""
        self.runs.append(max(0.0, seconds))

    def freed(self, now: float) -> None:
        """Note that a minion has freed its slot."""
        if self.first is None:
            self.first = now
        self.count += 1
        self.later += max(0.0, now - self.first)

    def begin_anew(self) -> None:
        """Forget the slots that wait: they are taken, or the engine has started anew with another clock."""
        self.first, self.count, self.later = None, 0, 0.0

    def left(self, now: float, flying: int, gathers: bool) -> float:
        """
        Return for how many more seconds freed slots are to be gathered.

        :param flying: minions in flight, each of which may free a slot.
        :param gathers: whether a slot that is freed meanwhile would be used by this publish.
        """
        if self.first is None:
            return self.spec.publish_window
        end = self.first + self.spec.publish_window
        median = self._median()
        longest = min(LONGEST * median, LONGEST_SECONDS)
        # With so few minions in flight that none is likely to end meanwhile, a slot would be idle for nothing.
        expected = flying * longest / median if median else 0.0
        if gathers and not self.spec.batch_wait and expected >= 1:
            mean = self.first + self.later / self.count
            end = max(end, min(mean + IDLE * median * max(1.0, expected / self.count), self.first + longest))
        return max(0.0, end - now)

    def _median(self) -> float:
        return sorted(self.runs)[len(self.runs) // 2] if self.runs else 0.0
