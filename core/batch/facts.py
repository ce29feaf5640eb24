"""
What can happen to a batch (facts), and what a batch wants done (effects). Minions are given by id. Pure: stdlib only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# -- effects ----------------------------------------------------------------------------------------------------------


class Effect:
    """What a batch wants done."""


@dataclass(frozen=True)
class Announce(Effect):
    """Fire an event: new, progress, paused, resumed, check, checked, complete or halted, with these details."""

    kind: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Close(Effect):
    """Its last effect: once it is done, no engine drives the batch."""


@dataclass(frozen=True)
class OfMinions(Effect):
    """What a batch wants done with these minions."""

    minions: tuple[str, ...]


class Ping(OfMinions):
    """Ping them. Report Pinged as they answer. It is Done with why it was not confirmed; empty if it was."""


class Publish(OfMinions):
    """Publish the job to them. After this you must report Published."""


@dataclass(frozen=True)
class LookUp(OfMinions):
    """Look in the job cache for their returns. It is Done with ``{minion: retcode}`` of those that have returned."""

    extra: bool = False  # not asked for by the batch: nothing follows for those that have not returned


class Ask(OfMinions):
    """
    Ask them whether they run the job, and for their records of it; store the returns that they have kept. It is Done with
    Answers as they come, each minion in one. Those that could not be asked, or stored, are unasked.
    """


@dataclass(frozen=True)
class Kill(OfMinions):
    """Send SIGKILL to the job's processes there. It is Done with those that say that it has reached one, as they answer."""

    gently: bool = False  # SIGTERM


class CheckRights(OfMinions):
    """
    Find out whether the owner may still run it there. It is Done with why not, and why there is no answer; both are empty
    if the owner may.
    """


@dataclass(frozen=True)
class Check(OfMinions):
    """Check whether the batch may go on after this stage, in which they completed. It is Done with why not; empty if so."""

    stage: int


# -- facts ------------------------------------------------------------------------------------------------------------


class Fact:
    """What has happened to a batch."""


class Tick(Fact):
    """Time has passed beyond ``Batch.next_due``."""


class EventsLost(Fact):
    """The bus may have lost events: the silence of a minion is no evidence any more."""


@dataclass(frozen=True)
class Recovered(Fact):
    """The engine has restarted: nothing that was under way has a known outcome."""

    settled_at: float = 0.0  # Unix time until which minions still connect, if the master has just started too
    taken_over: bool = False  # another master may have driven the batch before, and may have ended with its engine


@dataclass(frozen=True)
class Done(Fact):
    """What came of an effect, as it says itself; as long as a question goes on, what came of it so far."""

    effect: Any  # of the class OfMinions
    found: Any


@dataclass(frozen=True)
class Pinged(Fact):
    """Minions have shown that they are there."""

    minions: tuple[str, ...]


@dataclass(frozen=True)
class Published(Fact):
    """The publish under way is over; ``missed`` are those of its minions that the master does not know."""

    missed: tuple[str, ...] = ()
    failure: str = ""  # why it was not confirmed
    certain: bool = False  # if it was not: no minion can have received it


@dataclass(frozen=True)
class Returned(Fact):
    """A minion returned the job, now or earlier."""

    minion: str
    retcode: int


@dataclass(frozen=True)
class Acknowledged(Fact):
    """A minion said that it has begun."""

    minion: str


@dataclass(frozen=True)
class Started(Fact):
    """A minion process has started, or may have: it has forgotten which jobs it received."""

    minion: str


@dataclass(frozen=True)
class Requested(Fact):
    """
    An operator wants something: ``stop`` (send to no more minions and, with ``kill``, kill the job on those in flight),
    ``pause``, ``resume``, or ``approve`` (go on after this ``stage``).
    """

    verb: str
    user: str = ""
    kill: bool = False
    stage: int = 0
