"""
What is true in a world: what operators wanted last, and what really became of jobs. By this a judge tells whether the engine
had a reason to end an entry. It must never look at what the engine knows or decides.
"""

from __future__ import annotations

import collections
import itertools
import math
import re

#: Seconds for which the engine may go by a right or a key that it has looked up.
STALE = 120.0
#: Seconds from a return until the engine must have found it before it gives the job up.
SEEN = 60.0


class Truth:
    """Keys are (minion, jid). ``place``: the order in which operators did something, over all of them."""

    def __init__(self):
        self._places = itertools.count()
        self.wanted, self.killed = {}, {}  # key -> the place at which it was last wanted, or killed
        self.cancels = []  # (place, minion, jid), as operators named them; None for all
        self.wanted_at = {}  # key -> when it was last wanted
        self.before = {}  # key -> what was true before an operator's last request for it: place, time, end
        self.stopped_all = {}  # minion -> when everything was last killed on it
        self.stopped = {}  # key -> when the cancel of its entry was carried out, unless it was wanted since
        self.ends_at = {}  # key -> when its time to live is over, at the earliest
        self.forged = set()  # keys of forged receipts
        self.claims = collections.Counter()  # key -> how often it was about to be published
        self.returned_at = {}  # key -> when log or job cache first had its return, unless both lost it
        self.ended = set()  # keys of entries that have ended for a true reason
        self.unmatched = set()  # keys that did not match at some time
        self.was = collections.defaultdict(dict)  # "denied", "unsure", "keyless" -> {who: when that was so last}

    def want(self, key, ends_at, now):
        """An operator publishes a job to a minion."""
        self.before.pop(key, None)
        self.wanted[key], self.wanted_at[key], self.ends_at[key] = next(self._places), now, ends_at
        self.stopped.pop(key, None)
        self.ended.discard(key)

    def ask(self, key, ends_at, now, is_stored):
        """An operator requests that a job runs on a minion to which it was published. ``is_stored``: its entry is."""
        before = self.wanted[key], self.wanted_at[key], self.ends_at[key]
        before = before if is_stored else self.before.get(key, before)  # an earlier request may be in vain, too
        self.want(key, ends_at, now)
        self.before[key] = before

    def ask_in_vain(self, key):
        """The request for it was refused, or is to be carried out anew."""
        if key in self.before:
            self.wanted[key], self.wanted_at[key], self.ends_at[key] = self.before.pop(key)

    def kill(self, key):
        self.killed[key] = next(self._places)

    def cancel(self, minion, jid):
        """An operator cancels what is named thus."""
        self.cancels.append((next(self._places), minion, jid))

    def _cancelled_at(self, key):
        named = (place for place, *names in self.cancels if all(map(lambda n, k: n in (None, k), names, key)))
        return max(named, default=-1)

    def is_over(self, key):
        """Whether an operator killed or cancelled it after it was last wanted."""
        if self.wanted_at[key] <= self.stopped_all.get(key[0], -math.inf):
            return True  # even if a request from before that was carried out later
        return max(self.killed.get(key, -1), self._cancelled_at(key)) > self.wanted[key]

    def why_wrong(self, world, key, kind, reason):
        """Return why an entry must not have come to its end; empty if it had to."""
        is_true = getattr(self, f"_{kind}", None)
        if is_true is None or is_true(world, key, reason):
            self.ended.add(key)
            return ""
        return f"{key} is {kind}, and that is not true: {reason}"

    # -- one for each kind of announcement ----------------------------------------------------------------------------

    def _done(self, world, key, reason):
        return key in world.returned or key in world.lost

    def _cancelled(self, world, key, reason):
        if reason.startswith("killed by "):
            return key in self.killed or (key[0] in self.stopped_all and not world.keeps_order)
        if reason.startswith("by an operator"):
            return self._cancelled_at(key) >= 0
        if reason.startswith("the same job was published again: "):
            newer = reason.rpartition(" ")[2]
            return world.supersedes(newer, key[1]) and (key[0], newer) in self.wanted
        # What is published once there is a new key is for the minion that has it.
        made_at = self._key_changed_at(world, key[0])
        return reason == "the minion's key was deleted" and self.wanted_at[key] < made_at

    def _key_changed_at(self, world, name):
        """Return when a minion's newest key was made, or its last one deleted; infinity if it has none."""
        return math.inf if name in world.keyless else self.was["keyless"].get(name, 0.0)

    def _expired(self, world, key, reason):
        # A job that was published again is owed from its first publish.
        is_late = world.now >= self.ends_at[key] - 1.0
        return is_late and self.returned_at.get(key, world.now) > world.now - SEEN

    def _held(self, world, key, reason):
        if " is unsure" in reason:
            return self._was(world, "unsure", reason.split()[0])
        if reason.startswith("the master does not let it be published"):
            return key[1] in world.forbidden
        if reason.startswith("it may have run "):
            return self.claims[key] > 0
        if reason.startswith("it was sent "):
            times = int(re.match(r"it was sent (\d+) times", reason)[1])
            return self.claims[key] + 1 >= times  # the operator's own publish is one of them
        without_return = ("it was begun and ended without a return", "it ran without a return")
        return reason.startswith(without_return) and self._began(world, key)

    def _dead(self, world, key, reason):
        if " is denied" in reason:
            return self._was(world, "denied", reason.split()[0])
        if reason == "it no longer matches the job's target":
            return key in self.unmatched
        return reason.startswith("the queue is full: ") and world.is_full(key[0], reason.rpartition(" ")[2])

    def _began(self, world, key):
        return world.runs[key] > 0 or key in self.forged

    def _was(self, world, what, who):
        return world.now - self.was[what].get(who, -STALE) < STALE or who in getattr(world, what)
