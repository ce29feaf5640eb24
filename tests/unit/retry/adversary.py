"""
A world that is against the retry machine: events are lost, forged and late, the engine dies at any effect, the store and the
job cache fail for a while, minions go down and jobs die, windows open and close, users lose their rights, and operators
publish further parts, kill, cancel, enqueue and retry.

What has really happened stands beside it, so that each run can be judged: see ``judge``.
"""

from __future__ import annotations

import collections
import datetime
import math
import random

from saltext.jobs.core.log import records
from saltext.jobs.core.master import events
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.capture import LATEST
from saltext.jobs.core.retry.entry import ENDED, Asker, Limits, State
from saltext.jobs.core.retry.knowledge import Evidence
from saltext.jobs.core.retry.steps import Step
from saltext.jobs.core.retry.store import JOBS
from saltext.jobs.core.windows import is_open, parse_windows
from tests import many_worlds
from tests.unit.retry.world import World, is_sent

#: Seconds from the publish of a kill until it must have been taken note of, while the engine can read the job cache.
KILL_NOTED = 8.0
#: Seconds after which it is looked for what was published unheard and is stored late.
STORED_LATE = LATEST + 10.0
#: Seconds from the loss of a right until it must count.
RIGHT_NOTED = 30.0
#: A window that is open for half of the time.
HALF_HOURS = "; ".join(f"{hour:02}:10-{hour:02}:40" for hour in range(24))
#: Seconds after which a disk has what was written to it.
SYNCED = 30.0
#: Where entries stay.
SETTLED = ENDED | {State.HELD}
#: Those who enqueue by hand.
USERS = ("ann", "bob")


class Adversary(World):
    """A world whose misfortunes a seed decides."""

    #: What happens, each as often as it stands here.
    KINDS = (
        *(
            "publish",
            "publish",
            "part",
            "backlog",
            "stop",
            "start",
            "start",
            "revive",
            "freeze",
            "die",
            "kill",
            "cancel",
        ),
        *(
            "forge",
            "forge",
            "crash",
            "die_at",
            "die_at",
            "gap",
            "store",
            "cache",
            "urge",
            "enqueue",
            "process",
            "revoke",
        ),
        *("window_trouble", "retry", "full", "log"),
    )

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lossy = self.random.choice([0.0, 0.0, 0.1, 0.5])  # the part of genuine events that is lost
        self.parts, self.heard = (
            {},
            set(),
        )  # (minion, jid) -> when it is published and recorded; (jid, at) that is heard of
        self.begun = set()  # (minion, jid) of which this engine process was told that it was begun
        self.again = set()  # (minion, jid) that an operator wants run again
        self.gone = set()  # (minion, jid) that an operator does not want delivered
        self.lost = set()  # (minion, jid) of which nothing is left to be known by
        self.killed_at = {}  # (minion, jid) -> from when on a kill counts that nobody has taken back
        self.last_kill = {}  # (minion, jid) -> when an operator last killed it
        self.targets = collections.defaultdict(set)  # jid -> to whom it was published
        self.urged = {}  # minion -> the jobs that an operator wanted it to get at once, at some time
        self.revoked = {}  # user -> when a right was last lost
        self.up_since = 0.0
        self.kills_are_late = False
        self._die_at = None  # the number of the effect at which the engine dies
        names = tuple("abcd"[: self.random.randint(1, 4)])
        super().__init__(
            minions=names,
            acks=self.random.random() < 0.5,
            duration=self.random.choice([0.05, 1.0, 8.0, 40.0, 400.0]),
            window=self.random.choice(["", "", HALF_HOURS]),
            timezone="UTC",
            ttl=1e6,
            keep=1e6,
            backoff=self.random.choice([2.0, 60.0]),
            cooldown=self.random.choice([1.0, 30.0]),
            has_log=self.random.random() < 0.7,
        )
        for minion in self.minions.values():
            minion.cache_jobs = self.random.random() < 0.3
        self.by_id = self.random.random() < 0.8

    # -- windows and rights -------------------------------------------------------------------------------------------

    def _forbid(self, minion, jid):
        """Assert that a job may be published now: in its window, and by those who asked for it."""
        limits = self.published[jid][0].limits
        window = self.settings.window if limits.window is None else limits.window
        shut = window and not is_open(parse_windows(window), self.wall(), datetime.timezone.utc)
        self.must(not shut or jid in self.urged.get(minion, ()), f"{minion} gets {jid} outside its window")
        asker = self.machine.entry(minion, jid).asker
        for user in ("publisher", asker.user if asker else "publisher"):
            late = self.now > self.revoked.get(user, float("inf")) + RIGHT_NOTED
            self.must(not late or user not in self.denied, f"{minion} gets {jid}, and {user} has lost the right")

    def do_revoke(self):
        """A user loses a right, or gets it back; or it cannot be known for a while."""
        user = self.random.choice(["publisher", *USERS])
        for users in self.random.choice([(self.denied,), (self.denied,), (self.unsure,)]):
            if user in users:
                users.discard(user)
            else:
                users.add(user)
                self.revoked[user] = self.now

    def do_full(self):
        """The disk of the master is full, or has room again: a return is told of, and is not in the job cache."""
        self.keeps_returns = not self.keeps_returns

    def do_window_trouble(self):
        """Nobody can tell when windows open, for a while."""
        self.windows_known = not self.windows_known

    # -- misfortunes --------------------------------------------------------------------------------------------------

    def fire(self, tag, data):
        """Put an event on the bus, unless it is lost."""
        if self.shell is not None and self.random.random() < self.lossy:
            self.later(self.random.uniform(0.1, 6.0), self.notice)  # by a beat that does not come back
            return
        if tag.endswith("/new") and not self.has_log:
            self.heard.add((data["jid"], self.wall()))
        super().fire(tag, data)

    def reads(self, found):
        self.heard.update((record.jid, record.at) for record in found if isinstance(record, records.Published))

    def touched(self):
        """The engine may die between any two things that it has done."""
        if self._die_at is not None:
            self._die_at -= 1
            if self._die_at < 0:
                self._die_at = None
                self.crash()
                self.later(self.random.uniform(0.1, 30.0), self._reboot, engine=False)

    def takes(self, fact):
        """Remember what this engine process knows, and what operators want of it."""
        if isinstance(fact, facts.Restored):  # until then it waits for its store, and takes no events
            self.up_since = self.now + (STORED_LATE if self.kills_are_late else 0.0)
        self._note(fact)
        do, given = (fact.do, fact.given) if isinstance(fact, facts.Requested) else ("", {})
        if do == "cancel":
            self.gone |= {(name, given["jid"]) for name in self.minions}
        elif do == "purge":
            self.gone |= {(e.minion, e.jid) for e in self.machine.entries() if e.state.value in given["states"]}
        elif do == "replay":
            self.urged.setdefault(given["minion"], set()).update(self.published)
        elif do == "enqueue":
            self._is_wanted({(name, given["job"].jid) for name in given["minions"]}, given["asked_at"])
        elif do == "retry":
            ended = [e for e in self.machine.entries() if e.jid == given["jid"] and e.state in (State.HELD, State.DEAD)]
            self._is_wanted({(entry.minion, entry.jid) for entry in ended}, given["asked_at"])

    def _is_wanted(self, keys, asked_at):
        """An operator wants jobs run by minions, whatever had become of them when they asked."""
        keys = {key for key in keys if self.last_kill.get(key, -math.inf) < asked_at}
        self.again |= keys
        self.gone -= keys
        for key in keys:
            self.killed_at.pop(key, None)

    def _note(self, fact):
        """Remember what a minion that speaks the truth has told."""
        if isinstance(fact, facts.Asked):
            self.begun |= {(minion, fact.jid) for minion in fact.told.get(Evidence.RUNS, ())}
        elif isinstance(fact, facts.Surveyed):
            jids = self.machine.capture.open.keys()
            self.begun |= {(m, jid) for m, running in fact.running.items() for jid in running if jid in jids}
        elif isinstance(fact, facts.Acknowledged) and self.runs[fact.minion, fact.jid]:
            entry, job = self.machine.entry(fact.minion, fact.jid), self.machine.capture.open.get(fact.jid)
            # Of a publish that it has not heard of it does not know whom it reached.
            heard = job is not None and (fact.jid, self.parts[fact.minion, fact.jid][0]) in self.heard
            if heard if entry is None else is_sent(entry) and not self._is_first_claim(entry):
                self.begun.add((fact.minion, fact.jid))

    def _is_first_claim(self, entry):
        """Whether a job is only being claimed, and was never sent: what a minion says of it then is not believed."""
        replay = self.machine.queue.replay(entry.minion, entry.jid, Step.CLAIMING)
        return replay is not None and replay.known.sent_before is None

    def crash(self):
        """kill -9 of the engine: it forgets what was not stored."""
        super().crash()
        self.begun, self.heard = set(), set()

    def _reboot(self):
        if self.machine is None:
            self.boot()

    def wants_publish(self, jid, names):
        for key in ((name, jid) for name in sorted(names)):
            late = self.now > max(self.killed_at.get(key, float("inf")), self.up_since) + KILL_NOTED
            self.must(not late, f"{key} is published although an operator killed it")
            if key in self.again:  # an operator wants it, whatever was known then
                self.again.discard(key)
                self.known.discard(key)
                self.begun.discard(key)
            self.must(key not in self.begun, f"{key} is published although it is known to have begun")
            self._forbid(*key)
        super().wants_publish(jid, names)

    # -- what happens -------------------------------------------------------------------------------------------------

    def act(self):
        """Let something happen, and some time pass."""
        choice = self.random.choice
        getattr(self, f"do_{choice(self.KINDS)}")()
        self.run(choice([0.01, 0.2, 1.0, 5.0, 15.0, 60.0, 700.0]) * self.random.random())

    def _some(self):
        return tuple(name for name in self.minions if self.random.random() < 0.6) or tuple(self.minions)[:1]

    def _job(self):
        return self.random.choice(sorted(self.published)) if self.published else None

    def do_publish(self):
        windows = [None, None, None, "", HALF_HOURS]
        limits = Limits(given=True, window=self.random.choice(windows), timezone="UTC")
        # Without a log, what is published under one jid again before it is stored may not be told apart.
        self.lag = self.random.choice([0.0, 0.0, 0.0, self.random.uniform(0.0, 80.0 if self.has_log else 3.0)])
        self.publish(f"j{len(self.published)}", targets=self._some(), limits=limits)

    def do_part(self):
        """A further publish under a jid: the next part of the minions, as ``salt -b`` does; never to the same ones."""
        jid = self._job()
        left = [name for name in self.minions if jid and name not in self.targets[jid]]
        if left:
            self.publish(jid, targets=(self.random.choice(left),))

    def publish(self, jid, targets, **options):
        """Publish, and remember to whom: what is stored late cannot be looked up yet."""
        self.targets[jid].update(targets)
        self.parts.update({(name, jid): (self.wall(), self.now + self.lag) for name in targets})
        super().publish(jid, targets, **options)

    def do_backlog(self):
        """A minion misses several jobs, and comes back one way or the other."""
        name = self.random.choice(sorted(self.minions))
        away, back = self.random.choice([(self.stop, self.start), (self.freeze, self.wake), (self.freeze, self.revive)])
        away(name)
        for _ in range(3):
            self.publish(f"j{len(self.published)}", targets=(name,))
            self.run(self.random.uniform(0.0, 20.0))
        back(name)

    def do_stop(self):
        self.stop(self.random.choice(sorted(self.minions)))

    def do_start(self):
        self.start(self.random.choice(sorted(self.minions)))

    def do_revive(self):
        """A minion starts anew, and what it runs lives on."""
        self.revive(self.random.choice(sorted(self.minions)))

    def do_freeze(self):
        """A minion is frozen for a while, and goes on where it was, or starts anew while its jobs live on."""
        name = self.random.choice(sorted(self.minions))
        if self.minions[name].up:
            self.freeze(name)
            end = self.random.choice([self.wake, self.revive])
            self.later(
                self.random.uniform(1, 90), lambda: self.minions[name].late is not None and end(name), engine=False
            )

    def do_die(self):
        """A minion's connection is gone for a while: it keeps what it runs."""
        minion = self.minions[self.random.choice(sorted(self.minions))]
        if minion.up:
            minion.up = False
            self.later(self.random.uniform(1, 90), lambda: setattr(minion, "up", True), engine=False)

    def do_process(self):
        """The process of a job dies, and nothing is returned."""
        for name, minion in self.minions.items():
            for jid in list(minion.running):
                if self.random.random() < 0.5:
                    del minion.running[jid]
                    self.killed.add((name, jid))

    def do_kill(self):
        jid = self._job()
        if jid:
            signal = self._kill(jid)
            if self.random.random() < 0.3:
                self.run(self.random.choice([0.1, 1.0, 10.0, 60.0]) * self.random.random())
                self._kill(jid, signal)

    def _kill(self, jid, signal=None):
        """A kill, or a further part of one."""
        targets = self._some()
        # The later it is stored, the longer it takes to be found; where nobody has heard of it, it is looked for once.
        stored = self.lag * 5 / 4 if not self.lossy else self.lag and STORED_LATE
        self.kills_are_late = self.kills_are_late or self.lag > 0
        for name in self.targets[jid].intersection(targets):
            self.last_kill[name, jid] = self.now
            self.killed_at[name, jid] = min(self.now + stored, self.killed_at.get((name, jid), float("inf")))
        return self.kill(jid, targets=targets, signal=signal)

    def do_cancel(self):
        jid = self._job()
        if jid:
            self.request("cancel", minion=None, jid=jid)
            if self.random.random() < 0.5:
                self.request("purge", states=["cancelled"])

    def do_enqueue(self):
        """An operator queues a job by hand for those that have not returned it."""
        jid = self._job()
        if jid:
            owed = [name for name in self.published[jid][1] if (name, jid) not in self.returned]
            self.enqueue(jid, owed, self._asker(), named=self.random.random() < 0.5)

    def _asker(self):
        return Asker(self.random.choice(USERS), "pam", limited=True)

    def do_retry(self):
        """An operator wants held and dead entries of a job tried again, whatever is known of them."""
        jid, asker = self._job(), self._asker()
        if jid:
            self.request("retry", minion=None, jid=jid, asker=[asker.user, asker.eauth, asker.limited])

    def do_urge(self):
        self.request("replay", minion=self.random.choice(sorted(self.minions)))

    def do_forge(self):
        """Events of an accepted minion that lies about others; of what it can say about a beginning, see ``docs``."""
        name, jid = self.random.choice(sorted(self.minions)), self._job() or "j0"
        forged = f"forged{self.now}"
        lies = [
            lambda: self.hear_return(name, jid),
            lambda: World.fire(self, f"salt/job/{jid}/new", {"jid": jid, "fun": "state.apply"}),
            lambda: World.fire(self, f"salt/job/{forged}/new", {"jid": forged, "fun": "saltutil.kill_job"}),
            lambda: self.fire(f"salt/minion/{name}/start", {"id": name}),
            lambda: self.fire(events.PRESENCE, {"new": [name], "lost": []}),
        ]
        self.random.choice(lies)()

    def do_log(self):
        """The log of the master is lost."""
        self.lose_log()

    def do_crash(self):
        self.crash()
        self.later(self.random.uniform(0.1, 60.0), self._reboot, engine=False)

    def do_die_at(self):
        self._die_at = self.random.randint(0, 12)

    def do_gap(self):
        self.notice()

    def do_store(self):
        self.store_up = not self.store_up

    def do_cache(self):
        self.cache_up = not self.cache_up
        self.up_since = max(self.now, self.up_since)

    # -- the end ------------------------------------------------------------------------------------------------------

    def play(self, steps):
        """Let much happen; then let all be well, and enough time pass for everything to come to its end."""
        for _ in range(steps):
            self.act()
        self.calm()
        if self.machine is None:
            self.boot()
        self.run(1.0)
        self.notice()
        for name, minion in self.minions.items():
            if not minion.up:
                self.start(name)
        self.run(2000)
        self.run(5 * 3600, self._is_over)
        # What is sent to a minion that drops it is sent again every hour, and may be on its way.
        self.run(
            60, lambda: self.shell.writer.idle and not any(e.state is State.CLAIMED for e in self.machine.entries())
        )

    def calm(self):
        """From now on all is well."""
        if not self.cache_up:
            self.do_cache()
        self.store_up = self.keeps_returns = True
        self._die_at, self.lossy, self.windows_known, self.publishing = None, 0.0, True, []

    def _is_over(self):
        """Nothing more happens of itself."""
        return not self.machine.capture.open and all(entry.state in SETTLED for entry in self.machine.entries())

    def judge(self):
        """Assert that nothing is lost, and nothing was run that must not have been."""
        for jid, (_, targets, _) in self.published.items():
            note = self.machine.notes.get(jid)
            for name in targets:
                key = name, jid
                settled = note is not None and (name in note.settled or name in note.begun)
                explained = key in self.returned or self.state(*key) or settled or key in self.gone or key in self.lost
                assert explained, f"{key} is lost: it has run {self.runs[key]} times"
                assert self.state(*key) is not State.CLAIMED
        assert all(runs <= 6 for runs in self.runs.values()), "a loop"
        # Of an entry that the stored job does not name, nobody knows.
        named = {(name, jid) for jid, job in self.banks[JOBS].items() for name in job["minions"]}
        stored = named.intersection(self.stored)
        assert stored == {(entry.minion, entry.jid) for entry in self.machine.entries()}, "it is not what is stored"


class CutOff(Adversary):
    """
    A world in which links are cut as well: what a minion returns then is lost, and while it lives it ignores the jid. The
    master forbids functions for good, and does not match minions for a while; some minions keep records.
    """

    KINDS = (*Adversary.KINDS, "cut", "cut", "cut", "forbid", "miss")

    def __init__(self, seed):
        super().__init__(seed)
        for minion in self.minions.values():
            minion.keeps = self.random.random() < 0.3

    def do_cut(self):
        """The link of a minion is cut while it runs something, and for a while after that; it misses jobs meanwhile."""
        name = self.random.choice(sorted(self.minions))
        minion = self.minions[name]
        if not minion.up:
            return
        minion.up, life = False, minion.life
        for jid in list(minion.running):
            del minion.running[jid]
            minion.ran.add(jid)
        for _ in range(2):
            self.publish(f"j{len(self.published)}", targets=(name,))
            self.run(self.random.uniform(0.0, 20.0))
        if minion.life == life and minion.late is None:
            minion.up = True

    def finish(self, name, jid, life):
        """What a minion runs no more returns nothing; what was killed and is run again does."""
        if jid in self.minions[name].running:
            self.killed.discard((name, jid))
            super().finish(name, jid, life)

    def do_forbid(self):
        jid = self._job()
        if jid:
            self.forbidden.add(jid)

    def do_miss(self):
        self.miss(self.random.randint(1, 5))

    def judge(self):
        super().judge()
        for name, backlog in self.machine.backlogs.items():
            pending = [entry.jid for entry in backlog.entries.values() if entry.state is State.PENDING]
            assert len(pending) <= 1, f"{pending} wait for each other, and {name} is there"


class Clocks(CutOff):
    """
    A world in which somebody sets the master's clock again and again, forward and back, by seconds to hours: while the
    engine runs, while it is down, and around what operators and minions do. Jids are made by that clock, none of them twice.

    Without a log, jobs and kills are found by their times. One with an earlier time than was there before may not be found.
    """

    KINDS = (*CutOff.KINDS, *("clock",) * 8)

    def __init__(self, seed):
        self.hands = random.Random(f"{seed}, clock")
        self.most = 0.0  # by how much the clock was ahead at most
        # jid -> by how much it was ahead at least when the job was published or killed, or that was stored
        self.dated = {}
        self.unlogged = set()  # jids of which no log tells that
        self.last_set = -math.inf  # when the clock was set last
        super().__init__(seed)

    def do_clock(self):
        """The clock is set, at once or in the middle of what happens next, and maybe back again."""
        by = self.hands.choice([5.0, 60.0, 600.0, 3600.0, 3 * 3600.0]) * self.hands.uniform(-1.0, 1.0)
        self._set_clock(self.hands.choice([by, by, -self.clock_ahead]))
        if self.hands.random() < 0.5:
            self.later(self.hands.uniform(0.0, 30.0), lambda: self._set_clock(-by), engine=False)

    def _set_clock(self, by):
        self.clock_ahead = max(-6 * 3600.0, min(6 * 3600.0, self.clock_ahead + by))
        self.most = max(self.clock_ahead, self.most)
        self.last_set = self.now

    def _is_wanted(self, keys, asked_at):
        """What was asked for and killed before the clock was set may have been taken in either order."""
        unsure = {key for key in keys if self.last_kill.get(key, math.inf) <= self.last_set}
        super()._is_wanted(keys - unsure, asked_at)
        super()._is_wanted(unsure, math.inf)
        self.gone |= unsure

    def take_load(self, load, names, origin="", ends=()):
        for jid in ends or (load["jid"],):
            self._date(jid)
            self.later(self.lag, lambda jid=jid: self._date(jid), engine=False)
            if not self.has_log:
                self.unlogged.add(jid)
        super().take_load(load, names, origin, ends)

    def _date(self, jid):
        self.dated[jid] = min(self.clock_ahead, self.dated.get(jid, math.inf))

    def lose_log(self):
        super().lose_log()
        self.unlogged.update(self.dated)

    def _may_be_missed(self, jid):
        return jid in self.unlogged and self.dated[jid] < self.most

    def wants_publish(self, jid, names):
        for name in names if self._may_be_missed(jid) else ():
            self.killed_at.pop((name, jid), None)
        super().wants_publish(jid, names)

    def judge(self):
        missed = [jid for jid in self.published if self._may_be_missed(jid)]
        self.lost |= {(name, jid) for jid in missed for name in self.minions}
        super().judge()


class Failing(CutOff):
    """A world whose store fails, for one record or for all: before it has written, or when it has and cannot say so."""

    def __init__(self, seed):
        self.failing = random.Random(f"{seed}, store")
        self.share = 0.0
        super().__init__(seed)
        self.share = self.failing.choice([0.02, 0.1, 0.3])

    def uses_store(self):
        if self.failing.random() < self.share:
            raise ConnectionError("the store is busy")

    def calm(self):
        super().calm()
        self.share = 0.0


class Power(CutOff):
    """
    A world in which the power of the master is cut: what was not synced is lost, each record for itself. Returns and the log
    are not, nor is what the queue writes, but for its claims. Of the log the last part is lost, or all.
    """

    KINDS = (*CutOff.KINDS, "power", "power", "power")

    def __init__(self, seed):
        self.fate = random.Random(f"{seed}, power")
        self.unsynced = {}  # (bank, key) -> [(when it was written over, what it was)]
        self.returned_at = {}
        super().__init__(seed)

    def writes(self, bank, key, before, durably):
        if durably:
            self.unsynced.pop((bank, key), None)
        else:
            self.unsynced.setdefault((bank, key), []).append((self.now, before))

    def store_return(self, name, jid):
        self.returned_at.setdefault((name, jid), self.now)
        super().store_return(name, jid)

    def do_power(self):
        """The machine of the master goes off, and is there again a moment later; its engine needs a while."""
        self.crash()
        older = {place: self._of_disk(versions) for place, versions in self.unsynced.items()}
        self.unsynced = {}
        older = {place: version for place, version in older.items() if version is not None}
        if ("checkpoint", "") in older:
            self.checkpoint = older.pop(("checkpoint", ""))[0]
        gone = set()
        for (bank, key), (record,) in older.items():
            if record is None:
                self.banks[bank].pop(key, None)
            else:
                self.banks[bank][key] = record
            gone.add(key)
        for key, at in list(self.returned_at.items()):
            if self.now - at < SYNCED and self.fate.random() < 0.5:
                del self.returned_at[key]
                self.returned.discard(key)
                self.lost.add(key)
        if self.fate.random() < 0.5:
            self.lose_log()
        synced = sum(record.at < self.now - SYNCED for record in self.doings)
        self.reboot(self.fate.randint(synced, len(self.doings)))
        self._forget(gone)
        self.later(self.fate.uniform(0.1, 30.0), self._reboot, engine=False)

    def _of_disk(self, versions):
        """What the disk has of a record, in a tuple: one of its last versions; None where that is the newest."""
        recent = [before for at, before in versions if self.now - at < SYNCED]
        return (self.fate.choice(recent),) if recent and self.fate.random() < 0.5 else None

    def _forget(self, jids):
        """Nobody can know any more what the disk had of these jobs; those published lately are found in the job cache."""
        since = self.checkpoint["at"] if self.checkpoint else self.now
        still_open = self.checkpoint["open"] if self.checkpoint else {}
        stored = self.stored
        for name, jid in list(self.known):
            is_named = name in self.banks[JOBS].get(jid, {"minions": ()})["minions"]
            record = stored.get((name, jid)) if is_named else None
            if not (record and (record["state"] in ("running", "held") or record["acknowledged"])):
                self.known.discard((name, jid))
        for jid in jids & self.published.keys():
            last = self.recorded.get(jid, (0.0, math.inf))[1]
            if last < since and jid not in still_open:
                self.lost |= {(name, jid) for name in self.minions}
            for name in self.minions:
                self.killed_at.pop((name, jid), None)


class PowerOnce(Power):
    """The same, with minions that all keep records of what they have begun: none of them runs anything twice."""

    def __init__(self, seed):
        super().__init__(seed)
        # (minion, jid) -> how often it was sent with the word that lets it run again
        self.wanted = collections.Counter()
        for minion in self.minions.values():
            minion.keeps = True

    async def take_publish(self, life, jid, names, once):
        if once.get("rerun"):
            self.wanted.update((name, jid) for name in names)
        return await super().take_publish(life, jid, names, once)

    def deliver(self, jid, names):
        super().deliver(jid, names)
        for name in names:
            self.must(self.runs[name, jid] <= 1 + self.wanted[name, jid], f"{name} runs {jid} twice")


#: By name, as ``python -m tests.unit.retry.adversary`` takes it.
PROFILES = (Adversary, CutOff, Clocks, Failing, Power, PowerOnce)


def live_through(profile, seed):
    """Play one world to its end and judge it."""
    with profile(seed) as world:
        try:
            world.play(steps=30)
            world.judge()
        except AssertionError as exc:
            raise AssertionError(f"{profile.__name__} {seed}: {exc}") from exc


if __name__ == "__main__":
    many_worlds.main(PROFILES, live_through)
