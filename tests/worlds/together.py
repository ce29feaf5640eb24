"""
Worlds in which batches and the retry queue meet: batches hand over what is away and take it back, while either engine is
killed at any moment, or both with the power of the master, and minions come and go in the middle.

    python -m tests.worlds.together --profile Together --seeds 0-100

The judge knows what operators were told and what minions did. It never looks at what the engines know or decide.
"""

from __future__ import annotations

import collections
import itertools
import math
import random

from saltext.jobs.core.batch import summary
from saltext.jobs.core.batch.catalog import Catalog
from saltext.jobs.core.batch.spec import gates_of
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.errors import PublishFailed
from saltext.jobs.core.functions import KILLS
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.ledger.records import Published
from saltext.jobs.core.master import events
from saltext.jobs.core.retry.entry import ENDED, State
from saltext.jobs.core.retry.store import owed_of
from tests import many_worlds
from tests.worlds.both import Both
from tests.worlds.world import LATENCY, Misfortunes

#: Seconds from the moment at which an engine can know of a wish until it must be heeded: a publish may be under way.
HEEDED = 2.0
#: The same, if one engine has to tell the other.
PASSED_ON = 30.0
#: Seconds after which an engine has stored what it has heard: it gathers its changes for one.
NOTED = 1.5
#: Seconds for which everybody waits in the end, while minions are still away.
CALM = 300.0
#: A window that is open for two of four minutes in the first three hours, and from then on.
_MINUTES = [f"{at // 60:02}:{at % 60:02}-{at // 60:02}:{at % 60 + 2:02}" for at in range(0, 180, 4)]
TWO_OF_FOUR = "; ".join([*_MINUTES, "03:00-24:00"])
SETTLED = ENDED | {State.HELD}
#: The states of minions on which a retry runs nothing twice.
SAFE = ("failed", "killed", "timed_out", "offline", "pending")


class Together(Misfortunes, Both):
    """A world whose misfortunes a seed decides."""

    KINDS = (
        *("batch",) * 6,
        *("stop_minion", "start_minion", "start_minion", "start_minion", "freeze", "unplug", "process"),
        *("end", "end", "pause", "resume", "kill", "kill", "publish"),
        *("crash_queue", "crash_batches", "die_queue", "die_queue", "die_batches", "die_batches"),
        *("gap", "store", "cache", "refuse"),
    )
    #: No batch makes a minion begin a job twice. After a power cut it may, if it was not known to have begun.
    is_careful = True
    #: The share of events that are lost, one of these.
    LOSSES = (0.0, 0.0, 0.1, 0.4)

    def __init__(self, seed):
        self.random = chance = random.Random(seed)
        self.lossy = chance.choice(self.LOSSES)
        self.clock_sets = []  # when the clock was set, and how far it was ahead before
        self.trouble_at = 0.0  # when an engine, the store or the job cache was last away
        self.stopped = {}  # jid -> when its operator was told that it is stopped
        self.paused = {}  # jid -> the same of a pause, unless somebody has asked to resume it
        self.turned_down = set()  # batches that their operator was told do not begin
        self.killed_at = {}  # (minion, jid) -> when an operator killed a job that the queue owed
        self.ending = set()  # batches that an operator wants to end
        self.is_calm = False  # nothing goes wrong any more
        self.is_set_back = False  # the clock, since the batch engine has read it
        self.misdated = set()  # (minion, jid): a later engine cannot know that they began before a minion started
        self.offered = set()  # (minion, jid) that a batch has asked the retry queue to take
        self.sent = set()  # (minion, jid) that a batch has sent
        self.begins_heard = {}  # (minion, jid) -> when the engine that drives the job has heard that it has begun
        self.unseen = set()  # (minion, jid) that the minion began, or still runs, where no engine could know it
        self.gone = set()  # (minion, jid) that an operator has given up
        self.ignored = collections.Counter()  # (minion, job) -> questions in a row that it has not answered
        self._fates = {}  # engine -> after how many calls to the outside what happens to it
        self.limit = chance.choice([None, None, 1, 2, 3])
        super().__init__(
            minions=tuple("abcdef"[: chance.randint(2, 6)]),
            acks=chance.random() < 0.7,
            duration=1.0,
            max_in_flight=self.limit,
            ttl=1e6,
            keep=1e6,
            backoff=chance.choice([2.0, 60.0]),
        )
        for minion in self.minions.values():
            minion.seconds = chance.choice([0.1, 3.0, 25.0, 90.0])
            minion.retcode = int(chance.random() < 0.1)
            minion.keeps = chance.random() < 0.4
            minion.is_stubborn = chance.random() < 0.3
            minion.cache_jobs = chance.random() < 0.3
        shyness = random.Random(f"{seed}, shy")
        self.shy = {name for name in self.minions if shyness.random() < 0.2}

    # -- what must not happen -----------------------------------------------------------------------------------------

    def has_begun(self, name, jid, origin):
        key = name, jid
        if jid not in self.specs:
            return
        self.must(jid not in self.turned_down, f"{key} begins, and its batch was refused")
        self.must(name in self.specs[jid].minions, f"{key} begins, and {name} is not of the batch")
        again = self.runs[key] > 1
        self.must(not (again and self.minions[name].keeps), f"{key} begins twice, and the minion keeps records")
        self.must(not (again and key in self.begins_heard), f"{key} begins twice, and that it had begun was known")
        is_known = self.is_careful and key not in self.misdated
        self.must(not (again and origin == BATCH_MANAGER and is_known), f"{key} begins twice by its batch")
        if origin != BATCH_MANAGER:
            self.unseen.add(key)
        self.must(origin != JOB_RETRY or key in self.offered, f"{key} begins by the queue, and its batch has kept it")
        slack = HEEDED if origin == BATCH_MANAGER else PASSED_ON
        if origin:  # else it was published before, to a minion that was frozen
            self.must(not self._is_late(self.stopped.get(jid), slack), f"{key} begins by {origin}, and it was stopped")
            self.must(not self._is_late(self.killed_at.get(key), slack), f"{key} begins by {origin}, and it was killed")
        if origin == BATCH_MANAGER:
            self._is_within_limits(jid)

    def _is_late(self, since, slack):
        """Whether the engines have been able to heed a wish since then."""
        return since is not None and self.now > max(since, self.trouble_at) + slack

    def _is_within_limits(self, jid):
        running = {each: [n for n in self.running(each) if (n, each) not in self.unseen] for each in self.specs}
        most = max(stage.size for stage in self.specs[jid].stages)
        self.must(len(running[jid]) <= most, f"{running[jid]} run {jid}, and {most} may")
        total = sum(map(len, running.values()))
        self.must(self.limit is None or total <= self.limit, f"{running} run, and {self.limit} may")

    def wants_part(self, jid, names):
        self.must(not self._is_late(self.paused.get(jid), HEEDED), f"{jid} goes to {sorted(names)}, and it is paused")

    def wants_hand_over(self, jid, names):
        what = f"{sorted(names)} of {jid} are handed over"
        self.must(self.specs[jid].offline == "queue", f"{what}, and nobody has asked for that")
        self.must(not self._is_late(self.paused.get(jid), HEEDED), f"{what}, and it is paused")
        self.must(not self._is_late(self.stopped.get(jid), HEEDED), f"{what}, and it was stopped")
        had_time = self.now > self.trouble_at + HEEDED
        self.must(not (had_time and any((name, jid) in self.returned for name in names)), f"{what}, and have returned")
        running = [name for name in self.running(jid) if (name, jid) not in self.unseen]
        self.must(not running, f"{what}, and {running} still run it")
        self.offered |= {(name, jid) for name in names}

    # -- what is true -------------------------------------------------------------------------------------------------

    async def take_publish(self, life, jid, names, once, load=None, origin=JOB_RETRY):
        if origin == BATCH_MANAGER and not (self.publishing and getattr(self.publishing[0], "certain", True)):
            self.sent |= {(name, jid) for name in names}
        return await super().take_publish(life, jid, names, once, load, origin)

    def acknowledge(self, name, jid):
        if self.is_lost():
            return
        if jid in self.specs and self.batch_life and not self.batch_life.sleep and jid in self.batches.live:
            self.begins_heard.setdefault((name, jid), self.now)
        super().acknowledge(name, jid)

    def hear_return(self, name, jid):
        if not self.is_lost():
            super().hear_return(name, jid)

    def ask(self, fun, arg, question, names, kept):
        """A shy minion leaves two questions in a row about a job unanswered, but no kill."""
        is_kill, about = isinstance(fun, str) and fun in KILLS, str(arg[:1])
        deaf = set()
        for name in self.shy & set(names) if not (is_kill or self.is_calm) else ():
            self.ignored[name, about] = (self.ignored[name, about] + 1) % 3
            deaf |= {name} if self.ignored[name, about] else set()
        super().ask(fun, arg, question, frozenset(names) - deaf, kept)

    def take_answer(self, name, question, fun, value):
        """What a shy minion says of a kill is lost."""
        if not (isinstance(fun, str) and fun in KILLS and name in self.shy):
            super().take_answer(name, question, fun, value)

    def out_of_sight(self, name):
        self.unseen |= {(name, jid) for jid in self.minions[name].running}

    def touched(self):
        self._may_die(JOB_RETRY)

    def batches_touched(self):
        self._may_die(BATCH_MANAGER)

    def _may_die(self, engine):
        if engine in self._fates:
            left, fate = self._fates.pop(engine)
            if left:
                self._fates[engine] = left - 1, fate
            else:
                fate()

    def crash(self):
        super().crash()
        self.trouble_at = math.inf

    def crash_batches(self):
        super().crash_batches()
        self.trouble_at = math.inf
        self._forget_heard()
        for each in self.ignored:
            self.ignored[each] = 2  # what it has answered may be forgotten, so it answers the next question

    def _forget_heard(self):
        """The starts that were heard last may not be stored."""
        self.begins_heard = {key: at for key, at in self.begins_heard.items() if at < self.now - NOTED}

    def boot(self):
        super().boot()
        self._note_trouble()

    def boot_batches(self):
        super().boot_batches()
        self._note_trouble()

    def _note_trouble(self):
        lives = self.life and self.batch_life and not (self.life.sleep or self.batch_life.sleep)
        is_well = lives and self.store_up and self.cache_up
        self.trouble_at = self.now if is_well else math.inf

    # -- what happens -------------------------------------------------------------------------------------------------

    def _batch(self):
        return self.random.choice(sorted(self.specs)) if self.specs else None

    def do_batch(self):
        """An operator starts a batch; some of its minions are often away."""
        chance, jid = self.random, f"2027011400164{len(self.specs):07d}"
        if chance.random() < 0.5:
            self.do_stop_minion()
        options = {
            "presence": chance.choice(["ping", "none"]),
            "offline": chance.choice(["queue", "queue", "queue", "skip", "fail"]),
            "batch_wait": chance.choice([0.0, 0.0, 4.0]),
            "timeout": chance.choice([5.0, 20.0]),
            "max_failures": chance.choice([None, None, None, 1]),
            "max_runtime": chance.choice([None, None, None, 30.0]),
        }

        def told(value):
            if value is None:
                self.turned_down.add(jid)

        self.begin(jid, self._some(), chance.choice(["1", "2", "3", "1,2", "1,50%,100%", "100%"]), told, **options)

    def do_publish(self):
        """A job that is no batch. Without a job cache it is known to nobody."""
        jid, targets = f"j{len(self.published)}", self._some()
        if not self.cache_up:
            self.gone |= {(name, jid) for name in targets}
        self.publish(jid, targets=targets)

    def do_start_minion(self):
        """A minion starts, or starts anew; sometimes its jobs live on."""
        name = self._name()
        if self.random.random() < 0.3:
            self.out_of_sight(name)
            self.revive(name)
        else:
            self.start(name)

    def process_dies(self, name, jid):
        super().process_dies(name, jid)
        self.gone.add((name, jid))

    def do_end(self):
        """An operator stops a batch."""
        jid, kill = self._batch(), self.random.random() < 0.5

        def told(is_so):
            if is_so:
                self.stopped.setdefault(jid, self.now)

        if jid:
            self.ending.add(jid)
            self.ask_batches("stop", told, jid=jid, kill=kill)

    def do_pause(self):
        jid = self._batch()

        def told(is_so):
            if is_so:
                self.paused.setdefault(jid, self.now)

        if jid:
            self.ask_batches("pause", told, jid=jid)

    def do_resume(self):
        for jid in self.specs:
            self.paused.pop(jid, None)
            self.ask_batches("resume", lambda _, jid=jid: self.paused.pop(jid, None), jid=jid)

    def do_kill(self):
        """An operator kills the job of a batch on some minions, by Salt's own means."""
        jid = self._batch()
        if jid:
            targets = self._some()
            self.gone |= {(name, jid) for name in targets}
            for key in self.handed_over.intersection((name, jid) for name in targets):
                self.killed_at.setdefault(key, self.now)
            self.kill(jid, targets=targets)

    def do_crash_queue(self):
        self.crash()
        self.later(self.random.uniform(0.1, 60.0), lambda: self.life is None and self.boot(), engine=False)

    def do_crash_batches(self):
        self.crash_batches()
        wait = self.random.choice([0.1, 2.0, 40.0])
        self.later(wait, lambda: self.batch_life is None and self.boot_batches(), engine=False)

    def do_die_queue(self):
        self._meet_fate(JOB_RETRY, self.do_crash_queue)

    def do_die_batches(self):
        self._meet_fate(BATCH_MANAGER, self.do_crash_batches)

    def _meet_fate(self, engine, fate):
        self._fates[engine] = self.random.randint(0, 12), fate

    def do_store(self):
        """The retry queue's storage goes away, or is back."""
        self.store_up = not self.store_up
        self._note_trouble()

    def do_cache(self):
        """The job cache goes away, or is back."""
        self.cache_up = not self.cache_up
        self._note_trouble()

    def do_refuse(self):
        """The master refuses publishes, or takes them and does not say so."""
        self.refuse(self.random.randint(1, 3), PublishFailed("no", certain=self.random.random() < 0.5))

    # -- the end ------------------------------------------------------------------------------------------------------

    def play(self, steps):
        """Do many random things; then end all trouble, wait, let all minions come back, and wait until all is over."""
        for _ in range(steps):
            self.act()
        self.store_up = self.cache_up = self.is_calm = True
        self.lossy, self.publishing = 0.0, []
        self._fates = {}
        if self.life is None:
            self.boot()
        if self.batch_life is None:
            self.boot_batches()
        self._note_trouble()
        self.run(1.0)
        self.notice()
        self.do_resume()
        self.run(CALM)
        for name, minion in self.minions.items():
            if not minion.up:
                self.start(name)
        for passed in range(0, 72_000, 20):  # each of the jobs that a minion is owed may take 5,000 s
            if not passed % 1200:
                self.do_resume()
            self.run(20.0)
            if self._is_over():  # a look at the database
                break
        self.run(60.0)

    def _is_over(self):
        goes_on = self.batches.live or self.kept_batches.jids(Kind.OPEN) or self.requests
        return not goes_on and all(entry.state in SETTLED for entry in self.machine.entries())

    def judge(self):
        """Operators were told the truth, no batch goes on for ever, and no minion is forgotten."""
        for jid, spec in self.specs.items():
            batch = self.batch(jid)
            if batch is None:
                assert jid in self.turned_down, f"{jid} was not refused, and there is no such batch"
                continue
            assert batch.closed, f"{jid} does not end: {batch.state}"
            states = self.outcomes(jid)
            for name in spec.minions:
                self._is_told_truly(name, jid, batch, states.get(name))
        for jid, (_, targets, _) in self.published.items():
            for name in targets:
                is_held = self.state(name, jid) is State.HELD  # claimed twice, and the engine died before each publish
                assert self.runs[name, jid] or is_held or (name, jid) in self.gone, f"{(name, jid)} is lost"

    def _is_told_truly(self, name, jid, batch, state):
        key, retcode = (name, jid), self.minions[name].retcode
        if key in self.returned:
            expected = ("failed", "timed_out") if retcode else ("completed",)
            assert state in expected or (batch.halted and state is None), f"{key} returned {retcode}, and is {state}"
            return
        assert state != "completed", f"{key} has not returned, and is {state}"
        assert state not in ("offline", "failed") or not self.runs[key], f"{key} has run it, and is {state}"
        reached = {"killed": {"saltutil.kill_job"}, "timed_out": {"saltutil.kill_job", "saltutil.term_job"}}.get(state)
        assert reached is None or reached & self.signalled[key], f"no kill has reached {key}, and it is {state}"
        # A silent minion may have begun the job, for all that a batch can know; so may one that the queue has sent it to.
        is_held = self.state(*key) is State.HELD
        is_excused = state == "lost" or is_held or self.runs[key] or key in self.gone or batch.halted
        if not is_excused:
            assert batch.spec.offline != "queue", f"{key} never got its job, and is {state}"


class Quiet(Together):
    """No event is lost, and no engine dies: what is left are minions that come and go, and operators."""

    KINDS = tuple(kind for kind in Together.KINDS if not kind.startswith(("crash", "die", "gap", "store", "cache")))
    LOSSES = (0.0,)


class Retries(Together):
    """Operators retry batches, running ones too, and retries, on all minions on which that is said to run nothing twice."""

    KINDS = (*Together.KINDS, *("retry",) * 8)

    def __init__(self, seed):
        self.first = {}  # jid of a retry -> the batch from which it stems
        super().__init__(seed)

    def has_begun(self, name, jid, origin):
        super().has_begun(name, jid, origin)
        first = self.first.get(jid, jid)
        for other in {first, *(each for each, its in self.first.items() if its == first)} - {jid}:
            key = name, other
            is_over = not self.runs[key] or key in self.returned or key in self.gone or self.signalled[key]
            self.must(is_over, f"{(name, jid)} begins by {origin}, and {key} has begun, whose retry or parent it is")

    def do_retry(self):
        jid = self._batch()
        catalog = Catalog(self.opts, owed=lambda jid: owed_of(self.opts, jid))
        if jid and (batch := catalog.ours(jid)):
            stands = summary.latest(batch, catalog.retries(jid))
            names = [name for name, (_, state) in stands.items() if state in SAFE]
            if names:
                again = f"2027011400164{len(self.specs):07d}"
                self.first[again] = self.first.get(jid, jid)
                more = {"offline": batch.spec.offline, "presence": batch.spec.presence, "parent": jid}
                self.begin(again, names, "2", lambda value: value is None and self.turned_down.add(again), **more)


class Cuts(Together):
    """The power of the master is cut again and again, and both engines start anew."""

    KINDS = (*Together.KINDS, "power", "power", "power")
    is_careful = False

    def do_power(self):
        self.crash()
        self.crash_batches()
        self.disk.cut_power()
        self.forget_returns()
        self.forget_begun()
        self.begins_heard.clear()
        signals = [record for record in self.disk.log if isinstance(record, Published) and record.ends]
        kills = {(name, jid) for signal in signals for jid in signal.ends for name in signal.minions}
        self.killed_at = {key: at for key, at in self.killed_at.items() if key in kills}
        self.later(self.random.uniform(0.1, 30.0), lambda: self.life is None and self.boot(), engine=False)
        wait = self.random.uniform(0.1, 30.0)
        self.later(wait, lambda: self.batch_life is None and self.boot_batches(), engine=False)


class Restarts(Together):
    """Minions start anew all the time, and the events that say so are lost."""

    KINDS = (*Together.KINDS, *("start_minion",) * 6)

    def fire(self, tag, data):
        if not (events.started_by(tag) and self.random.random() < 0.7):
            super().fire(tag, data)


class Freezes(Together):
    """Either engine stands still in front of a commit or an effect, for seconds to minutes, while all others go on."""

    KINDS = (*Together.KINDS, *("freeze_queue", "freeze_batches") * 3)

    def do_freeze_queue(self):
        self._meet_fate(JOB_RETRY, lambda: self._freeze(self.life))

    def do_freeze_batches(self):
        self._meet_fate(BATCH_MANAGER, lambda: self._freeze(self.batch_life))

    def _freeze(self, life):
        seconds = self.random.choice([5.0, 30.0, 90.0])
        life.freeze(seconds)
        self._forget_heard()
        self._note_trouble()
        self.later(seconds + 0.001, self._note_trouble, engine=False)


class Rollouts(Together):
    """
    Groups, windows, checks, approvals, budgets and limits of run time, all at once. Minions forge what others do and answer.
    """

    KINDS = (*Together.KINDS, *("approve",) * 4, "forge", "forge")

    def __init__(self, seed):
        self.seed, self.plans = seed, random.Random(f"{seed}, plans")
        self.checked = collections.defaultdict(set)  # jid -> the stages that were checked or approved, by any name
        self.refused_at = {}  # jid -> when a check was not passed
        self.sent_at, self.began_at = {}, {}
        self.returned_at = {}
        super().__init__(seed)
        for minion in self.minions.values():
            if self.plans.random() < 0.2:
                minion.seconds = 5000.0
            minion.retcode = int(self.plans.random() < 0.3)

    def begin(self, jid, minions, batch="2", told=lambda value: None, **more):
        chance, count = self.plans, len(minions)
        if chance.random() < 0.4 and count > 1:
            first = chance.randint(1, count - 1)
            more |= {"by": "grains:region", "groups": (("eu", first), ("us", count - first))}
            more["max_failures"] = chance.choice(["0%", "25%", "50%"])
        if chance.random() < 0.3:
            more |= {"window": TWO_OF_FOUR, "timezone": "UTC"}
        if chance.random() < 0.5:
            kind = chance.choice(["function", "runner", "approve"])
            fun = "" if kind == "approve" else "a.check"
            more |= {"check": {"kind": kind, "fun": fun, "arg": [jid, "{stage}"], "kwargs": {}}, "check_timeout": 20.0}
        more["max_runtime"] = chance.choice([None, 30.0, 60.0])
        if any(self.minions[name].seconds > 1000.0 for name in minions):
            more["max_runtime"] = 30.0
        super().begin(jid, minions, batch, told, **more)

    # -- what must not happen -----------------------------------------------------------------------------------------

    def wants_part(self, jid, names):
        super().wants_part(jid, names)
        spec = self.specs[jid]
        self._is_in_window(jid, f"{sorted(names)} are sent {jid}")
        failed = {name for name in spec.minions if self._has_failed(name, jid)}
        if spec.budgets and not spec.groups:
            self.must(len(failed) <= spec.budgets[0], f"{failed} have failed {jid}, and it goes on")
        group_of = dict(zip(spec.minions, (i for i, n in enumerate(spec.counts) for _ in range(n)), strict=True))
        sent = sorted((group_of[name] for name in names), reverse=True)
        for group, allowed in enumerate(spec.budgets[: max(sent, default=0)]):
            bad = {name for name in failed if group_of[name] == group}
            self.must(len(bad) <= allowed, f"{bad} of group {group} have failed {jid}, and the next one begins")
        seen = [name for name, each in +self.runs if each == jid and (name, jid) not in self.unseen]  # in this order
        turns = [*itertools.accumulate((*(group_of[name] for name in seen if name not in names), *sent), max)]
        gates = [(turn, before) for turn in set(turns) for before in gates_of(spec.batch, (spec.counts[turn],))]
        passed = len(set(turns)) - 1 + sum(turns.count(turn) > before for turn, before in gates) if spec.check else 0
        what = f"{sorted(names)} are sent {jid}"
        self.must(passed <= len(self.checked[jid]), f"{what} after {passed} stages, {self.checked[jid]} are checked")
        self.must(not self._is_late(self.refused_at.get(jid), HEEDED), f"{what}, and a check was not passed")
        self.sent_at.update({(name, jid): self.now for name in names})

    def _has_failed(self, name, jid):
        return self.minions[name].retcode and self._is_late(self.returned_at.get((name, jid)), HEEDED)

    def _is_in_window(self, jid, what):
        if self.specs[jid].window:
            before = [self.now + ahead for at, ahead in self.clock_sets if self.now < at + 1.0]
            shown = self.wall(), self.wall() - 1.0, *before
            minutes = [time % 86400 // 60 for time in shown]
            self.must(any(at >= 180 or at % 4 < 2 for at in minutes), f"{what}, and the window is shut")

    def has_begun(self, name, jid, origin):
        super().has_begun(name, jid, origin)
        if jid in self.specs and origin:
            self.began_at[name, jid] = self.now
            self._is_in_window(jid, f"{name} begins {jid} by {origin}")

    def store_return(self, name, jid):
        self.returned_at.setdefault((name, jid), self.now)
        super().store_return(name, jid)

    def finish(self, name, jid, life):
        limit = self.specs[jid].max_runtime if jid in self.specs else None
        if limit is not None and jid in self.minions[name].running and (name, jid) not in self.unseen:
            began = max(self.began_at[name, jid], self.trouble_at)
            self.must(self.now < began + limit + 300.0, f"{name} runs {jid} for {self.now - began:.0f} s")
        super().finish(name, jid, life)

    def ask(self, fun, arg, question, names, kept):
        if fun == "a.check":
            self.checked[arg[0]].add(frozenset(name for name, jid in +self.runs if jid == arg[0]))  # so far
        if fun in ("saltutil.term_job", "saltutil.kill_job") and arg[0] not in self.ending:
            limit = self.specs[arg[0]].max_runtime
            for name in names:
                key = name, arg[0]
                # The queue may send it while the batch hands it over, and the batch hear that it begins.
                since = self.now - self.sent_at.get(key, self.began_at.get(key, self.now))
                what = f"{name} is killed {since:.0f} s after it was sent {arg[0]}"
                self.must(limit is not None and since >= limit, what)
        for name in sorted(names) if not self.is_calm else ():
            if self.plans.random() < 0.1:
                self._lie(name, fun, arg, question)
        super().ask(fun, arg, question, names, kept)

    def _lie(self, name, fun, arg, question):
        """Another minion answers in its name, and sooner."""
        runs = self.plans.choice([{}, {"jid": arg[0][0]}]) if isinstance(fun, list) else None
        value = {each: runs if each == fun[0] else {} for each in fun} if isinstance(fun, list) else True
        data = {"id": name, "jid": question, "fun": fun, "return": value, "retcode": 0, "success": True}
        self.later(LATENCY, lambda: self.fire(f"salt/job/{question}/ret/{name}", data), engine=False)

    # -- what happens -------------------------------------------------------------------------------------------------

    def answer(self, name, fun, arg):
        if fun != "a.check":
            return super().answer(name, fun, arg)
        return self._passes(arg[0], name)

    def _passes(self, jid, *by):
        """Check a stage: who has once found something wrong does so again."""
        is_well = random.Random(f"{self.seed}, {jid}, {by}").random() < 0.9
        if not is_well:
            self.refused_at.setdefault(jid, self.now)
        return is_well

    async def call_runner(self, life, fun, words):
        await life.wait(self.plans.choice([0.1, 3.0, 15.0]))
        self.checked[words[0]].add(words[1])
        return self._passes(*words), True

    def do_approve(self):
        jid = self._batch()
        if jid and self.specs[jid].check.get("kind") == "approve":
            self._approve(jid, self.plans.randint(1, 2))

    def _approve(self, jid, stage):
        def told(is_so):
            if not (is_so or was_so):
                self.checked[jid].discard(stage)

        was_so = stage in self.checked[jid]
        self.checked[jid].add(stage)  # it is heeded before it is answered
        self.ask_batches("approve", told, jid=jid, stage=stage)

    def do_forge(self):
        """A minion forges that others have begun a job, have returned it, or have started."""
        jid, name = self._batch(), self._name()
        if jid:
            self.fire(f"salt/job/{jid}/start/{name}", {"id": name, "jid": jid})
            data = {"id": name, "jid": jid, "fun": "state.apply", "return": True, "retcode": self.plans.randint(0, 1)}
            self.fire(f"salt/job/{jid}/ret/{name}", data)
            self.fire(f"salt/minion/{name}/start", {"id": name})

    def do_resume(self):
        super().do_resume()
        for jid, spec in self.specs.items():
            if self.is_calm and spec.check.get("kind") == "approve":
                for stage in range(1, 7):
                    self._approve(jid, stage)


class Clocks(Rollouts):
    """The master's clock is set again and again, forward and back, by seconds to minutes."""

    KINDS = (*Rollouts.KINDS, *("clock",) * 6)
    was_ahead = 0.0  # by how much, when the batch engine started last

    def boot_batches(self):
        """If the clock was set meanwhile, the engine cannot know for how long jobs have run."""
        if self.clock_ahead != self.was_ahead:
            self.was_ahead = self.clock_ahead
            self.sent_at = dict.fromkeys([*self.sent_at, *self.began_at], -math.inf)
        if self.is_set_back:
            self.is_set_back, self.misdated = False, self.misdated | set(+self.runs)
        super().boot_batches()

    def do_clock(self):
        by = self.plans.choice([-600.0, -60.0, -20.0, 20.0, 60.0, 600.0])
        self.clock_sets.append((self.now, self.clock_ahead))
        self.clock_ahead += by
        self.is_set_back |= by < 0.0


class Hell(Clocks, Cuts):
    """All of it."""

    KINDS = (*Clocks.KINDS, *("power",) * 3)


PROFILES = (Together, Quiet, Retries, Cuts, Restarts, Freezes, Rollouts, Clocks, Hell)


if __name__ == "__main__":
    many_worlds.main(PROFILES)
