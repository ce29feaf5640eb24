"""
A world whose master takes its time: messages of minions wait until one of its workers is free. The workers limit how fast a
returning fleet is served. Every further wait is caused by the engine.
"""

from __future__ import annotations

import heapq
import random
from typing import ClassVar

from saltext.jobs.core.errors import PublishFailed
from tests.worlds.world import OPTS, World


class Busy(World):
    """
    :param cost: seconds that a worker takes for a request of a minion.
    :param workers: how many there are.
    :param uneven: whether that is only the mean, and some take much longer than others.
    """

    opts: ClassVar = {**OPTS, "gather_job_timeout": 10.0}

    def __init__(self, count, cost, workers=2, uneven=False, **options):
        self.cost, self._free = cost, [0.0] * workers
        self._random = random.Random(1) if uneven else None
        self.begun_at = {}  # (minion, jid) -> when it began
        self.asked = {}  # minion -> how often it was asked
        super().__init__(minions=tuple(f"m{n:05d}" for n in range(count)), duration=0.0, **options)

    def _line_up(self):
        """Return in how many seconds a worker has got to what is sent now."""
        cost = self._random.expovariate(1.0 / self.cost) if self._random else self.cost
        at = max(self.now, self._free[0]) + cost
        heapq.heapreplace(self._free, at)
        return at - self.now

    def send(self, call, engine=False):
        """A minion sends something: call when a worker has got to it."""
        self.later(self._line_up(), call, engine)

    async def reach_worker(self, life, taken, timeout):
        """The engine waits for an answer for some time only; the master publishes all the same."""
        wait = self._line_up()
        if wait > timeout:
            life.call_later(wait, life.spawn_callback, taken)
            await life.wait(timeout)
            raise PublishFailed("the master did not answer", certain=False)
        await life.wait(wait)
        return await taken()

    def stand_still(self, seconds):
        """The workers take no further messages for so long."""
        self._free = sorted(max(at, self.now) + seconds for at in self._free)

    def deliver(self, jid, names, origin=""):
        for name in names:
            if self.minions[name].up and jid not in self.minions[name].seen:
                self.begun_at[name, jid] = self.now
        super().deliver(jid, names, origin)

    def ask(self, fun, arg, question, names, kept):
        if isinstance(fun, list):  # whether they run a job
            for name in names:
                self.asked[name] = self.asked.get(name, 0) + 1
        super().ask(fun, arg, question, names, kept)
