"""
The minions that a batch is still to send to: their order, the group whose turn it is, and who has shown a sign of life.

A minion that is not known to be there is not sent to. It is pinged ``probe_attempts`` times; whoever answers, starts or
returns anything meanwhile is there. Pure: stdlib only.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator

from saltext.jobs.core.batch.kept import Kept, kept
from saltext.jobs.core.batch.plan import Membership
from saltext.jobs.core.batch.spec import Spec

_ONE_GROUP = Membership((), ())


class Pending:
    """
    Ids in the order in which they are sent to, each once, group by group.
    Whatever is done with one id takes the same time, however many there are.

    :param minions: the first ones.
    :param membership: which group each is in; by default all are in one.
    :param turn: the place of the group whose turn it is: those of earlier groups may be sent to as well, later ones not.
    """

    __slots__ = ("_counts", "_ids", "_membership", "_order", "_turn", "available")

    def __init__(self, minions: Iterable[str] = (), membership: Membership = _ONE_GROUP, turn: int = 0) -> None:
        self._membership, self._turn = membership, turn
        self._order: dict[int, collections.deque[str]] = {}  # by group; holds some that are not pending any more
        self._ids: set[str] = set()
        self._counts: collections.Counter[int] = collections.Counter()  # of pending minions, by group
        self.available = 0  # how many may be sent to: those of the groups up to the one whose turn it is
        for minion in minions:
            self._order.setdefault(membership.of(minion), collections.deque()).append(minion)
            self._add(minion)

    def __contains__(self, minion: object) -> bool:
        return minion in self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        ids = (minion for group in sorted(self._order) for minion in dict.fromkeys(self._order[group]))
        return (minion for minion in ids if minion in self._ids)

    def open_to(self, group: int) -> None:
        """It is the turn of this group, which is a later one."""
        self.available += sum(self._counts[place] for place in range(self._turn + 1, group + 1))
        self._turn = group

    def take(self, count: int) -> tuple[str, ...]:
        """Remove the first ``count`` that are available and return them."""
        taken: list[str] = []
        for group in sorted(group for group in self._order if group <= self._turn):
            order = self._order[group]
            while order and len(taken) < count:
                minion = order.popleft()
                if minion in self._ids:
                    self.drop(minion)
                    taken.append(minion)
            if not order:
                del self._order[group]
        return tuple(taken)

    def drop(self, minion: str) -> None:
        """Remove one, wherever it stands."""
        if minion in self._ids:
            self._ids.discard(minion)
            self._count(minion, -1)

    def put_first(self, minions: Iterable[str]) -> None:
        """Add minions before all others of their groups."""
        for minion in reversed(list(minions)):
            self._order.setdefault(self._membership.of(minion), collections.deque()).appendleft(minion)
            self._add(minion)

    def put_last(self, minions: Iterable[str]) -> None:
        """Add minions behind all others of their groups."""
        for minion in minions:
            self._order.setdefault(self._membership.of(minion), collections.deque()).append(minion)
            self._add(minion)

    def _add(self, minion: str) -> None:
        if minion not in self._ids:
            self._ids.add(minion)
            self._count(minion, 1)

    def _count(self, minion: str, by: int) -> None:
        group = self._membership.of(minion)
        self._counts[group] += by
        if group <= self._turn:
            self.available += by


@dataclasses.dataclass(slots=True)
class Presence(Kept):
    """
    :param spec: what was asked for.
    """

    spec: Spec
    unseen: dict[str, int] = kept(dict, dict, dict)  # {minion: pings without an answer} of those not known to be there
    there: set[str] = kept(set, sorted, set)  # with ``presence=none``, those that are known to be there all the same
    gathering: bool = kept(bool)  # the first ping is not over: nothing is sent before
    pinging: bool = kept(bool)  # a ping is under way
    ping_at: float = kept(float)  # no ping before, in Unix time
    hinted: set[str] = kept(set, sorted, set)  # those of whom the bus has told a sign of life since the last ping
    heeded: set[str] = kept(set, sorted, set)  # those that were pinged once more for that
    settled_at: float = kept(float)  # nobody is given up before: the master is young, and minions are still connecting

    def doubt(self, minions: Iterable[str]) -> None:
        """Wait for a sign of life of pending minions."""
        self.unseen.update(dict.fromkeys(minions, 0))

    def seen(self, minions: Iterable[str]) -> list[str]:
        """Minions have shown a sign of life: return those that were waited for."""
        found = [minion for minion in minions if self.unseen.pop(minion, None) is not None]
        if self.spec.presence == "none":
            self.there.update(found)
        return found

    def wants_hint(self, minion: str) -> bool:
        """Tell whether it changes anything that the bus tells of a sign of life of a minion: during its last ping, once."""
        last = self.pinging and self.unseen.get(minion, -1) + 1 >= self.spec.probe_attempts
        return last and minion in self.unseen and minion not in self.hinted and minion not in self.heeded

    def was_there(self, minion: str) -> bool:
        """Tell whether a minion that was sent to is known to have been there: silence is no absence then."""
        return self.spec.presence == "ping" or minion in self.there

    def may_ping(self, now: float) -> bool:
        """Tell whether the minions that are waited for are to be pinged now."""
        return bool(self.unseen) and not self.pinging and now >= self.ping_at

    def ping(self) -> tuple[str, ...]:
        """Begin a ping: return the minions to ask, none for the whole target."""
        self.pinging = True
        self.hinted.clear()
        return () if self.gathering else tuple(self.unseen)

    def ping_over(self, now: float) -> list[str]:
        """A ping is over, and its answers are taken: return the minions that are asked no more, and are not there."""
        self.pinging = self.gathering = False
        for minion in self.unseen:
            self.unseen[minion] += 1
        if now < self.settled_at:
            self.ping_at = now + self.spec.gather_job_timeout
            return []
        self.ping_at = now
        silent = [minion for minion, asked in self.unseen.items() if asked >= self.spec.probe_attempts]
        given_up = [minion for minion in silent if minion not in self.hinted or minion in self.heeded]
        self.heeded.update(self.hinted.intersection(silent))
        for minion in given_up:
            del self.unseen[minion]
        return given_up

    def recover(self, now: float) -> None:
        """A ping that was under way has no end. What is known suffices to go on."""
        self.pinging, self.ping_at = False, now
        self.settled_at = 0.0

    def next_due(self) -> float | None:
        """Return when a ping is due, or None."""
        return self.ping_at if self.unseen and not self.pinging else None
