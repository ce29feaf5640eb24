"""
A small world for the retry machine: a master's job cache and log, a store, a bus and minions, in memory and on one clock.

Minions behave as Salt's do: they ignore a jid that they have seen, and forget what they have seen when they start. What
the machine wants done takes time, and a crash of the engine falls between any two of its parts.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import math

from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.log import records
from saltext.jobs.core.retry import doings, facts
from saltext.jobs.core.retry.capture import LATEST
from saltext.jobs.core.retry.checkpoint import MARGIN
from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, Job, State
from saltext.jobs.core.retry.knowledge import Said
from saltext.jobs.core.retry.machine import Retry
from saltext.jobs.core.retry.note import Note
from saltext.jobs.core.retry.open_job import OpenJob, Source
from saltext.jobs.core.retry.store import count_claim
from saltext.jobs.core.settings import RetrySettings
from saltext.jobs.core.windows import next_opening

#: Unix time at which a world begins: 1,000 seconds into a Thursday of these years.
START = 2976 * 7 * 86400.0 + 1000.0
#: Seconds from a publish to its deadline, in this world.
PATIENCE = 10.0
#: Seconds for which a question waits, and until its answers are in the job cache.
ANSWERS, PROOF = 5.0, 0.3


def is_sent(entry):
    """Whether a job is under way to its minion."""
    return entry.state in UNDER_WAY and entry.sent_at is not None


class Minion:
    """
    One minion: what it has seen and what it runs. One that ``keeps`` records refuses what it has begun, but for what it has
    begun while its disk was ``full``.
    """

    def __init__(self, up=True, cache_jobs=False):
        self.up, self.cache_jobs = up, cache_jobs
        self.seen, self.running, self.ran = set(), {}, set()
        self.life = 0
        self.late = None  # what was published while it was frozen, which it gets when it wakes
        self.keeps, self.full, self.begun = False, False, set()

    def says(self, jid):
        """What its records say of a job that it does not run."""
        if self.full:
            return Said.NOT_SURE
        return Said.INTERRUPTED if jid in self.begun else Said.NEVER


class World:
    """The machine under test, and everything around it."""

    def __init__(self, minions=("a", "b", "c"), acks=True, duration=1.0, has_log=True, **options):
        self.settings = RetrySettings(**{"triggers": ("start",), "sweep": 600.0, **options})
        self.now = START
        self.acks, self.duration = acks, duration
        self.minions = {name: Minion() for name in minions}
        self.published = {}  # jid -> (Job, targets, time of its first publish)
        self.last = {}  # jid -> time of its newest publish
        self.lag = 0.0  # seconds from a publish until the master has stored it
        self.recorded_at = {}  # jid -> when the first one of its publishes is recorded, or was
        self.kills = {}  # jid -> what it signals
        self.returned = set()
        self.barred = set()  # minions whose key is not accepted now
        self.by_id = True  # the targets of jobs go by ids
        self.unmatched = set()  # (minion, jid) whose target does not match the minion
        self.killed = set()  # (minion, jid) whose process was killed
        self.delivered = set()  # (minion, jid) that the operator's own publish has reached
        self.runs, self.refused = collections.Counter(), collections.Counter()
        self.store_up = self.cache_up = self.windows_known = True
        self.keeps_returns = True  # the job cache: not while the master's disk is full, though the bus tells of them
        self.denied, self.unsure = set(), set()  # users without a right any more, and those of whom nobody can tell
        self.clock_ahead = 0.0  # seconds by which somebody has set the clock on the wall
        self.published_at = []  # times of publishes
        self.stored = {}
        self.claims = {}
        self.notes = {}
        self.has_log = has_log
        self.doings = []  # the log: what the master has done
        self.open, self.position = {}, 0  # of the checkpoint
        self._read_to, self._early, self._gap = 0, [], False
        self.known = set()  # (minion, jid) that the store knows to have begun
        self.checkpoint = self.now
        self.log = []  # every effect
        self.answers = []
        self._unsaved, self._unsaved_notes = {}, {}
        self._waiting = []
        self._write_due = None  # when the store is next written to, if that is due
        self._write_pause = 0.0  # after it has failed
        self._events = []
        self._count = itertools.count()
        self._reconciling, self._since, self._searches = False, math.inf, 0
        self._epoch = 0
        self.machine = None
        self.boot()

    # -- the clock ----------------------------------------------------------------------------------------------------

    def later(self, delay, call, engine=True):
        """Call after ``delay`` seconds; what belongs to the engine dies with it."""
        epoch = self._epoch if engine else None
        heapq.heappush(self._events, (self.now + delay, next(self._count), epoch, call))

    def run(self, seconds):
        """Let time pass."""
        end = self.now + seconds
        while True:
            due = self.machine.next_due if self.machine else None
            if self._events and (due is None or self._events[0][0] <= due):
                at, _, epoch, call = self._events[0]
                if at > end:
                    break
                heapq.heappop(self._events)
                if epoch is None or epoch == self._epoch:
                    self.now = max(self.now, at)
                    call()
            elif due is not None and due <= end:
                self.now = max(self.now, due)
                self.tell(facts.Tick())
            else:
                break
        self.now = end

    def run_until(self, condition):
        """Let time pass until ``condition`` is true; fail after an hour."""
        end = self.now + 3600.0
        while not condition():
            assert self.now < end, "it did not come to that"
            self.run(0.1)

    # -- the engine ---------------------------------------------------------------------------------------------------

    def boot(self):
        """Start the engine from what is stored."""
        self.machine = Retry(self.settings, PATIENCE, acks=self.acks)
        entries = tuple(Entry.from_record(minion, jid, record) for (minion, jid), record in sorted(self.stored.items()))
        for entry in entries:
            count_claim(entry, self.claims.get(entry.jid, {}).get(entry.minion))
        self.found_sent = collections.Counter(entry.minion for entry in entries if is_sent(entry))
        jobs = tuple(self.published[jid][0] for jid in sorted({entry.jid for entry in entries}))
        notes = {jid: Note.from_record(record) for jid, record in self.notes.items()}
        opened = {jid: OpenJob.from_record(record, self.now) for jid, record in self.open.items()}
        self.tell(facts.Restored(jobs, entries, notes, opened))
        if self.machine is None:
            return
        is_known, self._gap = self.has_log and self.position is not None and not self._gap, False
        self._read_to = self.position if is_known else len(self.doings)
        self._read_log()
        if not is_known:
            self.search()

    def _do(self, record):
        """The master does something: its log has it, or the bus tells of it."""
        self.doings.append(record)
        if self.has_log:
            self.later(0.1, self._read_log, engine=False)
        elif isinstance(record, records.Published) and not record.origin:
            for fact in doings.of_event(record.jid, record.functions, self.now):
                self.tell(fact)

    def _log_publish(self, jid, fun, minions, user="root", ends=(), work="", origin=""):
        self._do(records.published(jid, fun, user, origin, minions, ends, work or jid, True, self.now))

    def _read_log(self):
        """The engine reads what the log has; who has begun what is remembered until then."""
        while self.machine is not None and self.has_log and self._read_to < len(self.doings):
            record = self.doings[self._read_to]
            self._read_to += 1
            if isinstance(record, records.Returned):
                self.tell(facts.Returned(record.jid, frozenset([record.minion])))
                continue
            for fact in doings.of_record(record, record.at):
                self.tell(fact)
        early, self._early = self._early, []
        for fact in early:
            self.tell(fact)

    def lose_log(self):
        """The log is lost, of which the engine is told."""
        self.doings, self._read_to, self._gap = [], 0, self.machine is None
        self.position = None
        if self.machine is not None:
            self.tell(facts.Gap())
            self.search()

    def _begun(self, name, jid):
        """The bus tells that a minion has begun a job, or returned it."""
        fact = facts.Acknowledged(name, jid)
        if self.machine is not None and not self.machine.knows(jid) and self.has_log:
            self._early.append(fact)
        else:
            self.tell(fact)

    def search(self):
        """Find the jobs that were published while nobody listened, and once more those that were stored late."""
        since = self.checkpoint
        self._searches += 1
        self._look_for_publishes(since)
        self.later(LATEST, lambda: self._look_once_more(since))

    def _look_once_more(self, since):
        self._look_for_publishes(since)
        self._searches -= 1

    def _look_for_publishes(self, since):
        self._since = min(since, self._since)
        if not self._reconciling:
            self._try_to_look()

    def _try_to_look(self):
        """Look as soon as the job cache can be read; until then the checkpoint stays."""
        self._reconciling = not self.cache_up
        if self._reconciling:
            self.later(2.0, self._try_to_look)
            return
        since, self._since = self._since, math.inf
        for jid, at in sorted(self.last.items(), key=lambda item: item[1]):
            if since <= at <= self.now:
                self.tell(facts.Published(jid, at, Source.CACHE))

    @contextlib.contextmanager
    def deaf(self):
        """While the bus loses what it has for the engine."""
        machine, self.machine = self.machine, None
        yield
        self.machine = machine

    def notice(self):
        """The engine learns that events were lost, and looks for what they were about."""
        self.tell(facts.Gap())
        if not self.has_log:
            self.search()

    def crash(self):
        """kill -9: what was not stored is gone, and nobody waits for an outcome."""
        self._epoch += 1
        self.machine = None
        self._unsaved, self._unsaved_notes, self._waiting = {}, {}, []
        self._write_due, self._write_pause = None, 0.0
        self._reconciling, self._since, self._searches, self._early = False, math.inf, 0, []

    def restart(self):
        self.crash()
        self.boot()

    def tell(self, fact):
        """Give the machine a fact and begin what it wants."""
        if self.machine is None:
            return
        for effect in self.machine.step(fact, self.now):
            self.log.append(effect)
            getattr(self, "on_" + type(effect).__name__.lower())(effect)
        self._check()

    def _check(self):
        total = 0
        for name, backlog in self.machine.backlogs.items():
            total += len(backlog.entries)
            sent = 0
            for entry in backlog.entries.values():
                sent += is_sent(entry)
            # A claim is stored before what else has become of the minion's jobs, which a crash may lose.
            assert sent <= 1 or sent <= self.found_sent[name], f"{name} has {sent} jobs under way"
        assert total == self.machine.total

    def on_save(self, effect):
        for key in effect.entries:
            entry = self.machine.entry(*key)
            self._unsaved[key] = entry.as_record() if entry else None
        self._write_within(1.0)

    def on_savenote(self, effect):
        note = self.machine.notes.get(effect.jid)
        self._unsaved_notes[effect.jid] = note.as_record() if note else None
        self._write_within(1.0)

    def _write_within(self, seconds):
        """Write in so many seconds at the latest, all that has changed by then."""
        due = self.now + seconds
        if self._write_due is None or due < self._write_due:
            self._write_due = due
            self.later(seconds, lambda: due == self._write_due and self._write())

    def _write(self):
        self._write_due = None
        if not self.store_up:
            self._write_pause = min(2 * self._write_pause or 1.0, 15.0)
            self._write_within(self._write_pause)
            return
        self._write_pause = 0.0
        for (minion, jid), record in self._unsaved.items():
            if record is None:
                self.stored.pop((minion, jid), None)
                continue
            self.stored[minion, jid] = record
            if record["state"] in ("running", "held") or record["acknowledged"]:
                self.known.add((minion, jid))
            elif any(why.startswith(("an operator", "it was begun")) for _, _, why in record["history"][-2:]):
                self.known.discard((minion, jid))  # it is to be run again
        self._unsaved = {}
        for jid, record in self._unsaved_notes.items():
            self.notes.pop(jid, None) if record is None else self.notes.__setitem__(jid, record)
        self._unsaved_notes = {}
        if self.machine and not self._reconciling:
            self.checkpoint = self.now - MARGIN
            self.open = {jid: job.as_record() for jid, job in self.machine.capture.open.items()}
            self.position = None if self._searches else self._read_to
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def _when_durable(self, call):
        self._waiting.append(call)
        self._write_within(0.01)

    def on_claim(self, effect):
        claims = self.machine.claims_of(effect.jid)

        def write():
            if not self.store_up:
                self.later(1.0, write)
                return
            self.claims[effect.jid] = claims
            self.tell(facts.Claimed(effect.jid, effect.minions))

        self.later(0.05, write)

    def on_answer(self, effect):
        self._when_durable(lambda: self.answers.append(effect.value))

    def on_read(self, effect):
        def read():
            if not self.cache_up:
                self.tell(facts.Unreadable(effect.jid))
                return
            if self.recorded_at.get(effect.jid, 0.0) > self.now:
                self.tell(facts.JobRead(effect.jid, None, recorded=False))
                return
            job, targets, _ = self.published.get(effect.jid, (None, (), 0))
            targets = set(targets).union(*(named for work, named in effect.publishes if job and work == job.digest))
            returned = frozenset(minion for minion in targets if (minion, effect.jid) in self.returned)
            missing = frozenset(targets) - returned - self.barred
            last, kills = self.last.get(effect.jid, 0.0), self.kills.get(effect.jid, ())
            told = {"recorded": bool(job or kills), "returned": returned}
            self.tell(facts.JobRead(effect.jid, job, missing, self.now - last, kills, **told))

        self.later(0.05, read)

    def on_lookup(self, effect):
        def look():
            if not self.cache_up:
                self.tell(facts.Unreadable(effect.jid, effect.minions))
                return
            returned = frozenset(minion for minion in effect.minions if (minion, effect.jid) in self.returned)
            last = self.last.get(effect.jid) if effect.publish else None
            told = {"denied": {}, "unsure": {}, "barred": self.barred.intersection(effect.minions)}
            for name in () if effect.only_returns else effect.minions:
                asker = effect.askers[name].user if name in effect.askers else None
                users = [(user, "denied") for user in ("publisher", asker) if user in self.denied]
                # Who asked by hand vouches for a publisher of whom nobody can tell.
                users += [(user, "unsure") for user in (asker or "publisher",) if user in self.unsure]
                for user, which in users[:1]:
                    told[which][name] = f"{user} is {which}"
            self.tell(
                facts.LookedUp(
                    effect.jid, effect.minions, returned, only_returns=effect.only_returns, last=last, **told
                )
            )

        self.later(0.05, look)

    def on_ask(self, effect):
        running, ran, idle, free = set(), set(), set(), set()

        def asked():
            for name in effect.minions:
                minion = self.minions[name]
                if minion.up:
                    if not (minion.running or minion.cache_jobs or minion.keeps):
                        free.add(name)
                    kept = (minion.cache_jobs or minion.keeps) and effect.jid in minion.ran
                    (running if effect.jid in minion.running else ran if kept else idle).add(name)

        def answered():
            self.returned |= {(name, effect.jid) for name in ran}
            silent = frozenset(effect.minions) - running - ran - idle
            sets = [frozenset(names) for names in (running, ran, idle)]
            unmatched = frozenset(name for name in idle if (name, effect.jid) in self.unmatched)
            said = {name: self.minions[name].says(effect.jid) for name in idle if self.minions[name].keeps}
            told = {"unmatched": unmatched, "said": said, "free": frozenset(free & idle), "more": bool(silent)}
            self.later(PROOF + 0.1, lambda: self.tell(facts.Asked(effect.jid, *sets, **told)))
            if silent:
                self.later(PROOF + ANSWERS, lambda: self.tell(facts.Asked(effect.jid, silent=silent)))

        self.later(0.1, asked)
        self.later(0.15, answered)

    def on_inquire(self, effect):
        running = {}

        def asked():
            there = [name for name in effect.minions if self.minions[name].up]
            running.update({name: frozenset(self.minions[name].running) for name in there})

        def answered():
            wait = PROOF + (ANSWERS if set(effect.minions) - running.keys() else 0.1)
            self.later(wait, lambda: self.tell(facts.Surveyed(effect.number, running)))

        self.later(0.1, asked)
        self.later(0.15, answered)

    def on_publish(self, effect):
        for minion in effect.minions:
            assert minion in self.claims[effect.jid], "published without a durable claim"
            known = (minion, effect.jid) in self.known and not self.minions[minion].keeps
            assert not known, "published although it is known to have begun"

        self.published_at.append(self.now)

        def record():
            self.last[effect.jid] = max(self.now, self.last.get(effect.jid, 0.0))

        def reach_master():
            self._log_publish(effect.jid, "state.apply", effect.minions, origin=JOB_RETRY)
            self.later(self.lag, record, engine=False)
            if effect.rerun:
                for minion in effect.minions:
                    self.minions[minion].begun.discard(effect.jid)
            self.deliver(effect.jid, effect.minions)

        self.later(0.05, reach_master, engine=False)
        self.later(0.2, lambda: self.tell(facts.Sent(effect.jid, effect.minions)))

    def on_ping(self, effect):
        def pong():
            there = tuple(name for name in effect.minions if self.minions[name].up)
            self.tell(facts.SignOfLife(there, facts.Sign.ANSWER))

        self.later(0.2, pong)

    def on_findopening(self, effect):
        ahead, times = self.clock_ahead, (None,)
        if self.windows_known:
            found = next_opening(None, effect.window, effect.timezone or "UTC", self.now + ahead)
            times = found.opens - ahead, None if found.closes is None else found.closes - ahead
        fact = facts.OpeningFound(effect.window, effect.timezone, *times)
        self.later(0.0, lambda: self.tell(fact))

    def on_checkkeys(self, effect):
        pass

    def on_vet(self, effect):
        strangers = frozenset(effect.minions) - self.minions.keys()
        self.later(0.1, lambda: self.tell(facts.Vetted(effect.jid, strangers)))

    def on_announce(self, effect):
        pass

    def on_warn(self, effect):
        pass

    # -- minions ------------------------------------------------------------------------------------------------------

    def publish(self, jid, targets=None, fun="state.apply", digest="", limits=None):
        """What an operator does with ``salt``; with a jid that there is, another part of the minions gets the job."""
        targets = tuple(self.minions if targets is None else targets)
        extra = {} if limits is None else {"limits": limits}
        new = Job(jid, (fun,), self.now, digest or jid, by_id=self.by_id, **extra), (), self.now
        self.published.setdefault(jid, new)
        self.recorded_at[jid] = min(self.now + self.lag, self.recorded_at.get(jid, math.inf))

        def record():
            job, earlier, at = self.published[jid]
            self.published[jid] = job, tuple(dict.fromkeys((*earlier, *targets))), at
            self.last[jid] = max(self.now, self.last.get(jid, 0.0))

        self._log_publish(jid, fun, targets, work=digest)
        if self.lag:
            self.later(self.lag, record, engine=False)
        else:
            record()
        self.delivered |= {(name, jid) for name in targets if self.minions[name].up}
        self.deliver(jid, targets)

    def refuse(
        self, times, answer=lambda effect: facts.SendFailed(effect.jid, effect.minions, "no", certain=True), after=0.0
    ):
        """Have the master give this answer, after so many seconds, to so many publishes, of which nothing is sent then."""
        publish, left = self.on_publish, [times]

        def refuse(effect):
            if left[0]:
                left[0] -= 1
                told = answer(effect)
                self.later(after, lambda: self.tell(told)) if after else self.tell(told)
            else:
                publish(effect)

        self.on_publish = refuse

    def forbid(self, jid):
        """Have the master refuse each publish of a job for good: its function has been blacklisted."""
        publish = self.on_publish

        def refuse(effect):
            no = facts.SendFailed(effect.jid, effect.minions, "no", certain=True, forbidden=True)
            self.later(0.1, lambda: self.tell(no)) if effect.jid == jid else publish(effect)

        self.on_publish = refuse

    def kill(self, jid, targets=None, user="root", fun="saltutil.kill_job", signal=None):
        """
        What an operator does with ``salt '*' saltutil.kill_job``: minions return nothing. Returns the signal's jid; with
        one that there is, another part of the minions gets it.
        """
        targets = tuple(self.minions if targets is None else targets)
        signal = signal or f"kill-{jid}-{next(self._count)}"

        def record():
            earlier = self.kills[signal][0].minions if signal in self.kills else frozenset()
            self.kills[signal] = (facts.Kill(jid, earlier.union(targets), user),)
            self.last[signal] = max(self.now, self.last.get(signal, 0.0))

        self._log_publish(signal, fun, targets, user, ends=[jid or records.EVERY_JOB])
        if self.lag:
            self.later(self.lag, record, engine=False)
        else:
            record()
        for name in targets:
            if self.minions[name].up and self.minions[name].running.pop(jid, None):
                self.killed.add((name, jid))
        return signal

    def deliver(self, jid, names):
        for name in names:
            minion = self.minions[name]
            if minion.late is not None:
                minion.late.append(jid)
            if not minion.up or jid in minion.seen:
                continue
            assert (name, jid) not in self.returned, "run again although the job cache has its return"
            assert jid not in minion.running, "begun although an earlier life of the minion still runs it"
            minion.seen.add(jid)
            if minion.keeps and jid in minion.begun:
                self.refused[name, jid] += 1
                continue
            if not minion.full:
                minion.begun.add(jid)
            self.runs[name, jid] += 1
            minion.running[jid] = True
            life = minion.life
            if self.acks:
                self.later(0.1, lambda name=name: self._begun(name, jid), engine=False)
            self.later(self.duration, lambda name=name, life=life: self.finish(name, jid, life), engine=False)

    def finish(self, name, jid, life):
        minion = self.minions[name]
        if minion.life != life or (name, jid) in self.killed:
            return
        minion.running.pop(jid, None)
        minion.ran.add(jid)
        if self.keeps_returns:
            self.store_return(name, jid)
        self.later(0.05, lambda: self.hear_return(name, jid), engine=False)

    def store_return(self, name, jid):
        """The master stores a return."""
        self.returned.add((name, jid))
        if self.has_log:
            self._do(records.Returned(jid, name, "state.apply", 0, True, self.now))

    def hear_return(self, name, jid):
        """The bus tells of a return."""
        self._begun(name, jid)
        if not self.has_log:
            self.later(0.3, lambda: self._look_for_return(name, jid, 5))

    def _look_for_return(self, name, jid, times):
        """The engine looks a few times for a return that it has heard of."""
        if (name, jid) in self.returned:
            self.tell(facts.Returned(jid, frozenset([name])))
        elif times:
            self.later(2.0, lambda: self._look_for_return(name, jid, times - 1))

    def stop(self, name):
        """kill -9 of a minion."""
        minion = self.minions[name]
        minion.up, minion.seen, minion.running, minion.late = False, set(), {}, None
        minion.life += 1

    def start(self, name):
        """Start a minion; one that is up restarts."""
        self.stop(name)
        self.revive(name)

    def revive(self, name):
        """Start a minion whose jobs live on without it (systemd's ``KillMode=process``)."""
        minion = self.minions[name]
        minion.up, minion.seen, minion.late = True, set(), None
        self.later(0.1, lambda: self.tell(facts.SignOfLife((name,), facts.Sign.START)), engine=False)

    def freeze(self, name):
        """A minion stops for a while: it answers nothing."""
        self.minions[name].up, self.minions[name].late = False, []

    def wake(self, name):
        """It goes on, and gets what was published meanwhile. No start tells of that."""
        minion = self.minions[name]
        if minion.late is not None:
            late, minion.late, minion.up = minion.late, None, True
            for jid in late:
                self.deliver(jid, (name,))

    # -- what tests look at -------------------------------------------------------------------------------------------

    def state(self, name, jid):
        """The state of an entry, or None."""
        entry = self.machine.entry(name, jid)
        return entry.state if entry else None

    def effects(self, kind):
        """All effects of a kind so far."""
        return [effect for effect in self.log if isinstance(effect, kind)]

    def told(self, jid):
        """The kinds of what was announced about a job, with the minion."""
        return [(effect.minion, effect.kind) for effect in self.effects(facts.Announce) if effect.jid == jid]

    def settled(self):
        """Whether each job that was missed has run on each of its targets, or stands in the queue with a reason."""
        owed = {(name, jid) for jid, (_, targets, _) in self.published.items() for name in targets} - self.delivered
        return all(key in self.returned or self.state(*key) not in (None, State.DONE) for key in owed)


def forty_with_a_job_each():
    """Forty minions that are away, each of which is owed a job of its own; two publishes a second. Returns them too."""
    names = tuple(f"m{n}" for n in range(40))
    world = World(minions=names, rate=2.0)
    for name in names:
        world.stop(name)
        world.publish(f"j-{name}", targets=(name,))
    world.run(120)
    return world, names
