"""Everything at random, for a given time; then all faults end, and everything that is owed must be settled."""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Callable

from benchmarks.fleet.faults import drain, flooded
from benchmarks.fleet.site import Site
from benchmarks.fleet.story import Arguments, Story
from benchmarks.fleet.watch import ENGINES

#: The script of that time: minions are slow, fail and die; messages are lost, late and doubled.
SCRIPT = {
    "slow": 0.02,
    "slow_seconds": 30.0,
    "failing": 0.02,
    "dying": 0.01,
    "away": 20.0,
    "losing": 0.01,
    "repeating": 0.01,
    "deaf": 0.005,
    "delay": 0.5,
}
#: Most batches at a time, and the number of jobs that are published while some minions are away.
_BATCHES, _JOBS = 3, 200


class Chaos:
    """
    The possible actions, a method for each. ``limits``: ``{jid: limit}`` of the batches; ``jids``: the jobs published.
    """

    def __init__(self, site: Site, args: Arguments) -> None:
        self._site, self._args, self._chance = site, args, random.Random(args.seed)
        self.limits: dict[str, int] = {}
        self.jids: list[str] = []
        #: How often each action was done, and why others could not be done.
        self.done: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()
        self._deck: list[Callable[[], None]] = []
        #: When the last of them was done.
        self.acted = time.monotonic()

    def step(self) -> None:
        """Do one action. A round has each action once, and then the frequent ones again."""
        if not self._deck:
            first = list(self._choices())
            others = [what for what, times in self._choices().items() for _ in range(times - 1)]
            for cards in (first, others):
                self._chance.shuffle(cards)
            self._deck = [*others, *first]
        what = self._deck.pop()
        try:
            what()
        except Exception as exc:
            self._deck.insert(0, what)  # an action that is impossible now comes later
            self.refused[f"{what.__name__}: {type(exc).__name__}"] += 1
        else:
            self.done[what.__name__] += 1
            self.acted = time.monotonic()

    def _choices(self) -> dict[Callable[[], None], int]:
        return {
            self.batch: 6,
            self.job: 4,
            self.leave: 3,
            self.come_back: 4,
            self.restart: 2,
            self.kill: 3,
            self.burst: 2,
            self.full: 1,
            self.power_cut: 1,
            self.kill_master: 1,
        }

    @property
    def has_done_all(self) -> bool:
        """Whether each action was done at least once."""
        return all(self.done[what.__name__] for what in self._choices())

    def _some(self, most: float) -> list[str]:
        names = self._site.names
        return self._chance.sample(names, max(1, int(self._chance.uniform(0, most) * len(names))))

    def batch(self) -> None:
        if sum(not self._site.are_over([jid]) for jid in self.limits) < _BATCHES:
            count = len(self._site.names)
            size = self._chance.randint(max(2, count // 20), max(3, count // 3))
            self.limits[self._site.batch(size)] = size

    def job(self) -> None:
        if len(self.jids) < _JOBS:
            self.jids.append(self._site.publish())

    def leave(self) -> None:
        self._site.crowd.stop(self._some(0.2), 2.0)

    def come_back(self) -> None:
        self._site.crowd.start(self._site.names, 5.0)

    def restart(self) -> None:
        self._site.crowd.restart(self._some(0.2), 5.0, self._chance.uniform(1, 10))

    def kill(self) -> None:
        self._site.kill_engine(self._chance.choice(ENGINES))

    def burst(self) -> None:
        self._site.mark("flood")
        with flooded(self._site.opts, self._args.rate):
            time.sleep(5)

    def full(self) -> None:
        with self._site.full_disk():
            time.sleep(self._chance.uniform(2, 15))

    def power_cut(self) -> None:
        self._site.mark("power cut")
        self._site.crowd.stop(self._site.names)
        time.sleep(self._chance.uniform(2, 10))
        self.job()
        self._site.crowd.start(self._site.names, 10.0)

    def kill_master(self) -> None:
        self._site.kill_master()
        time.sleep(self._chance.uniform(0, 5))
        self._site.start_master()


def everything(site: Site, args: Arguments) -> Story:
    """Batches, jobs, restarts, kills, floods, full disks and power cuts at random; then all faults end."""
    story, chaos = Story(), Chaos(site, args)
    site.start()
    site.script(seed=args.seed, **SCRIPT)
    since = site.mark("started")
    while (now := time.monotonic()) < since + args.seconds or (
        not chaos.has_done_all and now < chaos.acted + site.limit
    ):
        chaos.step()
        time.sleep(chaos_pause(args))
    mended = site.mark("mended")
    site.script(seed=args.seed)
    site.start()
    site.wait(chaos.limits)
    drain(site)
    story.figures["what was done"] = ", ".join(f"{count} {what}" for what, count in chaos.done.most_common())
    if chaos.refused:
        told = ", ".join(f"{count} {what}" for what, count in chaos.refused.most_common())
        story.figures["what could not be done"] = told
    story.figures["until all had come to an end, after it was mended"] = f"{time.monotonic() - mended:.0f} s"
    story.batches(site, chaos.limits)
    story.owed(site, chaos.jids)
    story.end(site, [*chaos.limits, *chaos.jids], since)
    return story


def chaos_pause(args: Arguments) -> float:
    """Return the seconds between two actions: fewer in a shorter run."""
    return min(10.0, max(1.0, args.seconds / 60))
