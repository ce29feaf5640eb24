"""
What can happen to a batch (facts), and what a batch wants done (effects).

Minions are given by id. Pure: stdlib only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from saltext.jobs.core.delivery.known import Evidence, Said

# -- facts ------------------------------------------------------------------------------------------------------------


class Fact:
    """What has happened to a batch."""


class Tick(Fact):
    """Time has passed beyond ``Batch.next_due``."""


class EventsLost(Fact):
    """The bus may have lost events: the silence of a minion is no evidence any more."""


@dataclass(frozen=True)
class Recovered(Fact):
    """
    The engine has restarted: nothing that was under way has a known outcome. ``settled_at``: Unix time until which minions
    are still connecting, if the master has just started too. ``taken_over``: another master may have driven the batch
    before, and may have ended together with its engine. ``shared``: the batch sends only to minions that it is allotted.
    """

    settled_at: float = 0.0
    taken_over: bool = False
    shared: bool = False


@dataclass(frozen=True)
class Seen(Fact):
    """Minions are there: they have answered a ping."""

    minions: tuple[str, ...]


@dataclass(frozen=True)
class Pinged(Fact):
    """
    A presence ping is over; the minions that have answered were reported as Seen. ``failure``: why it was not confirmed.
    """

    failure: str = ""


@dataclass(frozen=True)
class Published(Fact):
    """The publish under way has succeeded; ``missed`` are those of its minions that the master does not know."""

    missed: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublishFailed(Fact):
    """The publish under way was not confirmed; ``certain`` if no minion can have received it."""

    reason: str
    certain: bool


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
class LookedUp(Fact):
    """The job cache was read for these minions; ``found`` are (minion, retcode) of those that have returned."""

    minions: tuple[str, ...]
    found: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Asked(Fact):
    """
    What minions said when asked about the job: RUNS, IDLE, FETCHED (the job cache has now what they had kept), SILENT, or
    UNASKED. ``said``: what their records (the executor ``job_once``) say of the job.
    """

    told: Mapping[Evidence, tuple[str, ...]]
    said: Mapping[str, Said] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked(Fact):
    """The result of the check of a stage; ``reason`` says why it failed, and is empty if it was passed."""

    stage: int
    reason: str = ""


@dataclass(frozen=True)
class RightsChecked(Fact):
    """
    The answer to a CheckRights: ``reason`` says why the batch may not send, and is empty if it may; ``trouble`` why there is
    no answer.
    """

    question: int
    reason: str = ""
    trouble: str = ""


@dataclass(frozen=True)
class Allotted(Fact):
    """
    The batch may send to ``count`` more minions now. If it wants more, ``limit`` says how many may be in flight over all
    batches; 0 if that is not known yet.
    """

    count: int = 0
    limit: int | None = None


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


# -- effects ----------------------------------------------------------------------------------------------------------


class Effect:
    """What a batch wants done."""


@dataclass(frozen=True)
class Announce(Effect):
    """
    Fire an event of this kind: new, progress, paused, resumed, check, checked, complete or halted. ``details`` go into
    its payload.
    """

    kind: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OfMinions(Effect):
    """What a batch wants done with these minions."""

    minions: tuple[str, ...]


class Ping(OfMinions):
    """Ping them. Report minions as Seen when they answer. After this you must report Pinged."""


class Publish(OfMinions):
    """Publish the job to them. After this you must report Published or PublishFailed."""


class LookUp(OfMinions):
    """Look in the job cache for their returns. After this you must report LookedUp."""


class Ask(OfMinions):
    """
    Ask them whether they run the job, and for their records of it. Store in the job cache the returns that they have kept.
    After this you must report Asked for each minion once, as they answer: until then a minion is not given up. Those that
    could not be asked, or whose returns could not be stored, are unasked.
    """


class Queue(OfMinions):
    """Hand them over to the retry queue: its request is written together with the state of the batch."""


@dataclass(frozen=True)
class Kill(OfMinions):
    """
    Send SIGKILL to the job's processes there; ``gently``: SIGTERM. That proves nothing, and nothing is reported: the minions
    are asked.
    """

    gently: bool = False


@dataclass(frozen=True)
class CheckRights(OfMinions):
    """
    Find out whether the owner of the batch may still run it on them. After this you must report RightsChecked with the same
    ``question``.
    """

    question: int


@dataclass(frozen=True)
class Check(OfMinions):
    """Check whether the batch may go on after this stage, in which they completed. After this you must report Checked."""

    stage: int
