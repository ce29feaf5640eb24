"""
Worlds of other sites: with jobs that are not kept, and zones whose clocks are put forward and back.

    python -m tests.worlds.sites --profile Sites --seeds 0-100
"""

from __future__ import annotations

import datetime
import fnmatch
import math
import random

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Limits
from tests import many_worlds
from tests.worlds.adversary import HALF_HOURS, Operators

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


class Sites(Operators):
    """A world in which some jobs must not be kept, and windows go by the clocks of zones."""

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

    def named_by(self, request):
        is_refused = self.loads_given[request.request["jid"]].get("nocache")  # what has run it could not be known
        return set() if is_refused else super().named_by(request)

    def begins(self, request):
        super().begins(request)
        if request.request["do"] == "enqueue":
            keys = self.named_by(request)
            kills = {key: (self.last_kill.get(key), self.truth.stopped_all.get(key[0])) for key in keys}
            in_vain = {key for key in keys if max(at or -math.inf for at in kills[key]) >= request.wanted_at}
            self.lost = self.lost - (keys - self.wished) | in_vain
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
        several = ["state.apply", "test.ping"], ["state.apply", QUESTIONS[0]]
        funs = ["test.ping", "cmd.run", "sys.doc", *several, *QUESTIONS]
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


PROFILES = (Sites,)

if __name__ == "__main__":
    many_worlds.main(PROFILES)
