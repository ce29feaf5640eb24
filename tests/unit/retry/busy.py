"""
A world whose master takes its time: what minions send waits until one of its workers gets to it. A fleet that comes back to
such a master is served no faster than these can; what else it waits for is the engine's own doing.
"""

from __future__ import annotations

import heapq
import random

from saltext.jobs.core.master.handed_on import HandedOn
from saltext.jobs.core.retry import facts
from tests.unit.retry.world import World

#: Seconds from a return's being stored, or heard of, until an answer counts; and what a question has.
LOOK, TIMEOUT = 0.3, 10.0


class Busy(World):
    """
    :param cost: seconds that a worker takes for a request of a minion.
    :param workers: how many there are.
    :param uneven: whether that is only the mean, and some take much longer than others.
    """

    def __init__(self, count, cost, workers=2, uneven=False, **options):
        self.cost, self._free = cost, [0.0] * workers
        self._random = random.Random(1) if uneven else None
        self.busy = 0.0  # seconds of all workers
        self.handed_on = HandedOn()
        self.begun_at = {}  # (minion, jid) -> when it began
        self.asked = {}  # minion -> how often it was asked
        super().__init__(minions=tuple(f"m{n:05d}" for n in range(count)), duration=0.0, **options)

    def send(self, call, engine=False):
        """A minion sends something: call when a worker has got to it."""
        cost = self._random.expovariate(1.0 / self.cost) if self._random else self.cost
        at = max(self.now, self._free[0]) + cost
        heapq.heapreplace(self._free, at)
        self.busy += cost
        self.later(at - self.now, call, engine)

    def stand_still(self, seconds):
        """The workers get to nothing more for so long."""
        self._free = sorted(max(at, self.now) + seconds for at in self._free)

    # -- minions ------------------------------------------------------------------------------------------------------

    def revive(self, name):
        minion = self.minions[name]
        minion.up, minion.seen = True, set()
        self.send(lambda: self.tell(facts.SignOfLife((name,), facts.Sign.START)))

    def deliver(self, jid, names):
        for name in names:
            minion = self.minions[name]
            if minion.up and jid not in minion.seen:
                minion.seen.add(jid)
                self.runs[name, jid] += 1
                self.begun_at[name, jid] = self.now
                if self.acks:
                    self.send(lambda name=name: self._receipt(facts.Acknowledged(name, jid)))
                self.send(lambda name=name: self._return(name, jid))

    def _receipt(self, fact):
        since = self.machine.receipt_awaited_since(fact.minion, fact.jid)
        if since is not None:
            self.handed_on.note(since, self.now)
        self.tell(fact)

    def _return(self, name, jid):
        self.store_return(name, jid)
        self._receipt(facts.Acknowledged(name, jid))
        self.tell(facts.SignOfLife((name,), facts.Sign.ACTIVITY))

    # -- questions ----------------------------------------------------------------------------------------------------

    def on_ask(self, effect):
        published, left = self.now, set(effect.minions)
        for name in effect.minions:
            self.asked[name] = self.asked.get(name, 0) + 1
        stored, looking = [], []

        def ask():
            for name in effect.minions:
                if self.minions[name].up:
                    self.send(lambda name=name: answer(name))

        def answer(name):
            if name not in left:  # the question is over
                self.tell(facts.SignOfLife((name,), facts.Sign.ACTIVITY))
                return
            if not looking:
                looking.append(True)
                self.later(LOOK, look)
            stored.append(name)

        def look():
            looking.clear()
            names = frozenset(stored) & left
            stored.clear()
            if names:
                left.difference_update(names)
                self.handed_on.note(published, self.now)
                self.tell(facts.Asked(effect.jid, idle=names, free=names, more=bool(left)))

        def end():
            until = self.handed_on.end_of(published, published + TIMEOUT, TIMEOUT)
            if left and self.now < until:
                self.later(until - self.now, end)
            elif stored:  # one more look
                self.later(LOOK, end)
            elif left:
                silent = frozenset(left)
                left.clear()
                self.tell(facts.Asked(effect.jid, silent=silent))

        self.later(0.1, ask)
        self.later(TIMEOUT, end)
