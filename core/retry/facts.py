"""
What can happen to the retry queue (facts), and what it wants done (effects).

A fact has no time of its own: ``step`` gets the time as an argument. Minions are given by id. Pure: stdlib only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from saltext.jobs.core.delivery.known import Evidence
from saltext.jobs.core.retry.entry import Job, Watched
from saltext.jobs.core.users import Identity


class Fact:
    """What can happen."""


class Effect:
    """What is to be done."""


# -- facts: what this master has done ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published(Fact):
    """This master published a job."""

    jid: str
    at: float
    minions: tuple[str, ...]


@dataclass(frozen=True)
class Kill(Fact):
    """This master published a signal at ``at``, in the name of ``user``."""

    jid: str  # empty: it is for all that minions run by then
    minions: frozenset[str]
    user: str
    at: float


@dataclass(frozen=True)
class Returned(Fact):
    """A minion has returned a job."""

    minion: str
    jid: str


# -- facts: from the bus, so only hints -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Acknowledged(Fact):
    """An event claims that a minion has begun a job, or returned it."""

    minion: str
    jid: str


@dataclass(frozen=True)
class SignOfLife(Fact):
    """Minions seem to be there. ``started``: they have just started, and have forgotten which jids they have seen."""

    minions: tuple[str, ...]
    started: bool = False


@dataclass(frozen=True)
class KeysChanged(Fact):
    """A key may have been accepted, deleted or made anew."""


@dataclass(frozen=True)
class Gap(Fact):
    """Events were lost. ``returns``: the log may lack returns, too."""

    returns: bool = True


# -- facts: outcomes of effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done(Fact):
    """An effect was performed. ``found``: what it says that it gives."""

    effect: Effect
    found: Any = None


@dataclass(frozen=True)
class Failed(Fact):
    """An effect could not be performed. ``outcome``: what is known of its minions then."""

    effect: Any
    outcome: Evidence
    why: str


@dataclass(frozen=True)
class JobRead:
    """What the log has of a job."""

    jid: str
    job: Job | None  # None if this master did not publish it, it is gone, or its functions mean nothing later
    minions: Mapping[str, float] = field(default_factory=dict)  # to which it was published; when last, 0 if not known
    missing: frozenset[str] = frozenset()  # those of them that have an accepted key and have not returned it
    returned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LookedUp:
    """What is known of a job and some minions now. ``denied`` and ``unsure`` are ``{minion: reason}``."""

    returned: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()  # their key is not accepted
    denied: Mapping[str, str] = field(default_factory=dict)  # it must not be published to them
    unsure: Mapping[str, str] = field(default_factory=dict)  # it is not known whether it may be


# -- facts: from the store and from operators -------------------------------------------------------------------------


@dataclass(frozen=True)
class Restored(Fact):
    """The engine has started, and the machine has the stored entries and their jobs. ``watched``: all other jobs, by jid."""

    watched: Mapping[str, Watched] = field(default_factory=dict)


@dataclass(frozen=True)
class Requested(Fact):
    """
    A request, as it was made. Its ``do`` names the function of ``Owing`` that carries it out and returns the answer.
    ``read``: the job that is to be enqueued, or cancelled before its time is up.
    """

    request: Mapping[str, Any]
    read: JobRead | None = None

    @property
    def wanted_at(self) -> float:
        """Unix time of the request: only later kills end it. 0 for a batch's hand-over: each kill of its job does."""
        return 0.0 if self.request.get("batch") else float(self.request["asked_at"])


@dataclass(frozen=True)
class Tick(Fact):
    """Time has passed. What is due is done after every fact."""


# -- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OfMinions(Effect):
    """Something about a job and some minions. After it you must report Done, with what it gives, or Failed."""

    jid: str
    minions: tuple[str, ...]


@dataclass(frozen=True)
class Read(Effect):
    """Read a job in the log. Gives JobRead."""

    jid: str


@dataclass(frozen=True)
class LookUp(OfMinions):
    """Look up returns, keys, and the access of the publisher and of the ``askers``. Gives LookedUp."""

    askers: Mapping[str, Identity] = field(default_factory=dict)


class FindReturns(OfMinions):
    """Look for returns that the log may not have told of. Gives those of the minions that have returned the job."""


@dataclass(frozen=True)
class Ask(OfMinions):
    """
    Ask minions about a job, and store returns that they have kept. Gives Answers, also as they answer. There is a second
    publish if ``doubted`` ones, which may have begun it, show no records: a proxy does so only if asked for nothing else.
    """

    doubted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inquire(Effect):
    """Ask minions which jobs they run, in one publish. Gives the jids by minion that has answered."""

    minions: tuple[str, ...]


class Claim(OfMinions):
    """Wait until it is durable that these entries are claimed, and since when."""


@dataclass(frozen=True)
class Publish(OfMinions):
    """
    Publish the job as it was, under its own jid, to those of these minions that its target still matches, and to all
    ``named`` ones, in one publish. Gives those of them that the master does not know.
    """

    named: frozenset[str] = frozenset()
    rerun: bool = False  # a minion that has it on record as interrupted is to run it again
    recorded: bool = False  # all of them keep records


@dataclass(frozen=True)
class Ping(Effect):
    """Ask minions whether they are there, in one publish. As they answer, report a SignOfLife of those that have."""

    minions: tuple[str, ...]


class CheckKeys(Effect):
    """Read which minions have a key now. Gives (those with an accepted key, those with any key)."""


@dataclass(frozen=True)
class Announce(Effect):
    """Tell the bus about an entry: ``salt/job_retry/<minion>/<jid>/<kind>``."""

    minion: str
    jid: str
    kind: str
    fun: str
    attempts: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Answer(Effect):
    """The answer to a request; stored in the transaction that makes all changes so far durable."""

    value: int | bool
