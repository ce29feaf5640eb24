"""
What can happen to the retry queue (facts), and what it wants done (effects).

A fact has no time of its own: ``step`` gets the time as an argument. Minions are given by id. Pure: stdlib only.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from saltext.jobs.core.delivery.known import Evidence, Said
from saltext.jobs.core.retry.entry import Job, Key
from saltext.jobs.core.retry.watched import Watched
from saltext.jobs.core.users import Identity


class Fact:
    """What can happen."""


class Effect:
    """What is to be done."""


# -- facts: what this master has done ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published(Fact):
    """
    This master published a job at ``at`` for ``minions``. ``work``: the digest of its functions and arguments. ``signal``:
    it may be a signal to other jobs; its record tells.
    """

    jid: str
    at: float
    minions: tuple[str, ...]
    work: str = ""
    signal: bool = False


@dataclass(frozen=True)
class Kill(Fact):
    """
    This master published a signal at ``at``, in the name of ``user``: for a job, or, if ``jid`` is empty, for all that
    minions run by then.
    """

    jid: str
    minions: frozenset[str]
    user: str
    at: float


@dataclass(frozen=True)
class Returned(Fact):
    """
    These minions have returned a job, and the ``missing`` ones have not. ``searched``: a look found the returns, so they may
    be old.
    """

    jid: str
    minions: frozenset[str]
    missing: frozenset[str] = frozenset()
    searched: bool = False


# -- facts: from the bus, so only hints -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Acknowledged(Fact):
    """An event claims that a minion has begun a job, or returned it."""

    minion: str
    jid: str


class Sign(enum.Enum):
    """How minions showed that they are there."""

    START = "start"  # the minion has just started, and has forgotten which jids it has seen
    SEEN = "seen"  # a return or a beacon came from it, or the master saw it connect
    ANSWER = "answer"  # to a question of ours


@dataclass(frozen=True)
class SignOfLife(Fact):
    """Minions seem to be there."""

    minions: tuple[str, ...]
    sign: Sign


@dataclass(frozen=True)
class KeysChanged(Fact):
    """A key may have been accepted, deleted or made anew."""


@dataclass(frozen=True)
class Gap(Fact):
    """Events were lost. ``returns``: the log may lack returns, too."""

    returns: bool = True


# -- facts: outcomes of effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobRead(Fact):
    """
    What the log has of a job. ``job``: None if this master did not publish it, or it is gone. ``minions``: those that it
    was published to; of them, ``missing`` ones have an accepted key and have not returned it, and ``returned`` ones have.
    ``kills``: what it signals, if it is a signal.
    """

    jid: str
    job: Job | None
    minions: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    kills: tuple[Kill, ...] = ()
    returned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Surveyed(Fact):
    """
    The outcome of a survey. ``running``: for each minion that has answered, the jids that it runs. ``unasked``: minions that
    could not be asked.
    """

    number: int
    running: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unasked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LookedUp(Fact):
    """
    What is known of a job and some ``minions`` now. ``barred``: their key is not accepted. ``denied``, ``unsure``:
    ``{minion: reason}``: it must not be published to them, or it is not known whether it may be.
    """

    jid: str
    minions: tuple[str, ...]
    returned: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()
    denied: Mapping[str, str] = field(default_factory=dict)
    unsure: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked(Fact):
    """
    What minions say about a job. ``told``: the minions, by what each has shown; returns that they had kept are in the job
    cache by now. ``more``: the question goes on, and others may still answer. Of idle ones:

    ``unmatched``: the job's target does not match them. ``said``: what their records say of the job, if they keep any.
    ``ran``: when they last began it, by these records and their own clocks. ``applying``: they run states. ``free``: they
    run nothing at all, and their answer holds for every other job too.
    """

    jid: str
    told: Mapping[Evidence, frozenset[str]]
    unmatched: frozenset[str] = frozenset()
    said: Mapping[str, Said] = field(default_factory=dict)
    ran: Mapping[str, float] = field(default_factory=dict)
    applying: frozenset[str] = frozenset()
    free: frozenset[str] = frozenset()
    more: bool = False


@dataclass(frozen=True)
class Claimed(Fact):
    """The claims of these minions are durable."""

    jid: str
    minions: tuple[str, ...]


@dataclass(frozen=True)
class Sent(Fact):
    """
    The publish is over. ``missed``: minions that the master does not know. ``outcome``, ``why``: whether the master has
    taken it for the others.
    """

    jid: str
    minions: tuple[str, ...]
    missed: frozenset[str] = frozenset()
    outcome: Evidence = Evidence.PUBLISHED
    why: str = ""


@dataclass(frozen=True)
class Unreadable(Fact):
    """The job cache could not be read for a Read of the job, or, with ``minions``, for a LookUp."""

    jid: str
    minions: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeysRead(Fact):
    """
    ``gone``: the minions of CheckKeys that have no key here. ``renewed``: those that had none at the last look, and when
    their new one was made. ``none``: no key at all is accepted here.
    """

    gone: frozenset[str]
    renewed: Mapping[str, float] = field(default_factory=dict)
    none: bool = False


# -- facts: from the store and from operators -------------------------------------------------------------------------


@dataclass(frozen=True)
class Restored(Fact):
    """The engine has started, and the machine has taken up what the store held; but for what is ``watched``, by jid."""

    watched: Mapping[str, Watched] = field(default_factory=dict)


@dataclass(frozen=True)
class Requested(Fact):
    """An operator asks for something. ``do`` names the function of ``Owing`` that does it and returns the answer."""

    do: str
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tick(Fact):
    """Time has passed. What is due is done after every fact."""


# -- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Save(Effect):
    """Store what the machine holds under these keys, and remove what it no longer holds. It may take a second."""

    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Read(Effect):
    """Read a job in the log; then give JobRead or Unreadable."""

    jid: str


@dataclass(frozen=True)
class LookUp(Effect):
    """Look up returns, keys, and the access of the publisher and of the ``askers``; then give LookedUp or Unreadable."""

    jid: str
    minions: tuple[str, ...]
    askers: Mapping[str, Identity] = field(default_factory=dict)


@dataclass(frozen=True)
class FindReturns(Effect):
    """Look for returns that the log may not have told of; then give Returned, unless the job cache cannot be read."""

    jid: str
    minions: tuple[str, ...]


@dataclass(frozen=True)
class Ask(Effect):
    """
    Ask minions about a job, and store the returns that they have kept; then give Asked. It takes one publish, and a second
    one if some of the ``doubted`` ones, which may have begun the job, show no records: a proxy shows them only if it is
    asked for nothing else.
    """

    jid: str
    minions: tuple[str, ...]
    doubted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inquire(Effect):
    """Ask minions which jobs they run; then give Surveyed. One publish."""

    number: int
    minions: tuple[str, ...]


@dataclass(frozen=True)
class Claim(Effect):
    """Store durably that these entries are claimed, and since when; then give Claimed."""

    jid: str
    minions: tuple[str, ...]


@dataclass(frozen=True)
class Publish(Effect):
    """
    Publish the job as it was, under its own jid, to those of these minions that its target still matches, and to all
    ``named`` ones; then give Sent. ``rerun``: a minion that has it on record as interrupted is to run it again.
    ``recorded``: all of them keep records. One publish.
    """

    jid: str
    minions: tuple[str, ...]
    named: frozenset[str] = frozenset()
    rerun: bool = False
    recorded: bool = False


@dataclass(frozen=True)
class Ping(Effect):
    """Ask minions whether they are there. As they answer, give a SignOfLife of those that have. One publish."""

    minions: tuple[str, ...]


@dataclass(frozen=True)
class CheckKeys(Effect):
    """Find out which of these minions no longer have a key; then give KeysRead."""

    minions: tuple[str, ...]


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
class Warn(Effect):
    """Tell the operator, in the log."""

    message: str


@dataclass(frozen=True)
class Answer(Effect):
    """The answer to a request, or why it failed; stored in the transaction that makes all Saves so far durable."""

    value: int | bool = 0
    failed: Exception | None = None
