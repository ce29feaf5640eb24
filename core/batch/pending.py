"""
The minions that a batch still has to send to: their order, the group whose turn it is, and which have shown a sign of life.

With ``presence=ping`` a minion is sent to only if it is known to be there: it has answered one of ``probe_attempts`` pings,
or has shown another sign of life that proves it. Pure: stdlib only.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from saltext.jobs.core.batch.kept import Kept, kept, made
from saltext.jobs.core.batch.plan import Membership
from saltext.jobs.core.batch.spec import Spec

_ONE_GROUP = Membership((), ())
#: Minions of one ping: most of the first one, unless two batch sizes are more; most of any.
FIRST_PINGED, MOST_PINGED = 20, 500


class Pending:
    """
    Ids of minions in the order in which they are sent to, each once, group by group. An operation on one id takes the same
    time, however many there are.

    :param minions: the ids to begin with.
    :param membership: the group of each minion; by default all are in one.
    :param turn: the place of the group whose turn it is. Earlier groups may be sent to as well, later ones not.
    """

    __slots__ = ("_membership", "_queues", "_size", "_turn", "available")

    def __init__(self, minions: Iterable[str] = (), membership: Membership = _ONE_GROUP, turn: int = 0) -> None:
        self._membership, self._turn = membership, turn
        self._queues = [collections.OrderedDict[str, None]() for _ in range(membership.groups)]
        self._size = 0
        self.available = 0  # how many may be sent to: in the groups up to the one whose turn it is
        self.put_last(minions)

    def __contains__(self, minion: object) -> bool:
        return isinstance(minion, str) and minion in self._queues[self._membership.of(minion)]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self._queues)

    def open_to(self, group: int) -> None:
        """Begin the turn of a later group."""
        self.available += sum(map(len, self._queues[self._turn + 1 : group + 1]))
        self._turn = group

    def take(self, count: int) -> tuple[str, ...]:
        """Remove the first ``count`` that are available and return them."""
        taken = tuple(itertools.islice(itertools.chain.from_iterable(self._queues[: self._turn + 1]), count))
        for minion in taken:
            self.drop(minion)
        return taken

    def drop(self, minion: str) -> None:
        """Remove a minion, wherever it is."""
        group = self._membership.of(minion)
        if minion in self._queues[group]:
            del self._queues[group][minion]
            self._count(group, -1)

    def put_first(self, minions: Iterable[str]) -> None:
        """Add minions before all others of their groups."""
        minions = list(minions)
        self.put_last(minions)
        for minion in reversed(minions):
            self._queues[self._membership.of(minion)].move_to_end(minion, last=False)

    def put_last(self, minions: Iterable[str]) -> None:
        """Add minions behind all others of their groups."""
        for minion in minions:
            group = self._membership.of(minion)
            if minion not in self._queues[group]:
                self._queues[group][minion] = None
                self._count(group, 1)

    def _count(self, group: int, by: int) -> None:
        self._size += by
        if group <= self._turn:
            self.available += by


@dataclasses.dataclass(slots=True)
class Presence(Kept):
    """
    :param spec: what was asked for.
    """

    spec: Spec
    unseen: dict[str, int] = made(dict)  # {minion: pings without an answer} of those not known to be there
    first_ping: bool = kept(bool)  # the first ping is not over, and nothing is sent before it is
    pinged: tuple[str, ...] = made(tuple)  # the minions of the ping that is under way
    ping_at: float = made(float)  # no ping before this Unix time
    #: No minion is given up before this time: the master is young, and minions still connect.
    settled_at: float = made(float)

    def doubt(self, minions: Iterable[str]) -> None:
        """Wait for a sign of life of pending minions."""
        self.unseen.update(dict.fromkeys(minions, 0))

    def seen(self, minions: Iterable[str]) -> list[str]:
        """Minions have shown a sign of life: return those that had not before."""
        return [minion for minion in minions if self.unseen.pop(minion, None) is not None]

    def may_ping(self, now: float) -> bool:
        """Tell whether it is time to ping the minions without a sign of life."""
        return bool(self.unseen) and not self.pinged and now >= self.ping_at

    def ping(self, size: int) -> tuple[str, ...]:
        """
        Begin a ping: return the minions to ping, in the order in which they are to be sent to. All at once would swamp the
        master with answers, and the batch would wait for the last. So the first ping is of a few more than ``size``.
        """
        most = max(FIRST_PINGED, 2 * size) if self.first_ping else MOST_PINGED
        self.pinged = tuple(itertools.islice(self.unseen, min(most, MOST_PINGED)))
        return self.pinged

    def ping_over(self, now: float) -> list[str]:
        """A ping and its answers are over: return the minions that have been pinged often enough and are not there."""
        for minion in self.pinged:
            if minion in self.unseen:
                self.unseen[minion] += 1
        self.pinged, self.first_ping = (), False
        if now < self.settled_at:
            self.ping_at = now + self.spec.gather_job_timeout
            return []
        self.ping_at = now
        given_up = [minion for minion, pings in self.unseen.items() if pings >= self.spec.probe_attempts]
        for minion in given_up:
            del self.unseen[minion]
        return given_up

    def next_due(self) -> float | None:
        """Return when a ping is due, or None."""
        return self.ping_at if self.unseen and not self.pinged else None
