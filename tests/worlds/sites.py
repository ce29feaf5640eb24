"""
Worlds of other sites: with jobs that are not kept, zones whose clocks are put forward and back, and a store that refuses
single records for good.

    python -m tests.worlds.sites --profile Sites --seeds 0-100
"""

from __future__ import annotations

import collections
import datetime
import errno
import fnmatch
import math
import random

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Limits, State
from saltext.jobs.core.retry.store import CLAIMS, JOBS, NOTES, QUEUE
from tests import many_worlds
from tests.worlds.adversary import HALF_HOURS, Operators, Power, live_through
from tests.worlds.world import OPTS

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
    A world in which some jobs must not be kept, and windows go by the clocks of zones.
    """

    KINDS = (*Operators.KINDS, *("unkept", "unkept", "unkept", "wish", "wish", "zoned", "zoned", "zone"))

    def __init__(self, seed):
        self.odds = random.Random(f"{seed}, site")
        zone, begins = self.odds.choice(ZONES)
        self.zones = zone, self.odds.choice(ZONES)[0]
        moment = datetime.datetime.fromisoformat(begins).replace(tzinfo=datetime.timezone.utc)
        self.start_at = moment.timestamp() + self.odds.uniform(0.0, 1200.0)
        self.lost_zones = set()
        self.wished = set()  # (minion, jid) that an operator has enqueued
        self.unkept = set()  # jids of jobs that are not kept
        super().__init__(seed)

    def options(self):
        choice = self.odds.choice
        return {
            **super().options(),
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

    def begins(self, request):
        super().begins(request)
        if request.do == "enqueue":
            keys = {(name, request.given["job"].jid) for name in request.given["minions"]}
            in_vain = {key for key in keys if self.last_kill.get(key, -math.inf) >= request.given["wanted_at"]}
            self.lost -= keys - self.wished - in_vain
            self.wished |= keys

    def wants_publish(self, jid, names):
        for name in names:
            self._may_be_owed((name, jid))
        super().wants_publish(jid, names)

    # -- publishes ----------------------------------------------------------------------------------------------------

    def publish(self, jid, targets, **options):
        options = self.loads_given.get(jid, options)
        super().publish(jid, targets, **options)
        if jid in self.published and not self._is_kept(**options):
            self.unkept.add(jid)
            self.lost |= {(name, jid) for name in targets if (name, jid) not in self.wished}

    def do_unkept(self):
        """A job of a function that is left out, or that asks not to be kept; or one that asks to be kept all the same."""
        if self.odds.random() < 0.7:
            self.stop(self.odds.choice(sorted(self.minions)))
        funs = [
            "test.ping",
            "cmd.run",
            "sys.doc",
            ["state.apply", "test.ping"],
            ["state.apply", QUESTIONS[0]],
            *QUESTIONS,
        ]
        wishes = [
            {"fun": self.odds.choice(funs)},
            {"fun": self.odds.choice(funs), "limits": Limits(given=True)},
            {"limits": Limits(off=True)},
            {"nocache": True, "limits": self.odds.choice([None, Limits(given=True)])},
        ]
        self.publish(self._next_jid(), targets=self._some(), **self.odds.choice(wishes))

    def do_wish(self):
        """An operator enqueues a job that is not kept, for some of its minions or for all that miss it."""
        if self.unkept:
            jid = self.odds.choice(sorted(self.unkept))
            owed = [name for name in self.published[jid][1] if (name, jid) not in self.returned]
            self.enqueue(jid, owed[:1], self._asker(), named=self.odds.random() < 0.7)

    # -- windows ------------------------------------------------------------------------------------------------------

    def do_zoned(self):
        """A job has a window of its own, in a zone of its own or in that of the options."""
        zone = self.odds.choice([None, *self.zones])
        limits = Limits(given=True, window=self.odds.choice([HALF_HOURS, SECOND_HOURS]), timezone=zone)
        self.publish(self._next_jid(), targets=self._some(), limits=limits)

    def do_zone(self):
        """A zone goes away, or is back."""
        self.lost_zones ^= {self.odds.choice(self.zones)}

    def find_opening(self, start_at, window, timezone, now):
        if timezone in self.lost_zones:
            raise ValueError(f"{timezone!r} is no time zone of this system")
        return super().find_opening(start_at, window, timezone, now)

    def calm(self):
        super().calm()
        self.lost_zones.clear()


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
