"""
Worlds of other sites: with the queue of a master that is gone, jobs that are not kept, zones whose clocks are put forward
and back, a job cache that is not ours, and a store that refuses single records for good.

    python -m tests.unit.retry.sites --profile Sites --seeds 0-100
"""

from __future__ import annotations

import collections
import datetime
import errno
import fnmatch
import math
import random

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import ENDED, UNDER_WAY, Entry, Limits, State
from saltext.jobs.core.retry.reader import job_of
from saltext.jobs.core.retry.store import CLAIMS, FORMAT, JOBS, NOTES, OWNERS, QUEUE
from saltext.jobs.core.retry.verbs import OWNER_GONE
from tests import many_worlds
from tests.unit.retry.adversary import HALF_HOURS, Operators, Power, live_through
from tests.unit.retry.world import OPTS

#: The master that is gone, and a minion that only that master knew.
GONE, STRANGER = "gone_master", "z"
#: A window that is open at other minutes of each second hour.
SECOND_HOURS = "; ".join(f"{hour:02}:{10 + hour % 2 * 25}-{hour:02}:{30 + hour % 2 * 25}" for hour in range(24))
#: Zones, each with a moment shortly before its clocks are put forward or back.
ZONES = (
    ("UTC", "2027-01-14T00:16:40"),
    ("Asia/Kathmandu", "2027-01-14T00:16:40"),
    ("Europe/Berlin", "2027-03-28T00:40:00"),
    ("Europe/Berlin", "2027-10-31T00:40:00"),
    ("America/New_York", "2027-11-07T05:40:00"),
    ("Australia/Lord_Howe", "2027-04-03T14:40:00"),
)
#: Functions that ask about other jobs.
QUESTIONS = ("saltutil.find_job", "saltutil.running")
#: How the reason begins for which a job is given up.
REFUSED = "the store refuses it"
#: Errors of one record, and what they hinder: a bad block, something else in its place, and a file that is write-protected.
ERRORS = {
    errno.EIO: ("store", "fetch"),
    errno.EISDIR: ("store", "fetch", "flush"),
    errno.EPERM: ("store", "flush"),
}


class Sites(Operators):
    """
    A world in which another master, which shares the store and the job cache, has left a queue: this master adopts it,
    perhaps twice, or dies meanwhile. Some jobs must not be kept. Windows go by the clocks of zones.
    """

    KINDS = (
        *Operators.KINDS,
        *(
            "estate",
            "estate",
            "estate",
            "adopt",
            "adopt",
            "adopt",
            "unkept",
            "unkept",
            "unkept",
            "wish",
            "wish",
            "zoned",
            "zoned",
            "zone",
        ),
    )

    def __init__(self, seed):
        self.site = random.Random(f"{seed}, site")
        self.has_own_cache = self.site.random() < 0.7
        zone, begins = self.site.choice(ZONES)
        self.zones = zone, self.site.choice(ZONES)[0]
        moment = datetime.datetime.fromisoformat(begins).replace(tzinfo=datetime.timezone.utc)
        self.start_at = moment.timestamp() + self.site.uniform(0.0, 1200.0)
        self.lost_zones = set()
        self.estate = {}  # jid -> the minions that the gone master owes it
        self.adopted = set()  # jids that this master has taken over
        self.wished = set()  # (minion, jid) that an operator has enqueued
        self.unkept = set()  # jids of jobs that are not kept
        self.opts = {**OPTS, "cache": "redis"}  # other masters may use the same store
        super().__init__(seed)
        self.banks[OWNERS][GONE] = self.wall() + self.site.uniform(-2 * OWNER_GONE, 300.0)

    def options(self):
        choice = self.site.choice
        more = {} if self.has_own_cache else {"has_log": False, "why_unauthenticated": choice(["", "it is 'redis'"])}
        return {
            **super().options(),
            **more,
            "timezone": self.zones[0],
            "window": choice(["", "", "", HALF_HOURS, SECOND_HOURS]),
            "include": choice([("*",), ("*",), ("state.*", "test.*")]),
            "exclude": choice([("test.ping", "sys.*"), ("cmd.*",), ()]),
        }

    # -- what is true -------------------------------------------------------------------------------------------------

    def _is_kept(self, fun="", limits=None, nocache=False, **_):
        """Whether a job may be owed to a minion that missed it, by what its publisher and the options say."""
        funs = [fun or "state.apply"] if isinstance(fun, str) else fun
        if nocache or (limits and limits.off) or not set(QUESTIONS).isdisjoint(funs):
            return False
        if limits:
            return True

        def matches(each, globs):
            return any(fnmatch.fnmatchcase(each, glob) for glob in globs)

        return all(matches(each, self.settings.include) and not matches(each, self.settings.exclude) for each in funs)

    def hears(self, effects):
        super().hears(effects)
        for effect in effects:
            if isinstance(effect, facts.Announce) and effect.kind == "queued":
                self._may_be_owed((effect.minion, effect.jid))

    def _may_be_owed(self, key):
        self.must(key[1] not in self.unkept or key in self.wished, f"{key} is owed, and must not be kept")
        self.must(key[1] not in self.estate or key[1] in self.adopted, f"{key} is owed by another master")

    def begins(self, request):
        if request.do == "adopt":
            self._takes_over(request.given["jobs"].keys() & self.estate.keys())
        super().begins(request)
        if request.do == "enqueue":
            keys = {(name, request.given["job"].jid) for name in request.given["minions"]}
            in_vain = {key for key in keys if self.last_kill.get(key, -math.inf) >= request.given["wanted_at"]}
            self.lost -= keys - self.wished - in_vain
            self.wished |= keys

    def _takes_over(self, jids):
        """The records of these jobs become this master's. What it has killed or heard of before was not its own."""
        for jid in [jid for jid in jids if self.banks[JOBS].get(jid, {}).get("owner") == GONE]:
            self.must(STRANGER not in self.estate[jid], f"{jid} is adopted, and one of its minions is not known")
            self.must(self.wall() - self.banks[OWNERS][GONE] >= OWNER_GONE - 1.0, "a living master's queue is adopted")
            for name in self.estate[jid]:
                is_sent = self.banks[f"{QUEUE}/{name}"][jid]["state"] in UNDER_WAY
                if is_sent or name in self.banks[CLAIMS].get(jid, ()):
                    self.found_sent[name] = max(1, self.found_sent[name]) + 1
                self.killed_at.pop((name, jid), None)
                self.known.discard((name, jid))
                self.begun.discard((name, jid))
        self.adopted |= jids

    def wants_publish(self, jid, names):
        for name in names:
            self._may_be_owed((name, jid))
        super().wants_publish(jid, names)

    @property
    def stored(self):
        theirs = {jid for jid, record in self.banks[JOBS].items() if record["owner"] == GONE}
        return {key: record for key, record in super().stored.items() if key[1] not in theirs}

    # -- publishes ----------------------------------------------------------------------------------------------------

    def publish(self, jid, targets, **options):
        options = self.loads_given.get(jid, options)
        super().publish(jid, targets, **options)
        if not self.has_own_cache and self.now > self.published.get(jid, (None, None, self.now))[2]:
            # A search goes by the time in the jid, which is that of the first publish.
            self.lost |= {(name, jid) for name in targets}
        # What this master publishes under the jid of another one is not owed.
        if jid in self.published and (jid in self.estate or not self._is_kept(**options)):
            self.unkept |= {jid} - self.estate.keys()
            self.lost |= {(name, jid) for name in targets if (name, jid) not in self.wished}

    def do_unkept(self):
        """A job of a function that is left out, or that asks not to be kept; or one that asks to be kept all the same."""
        if self.site.random() < 0.7:
            self.stop(self.site.choice(sorted(self.minions)))
        funs = [
            "test.ping",
            "cmd.run",
            "sys.doc",
            ["state.apply", "test.ping"],
            ["state.apply", QUESTIONS[0]],
            *QUESTIONS,
        ]
        wishes = [
            {"fun": self.site.choice(funs)},
            {"fun": self.site.choice(funs), "limits": Limits(given=True)},
            {"limits": Limits(off=True)},
            {"nocache": True, "limits": self.site.choice([None, Limits(given=True)])},
        ]
        self.publish(self._next_jid(), targets=self._some(), **self.site.choice(wishes))

    def do_wish(self):
        """An operator enqueues a job that is not kept, for some of its minions or for all that miss it."""
        if self.unkept:
            jid = self.site.choice(sorted(self.unkept))
            owed = [name for name in self.published[jid][1] if (name, jid) not in self.returned]
            self.enqueue(jid, owed[:1], self._asker(), named=self.site.random() < 0.7)

    # -- windows ------------------------------------------------------------------------------------------------------

    def do_zoned(self):
        """A job has a window of its own, in a zone of its own or in that of the options."""
        zone = self.site.choice([None, *self.zones])
        limits = Limits(given=True, window=self.site.choice([HALF_HOURS, SECOND_HOURS]), timezone=zone)
        self.publish(self._next_jid(), targets=self._some(), limits=limits)

    def do_zone(self):
        """A zone goes away, or is back."""
        self.lost_zones ^= {self.site.choice(self.zones)}

    def find_opening(self, start_at, window, timezone, now):
        if timezone in self.lost_zones:
            raise ValueError(f"{timezone!r} is no time zone of this system")
        return super().find_opening(start_at, window, timezone, now)

    # -- a job cache that is not ours: all minions are trusted --------------------------------------------------------

    def do_forge(self):
        if self.has_own_cache:
            super().do_forge()

    def take_return(self, name, jid):
        if self.why_unauthenticated and not self.keeps_returns and name not in self.without_key:
            self.lost.add((name, jid))  # the event alone counts
        super().take_return(name, jid)

    # -- the queue of another master ----------------------------------------------------------------------------------

    def do_estate(self):
        """Another master, which has died a moment ago, has left a queue."""
        if not self.has_own_cache or self.estate:
            return
        choice = self.site.choice
        for _ in range(self.site.randint(1, 4)):
            jid, at = f"g{len(self.estate)}", self.now - self.site.uniform(10.0, 300.0)
            names = [name for name in self.minions if self.site.random() < 0.7] or [choice(sorted(self.minions))]
            names += [STRANGER] if self.site.random() < 0.2 else []
            self._bequeath(
                jid, at, names, choice([{}, {"digest": "the same"}, {"limits": Limits(given=True, ttl=1e6)}])
            )

    def _bequeath(self, jid, at, names, options):
        load = self.load_of(jid, **options)
        self.estate[jid], self.loads[jid], self.loads_given[jid] = names, load, options
        self.others.add(jid)
        self.published[jid] = job_of(jid, load, at), tuple(n for n in names if n != STRANGER), at
        self.targets[jid].update(self.published[jid][1])
        self.named[jid].update(names)
        self.recorded[jid] = at, at
        self.parts.update({(name, jid): (at, at) for name in names})
        snapshot = {"owner": GONE, "published_at": at, "load": load, "minions": sorted(names), "format": FORMAT}
        self.banks[JOBS][jid] = snapshot
        for name in names:
            entry = self._inherited(name, jid, at)
            record = {**entry.as_record(), "format": FORMAT}
            if name != STRANGER:
                self.truth.want((name, jid), entry.expires_at, at)
                self.truth.claims[name, jid] += entry.attempts
                if entry.state in ENDED:
                    self.truth.ended.add((name, jid))
                self.has_stored(name, jid, record)
            if entry.state is State.PENDING and self.site.random() < 0.3:
                self.banks[CLAIMS].setdefault(jid, {})[name] = entry.since + 1.0  # newer than what the entry says
                self._reaches(name, jid)
            self.banks[f"{QUEUE}/{name}"][jid] = record
            may_run = entry.state in UNDER_WAY or name in self.banks[CLAIMS].get(jid, ())
            if may_run and self.truth.stopped_all.get(name, -math.inf) > at:
                self.truth.kill((name, jid))  # it was there already when this master killed everything

    def _inherited(self, name, jid, at):
        """Return the entry of a job that the gone master has published, and perhaps sent."""
        entry = Entry(name, jid, at, self.end_of(jid, at), "it did not return the job and does not answer")
        states = [State.PENDING, State.PENDING, State.CLAIMED, State.SENT, State.RUNNING, State.HELD, *sorted(ENDED)]
        to = self.site.choice(states)
        if to in UNDER_WAY or to is State.HELD:
            entry.claim(at + 1.0)
        if to in (State.SENT, State.RUNNING, State.HELD):
            entry.move(State.SENT, at + 2.0, "published")
        if to is State.RUNNING or (to is State.SENT and self.site.random() < 0.5):
            self._reaches(name, jid)
        if to not in (State.PENDING, State.CLAIMED, State.SENT):
            entry.acknowledged = to is State.RUNNING
            entry.move(to, at + 3.0, "the minion says that it has begun")
        return entry

    def _reaches(self, name, jid):
        """A minion has begun a job of the gone master. It has returned it, runs it, or has lost its return."""
        minion = self.minions.get(name)
        if minion is None:
            return
        self.runs[name, jid] += 1
        if minion.keeps and not minion.full:
            minion.begun[jid] = self.wall()
        becomes = self.site.choice(["returned", "runs", "lost"])
        if minion.up:
            minion.seen.add(jid)
        if minion.up and becomes == "runs":
            minion.running[jid] = True
            life = minion.life
            self.later(self.duration, lambda: self.finish(name, jid, life), engine=False)
        elif becomes == "returned":
            minion.ran.add(jid)
            self.store_return(name, jid)

    def do_adopt(self):
        """An operator adopts the queue of the gone master, perhaps twice at once."""
        for _ in range(self.site.choice([1, 1, 2])):
            self.request("adopt", owner=GONE)

    def _ended(self):
        return super()._ended() | {(name, jid) for jid, names in self.estate.items() for name in names}

    # -- the end ------------------------------------------------------------------------------------------------------

    def calm(self):
        super().calm()
        self.lost_zones.clear()
        if self.estate:
            self.later(OWNER_GONE + 360.0, self.do_adopt, engine=False)  # it may have beaten by a clock ahead

    def judge(self):
        for jid, names in self.estate.items():
            record = self.banks[JOBS].get(jid)
            if STRANGER in names:
                assert record and record["owner"] == GONE and jid not in self.adopted, f"{jid} is not left alone"
                self.lost |= {(name, jid) for name in names}
            else:
                assert jid in self.adopted, f"{jid} is not adopted"
                assert record is None or record["owner"] == OPTS["id"], f"{jid} is stored as another master's"
        super().judge()


class Refusals:
    """
    A store that refuses single records for good: a load, the claims of a job, an entry or a note. Sometimes an operator
    mends that.
    """

    def __init__(self, seed):
        self.spite = random.Random(f"{seed}, refusals")
        self.refusing = {}  # (bank, key) -> the error
        self.hindered = collections.Counter()  # (bank, key) -> how often that was tried in vain
        self.given_up = {}  # (minion, jid) -> when its job was given up because of a refusal, unless it was queued since
        super().__init__(seed)

    def do_spoil(self):
        """A record can no longer be written, perhaps one that is not there yet."""
        jid = self._job() if self.spite.random() < 0.7 else self._next_jid()
        entries = [f"{QUEUE}/{name}" for name in sorted(self.targets[jid] or self.minions)]
        banks = [JOBS, CLAIMS, f"{NOTES}/{OPTS['id']}", *entries]
        if jid:
            self.refusing[self.spite.choice(banks), jid] = self.spite.choice(list(ERRORS))

    def do_mend(self):
        self.refusing.clear()

    def uses_record(self, do, bank, key):
        error = self.refusing.get((bank, key))
        if do not in ERRORS.get(error, ()):
            return
        self.unstored.add(key)
        self.lost |= {(name, key) for name in self.minions}
        self.hindered[bank, key] += 1
        if do == "fetch":
            self._forget_unstored()
        raise OSError(error, "it cannot be used")

    def hears(self, effects):
        super().hears(effects)
        for effect in effects:
            if isinstance(effect, facts.Announce) and effect.kind == "dead" and effect.reason.startswith(REFUSED):
                self.given_up[effect.minion, effect.jid] = self.now
            elif isinstance(effect, facts.Announce) and effect.kind == "queued":
                self.given_up.pop((effect.minion, effect.jid), None)

    def crash(self):
        super().crash()
        self._forget_unstored()
        given_up = {key for key, record in self.stored.items() if record["state"] == State.DEAD}
        # An entry whose removal was refused is there again.
        gone = {(name, jid) for jid, note in self.notes.items() for name in note["settled"]}
        given_up |= gone - self.stored.keys()
        self.given_up = {key: at for key, at in self.given_up.items() if key in given_up}

    def _forget_unstored(self):
        """What a record that cannot be used was to say is known to no later engine."""
        self.known = {key for key in self.known if key[1] not in self.unstored}
        self.killed_at = {key: at for key, at in self.killed_at.items() if key[1] not in self.unstored}
        self.truth.stopped = {key: at for key, at in self.truth.stopped.items() if key[1] not in self.unstored}
        for name, jid in self.truth.ends_at:
            # The store may have what it had before an operator asked for the job.
            if jid in self.unstored:
                self.truth.ends_at[name, jid] = self.end_of(jid, self.published[jid][2])

    def judge(self):
        super().judge()
        most = max(self.hindered.values(), default=0)
        assert most < 40, "a record that the driver refuses is written again and again"

    def wants_publish(self, jid, names):
        for name in names:
            late = self.now > self.given_up.get((name, jid), self.now) + 1.0  # it may have been under way
            self.must(not late, f"{name} gets {jid}, which was given up")
        super().wants_publish(jid, names)


class Refusing(Refusals, Operators):
    """Refusals while operators use every verb, and queues are full."""

    KINDS = (*Operators.KINDS, *("spoil",) * 12, "mend")


class RefusingPower(Refusals, Power):
    """Refusals, and power cuts."""

    KINDS = (*Power.KINDS, *("spoil",) * 12, "mend")

    def do_power(self):
        super().do_power()
        self.given_up.clear()


PROFILES = (Sites, Refusing, RefusingPower)

if __name__ == "__main__":
    many_worlds.main(PROFILES, live_through)
