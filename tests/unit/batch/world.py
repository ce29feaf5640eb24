"""
A made-up world for one batch, with its own ground truth: what each minion really received, ran and returned.

Everything is drawn from a seed. The engine dies before and after any effect and finds its journal again; publishes are
refused, lost or unanswered; events are lost, late and forged; minions die, restart, come late, forget to acknowledge, or say
twice that they do not run a job that they are about to begin; the disk is full for a while; operators pause and stop.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import random

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.facts import fact_of, record_of
from saltext.jobs.core.batch.machine import Batch
from tests.unit.batch.bench import BEGIN, spec

#: Facts after which a world is taken to be stuck.
_LONGEST = 6000


class Minion:
    """What a minion really does. ``life`` says what is wrong with it, if anything."""

    def __init__(self, name, life, chance):
        self.name, self.life = name, life
        self.up = life not in ("dead", "late")
        self.seconds = chance.choice([0.1, 3.0, 25.0, 90.0])
        self.retcode = int(chance.random() < 0.1)
        self.received = False  # in this life of its process
        self.running = False
        self.queued = False  # received, and waits for its turn on the minion
        self.runs = 0
        self.known_to_have_begun = False  # the engine has heard of it


class World:
    """
    :param seed: of all chance.
    """

    def __init__(self, seed):
        self.chance = chance = random.Random(seed)
        names = "abcdefgh"[: chance.randint(1, 8)]
        lives = ["well"] * 6 + ["dead", "late", "dies", "restarts", "mute", "sleeper"]
        self.minions = {name: Minion(name, chance.choice(lives), chance) for name in names}
        self.calm = chance.random() < 0.2  # nothing goes wrong but minions
        self.trouble = 0 if self.calm else chance.randint(0, 25)  # how often something may go wrong yet
        options = {
            "batch": chance.choice(["1", "2", "3", "1,2", "1,50%,100%"]),
            "presence": chance.choice(["ping", "none"]),
            "offline": chance.choice(["skip", "fail", "queue"]),
            "batch_wait": chance.choice([0.0, 0.0, 4.0]),
            "timeout": chance.choice([5.0, 20.0]),
            "gather_job_timeout": 5.0,
            "publish_window": chance.choice([0.0, 0.5]),
            "publish_retries": 1000,
            "failures_allowed": chance.choice([None, None, 2.0]),
            "acks": chance.random() < 0.7,
        }
        self.spec = spec(names, options.pop("batch"), **options)
        self.now, self.count = BEGIN, itertools.count()
        self.agenda = []  # heap of (time, number, action)
        self.cache = {}  # what the job cache holds
        self.most_over = 0
        self.woken = 0  # sleepers that began after the engine had reason to give them up
        self.steps = 0
        self.down_until = 0.0
        self.full_until = 0.0
        self.batch = Batch(self.spec, self.now)
        self.snapshot, self.journal = self.batch.snapshot(), []
        self.life = 0  # of the engine
        self.stopped = False
        self.tell(facts.Tick())
        for minion in self.minions.values():
            if minion.life == "late":
                self.at(chance.uniform(1, 60), self.come_up, minion)
        if chance.random() < 0.3:
            self.at(chance.uniform(0, 60), self.request, facts.StopRequested(chance.random() < 0.5))
        if chance.random() < 0.3:
            self.at(chance.uniform(0, 40), self.request, facts.PauseRequested())
            self.at(chance.uniform(40, 90), self.request, facts.ResumeRequested())

    # -- time and the engine ------------------------------------------------------------------------------------------

    def at(self, delay, action, *args):
        heapq.heappush(self.agenda, (self.now + delay, next(self.count), action, args))

    def goes_wrong(self, share=0.5):
        if self.trouble and self.chance.random() < share:
            self.trouble -= 1
            return True
        return False

    def tell(self, fact):
        """Have the engine take a fact, write it down, and perform what it calls for."""
        if self.now < self.down_until or self.batch.closed:
            return
        self.steps += 1
        if self.steps > _LONGEST:
            raise AssertionError(f"the batch is stuck: {self.batch.snapshot()}")
        effects = self.batch.step(fact, self.now)
        self.journal.append(record_of(fact, self.now))
        if self.chance.random() < 0.05:
            self.snapshot, self.journal = self.batch.snapshot(), []
        if effects and self.goes_wrong(0.05):
            self.full_until = self.now + self.chance.uniform(1, 20)
        for effect in effects:
            self.at(max(0.0, self.full_until - self.now), self.perform, self.life, effect)
        self.plan_tick()

    def plan_tick(self):
        due = self.batch.next_due
        if due is not None:
            self.at(max(0.0, due - self.now), self.tick, self.life)

    def tick(self, life):
        due = self.batch.next_due
        if life == self.life and due is not None and due <= self.now:
            self.tell(facts.Tick())

    def crash(self):
        """The engine ends; all that it was about to do is gone. Another one starts a while later."""
        self.life += 1
        young = self.chance.random() < 0.3
        self.down_until = self.now + self.chance.choice([0.1, 2.0, 40.0])
        self.at(self.down_until - self.now, self.recover, self.life, young)

    def recover(self, life, young):
        if life != self.life:
            return
        batch = Batch.restore(self.snapshot)
        for record in self.journal:
            batch.step(*fact_of(record))
        assert batch.snapshot() == self.batch.snapshot(), "the journal stands for another state"
        self.batch = batch
        self.tell(facts.Recovered(self.now + 30.0 if young else 0.0))

    def request(self, fact):
        if self.now < self.down_until:
            self.at(self.down_until - self.now + 0.01, self.request, fact)
        elif self.batch.accepts(fact):
            self.stopped = self.stopped or isinstance(fact, facts.StopRequested)
            self.tell(fact)

    def run(self):
        """Let time pass until the batch is closed, and then until nothing happens any more."""
        while self.agenda:
            self.now, _, action, args = heapq.heappop(self.agenda)
            action(*args)
            self.check()
        assert self.batch.closed, f"the batch does not end: {self.batch.snapshot()}"
        for minion, retcode in self.cache.items():  # late returns of an ended batch
            if self.batch.wants_return(minion):
                self.batch.step(facts.Returned(minion, retcode), self.now)

    # -- effects ------------------------------------------------------------------------------------------------------

    def perform(self, life, effect):
        if life != self.life or self.now < self.down_until:
            return
        if self.goes_wrong(0.1):
            if isinstance(effect, facts.Publish) and self.chance.random() < 0.5:
                self.deliver(effect)
            self.crash()
            return
        getattr(self, f"do_{type(effect).__name__.lower()}", lambda effect: None)(effect)
        if self.goes_wrong(0.1):
            self.crash()

    def later(self, delay, fact):
        """Report a fact, if the engine lives until then."""
        self.at(delay, self.report, self.life, fact)

    def report(self, life, fact):
        if life == self.life:
            self.tell(fact)

    def do_publish(self, effect):
        outcome = self.chance.choice(["refused", "lost", "unanswered"]) if self.goes_wrong() else "ok"
        if outcome in ("ok", "unanswered"):
            self.deliver(effect)
        if outcome == "ok":
            self.later(0.02, facts.Published())
        else:
            self.later(1.0, facts.PublishFailed(outcome, certain=outcome == "refused"))

    def deliver(self, effect):
        for name in effect.minions:
            delay = self.chance.choice([0.01, 0.01, 2.0])
            self.at(delay, self.receive, self.minions[name])

    def do_gather(self, effect):
        if self.goes_wrong(0.1):
            self.later(1.0, facts.PingFailed("busy"))
            return
        asked = effect.minions or tuple(self.minions)
        answering = [name for name in asked if self.minions[name].up]
        early = [name for name in answering if self.chance.random() < 0.7]
        if early:
            self.later(0.2, facts.Seen(tuple(early)))
        rest = [name for name in answering if name not in early]
        if rest and self.goes_wrong(0.2):
            rest = []  # their answers come too late
        self.later(5.0, facts.Gathered(tuple(rest)))

    def do_lookup(self, effect):
        found = tuple((name, self.cache[name]) for name in effect.minions if name in self.cache)
        self.later(self.chance.choice([0.01, 3.0]), facts.LookedUp(effect.minions, found))

    def do_probe(self, effect):
        if self.goes_wrong(0.1):
            self.later(1.0, facts.Probed(unasked=effect.minions))
            return
        asked = [self.minions[name] for name in effect.minions]
        up = [minion for minion in asked if minion.up]
        half = self.chance.randint(0, len(up))
        for delay, part in ((0.2, up[:half]), (0.6, up[half:])):
            running = tuple(minion.name for minion in part if minion.running)
            idle = tuple(minion.name for minion in part if not minion.running)
            if part:
                self.later(delay, facts.Probed(running, idle))
        self.later(5.0, facts.Probed(silent=tuple(minion.name for minion in asked if not minion.up)))

    def do_kill(self, effect):
        for name in effect.minions:
            if self.minions[name].up and self.chance.random() < 0.7:
                self.minions[name].running = False
        self.later(0.1, facts.KillSent(effect.minions, effect.gently))

    def do_queue(self, effect):
        refused = self.chance.random() < 0.2
        self.later(1.0, facts.QueueRefused(effect.minions, "no") if refused else facts.Queued(effect.minions))

    def do_close(self, _effect):
        self.tell(facts.Closed())

    # -- minions ------------------------------------------------------------------------------------------------------

    def receive(self, minion):
        if not minion.up or minion.received:
            return  # a minion refuses what it has received
        minion.received = True
        if minion.life == "sleeper":
            minion.queued = True
            self.at(self.chance.uniform(5, 60), self.begin, minion, True)
        else:
            self.begin(minion)

    def begin(self, minion, woken=False):
        if not minion.up or not minion.received or minion.running:
            return
        minion.queued = False
        minion.runs += 1
        minion.running = True
        self.woken += woken
        assert not (minion.runs > 1 and minion.known_to_have_begun), f"{minion.name} runs twice, and that was known"
        self.check()
        if self.spec.acks and minion.life != "mute" and not self.goes_wrong(0.2):
            self.at(0.01, self.hear, minion, facts.Acknowledged(minion.name))
        life = minion.life
        if life in ("dies", "restarts"):
            self.at(self.chance.uniform(0, minion.seconds), self.fall, minion)
        self.at(minion.seconds, self.end, minion, minion.runs)

    def end(self, minion, run):
        if not minion.running or minion.runs != run:
            return
        minion.running = False
        self.cache[minion.name] = minion.retcode
        if not self.goes_wrong(0.3):
            self.at(self.chance.choice([0.01, 4.0]), self.hear, minion, facts.Returned(minion.name, minion.retcode))

    def fall(self, minion):
        """A minion's process ends, and its job with it."""
        if not minion.running:
            return
        minion.running, minion.up, minion.received = False, False, False
        if minion.life == "restarts":
            minion.life = "well"
            self.at(self.chance.uniform(0.5, 30), self.come_up, minion)

    def come_up(self, minion):
        minion.up = True
        self.hear(minion, facts.Started(minion.name))

    def hear(self, minion, fact):
        """An event crosses the bus; whether the engine is there to hear it is another matter."""
        if self.now < self.down_until:
            return
        if isinstance(fact, (facts.Acknowledged, facts.Returned)):
            minion.known_to_have_begun = True
        if not isinstance(fact, facts.Started) or self.batch.wants_start(minion.name):
            self.tell(fact)
        if self.goes_wrong(0.05):
            forged = self.chance.choice("abcdefghxyz")
            if forged not in self.minions:
                self.tell(facts.Returned(forged, 0))

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self):
        """The limit is held, but for jobs that begin after the minion has said twice that it does not run them."""
        running = sum(minion.running for minion in self.minions.values())
        limit = max(self.spec.sizes)
        assert running <= limit + self.woken, f"{running} run, and {limit} may"

    def verdict(self):
        """The counts equal the truth, and nobody is forgotten."""
        batch = self.batch
        states = {name: outcome.value for name, (outcome, *_) in batch.outcomes.items()}
        assert sum(batch.counts.values()) + batch.count_pending() == len(self.minions)
        told = collections.Counter(states.values())
        assert told == {outcome.value: count for outcome, count in batch.counts.items() if count}
        for name, retcode in self.cache.items():
            assert states.get(name) == ("failed" if retcode else "completed"), (name, states.get(name))
        for name, state in states.items():
            if state == "completed":
                assert name in self.cache, f"{name} has completed nothing"
        if batch.halted is None:
            assert not batch.count_pending()
            for minion in self.minions.values():
                assert minion.runs or minion.life != "well" or not self.calm, f"{minion.name} is forgotten"


def live_through(seed):
    """Run one world to its end and judge it."""
    world = World(seed)
    try:
        world.run()
        world.verdict()
    except AssertionError as exc:
        raise AssertionError(f"world {seed}: {exc}") from exc
    return world
