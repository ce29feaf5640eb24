"""
A simulated world for one batch, with its own ground truth (``truth.py``): what each minion truly received, ran, returned.

Everything is drawn from a seed. The engine dies before and after any effect and finds its journal again; publishes are
refused, lost or unanswered; events are lost, late and forged. Minions die, restart, come late, forget to acknowledge, leave
questions unanswered, or say twice that they do not run a job that they are about to begin. Events that they have begun or
started are forged in their names. Jobs hang, and do not end when they are told to. Windows open and shut; checks are
passed, not passed or not answered. The disk is full for a while. Operators pause, stop and approve.
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
from tests.unit.batch.truth import Truth

#: Facts after which a world is taken to be stuck.
_LONGEST = 6000
#: Seconds after which it is.
_LONGEST_TIME = 100_000.0
#: Effects before which the journal is synced, and facts whose askers are answered after that.
DURABLE = (facts.Publish, facts.Kill, facts.Check, facts.Close, facts.Queue)
REQUESTS = (facts.StopRequested, facts.PauseRequested, facts.ResumeRequested, facts.Approved)


class Minion:
    """What a minion really does. ``life`` says what is wrong with it, if anything."""

    def __init__(self, name, life, chance):
        self.name, self.life = name, life
        self.up = life not in ("dead", "late")
        self.seconds = chance.choice([0.1, 3.0, 25.0, 90.0])
        self.stubborn = chance.random() < 0.3  # does not end its job when it is told to terminate
        self.retcode = int(chance.random() < 0.1)
        self.received = False  # in this life of its process
        self.running = False
        self.queued = False  # received, and waits for its turn on the minion
        self.runs = 0
        self.known_to_have_begun = False  # the engine has heard of it
        self.ignored = 0  # questions in a row that it has left unanswered
        self.intended = 0.0  # when the engine last wanted to send it the job
        self.idle_said = 0  # answers that it does not run the job, which the engine has heard since
        self.woken = False  # it began its job a while after it had received it
        self.signals = 0  # kills that the engine has wanted
        self.deafness = 0  # kills that it did not get
        self.slandered = False  # a forged event says that it has begun
        self.returned = None  # what it has returned and the job cache had, if only until a power cut
        self.unheard = False  # it did not say that it had begun, or that was lost on the way
        self.came_up = 0.0  # when its process started last, if it did so in this world

    @property
    def excused(self):
        """Whether the engine cannot know that it runs its job: before it began it had said twice that it does not."""
        return self.woken and self.idle_said > 1


class World:
    """
    What a subclass sets (``profiles.py``) goes wrong there besides, or more often.

    :param seed: of all chance.
    :param machine: the class of the batch.
    """

    LIVES = ("well",) * 6 + ("dead", "late", "dies", "restarts", "mute", "sleeper", "shy")
    #: Shares of batches that have such a thing.
    GROUPS, WINDOW, CHECK, LIMIT = 0.3, 0.2, 0.3, 0.25
    FORGED = 0.4
    #: Nothing else goes wrong, in this share of worlds.
    CALM = 0.2
    #: The share of deaths of the engine that are power cuts of its machine, and of publishes after which it is killed.
    CUTS, KILLED = 0.0, 0.0
    #: The shares of cases in which the wall clock is set, the job cache fails, or the start event of a minion is lost.
    STEPS, FAILS, LOST_STARTS = 0, 0, 0.0
    #: All minions keep records of what they have begun (``job_once``).
    KEEPERS = False

    def __init__(self, seed, machine=Batch):
        self.chance = chance = random.Random(seed)
        self.fate = random.Random(f"{seed}, fate")  # of what only profiles have
        names = "abcdefgh"[: chance.randint(1, 8)]
        self.minions = {name: Minion(name, chance.choice(self.LIVES), chance) for name in names}
        self.calm = chance.random() < self.CALM  # nothing goes wrong but minions
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
        options.update(self._more_options(names))
        self.spec = spec(names, options.pop("batch"), **options)
        self.hangs()
        self.now, self.count = BEGIN, itertools.count()
        self.agenda = []  # heap of (time, number, action)
        self.cache = {}  # what the job cache holds
        self.most_over = 0
        self.steps = 0
        self.down_until = 0.0
        self.full_until = 0.0
        self.wall_is_off = self.clock_is_off = 0.0  # the seconds by which the wall clock, and the engine's, are wrong
        self.was_set = False  # then an engine that starts takes jobs for younger or older than they are
        self.heeded = 0.0  # how wrong the wall clock was when the engine looked last
        self.failing_until = 0.0  # the job cache takes and gives nothing
        self.back_at = 0.0  # minions reach a master that was away again
        self.batch = machine(self.spec, self.now)
        self.snapshot, self.journal = self.batch.snapshot(), []
        self.first = self.durable = 0  # numbers of the journal's first record, and of the first one that may be lost
        self.life = 0  # of the engine
        self.truth = Truth(self)
        self.tell(facts.Tick())
        for minion in self.minions.values():
            if minion.life == "late":
                self.at(chance.uniform(1, 60), self.come_up, minion)
        if chance.random() < 0.3:
            self.at(chance.uniform(0, 60), self.request, facts.StopRequested(chance.random() < 0.5))
        if chance.random() < 0.3:
            self.at(chance.uniform(0, 40), self.request, facts.PauseRequested())
        self.forger = random.Random(f"{seed}, forged")
        self.keepers = set(names) if seed % 7 == 3 or self.KEEPERS else set()  # they refuse what they have begun before
        for _ in range(self.fate.randint(0, self.STEPS)):
            self.at(
                self.fate.uniform(0, 200), self.set_clock, self.fate.choice([-1000.0, -60.0, -20.0, 20.0, 60.0, 1000.0])
            )
        for _ in range(self.fate.randint(0, self.FAILS)):
            self.at(self.fate.uniform(0, 120), self.fail, self.fate.choice([1.0, 10.0, 40.0]))
        if not self.calm and self.forger.random() < self.FORGED:
            victims = [self.forger.choice(names)] if self.forger.random() < 0.5 else sorted(names)
            self.at(1.0, self.forge, victims, self.forger.choice([0.7, 3.0, 11.0]))

    def _more_options(self, names):
        """What a rollout may have besides: groups, a window, a check, and a limit."""
        chance, more = self.chance, {}
        if chance.random() < self.GROUPS and len(names) > 1:
            first = chance.randint(1, len(names) - 1)
            more["groups"] = (("eu", first), ("us", len(names) - first))
            more["by"] = "grains:region"
            if chance.random() < 0.4:
                more["failures_allowed"] = None
                more["group_failures_allowed"] = (float(chance.randint(0, 2)), 1.0)
        if chance.random() < self.WINDOW:
            more["window"] = "as is_open says"
            self.opens, self.every, self.length = (
                chance.uniform(0, 60),
                chance.choice([50.0, 300.0]),
                chance.choice([10, 40]),
            )
        if chance.random() < self.CHECK:
            kind = chance.choice(["function", "runner", "approve"])
            more["check"] = {"kind": kind, "fun": "" if kind == "approve" else "a.check", "arg": [], "kwargs": {}}
            more["check_timeout"] = 20.0
            more["approve_timeout"] = chance.choice([None, 200.0])
        if chance.random() < self.LIMIT:
            more["max_runtime"] = chance.choice([10.0, 30.0])
        return more

    def hangs(self):
        """Where a job may run for so long and no longer, some hang."""
        for minion in self.minions.values() if self.spec.max_runtime else ():
            if self.chance.random() < 0.3:
                minion.seconds = 5000.0  # it may survive as many kills as it is sent

    # -- time and the engine ------------------------------------------------------------------------------------------

    def at(self, delay, action, *args):
        heapq.heappush(self.agenda, (self.now + delay, next(self.count), action, args))

    def clock(self):
        """What the engine's clock shows: the wall clock's time when the engine started, carried on steadily."""
        return self.now + self.clock_is_off

    def wall(self):
        return self.now + self.wall_is_off

    def set_clock(self, by):
        """The wall clock is set. An engine looks at it every few seconds."""
        self.wall_is_off += by
        self.was_set = True
        self.at(5.0, self.look_at_clock)

    def look_at_clock(self):
        if self.now >= self.down_until and not self.batch.closed:
            self.heed_clock()

    def heed_clock(self):
        if self.spec.window and self.heeded != self.wall_is_off:
            self.heeded = self.wall_is_off
            self.take(self.opening())

    def fail(self, seconds):
        """The job cache fails for a while: what minions return then is not stored."""
        self.failing_until = max(self.failing_until, self.now + seconds)

    def goes_wrong(self, share=0.5):
        if self.trouble and self.chance.random() < share:
            self.trouble -= 1
            return True
        return False

    def tell(self, fact):
        """Have the engine take a fact, write it down, and perform what it calls for."""
        if self.now < self.down_until or self.batch.closed:
            return
        self.heed_clock()
        self.take(fact)

    def take(self, fact):
        self.steps += 1
        if self.steps > _LONGEST:
            raise AssertionError(f"the batch is stuck: {self.batch.snapshot()}")
        stage = self.batch.checks.stage
        effects = self.batch.step(fact, self.clock())
        self.truth.told(fact, stage)
        self.truth.wants(effects, isinstance(fact, facts.Recovered))
        self.journal.append(record_of(fact, self.clock()))
        if isinstance(fact, REQUESTS):
            self.durable = self.first + len(self.journal)  # the request is answered once it is
        if self.chance.random() < 0.05:
            self.first += len(self.journal)
            self.durable = self.first
            self.snapshot, self.journal = self.batch.snapshot(), []
        if effects and self.goes_wrong(0.05):
            self.full_until = self.now + self.chance.uniform(1, 20)
        for effect in effects:
            number = self.first + len(self.journal)
            self.at(max(0.0, self.full_until - self.now), self.perform, self.life, effect, number)
        self.plan_tick()

    def plan_tick(self):
        due = self.batch.next_due
        if due is not None:
            self.at(max(0.0, due - self.clock()), self.tick, self.life)

    def tick(self, life):
        due = self.batch.next_due
        if life == self.life and due is not None and due <= self.clock() + 1e-6:
            self.tell(facts.Tick())

    def crash(self):
        """The engine ends; all that it was about to do is gone. Another one starts a while later."""
        self.life += 1
        young = self.chance.random() < 0.3
        self.down_until = self.now + self.chance.choice([0.1, 2.0, 40.0])
        cut = self.fate.random() < self.CUTS
        if cut:
            self.cut_power()
        self.at(self.down_until - self.now, self.recover, self.life, young or cut)
        return cut

    def cut_power(self):
        """
        The master's machine goes off: what was not synced is lost, in the journal and in the job cache. Minions reach the
        master a while after it is back.
        """
        self.back_at = self.down_until + self.fate.choice([0.5, 5.0, 25.0])
        end = self.first + len(self.journal)
        keep = self.fate.randint(min(self.durable, end), end) - self.first
        del self.journal[keep:]
        for name in [name for name, (_, when) in self.cache.items() if self.now - when < 5.0]:
            if self.fate.random() < 0.5:
                del self.cache[name]

    def recover(self, life, young):
        if life != self.life:
            return
        batch = type(self.batch).restore(self.snapshot)
        for record in self.journal:
            batch.step(*fact_of(record))
        cut = self.back_at > self.down_until
        assert cut or batch.snapshot() == self.batch.snapshot(), "the journal stands for another state"
        self.batch = batch
        self.clock_is_off = self.heeded = self.wall_is_off
        self.truth.begins_anew()
        is_young = (
            young or self.now < self.back_at
        )  # the master has been started a moment ago, though this engine was not
        settled_at = self.clock() + 30.0 if is_young else 0.0
        # Every other one is another master's, which has run for long.
        self.tell(facts.Recovered(settled_at, self.life % 2 == 0))

    def request(self, fact):
        if self.now < self.down_until:
            self.at(self.down_until - self.now + 0.01, self.request, fact)
        elif self.batch.accepts(fact):
            if isinstance(fact, facts.PauseRequested):
                self.at(self.chance.uniform(5, 60), self.request, facts.ResumeRequested())
            self.tell(fact)

    def run(self):
        """Let time pass until the batch is closed, and then until nothing happens any more."""
        while self.agenda:
            self.now, _, action, args = heapq.heappop(self.agenda)
            assert self.now < BEGIN + _LONGEST_TIME, f"the batch stands still: {self.batch.snapshot()}"
            action(*args)
            self.check()
        assert self.batch.closed, f"the batch does not end: {self.batch.snapshot()}"
        for minion, (retcode, _) in self.cache.items():  # late returns of an ended batch
            if self.batch.wants_return(minion):
                self.batch.step(facts.Returned(minion, retcode), self.clock())

    # -- effects ------------------------------------------------------------------------------------------------------

    def perform(self, life, effect, number):
        if life != self.life or self.now < self.down_until:
            return
        if isinstance(effect, DURABLE):
            self.durable = max(self.durable, number)
        if isinstance(effect, facts.Publish) and self.fate.random() < self.KILLED and self.goes_wrong(1.0):
            if self.fate.random() < 0.7:
                self.deliver(effect)
            self.crash()
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
        self.heed_clock()
        held = self.batch.holds_publish(self.clock())
        if held:
            self.tell(facts.PublishFailed(held, certain=True))
            return
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

    def do_ping(self, effect):
        if self.now < self.failing_until or self.goes_wrong(0.1):
            self.later(1.0, facts.PingFailed("busy"))
            return
        asked = effect.minions or tuple(self.minions)
        answering = [name for name in asked if self.is_reached(self.minions[name])]
        early = [name for name in answering if self.chance.random() < 0.7]
        if early:
            self.later(0.2, facts.Seen(tuple(early)))
        rest = [name for name in answering if name not in early]
        if rest and self.goes_wrong(0.2):
            rest = []  # their answers come too late
        self.later(5.0, facts.Pinged(tuple(rest)))

    def do_lookup(self, effect):
        if self.now < self.failing_until:
            self.at(self.failing_until - self.now, self.look_again, self.life, effect)
            return
        for name in self.batch.rely_on_memory(effect.minions):
            if self.minions[name].came_up > self.minions[name].intended:
                self.tell(facts.Started(name))  # it has fetched its pillar since, as each does that starts
        found = tuple((name, self.cache[name][0]) for name in effect.minions if name in self.cache)
        self.later(self.chance.choice([0.01, 3.0]), facts.LookedUp(effect.minions, found))

    def look_again(self, life, effect):
        if life == self.life:
            self.do_lookup(effect)

    def do_probe(self, effect):
        if self.now < self.failing_until or self.goes_wrong(0.1):
            self.later(1.0, facts.Probed(unasked=effect.minions))
            return
        asked = [self.minions[name] for name in effect.minions]
        silent = [minion for minion in asked if not self.answers(minion)]
        up = [minion for minion in asked if minion not in silent]
        half = self.chance.randint(0, len(up))
        for delay, part in ((0.2, up[:half]), (0.6, up[half:])):
            running = tuple(minion.name for minion in part if minion.running)
            idle = tuple(minion.name for minion in part if not minion.running)
            if part:
                self.later(delay, facts.Probed(running, idle))
        self.later(5.0, facts.Probed(silent=tuple(minion.name for minion in silent)))

    def do_askrecords(self, effect):
        """Those that keep records know whether they have begun the job."""
        keepers = [self.minions[name] for name in effect.minions if name in self.keepers]
        never = tuple(minion.name for minion in keepers if minion.up and not minion.runs)
        if never:
            self.later(0.2, facts.NeverBegun(never))
        silent = tuple(name for name in effect.minions if not self.minions[name].up or self.goes_wrong(0.1))
        self.later(0.2, facts.Recorded(tuple(name for name in effect.minions if name not in silent)))
        self.later(5.0, facts.Recorded(silent=silent))

    def answers(self, minion):
        """Whether a minion answers a question; a shy one leaves two in a row unanswered at most, as the engine hears it."""
        shy = minion.life == "shy" and minion.ignored < 2 and self.chance.random() < 0.7
        return self.is_reached(minion) and not shy

    def is_reached(self, minion):
        """Whether what the master publishes reaches a minion."""
        return minion.up and self.now >= self.back_at

    def do_kill(self, effect):
        for name in effect.minions:
            minion = self.minions[name]
            deaf = self.chance.random() < 0.3 and minion.deafness < 3
            minion.deafness += deaf
            if minion.running and minion.up and not deaf and not (effect.gently and minion.stubborn):
                minion.running = False
                if effect.gently and self.chance.random() < 0.5:
                    self.put_out(minion, 143)
        self.later(0.1, facts.KillSent(effect.minions, effect.gently))

    def do_announce(self, effect):
        bored = self.spec.approve_timeout is not None and self.chance.random() < 0.3
        if effect.kind == "check" and effect.details["kind"] == "approve" and not bored:
            stage = effect.details["stage"]
            self.at(self.chance.uniform(1, 60), self.request, facts.Approved(stage + self.chance.choice([0, 0, 1])))
            self.at(self.chance.uniform(60, 150), self.request, facts.Approved(stage))

    def do_check(self, effect):
        if self.goes_wrong(0.2):
            return  # no minion answers
        passed = self.chance.random() < 0.9
        self.later(self.chance.choice([0.1, 3.0, 15.0]), facts.Checked(effect.stage, passed, "" if passed else "no"))

    def do_findopening(self, _effect):
        if self.goes_wrong(0.2):
            self.later(0.01, facts.OpeningFound(None, trouble="the zone is not known"))
            return
        self.at(0.01, self.tell_opening, self.life)

    def tell_opening(self, life):
        if life == self.life:
            self.tell(self.opening())

    def opening(self):
        """When the window opens next, by the wall clock, in the time of the engine's clock."""
        wall, shift = self.wall(), self.clock() - self.wall()
        past = (wall - BEGIN - self.opens) % self.every
        begins = wall - past if wall >= BEGIN + self.opens else BEGIN + self.opens
        if wall >= begins + self.length:
            begins += self.every
        return facts.OpeningFound(begins + shift, begins + self.length + shift)

    def is_open(self):
        """Whether the window is open: a moment before that counts, too, as exactly as clocks can be read."""
        since = self.wall() - BEGIN - self.opens
        return any(at >= 0 and at % self.every < self.length for at in (since, since + 0.001))

    def do_queue(self, effect):
        refused = self.chance.random() < 0.2
        self.later(1.0, facts.QueueRefused(effect.minions, "no") if refused else facts.Queued(effect.minions))

    def do_close(self, _effect):
        self.tell(facts.Closed())

    # -- minions ------------------------------------------------------------------------------------------------------

    def receive(self, minion):
        if not self.is_reached(minion) or minion.received:
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
        if minion.runs and minion.name in self.keepers:
            return
        minion.runs += 1
        minion.running = True
        minion.woken = woken
        assert not (minion.runs > 1 and minion.known_to_have_begun), f"{minion.name} runs twice, and that was known"
        self.check()
        if (self.spec.acks or minion.name in self.keepers) and minion.life != "mute" and not self.goes_wrong(0.2):
            self.at(0.01, self.hear, minion, facts.Acknowledged(minion.name))
        else:
            minion.unheard = True
        life = minion.life
        if life in ("dies", "restarts"):
            self.at(self.chance.uniform(0, minion.seconds), self.fall, minion)
        self.at(minion.seconds, self.end, minion, minion.runs)

    def end(self, minion, run):
        if not minion.running or minion.runs != run:
            return
        minion.running = False
        self.put_out(minion, minion.retcode)

    def put_out(self, minion, retcode):
        """A minion returns: the job cache has it, and the bus tells of it, mostly."""
        if self.now < self.failing_until or (self.now < self.back_at and self.fate.random() < 0.5):
            return  # it is lost
        if self.now < self.back_at:  # it tries again
            self.at(self.back_at - self.now + 1.0, self.put_out, minion, retcode)
            return
        self.cache.setdefault(minion.name, (retcode, self.now))
        minion.returned = self.cache[minion.name][0]
        if not self.goes_wrong(0.3):
            found = (minion.name, self.cache[minion.name][0])
            fact = self.chance.choice([facts.Returned(*found), facts.LookedUp((), (found,))])
            self.at(self.chance.choice([0.01, 4.0]), self.hear, minion, fact)

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
        minion.came_up = self.now
        if self.fate.random() < self.LOST_STARTS:
            return
        self.hear(minion, facts.Started(minion.name))

    def forge(self, victims, pause):
        """A minion forges events in the names of others, without end."""
        if self.batch.closed:
            return
        name = self.forger.choice(victims)
        kind = self.forger.choice([facts.Acknowledged, facts.Started])
        if self.now >= self.down_until and self.cares(kind(name)):
            self.tell(kind(name))
            self.minions[name].slandered |= kind is facts.Acknowledged
        self.at(pause, self.forge, victims, pause)

    def cares(self, fact):
        """Whether the engine has the batch take an event."""
        wanted = {
            facts.Acknowledged: self.batch.wants_acknowledgement,
            facts.Started: self.batch.wants_start,
        }
        return type(fact) not in wanted or wanted[type(fact)](fact.minion)

    def hear(self, minion, fact):
        """An event crosses the bus; whether the engine is there to hear it is another matter."""
        if self.now < max(self.down_until, self.back_at):
            return
        if isinstance(fact, (facts.Acknowledged, facts.Returned, facts.LookedUp)):
            minion.known_to_have_begun = True
        if self.cares(fact):
            self.tell(fact)
        if self.goes_wrong(0.05):
            forged = self.chance.choice("abcdefghxyz")
            if forged not in self.minions:
                self.tell(facts.Returned(forged, 0))

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self):
        """The limit is held, but for jobs that begin after the minion has said twice that it does not run them."""
        running = sum(minion.running for minion in self.minions.values())
        excused = sum(minion.running and minion.excused for minion in self.minions.values())
        limit = max(self.spec.sizes)
        assert running <= limit + excused, f"{running} run, and {limit} may"

    def verdict(self):
        """The counts equal the truth, and no minion is forgotten."""
        batch = self.batch
        states = {name: outcome.value for name, (outcome, *_) in batch.outcomes.items()}
        assert sum(batch.counts.values()) + batch.count_pending() == len(self.minions)
        told = collections.Counter(states.values())
        assert told == {outcome.value: count for outcome, count in batch.counts.items() if count}
        self.truth.verdict(states)


def live_through(seed, machine=Batch):
    """Run one world to its end and judge it."""
    world = World(seed, machine)
    try:
        world.run()
        world.verdict()
    except AssertionError as exc:
        raise AssertionError(f"world {seed}: {exc}") from exc
    return world
