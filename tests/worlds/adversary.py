"""
A world that works against the retry machine: events are lost, forged and late, the engine dies at any effect, the store and
the job cache fail for a while, minions go down and jobs die, windows open and close, users lose their rights, and operators
publish further parts, kill, cancel, enqueue and retry. ``judge`` compares the outcome with what really happened.
"""

from __future__ import annotations

import collections
import datetime
import math
import random
import zoneinfo

from saltext.jobs.core.delivery.known import Evidence, Step
from saltext.jobs.core.engine.requests import asked_at
from saltext.jobs.core.errors import NoMinionMatched, PublishFailed, SiteAway
from saltext.jobs.core.ledger import records
from saltext.jobs.core.master import events
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import ENDED, Limits, State
from saltext.jobs.core.retry.shell import MAINTENANCE
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.users import TOKEN, Identity
from tests import many_worlds
from tests.worlds.truth import Truth
from tests.worlds.world import Misfortunes, World, is_sent

#: Seconds that the steps take in which a claimed job is published to many minions.
STEPS = 0.2
#: Seconds from the publish of a kill until the engine must know it: without a log, while it can read the job cache.
KILL_NOTED = 8.0
#: Seconds from the loss of a right until the engine must heed it.
RIGHT_NOTED = 30.0
#: A window that is open for half of the time.
HALF_HOURS = "; ".join(f"{hour:02}:10-{hour:02}:40" for hour in range(24))
#: Seconds after which a write is on the disk without a sync.
SYNCED = 30.0
#: States that an entry does not leave by itself.
SETTLED = ENDED | {State.HELD}
#: States in which an operator has an entry tried again.
_FAILED = frozenset({State.HELD, State.DEAD})
#: Users who enqueue by hand.
USERS = ("ann", "bob")


class Adversary(Misfortunes, World):
    """A world whose misfortunes a seed decides."""

    LONGEST = 700.0
    KINDS = (
        *("publish", "publish", "part", "backlog", "stop_minion", "start", "start", "revive", "freeze"),
        *("unplug", "kill"),
        *("cancel", "forge", "forge", "crash", "die_at", "die_at", "gap", "store", "cache", "urge"),
        *("enqueue", "process"),
        *("revoke", "window_trouble", "retry", "full", "log"),
    )

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.maintenance = random.Random(f"{seed}, maintenance").choice([MAINTENANCE, 60.0])
        self.lossy = self.random.choice([0.0, 0.0, 0.1, 0.5])  # the share of genuine events that is lost
        self.parts = {}  # (minion, jid) -> (published at, recorded at)
        self.heard = set()  # (jid, published at) of heard publishes
        self.begun = set()  # (minion, jid) that began, as this engine process was told
        self.sent = set()  # (minion, jid) that an engine has ever sent
        self.again = set()  # (minion, jid) that an operator wants to run again
        self.cancelled = set()  # (minion, jid) whose entries the request cancels that is being carried out
        self.gone = set()  # (minion, jid) that an operator has cancelled or purged
        self.lost = set()  # (minion, jid) of which no record is left
        self.killed_at = {}  # (minion, jid) -> when a kill takes effect, unless an operator has overridden it
        self.last_kill = {}  # (minion, jid) -> when an operator last killed it
        self.targets = collections.defaultdict(set)  # jid -> the minions that it was published to
        self.loads_given = {}  # jid -> what its first publish says beside the minions: so do all others
        self.urged = {}  # minion -> when an operator last wanted its jobs delivered at once, and which there were
        self.revoked = {}  # user -> when a right was last lost
        self.up_since = 0.0
        self.truth = Truth()
        self.keeps_order = True  # the engine can tell in which order publishes and kills were made
        self._die_at = None  # effects until the engine dies
        names = tuple("abcd"[: self.random.randint(1, 4)])
        drawn = {
            "acks": self.random.random() < 0.5,
            "duration": self.random.choice([0.05, 1.0, 8.0, 40.0, 400.0]),
            "window": self.random.choice(["", "", HALF_HOURS]),
            "timezone": "UTC",
            "ttl": 1e6,
            "keep": 1e6,
            "backoff": self.random.choice([2.0, 60.0]),
        }
        super().__init__(minions=names, **{**drawn, **self.options()})
        for minion in self.minions.values():
            minion.cache_jobs = self.random.random() < 0.3
        self.by_id = self.random.random() < 0.8

    def options(self):
        """Return the options that a profile sets."""
        return {}

    # -- what is true -------------------------------------------------------------------------------------------------

    def hears(self, effects):
        """Assert that each entry ends for a reason that is true."""
        for effect in effects:
            if isinstance(effect, facts.Answer):
                self.truth.stopped.update(dict.fromkeys(self.cancelled, self.now))
            elif isinstance(effect, facts.Announce):
                wrong = self.truth.why_wrong(self, (effect.minion, effect.jid), effect.kind, effect.reason)
                self.must(not wrong, wrong)
            elif isinstance(effect, facts.Claim):
                self.truth.claims.update((name, effect.jid) for name in effect.minions)

    def supersedes(self, newer, older):
        """Whether the one job replaces the other in the queue."""
        return False

    def is_full(self, minion, option):
        """Whether there is no room for a further entry of a minion."""
        return False

    def end_of(self, jid, since):
        """Return when a job is owed no longer that is wanted since then."""
        return since + self.settings.ttl

    def store_return(self, name, jid):
        self.truth.returned_at.setdefault((name, jid), self.now)
        super().store_return(name, jid)

    def forget_returns(self):
        """A return that nothing keeps any more may come again, or never."""
        gone = super().forget_returns()
        for key in gone:
            self.truth.returned_at.pop(key, None)
        return gone

    def lose_log(self):
        super().lose_log()
        gone = self.forget_returns()
        self.lost |= gone
        self.begun -= gone
        self.known -= gone
        self.keeps_order = False

    # -- windows and rights -------------------------------------------------------------------------------------------

    def _forbid(self, minion, jid):
        """Assert that a job may be published now: its window is open, and its publisher and its asker have the right."""
        window, zone = self._hours(jid)
        is_open = not window or any(self._is_open(window, zone, at) for at in self._shown())
        at, jids = self.urged.get(minion, (0.0, ()))
        is_urged = jid in jids and any(at - STEPS <= shown < at + 300.0 for shown in self._shown())  # five minutes
        self.must(is_open or is_urged, f"{minion} gets {jid} outside its window")
        asker = self.machine.entry(minion, jid).asker
        for user in ("publisher", asker.name if asker else "publisher"):
            late = self.now > self.revoked.get(user, float("inf")) + RIGHT_NOTED
            self.must(not late or user not in self.denied, f"{minion} gets {jid}, and {user} has lost the right")

    def _shown(self):
        """Return what the wall clock showed since a job that is published now was claimed."""
        return [self.wall() - STEPS, self.wall()]

    def _hours(self, jid):
        """Return the window of a job, and its zone. Both are empty if the job may be published at any time."""
        limits = self.published[jid][0].limits
        window = self.settings.window if limits.window is None else limits.window
        zone = self.settings.timezone if limits.timezone is None else limits.timezone
        return (window, zone) if window else ("", "")

    @staticmethod
    def _is_open(window, zone, at):
        """Whether the clock of a zone shows a time within a window, which has no days."""
        shown = datetime.datetime.fromtimestamp(at, zoneinfo.ZoneInfo(zone)).strftime("%H:%M")
        return any(first <= shown < last for first, last in (hours.strip().split("-") for hours in window.split(";")))

    def do_revoke(self):
        """A user loses a right, or regains it; or the right cannot be determined for a while."""
        user = self.random.choice(["publisher", *USERS])
        for users in self.random.choice([(self.denied,), (self.denied,), (self.unsure,)]):
            self.truth.was["denied" if users is self.denied else "unsure"][user] = self.now
            if user in users:
                users.discard(user)
            else:
                users.add(user)
                self.revoked[user] = self.now

    def do_full(self):
        """The master's disk fills up, or has room again. While it is full, returns reach the bus, and not the job cache."""
        self.keeps_returns = not self.keeps_returns

    def do_window_trouble(self):
        """For a while, the openings of windows cannot be determined."""
        self.windows_known = not self.windows_known

    # -- misfortunes --------------------------------------------------------------------------------------------------

    def fire(self, tag, data):
        """Put an event on the bus, unless it is lost."""
        if self.shell is None or not self.is_lost():
            super().fire(tag, data)

    def reads(self, found):
        self.heard.update((record.jid, record.at) for record in found if isinstance(record, records.Published))

    def touched(self):
        """The engine may die between any two effects."""
        if self._die_at is not None:
            self._die_at -= 1
            if self._die_at < 0:
                self._die_at = None
                self.crash()
                self.later(self.random.uniform(0.1, 30.0), self._reboot, engine=False)

    def takes(self, fact):
        """Record what this engine process knows."""
        if isinstance(fact, facts.Restored):  # until then the engine waits for its store, and takes no events
            self.up_since = self.now
        self._note(fact)

    def begins(self, request):
        """Record what operators want."""
        given = request.request
        do = given["do"]
        found = self.cancelled = self._selected(given, set(State) - ENDED) if do == "cancel" else set()
        if do == "cancel":
            self.truth.cancel(given.get("minion"), given.get("jid"))
            self.gone |= found | {(name, given["jid"]) for name in self.minions}
        elif do == "purge":
            self.gone |= self._selected({}, set(given["states"]))
        elif do == "replay":
            self.urged[given["minion"]] = self.wall(), frozenset(self.published)
        elif do == "enqueue":
            self._is_wanted(self.named_by(request), request.wanted_at)
        elif do == "retry":
            self._is_wanted(self._selected(given, _FAILED), request.wanted_at, _FAILED)

    def _selected(self, given, states):
        """Return the keys of the entries in these states that a request names."""
        found = {(entry.minion, entry.jid) for entry in self.machine.entries() if entry.state in states}
        return {key for key in found if self._is_named(given, key)}

    @staticmethod
    def _is_named(given, key):
        return all(
            named in (None, its) for named, its in zip((given.get("minion"), given.get("jid")), key, strict=True)
        )

    @staticmethod
    def _names(request, minion, jid):
        """Whether a request that is not answered wants a job to run on a minion."""
        minions = request.get("minions") or [request.get("minion")]
        is_for = minion in minions or minions == [None]
        return request["do"] in ("enqueue", "retry") and request.get("jid") in (None, jid) and is_for

    def _is_wanted(self, keys, wanted_at, again=ENDED):
        """An operator wants these jobs to run, whatever became of them. Those in a state of ``again`` are owed anew."""
        keys = {key for key in keys if self.last_kill.get(key, -math.inf) < wanted_at}
        for key in keys:
            entry = self.machine.entry(*key)
            is_new = entry is None or entry.state in again
            # A held entry whose time is over may expire before the request is carried out.
            is_new = is_new and (entry is None or entry.state in ENDED or self.truth.ends_at[key] > self.now)
            ends_at = self.end_of(key[1], self.now) if is_new else self.truth.ends_at[key]
            self.truth.ask(key, ends_at, min(self.now, wanted_at), key in self.stored)
        self.again |= keys
        # Without a log, a kill is dated by when the master stored it: then it may count as later than the request.
        unsure = {key for key in keys if not self.keeps_order and self.last_kill.get(key, -math.inf) >= wanted_at}
        self.gone = self.gone - keys | unsure
        for key in keys:
            self.killed_at.pop(key, None)

    def _note(self, fact):
        """Record the true statements of minions."""
        effect = fact.effect if isinstance(fact, facts.Done) else None
        if isinstance(effect, facts.Ask):
            self.begun |= {(minion, effect.jid) for minion in fact.found.told.get(Evidence.RUNS, ())}
        elif isinstance(effect, facts.Inquire):
            jids = self.machine.capture.open.keys()
            self.begun |= {(m, jid) for m, running in fact.found.items() for jid in running if jid in jids}
        elif isinstance(fact, facts.Acknowledged) and self.runs[fact.minion, fact.jid]:
            entry, job = self.machine.entry(fact.minion, fact.jid), self.machine.capture.open.get(fact.jid)
            # The engine does not know the minions of a publish that it did not hear.
            heard = job is not None and (fact.jid, self.parts[fact.minion, fact.jid][0]) in self.heard
            if heard if entry is None else is_sent(entry) and not self._is_first_claim(entry):
                self.begun.add((fact.minion, fact.jid))

    def _is_first_claim(self, entry):
        """
        Whether a job is being claimed for the first time, and is not sent yet: a minion that has begun it ignores what is
        sent now. A claim for many minions takes several steps.
        """
        is_claimed = entry.step in (Step.CLAIMING, Step.SENDING)
        return is_claimed and entry.known.sent_before is None and (entry.minion, entry.jid) not in self.sent

    def has_stored(self, minion, jid, record):
        is_first = record["state"] == State.CLAIMED and (minion, jid) not in self.sent
        super().has_stored(minion, jid, {**record, "begun_at": 0.0 if is_first else record.get("begun_at")})

    def crash(self):
        """kill -9 of the engine: it forgets everything unstored."""
        super().crash()
        ended = {key for key, record in self.stored.items() if record["state"] == State.CANCELLED}
        stopped = self.truth.stopped
        self.truth.stopped = {key: at for key, at in stopped.items() if key in ended}
        for key in list(self.truth.before):
            if any(self._names(each, *key) for each in self.requests.values()):
                self.truth.ask_in_vain(key)
        self.begun, self.heard = set(), set()

    def _reboot(self):
        if self.machine is None:
            self.boot()

    def wants_publish(self, jid, names):
        self.sent |= {(name, jid) for name in names}
        for key in ((name, jid) for name in sorted(names)):
            # The log is read before each publish.
            noted = STEPS if self.keeps_order else KILL_NOTED
            late = self.now > max(self.killed_at.get(key, float("inf")), self.up_since) + noted
            self.must(not late, f"{key} is published although an operator killed it")
            stopped = self.truth.stopped.get(key, math.inf)
            self.must(self.now <= stopped + 1e-3, f"{key} is published although an operator cancelled it")
            if key in self.again:  # the operator's wish overrides what was known
                self.again.discard(key)
                self.known.discard(key)
                self.begun.discard(key)
            record, wish = self.minions[key[0]].begun.get(jid, math.inf), self.truth.wanted_at.get(key, -math.inf)
            self.must(record < wish or key not in self.begun, f"{key} is published although it is known to have begun")
            self._forbid(*key)
        super().wants_publish(jid, names)

    # -- what happens -------------------------------------------------------------------------------------------------

    def _job(self):
        return self.random.choice(sorted(self.published)) if self.published else None

    def _next_jid(self):
        return f"j{len(self.published)}"

    def do_publish(self):
        windows = [None, None, None, "", HALF_HOURS]
        limits = Limits(given=True, window=self.random.choice(windows), timezone="UTC")
        self.publish(self._next_jid(), targets=self._some(), limits=limits)

    def do_part(self):
        """Publish a job to one more minion under the same jid, as ``salt -b`` does; never twice to the same minion."""
        jid = self._job()
        left = [name for name in self.minions if jid and name not in self.targets[jid]]
        if left:
            self.publish(jid, targets=(self.random.choice(left),))

    def publish(self, jid, targets, **options):
        """Publish, and record the minions: they cannot be looked up while the publish is not stored."""
        self.targets[jid].update(targets)
        self.parts.update({(name, jid): (self.wall(), self.now) for name in targets})
        super().publish(jid, targets, **self.loads_given.setdefault(jid, options))
        ends_at = self.end_of(jid, self.published[jid][2])
        for name in targets:
            self.truth.want((name, jid), ends_at, self.now)

    def do_backlog(self):
        """A minion misses several jobs, and comes back in one of several ways."""
        name = self._name()
        away, back = self.random.choice([(self.stop, self.start), (self.freeze, self.wake), (self.freeze, self.revive)])
        away(name)
        for _ in range(3):
            self.publish(self._next_jid(), targets=(name,))
            self.run(self.random.uniform(0.0, 20.0))
        back(name)

    def do_start(self):
        self.start(self._name())

    def do_revive(self):
        """A minion restarts, and its jobs live on."""
        self.revive(self._name())

    def ends_a_frost(self):
        """It goes on, or restarts while its jobs live on."""
        return self.random.choice([self.wake, self.revive])

    def do_kill(self):
        jid = self._job()
        if jid:
            signal = self._kill(jid)
            if self.random.random() < 0.3:
                self.run(self.random.choice([0.1, 1.0, 10.0, 60.0]) * self.random.random())
                self._kill(jid, signal)

    def _kill(self, jid, signal=None):
        """Kill a job, or send a further part of an earlier kill."""
        targets = self._some()
        for name in targets:
            self.truth.kill((name, jid))
            self.last_kill[name, jid] = self.now
        for name in self.targets[jid].intersection(targets):
            self._is_killed(name, jid)
        return self.kill(jid, targets=targets, signal=signal)

    def _is_killed(self, name, jid):
        """An operator kills a job on a minion that has it, or is owed it."""
        self.last_kill[name, jid] = self.now
        self.killed_at[name, jid] = min(self.now, self.killed_at.get((name, jid), float("inf")))

    def do_cancel(self):
        jid = self._job()
        if jid:
            self.request("cancel", minion=None, jid=jid)
            if self.random.random() < 0.5:
                self.request("purge", states=["cancelled"])

    def do_enqueue(self):
        """An operator queues a job by hand for the minions that have not returned it."""
        jid = self._job()
        if jid:
            owed = [name for name in self.published[jid][1] if (name, jid) not in self.returned]
            self.enqueue(jid, owed, self._asker(), named=self.random.random() < 0.5)

    def _asker(self):
        return Identity(TOKEN, self.random.choice(USERS), ("pam",))

    def do_retry(self):
        """An operator has the held and dead entries of a job tried again, whatever is known about them."""
        jid, asker = self._job(), self._asker()
        if jid:
            self.request("retry", minion=None, jid=jid, asker=asker.as_record())

    def do_urge(self):
        self.request("replay", minion=self._name())

    def do_forge(self):
        """An accepted minion forges events of others. The docs say what a forged start can do."""
        # Nobody knows a jid before the master makes it.
        name, jid = self._name(), self._job() or "unpublished"
        forged = f"forged{self.now}"
        lies = [
            lambda: self.truth.forged.add((name, jid)) or self.hear_return(name, jid),
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

    def do_store(self):
        # An engine whose first place in the log was never stored has to search for all that it has read.
        self.store_up = not self.store_up or RetryStore(self.site).cursor().position is None

    def do_cache(self):
        self.cache_up = not self.cache_up
        self.up_since = max(self.now, self.up_since)

    # -- the end ------------------------------------------------------------------------------------------------------

    def play(self, steps):
        """Do many random things; then end all trouble, and wait until everything has settled."""
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
        # A job that its minion drops is sent again every hour, and may be on its way now.
        self.run(60, lambda: not any(entry.state is State.CLAIMED for entry in self.machine.entries()))
        written = []
        self.shell.writer.when_durable(lambda: written.append(True))
        self.run(60, lambda: written)

    def calm(self):
        """End all trouble."""
        if not self.cache_up:
            self.do_cache()
        self.store_up = self.keeps_returns = True
        self._die_at, self.lossy, self.windows_known, self.publishing = None, 0.0, True, []
        self.maintenance = 200.0  # nothing needs a cursor from now on, and they take half of the time of a world
        if self.shell is not None:
            self.shell.maintenance = self.maintenance

    def _is_over(self):
        """Whether nothing more happens by itself."""
        return not self.machine.capture.open and all(entry.state in SETTLED for entry in self.machine.entries())

    def judge(self):
        """Assert that no job was lost, and none ran that must not run."""
        for jid, (_, targets, _) in self.published.items():
            note = self.machine.watched.get(jid)
            for name in targets:
                key = name, jid
                settled = note is not None and (
                    (name in note.settled and (key in self.truth.ended or self.truth.is_over(key)))
                    or (name in note.begun and (self.runs[key] or key in self.truth.forged))
                )
                explained = key in self.returned or self.state(*key) or settled or key in self.gone or key in self.lost
                assert explained, f"{key} is lost: it has run {self.runs[key]} times"
                assert self.state(*key) is not State.CLAIMED
                entry = self.machine.entry(*key) if self.state(*key) is State.CANCELLED else None
                if entry and entry.reason.startswith(("killed by", "by an operator")):
                    is_over = not self.keeps_order or self.truth.is_over(key)
                    assert is_over, f"{key} was wanted after it: {entry.reason}"
        assert all(runs <= 6 for runs in self.runs.values()), "a loop"
        there = {(entry.minion, entry.jid) for entry in self.machine.entries()}
        assert self.stored.keys() == there, "it is not what is stored"


class CutOff(Adversary):
    """
    A world in which links are cut as well: the returns of a cut-off minion are lost, and it ignores their jids until it
    restarts. The master forbids jobs for good, and does not match minions for a while. Some minions keep records.
    """

    KINDS = (*Adversary.KINDS, "cut", "cut", "cut", "forbid", "miss")

    def __init__(self, seed):
        super().__init__(seed)
        for minion in self.minions.values():
            minion.keeps = self.random.random() < 0.3

    def do_cut(self):
        """A minion's link is cut while the minion runs jobs, and for a while after. It misses further jobs meanwhile."""
        name = self._name()
        minion = self.minions[name]
        if not minion.up:
            return
        minion.up, life = False, minion.life
        for jid in list(minion.running):
            del minion.running[jid]
            minion.ran.add(jid)
        for _ in range(2):
            self.publish(self._next_jid(), targets=(name,))
            self.run(self.random.uniform(0.0, 20.0))
        if minion.life == life and minion.late is None:
            minion.up = True

    def do_forbid(self):
        jid = self._job()
        if jid:
            self.forbidden.add(jid)

    def do_miss(self):
        self.refuse(self.random.randint(1, 5), NoMinionMatched("nobody"))

    def judge(self):
        super().judge()
        for name, backlog in self.machine.backlogs.items():
            pending = {e.jid: self._hours(e.jid) for e in backlog.entries.values() if e.state is State.PENDING}
            for hours in pending.values():  # other windows may never be open at the same time
                together = [jid for jid, its in pending.items() if its in (hours, ("", ""))]
                assert len(together) <= 1, f"{together} wait for each other, and {name} is there"


class Operators(CutOff):
    """
    A world in which operators use every verb, and set every option: entries expire soon, queues are full, newer jobs replace
    older ones, interrupted jobs run again. Keys are rejected, deleted and made anew; everything is killed at once.
    """

    KINDS = (
        *CutOff.KINDS,
        *("kill_all", "pause", "resume", "key", "key", "again", "again", "newer", "newer", "limited", "limited"),
        *("unmatch", "refuse", "purge", "cancel_one", "retry_one", "recover"),
    )

    def __init__(self, seed):
        self.hands = random.Random(f"{seed}, operators")
        self.paused_at, self.just_ended = math.inf, 0
        self.without_key = {}  # minion -> since when its key is not accepted
        self.killed_with_all = set()  # (minion, jid) of jobs that a kill of everything has ended
        super().__init__(seed)

    def options(self):
        choice = self.hands.choice
        return {
            "ttl": choice([300.0, 900.0, 1e6, 1e6]),
            "keep": choice([0.0, 300.0, 1e6]),
            "supersede": choice([(), ("state.*",)]),
            "max_attempts": choice([1, 3]),
            "max_queue_per_minion": choice([2, 100, 100]),
            "max_queue": choice([4, 200_000, 200_000]),
            "rate": choice([1.0, 10.0]),
            "gather": choice([0.0, 2.0]),
            "settle": choice([0.0, 1.0]),
        }

    # -- what is true -------------------------------------------------------------------------------------------------

    def supersedes(self, newer, older):
        its, other = self.published[newer][0], self.published[older][0]
        return bool(self.settings.supersede) and its.digest == other.digest and newer != older

    def is_full(self, minion, option):
        entries = list(self.machine.entries())
        if option == "max_queue_per_minion":
            entries = [entry for entry in entries if entry.minion == minion and entry.state not in ENDED]
        return len(entries) + self.just_ended >= getattr(self.settings, option)

    def crash(self):
        super().crash()
        # A frozen minion may run what it got late, and the store does not have that: the job is still in the queue.
        stored = self.stored
        for key in self.killed_with_all:
            if stored.get(key, {}).get("state") == State.PENDING:
                self.killed_at.pop(key, None)
        # What was only in memory is not owed again to a minion without an accepted key.
        self.lost |= {(name, jid) for name in self.without_key for jid in self.published if (name, jid) not in stored}

    def _limit(self, jid, name):
        own = getattr(self.published[jid][0].limits, name)
        return getattr(self.settings, name) if own is None else own

    def attempts(self, jid):
        return self._limit(jid, "max_attempts")

    def end_of(self, jid, since):
        return since + self._limit(jid, "ttl")

    def hears(self, effects):
        self.just_ended = sum(isinstance(effect, facts.Announce) and effect.kind != "queued" for effect in effects)
        super().hears(effects)
        for effect in effects:
            if isinstance(effect, facts.Announce) and effect.reason.startswith("the queue is full"):
                key = effect.minion, effect.jid
                self.lost.add(key)
                # If it is queued after all, it was missed, whoever had asked for it in vain.
                self.truth.ends_at[key] = self.end_of(effect.jid, self.published[effect.jid][2])
                self.truth.ask_in_vain(key)

    def begins(self, request):
        super().begins(request)
        if request.request["do"] == "pause":
            self.paused_at = min(self.now, self.paused_at)
        elif request.request["do"] == "resume":
            self.paused_at = math.inf

    def boot(self):
        if not RetryStore(self.site).is_paused():  # the request to resume may not have been answered
            self.paused_at = math.inf
        super().boot()

    def wants_publish(self, jid, names):
        self.must(self.now <= self.paused_at + STEPS, f"{jid} is published although replays are paused")
        for name in sorted(names):
            key, since = (name, jid), self.without_key.get(name, math.inf)
            self.must(self.now <= since + RIGHT_NOTED, f"{key} is published although its key is not accepted")
            entry = self.machine.entry(*key)
            if any("it will be run again" in why for _, _, why in entry.history):
                self.must(self.attempts(jid) > 1, f"{key} is run again, and must not")
                self.known.discard(key)
                self.begun.discard(key)
        super().wants_publish(jid, names)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def do_key(self):
        """A key is rejected or deleted. One that is not accepted is accepted again, or made anew."""
        name = self.hands.choice(sorted(self.minions))
        if name in self.without_key:
            self._accept(name)
        else:
            self.without_key[name] = self.now
            if self.hands.random() < 0.5:
                self.barred.add(name)
            else:
                self.keyless.add(name)
                self.truth.was["keyless"][name] = self.now
            # What is not in the queue yet is not owed to a minion without an accepted key.
            queued = {entry.jid for entry in self.machine.entries() if entry.minion == name} if self.shell else set()
            self.lost |= {(name, jid) for jid in self.published if jid not in queued}
        self.fire(events.KEY, {"id": name})

    def _accept(self, name):
        """Accept a key, made anew if there is none. The minion starts."""
        del self.without_key[name]
        if name in self.keyless:
            self.truth.was["keyless"][name] = self.now
        self.barred.discard(name)
        self.keyless.discard(name)
        self.start(name)

    def publish(self, jid, targets, **options):
        """Publish to the minions whose keys are accepted; Salt knows no others."""
        if known := tuple(name for name in targets if name not in self.without_key):
            super().publish(jid, known, **options)

    def acknowledge(self, name, jid):
        if name not in self.without_key:
            super().acknowledge(name, jid)

    def take_return(self, name, jid):
        if name not in self.without_key:
            super().take_return(name, jid)

    def take_answer(self, name, question, fun, value):
        if name not in self.without_key:
            super().take_answer(name, question, fun, value)

    # -- what operators do --------------------------------------------------------------------------------------------

    def do_kill_all(self):
        """Kill all that some minions run: ``salt '*' saltutil.kill_all_jobs``."""
        targets = tuple(name for name in self._some() if name not in self.without_key)
        self.truth.stopped_all.update(dict.fromkeys(targets, self.now))
        for name in targets:
            for jid in self.published:
                self.truth.kill((name, jid))
            # A job that a frozen minion got late is in the queue, and the engine cannot tell that it runs. Without a log it
            # cannot tell whether the job was published before the kill.
            for jid in self.minions[name].running if self.reaches(name) and self.keeps_order else ():
                is_there = self.shell is not None and self.shell.restored
                state = self.state(name, jid) if is_there else self.stored.get((name, jid), {}).get("state")
                is_waiting = state == State.PENDING
                is_waiting = is_waiting or any(self._names(each, name, jid) for each in self.requests.values())
                if not is_waiting and (name, jid) not in self.lost:  # there may be no room for it in the queue
                    self._is_killed(name, jid)
                    self.killed_with_all.add((name, jid))
        if targets:
            self.kill("", targets=targets)

    def do_pause(self):
        self.request("pause")

    def do_resume(self):
        self.request("resume")

    def do_again(self):
        """A job is published again, under its jid, to a minion that is still away."""
        missed = [
            (name, jid)
            for jid, names in self.targets.items()
            for name in sorted(names)
            if not self.minions[name].up and not self.runs[name, jid] and (name, jid) not in self._ended()
        ]
        if missed:
            name, jid = self.hands.choice(missed)
            if name not in self.without_key:
                self.killed_at.pop((name, jid), None)
                self.last_kill.pop((name, jid), None)
                self.publish(jid, targets=(name,))

    def _ended(self):
        """Keys for which a further publish has no effect: an entry of theirs has ended, or they seem to have begun."""
        return self.truth.ended | self.truth.forged

    def do_newer(self):
        """The same job is published again under another jid."""
        self.publish(self._next_jid(), targets=self._some(), digest="the same")

    def do_limited(self):
        """A job says for how long it is owed, and how often it may be begun."""
        ttl, attempts = self.hands.choice([None, 300.0, 1e6]), self.hands.choice([None, 1, 2])
        limits = Limits(given=True, ttl=ttl, max_attempts=attempts)
        self.publish(self._next_jid(), targets=self._some(), limits=limits)

    def do_unmatch(self):
        """A minion no longer matches the target of a job, or matches it again."""
        jid = self._job()
        if jid and not self.by_id:
            key = self.hands.choice(sorted(self.targets[jid])), jid
            self.truth.unmatched.add(key)
            self.unmatched ^= {key}

    def do_refuse(self):
        """The master refuses publishes, or takes them and does not say so."""
        self.refuse(self.hands.randint(1, 3), PublishFailed("no", certain=self.hands.random() < 0.5))

    def do_purge(self):
        self.request("purge", states=[self.hands.choice(["pending", "held", "dead", "expired", "cancelled"])])

    def do_cancel_one(self):
        self.request("cancel", minion=self.hands.choice(sorted(self.minions)), jid=None)

    def do_retry_one(self):
        asker = self._asker()
        name = self.hands.choice(sorted(self.minions))
        self.request("retry", minion=name, jid=None, asker=asker.as_record())

    def do_recover(self):
        """The engine takes up again what the store holds."""
        self.request("take_up")

    def calm(self):
        super().calm()
        self.do_resume()
        for name in sorted(self.without_key):
            self._accept(name)

    def judge(self):
        over = [key for key, ends_at in self.truth.ends_at.items() if ends_at <= self.now]
        self.lost |= {*over, *self.truth.ended}
        super().judge()


class Clocks(CutOff):
    """
    A world in which the master's clock is set again and again, forward and back, by seconds to hours: while the engine runs,
    while it is down, and around the actions of operators and minions. Jids are made from that clock, and are unique.

    Without a log, the engine finds jobs and kills by their times. It may miss one that is dated before an earlier one.
    """

    KINDS = (*CutOff.KINDS, *("clock",) * 8)

    def __init__(self, seed):
        self.hands = random.Random(f"{seed}, clock")
        self.most = 0.0  # the most that the clock was ever ahead
        # jid -> the least that the clock was ahead when the job, or its kill, was published or stored
        self.dated = {}
        self.unlogged = set()  # jids whose publish or kill is in no log
        self.last_set, self.was_ahead = -math.inf, 0.0  # when the clock was set last, and how far it was ahead before
        self.made_at = {}  # what the clock showed when a request was made -> when that was
        self.asked_for = {}  # (minion, jid) that an operator has ever wanted -> what the clock showed then
        self.shown_at_kill = {}  # (minion, jid) -> what the clock showed when it was last killed
        self.latest_kill = {}  # (minion, jid) -> the most that the clock showed when it was killed
        super().__init__(seed)

    def do_clock(self):
        """The clock is set, and sometimes set back soon after, in the middle of what happens next."""
        by = self.hands.choice([5.0, 60.0, 600.0, 3600.0, 3 * 3600.0]) * self.hands.uniform(-1.0, 1.0)
        self._set_clock(self.hands.choice([by, by, -self.clock_ahead]))
        if self.hands.random() < 0.5:
            self.later(self.hands.uniform(0.0, 30.0), lambda: self._set_clock(-by), engine=False)

    def _set_clock(self, by):
        if abs(by) <= 1.0:
            return  # the engine does not promise to notice
        self.was_ahead = self.clock_ahead
        self.clock_ahead = max(-6 * 3600.0, min(6 * 3600.0, self.clock_ahead + by))
        self.most = max(self.clock_ahead, self.most)
        self.last_set = self.now
        for key, (shown, _) in self.parts.items():
            if key in self.last_kill and shown > self.wall():
                self.truth.kill(key)

    def _shown(self):
        before = [self.last_set + self.was_ahead] if self.now < self.last_set + STEPS else []
        return super()._shown() + before

    def _is_wanted(self, keys, wanted_at, again=ENDED):
        """If the clock was set after a kill, or back since one, the engine may order it and the request either way."""
        made_at = self.made_at.get(wanted_at, wanted_at)
        shown = wanted_at if wanted_at <= self.wall() + 1.0 else -math.inf
        self.asked_for.update((key, max(shown, self.asked_for.get(key, shown))) for key in keys)
        is_late = {key for key in keys if self.last_kill.get(key, -math.inf) >= made_at and self._seems_older(key)}
        is_later = {key for key in keys if self.latest_kill.get(key, -math.inf) >= wanted_at}
        unsure = is_late | is_later | {key for key in keys if self._was_set_after_kill(key)}
        super()._is_wanted(keys - unsure, made_at, again)
        super()._is_wanted(unsure, math.inf, again)
        self.gone |= unsure
        for key in unsure:
            self.truth.kill(key)

    def publish(self, jid, targets, **options):
        """The engine may also order a kill and a publish after it either way."""
        super().publish(jid, targets, **options)
        for key in ((name, jid) for name in targets):
            if self._was_set_after_kill(key):
                self.truth.kill(key)

    def _was_set_after_kill(self, key):
        return self.last_kill.get(key, math.inf) <= self.last_set

    def _seems_older(self, key):
        """Whether the clock showed an earlier time at a kill than at a request."""
        return self.shown_at_kill.get(key, math.inf) <= self.asked_for.get(key, -math.inf)

    def _is_killed(self, name, jid):
        self.shown_at_kill[name, jid] = self.wall()
        self.latest_kill[name, jid] = max(self.wall(), self.latest_kill.get((name, jid), -math.inf))
        super()._is_killed(name, jid)

    def leave(self, engine, request):
        number = super().leave(engine, request)
        self.made_at[asked_at(number)] = self.now
        return number

    def take_load(self, load, names, origin="", ends=(), **options):
        for jid in ends or (load["jid"],):
            self._date(jid)
        super().take_load(load, names, origin, ends, **options)

    def _date(self, jid):
        self.dated[jid] = min(self.clock_ahead, self.dated.get(jid, math.inf))

    def lose_log(self):
        super().lose_log()
        self.unlogged.update(self.dated)

    def _may_be_missed(self, jid):
        return jid in self.unlogged and self.dated[jid] < self.most

    def wants_publish(self, jid, names):
        for key in ((name, jid) for name in names):
            # An engine that starts after that may take the kill for older than a request before it.
            is_asked_for = key in self.asked_for and (self._was_set_after_kill(key) or self._seems_older(key))
            if self._may_be_missed(jid) or is_asked_for:
                self.killed_at.pop(key, None)
        super().wants_publish(jid, names)

    def judge(self):
        missed = [jid for jid in self.published if self._may_be_missed(jid)]
        self.lost |= {(name, jid) for jid in missed for name in self.minions}
        super().judge()


class Failing(CutOff):
    """A world whose store fails, for one record or for all: before a write, or after it, without a confirmation."""

    def __init__(self, seed):
        self.failing = random.Random(f"{seed}, store")
        self.share = 0.0
        super().__init__(seed)
        self.share = self.failing.choice([0.02, 0.1, 0.3])

    def uses_store(self):
        if self.failing.random() < self.share:
            raise SiteAway("the store is busy")

    def calm(self):
        super().calm()
        self.share = 0.0


class Power(CutOff):
    """
    A world in which the master loses power. Of what was not synced, the site's database loses one suffix: claims and
    publishes are synced, returns and most of the queue's records are not. The job cache, another store, may lose returns.
    """

    KINDS = (*CutOff.KINDS, "power", "power", "power")

    def __init__(self, seed):
        self.fate = random.Random(f"{seed}, power")
        self.returned_at = {}
        super().__init__(seed)

    def store_return(self, name, jid):
        self.returned_at.setdefault((name, jid), self.now)
        super().store_return(name, jid)

    def do_power(self):
        """The master's machine loses power, and is back a moment later. The engine starts later."""
        self.crash()
        for key, at in list(self.returned_at.items()):
            if self.now - at < SYNCED and self.fate.random() < 0.5:
                del self.returned_at[key]
                self.cached.discard(key)
        self.keeps_order, self.truth.stopped = False, {}
        self.disk.cut_power()
        self.lost |= self.forget_returns()
        self.forget_begun()
        self.later(self.fate.uniform(0.1, 30.0), self._reboot, engine=False)


class PowerOnce(Power):
    """The same, but all minions record the jobs that they begin: none of them runs a job twice."""

    def __init__(self, seed):
        super().__init__(seed)
        # (minion, jid) -> how often it was sent with permission to run again
        self.wanted = collections.Counter()
        for minion in self.minions.values():
            minion.keeps = True

    async def take_publish(self, life, jid, names, once, *more):
        if once.get("rerun"):
            self.wanted.update((name, jid) for name in names)
        return await super().take_publish(life, jid, names, once, *more)

    def deliver(self, jid, names, origin=""):
        super().deliver(jid, names, origin)
        for name in names:
            self.must(self.runs[name, jid] <= 1 + self.wanted[name, jid], f"{name} runs {jid} twice")


#: The profiles that ``python -m tests.worlds.adversary`` accepts by name.
PROFILES = (Adversary, CutOff, Operators, Clocks, Failing, Power, PowerOnce)


if __name__ == "__main__":
    many_worlds.main(PROFILES)
