"""
What can happen to the retry queue (facts), and what it wants done (effects).

Times are not part of a fact: they stand beside it. Minions are given by id. Pure: stdlib only.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from saltext.jobs.core.retry.entry import Asker, Job, Key
from saltext.jobs.core.retry.knowledge import Evidence, Said
from saltext.jobs.core.retry.notes import Note
from saltext.jobs.core.retry.open_job import OpenJob


class Fact:
    """What can happen."""


class Effect:
    """What is to be done."""


# -- facts: what this master has done ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published(Fact):
    """
    This master published a job at ``at``. ``signal``: it may be a signal to other jobs; the job cache tells.

    A search of the job cache has ``found`` it, or the log has it: then ``minions`` are those that it was for, None if they
    are too many, and ``work`` is the digest of its functions and arguments.
    """

    jid: str
    at: float
    found: bool = False
    signal: bool = False
    minions: tuple[str, ...] | None = None
    work: str = ""


@dataclass(frozen=True)
class Kill(Fact):
    """
    This master published a signal for a job, or for all that minions run (``jid`` is empty), in the name of ``user``.

    ``at``: when that was; what was published later is not meant by one for all.
    """

    jid: str
    minions: frozenset[str]
    user: str
    at: float = math.inf


@dataclass(frozen=True)
class Returned(Fact):
    """
    The job cache has the returns of a job by these minions, and none of the ``missing`` ones. ``searched``: it was searched
    for them, so they may have come long ago.
    """

    jid: str
    minions: frozenset[str]
    missing: frozenset[str] = frozenset()
    searched: bool = False


# -- facts: from the bus, and so never more than a hint ---------------------------------------------------------------


@dataclass(frozen=True)
class Acknowledged(Fact):
    """The bus says that a minion has begun a job, or returned it."""

    minion: str
    jid: str


class Sign(enum.Enum):
    """How minions showed that they are there."""

    START = "start"  # the minion has just started, and knows no jid any more
    PRESENCE = "presence"  # the master saw it connect
    ACTIVITY = "activity"  # a return or a beacon
    ANSWER = "answer"  # to a question of ours


#: Which values of the option ``triggers`` make a sign of life count. An answer to a question of ours always does.
TRIGGERED_BY: Mapping[Sign, frozenset[str]] = {
    Sign.START: frozenset({"start", "any"}),
    Sign.PRESENCE: frozenset({"presence", "any"}),
    Sign.ACTIVITY: frozenset({"any"}),
    Sign.ANSWER: frozenset({"start", "presence", "any"}),
}


@dataclass(frozen=True)
class SignOfLife(Fact):
    """Minions seem to be there."""

    minions: tuple[str, ...]
    sign: Sign


@dataclass(frozen=True)
class Gap(Fact):
    """Events were lost. ``returns``: what they told of returns is told by nothing else."""

    returns: bool = True


# -- facts: outcomes of effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobRead(Fact):
    """
    What the job cache knows of a job: ``job`` is None when this master did not publish it, or it is gone. ``missing``: those
    it was published to that have not returned it and whose key is accepted here; ``returned``: those that have returned it.
    ``kills``: what it signals, if it is a signal. ``recorded``: whether the job cache has anything of it, which it has a
    little later than the log.
    """

    jid: str
    job: Job | None
    missing: frozenset[str] = frozenset()
    kills: tuple[Kill, ...] = ()
    recorded: bool = True
    returned: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Surveyed(Fact):
    """
    The outcome of a survey: ``running`` has the jids that each minion runs, of those that answered; ``unasked`` could not be
    asked.
    """

    number: int
    running: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unasked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LookedUp(Fact):
    """
    ``returned``: those of ``minions`` whose return the job cache has. ``barred``: those whose key is not accepted.
    ``denied``: ``{minion: reason}`` of those to which it may not be published any more; ``unsure``: of those of which that
    cannot be found out. ``last``: Unix time of the job's newest publish, or None where that was not looked for or is not
    known.
    """

    jid: str
    minions: tuple[str, ...]
    returned: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()
    denied: Mapping[str, str] = field(default_factory=dict)
    unsure: Mapping[str, str] = field(default_factory=dict)
    last: float | None = None


@dataclass(frozen=True)
class Asked(Fact):
    """
    What minions say about a job, as far as is proven. ``told`` has those of whom each is known; the returns of those that
    had kept theirs are in the job cache now. Of the idle ones ``unmatched`` are those that the job's target does not match,
    ``said`` is what those with records of their own know of the job, and ``free`` are those that run nothing at all, and
    would know of no other job more than that. ``more``: the question is not over, and others may still answer.
    """

    jid: str
    told: Mapping[Evidence, frozenset[str]]
    unmatched: frozenset[str] = frozenset()
    said: Mapping[str, Said] = field(default_factory=dict)
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
    The publish is over: the master has taken it, or not, as far as is known (``outcome``), and ``why``. The master does not
    know the ``missed`` ones.
    """

    jid: str
    minions: tuple[str, ...]
    missed: frozenset[str] = frozenset()
    outcome: Evidence = Evidence.PUBLISHED
    why: str = ""


@dataclass(frozen=True)
class Unreadable(Fact):
    """The job cache could not be read for a Read of ``jid``, or for a LookUp of it, whose ``minions`` these are."""

    jid: str
    minions: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeysRead(Fact):
    """
    The keys were read: of the minions of CheckKeys those in ``gone`` have none here. ``renewed`` are minions that had none
    when the keys were read before, and have one that was put there since. ``none``: no key at all is accepted here.
    """

    gone: frozenset[str]
    renewed: frozenset[str] = frozenset()
    none: bool = False


@dataclass(frozen=True)
class Refused(Fact):
    """The store refuses what belongs to a job, for the reason; the rest it takes."""

    jid: str
    reason: str


# -- facts: from the store and from operators -------------------------------------------------------------------------


@dataclass(frozen=True)
class Restored(Fact):
    """
    The engine has started, and the machine has taken up what the store held. ``open``: the jobs whose outcome was not known,
    by jid; ``notes`` likewise. ``kills``: the last ones.
    """

    notes: Mapping[str, Note] = field(default_factory=dict)
    open: Mapping[str, OpenJob] = field(default_factory=dict)
    kills: Iterable[Kill] = ()


@dataclass(frozen=True)
class Requested(Fact):
    """
    An operator asks for something. ``do`` is the function of ``owing.py`` that does it, ``given`` its arguments, and what it
    returns is the answer.
    """

    do: str
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tick(Fact):
    """Time has passed; what is due is done after every fact."""


# -- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Save(Effect):
    """
    Store what the queue now holds under these keys, and remove what it does not hold any more. It may take a second. A note
    is that of this master.
    """

    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Read(Effect):
    """
    Read a job in the job cache; then give JobRead or Unreadable. ``publishes``: what the log has under its jid, the digest
    of what each runs, and its minions, which the job cache may not have yet.
    """

    jid: str
    publishes: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class LookUp(Effect):
    """
    Look for returns, keys and access, that of the publishing user and of the ``askers``, by minion; then give LookedUp or
    Unreadable. With ``publish`` the time of the job's newest publish is looked for as well.
    """

    jid: str
    minions: tuple[str, ...]
    publish: bool = False
    askers: Mapping[str, Asker] = field(default_factory=dict)


@dataclass(frozen=True)
class FindReturns(Effect):
    """Look whether the job cache has returns of which nothing was heard; then give Returned, if that can be said."""

    jid: str
    minions: tuple[str, ...]


@dataclass(frozen=True)
class Ask(Effect):
    """
    Ask minions about a job, and store the return of those that have run it; then give Asked. One publish, and one more where
    some of ``doubted``, which may have begun the job, show no records: a proxy shows them only where it is asked for nothing
    else.
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
    """Make it durable that these entries are claimed, and since when; then give Claimed."""

    jid: str
    minions: tuple[str, ...]


@dataclass(frozen=True)
class Publish(Effect):
    """
    Publish the job as it was, under its own jid, to those of these minions that its target still matches, and to the
    ``named`` ones whatever it matches. ``rerun``: one that keeps records is to run it though it was interrupted there.
    ``recorded``: all of them will have it on record. Then give Sent. One publish.
    """

    jid: str
    minions: tuple[str, ...]
    named: frozenset[str] = frozenset()
    rerun: bool = False
    recorded: bool = False


@dataclass(frozen=True)
class Ping(Effect):
    """Ask these minions whether they are there; give a SignOfLife of those that answer, soon after they do. One publish."""

    minions: tuple[str, ...]


@dataclass(frozen=True)
class CheckKeys(Effect):
    """Find out which of these minions have no key any more; then give KeysRead."""

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
    """The answer to the request that this step was given, for the operator once all Saves so far are durable."""

    value: int | bool = field(default=0)
