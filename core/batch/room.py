"""
Room for a batch beside the others: whether the batch has to ask for it, for how many minions it asks, and why it waits.

``sharing.py`` allots minions to batches. It limits how many are in flight over all batches, and keeps an exclusive batch off
the minions on which a batch that it avoids is in flight. A batch that shares sends only to minions that it was just
allotted. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from saltext.jobs.core.batch.facts import Allotted
from saltext.jobs.core.batch.kept import Kept, kept, made
from saltext.jobs.core.batch.spec import Spec

#: What there may be too little of: room over all batches, and in groups of minions.
TOTAL, GROUPS = "total", "groups"
#: The room is not known: a journal, or the groups of minions, have not been read.
UNKNOWN = "unknown"
#: Most minions that are named in the sentence why a batch waits.
_NAMED = 5


@dataclasses.dataclass(slots=True)
class Room(Kept):
    """
    :param spec: what was asked for.
    """

    spec: Spec
    shared: bool = kept(bool, name="room_shared")  # it sends only to minions that it was allotted
    wanted: int = kept(int, name="room_wanted")  # how many minions it would send to now
    lacks: str = kept(str, name="room_lacks")  # what was short when it last asked: TOTAL, GROUPS, UNKNOWN or nothing
    limit: int = kept(int, name="room_limit")  # how many minions may be in flight there
    #: ``{minion: jid}``: pending minions, and the batch that is in flight on each.
    taken: dict[str, str] = kept(dict, dict, dict, name="room_taken")
    allotted: tuple[str, ...] = made(tuple)  # minions that it may send to in this step

    def told(self, fact: Allotted) -> None:
        """Take an answer."""
        self.allotted, self.lacks, self.limit = fact.minions, fact.lacks, fact.limit
        for minion in (*fact.free, *fact.minions):
            self.taken.pop(minion, None)
        self.taken.update(fact.taken)

    def suffices(self) -> None:
        """It wants no more than it has."""
        self.wanted, self.lacks = 0, ""

    def recover(self, shared: bool) -> None:
        """An engine has started, whose options may have changed: forget what the batch was told."""
        self.shared = shared
        self.suffices()
        self.taken = {}

    def why(self, flying: int) -> str:
        """Return the sentence that says what the batch waits for; empty for nothing. ``flying``: its minions in flight."""
        reasons = []
        if self.lacks == TOTAL:
            reasons.append(
                f"{self.limit} of {self.limit} minions are in flight over all batches, {flying} of them of this"
            )
        elif self.lacks == GROUPS:
            reasons.append(f"{self.limit} of {self.limit} minions are in flight in each group that it would go on with")
        elif self.lacks == UNKNOWN:
            reasons.append("it is not known yet how much there is")
        told = [f"waits for room: {reason}" for reason in reasons]
        return "; ".join((*told, *(_held(jid, minions) for jid, minions in by_batch(self.taken).items())))


def by_batch(taken: Mapping[str, str]) -> dict[str, list[str]]:
    """Return ``{jid: minions}``: other batches, and the minions that they are in flight on."""
    found: dict[str, list[str]] = {}
    for minion, jid in taken.items():
        found.setdefault(jid, []).append(minion)
    return {jid: sorted(found[jid]) for jid in sorted(found)}


def _held(jid: str, minions: list[str]) -> str:
    more = f" and {len(minions) - _NAMED} more" if len(minions) > _NAMED else ""
    many = "minion" if len(minions) == 1 else "minions"
    return f"waits for batch {jid} on {len(minions)} {many}: {', '.join(minions[:_NAMED])}{more}"
