"""
Made-up worlds in which one thing goes wrong often, beside all that goes wrong in each (``world.py``).

They must keep more promises than that one: no minion runs the job twice or is recorded as absent after running it, nothing
is sent while the batch is paused, and the budget is used as the outcomes say.
"""

from __future__ import annotations

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from tests import many_worlds
from tests.unit.batch.world import World

AWAY = ("restarts",) * 4 + ("dies",)


class Strict(World):
    """A world that must keep more promises."""

    def take(self, fact):
        super().take(fact)
        self.truth.counts()

    def begin(self, minion, woken=False):
        super().begin(minion, woken)
        assert minion.runs < 2, f"{minion.name} runs twice"

    def do_publish(self, effect):
        self.heed_clock()
        goes_out = not self.batch.holds_publish(self.clock())
        if goes_out:
            assert not self.batch.paused, f"it is paused, and {effect} goes out"
            assert not self.spec.window or self.is_open(), f"its window is shut, and {effect} goes out"
        super().do_publish(effect)

    def verdict(self):
        super().verdict()
        if self.spec.offline == "queue":
            return  # the retry queue asks those that say nothing before it delivers anything
        for name, (outcome, *_) in self.batch.outcomes.items():
            told_nothing = self.spec.acks and self.minions[name].unheard  # where minions say that they begin
            if not told_nothing:
                assert outcome.value != "offline" or not self.minions[name].runs, f"{name} has run, and is offline"


class Clocks(Strict):
    """The wall clock is set again and again."""

    STEPS, WINDOW, LIMIT = 4, 0.7, 0.5


class Rollout(Strict):
    """Groups, windows, checks and approvals, all at once."""

    GROUPS, WINDOW, CHECK, LIMIT = 0.8, 0.7, 0.8, 0.4


class Rollcrash(Rollout):
    """… and an engine that dies all the time."""

    CALM, KILLED = 0.0, 0.2


class Forged(Strict):
    """A minion forges any events in the names of others."""

    FORGED, CALM, GROUPS = 1.0, 0.0, 0.5


class Stores(Strict):
    """The job cache fails again and again."""

    FAILS = 4


class Power(Strict):
    """The power of the master is cut, again and again."""

    CUTS, KILLED, CALM = 0.8, 0.3, 0.0


class Killed(Strict):
    """The engine is killed right after it has published."""

    KILLED, CALM = 0.5, 0.0


class Restarts(Strict):
    """Minions start anew, and the event that says so is lost."""

    LIVES = (*World.LIVES, *AWAY)
    LOST_STARTS, KILLED, CALM = 0.7, 0.3, 0.0


class Once(Restarts):
    """The same, with minions that keep records of what they have begun."""

    KEEPERS = True


class Signals(Strict):
    """Operators end the job where it runs, by signals of their own. Minions are away, and are handed over."""

    LIVES = (*World.LIVES, *AWAY, "late", "dead")

    def __init__(self, seed, machine=Batch):
        super().__init__(seed, machine)
        self.over = set()  # minions on which somebody has ended this job, as the batch knows
        for _ in range(self.fate.randint(1, 2)):
            self.at(self.fate.uniform(0, 60), self.signal, self.fate.random() < 0.3)

    def signal(self, every_job):
        names = tuple(name for name in self.minions if self.fate.random() < 0.8)
        met = tuple(name for name in names if self.minions[name].running and self.is_reached(self.minions[name]))
        for name in names:
            self.minions[name].signals += 1
            self.minions[name].running &= name not in met
        for minion in map(self.minions.get, met):
            if self.fate.random() < 0.4:  # it has answered, and is away from then on
                minion.up = minion.received = False
                self.at(self.fate.uniform(1, 200), self.come_up, minion)
        self.at(self.fate.uniform(0, 0.5), self.learn, names, every_job)

    def learn(self, names, every_job):
        """The engine reads the signal in the log, if it is there."""
        names = tuple(filter(self.batch.wants_signal, names))
        if self.now < self.down_until or not names:
            return
        if not every_job:  # a publish that is under way may be refused: such a minion was not sent the job
            self.over.update(set(names).difference(self.batch.inflight.publishing or ()))
        self.tell(facts.Signalled(names, every_job))

    def do_publish(self, effect):
        assert self.over.isdisjoint(effect.minions), f"somebody has ended the job there, and {effect} goes out"
        super().do_publish(effect)

    def do_queue(self, effect):
        assert self.over.isdisjoint(effect.minions), f"somebody has ended the job there, and {effect} hands them over"
        super().do_queue(effect)


class Hell(Clocks, Rollout, Forged, Stores, Power, Restarts):
    """All of it."""

    LIVES = Restarts.LIVES
    KILLED = 0.2


PROFILES = (Clocks, Rollout, Rollcrash, Forged, Stores, Power, Killed, Restarts, Once, Signals, Hell)


def live_through(profile, seed):
    """Play one world to its end and judge it."""
    world = profile(seed)
    try:
        world.run()
        world.verdict()
    except AssertionError as exc:
        raise AssertionError(f"{profile.__name__} {seed}: {exc}") from exc


if __name__ == "__main__":
    many_worlds.main((World, *PROFILES), live_through)
