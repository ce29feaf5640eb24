"""
What can happen to a batch (facts), and what a batch wants done (effects).

Facts are what a batch's journal holds, so each has a short stable name there. Minions are given by id, times are not part
of a fact: they stand beside it. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# -- facts ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Seen:
    """Minions are there: they have answered a ping, or shown another sign of life that is believed."""

    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Gathered:
    """A presence ping is over; ``answered`` are the minions that answered it and were not reported as seen before."""

    answered: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PingFailed:
    """The presence ping under way was not confirmed."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Returned:
    """A minion returned the job, now or earlier."""

    minion: str
    retcode: int


@dataclasses.dataclass(frozen=True)
class Acknowledged:
    """A minion said that it has begun."""

    minion: str


@dataclasses.dataclass(frozen=True)
class Started:
    """A minion process has started, the bus tells: it has forgotten which jobs it has received."""

    minion: str


@dataclasses.dataclass(frozen=True)
class Hinted:
    """The bus tells of a sign of life of a minion, and its answer to a ping would prove it."""

    minion: str


@dataclasses.dataclass(frozen=True)
class EventsLost:
    """The bus may have lost events: that a minion said nothing is no evidence any more."""


@dataclasses.dataclass(frozen=True)
class Published:
    """The publish that was under way has succeeded; ``missed`` are those of its minions that the master doesn't know."""

    missed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PublishFailed:
    """The publish under way was not confirmed; ``certain`` when no minion can have received it."""

    reason: str
    certain: bool


@dataclasses.dataclass(frozen=True)
class LookedUp:
    """The job cache was read for ``asked``; ``found`` are (minion, retcode) of those that have returned."""

    asked: tuple[str, ...]
    found: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Probed:
    """What minions said when asked whether they run the job; ``unasked`` are those that could not be asked."""

    running: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class NeverBegun:
    """
    The records of these minions say that they have not begun the job (the executor ``job_once``); ``without`` are those that
    have answered and have no records any more.
    """

    minions: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class KillSent:
    """A kill that was asked for has been tried. Whether it worked, only a probe tells."""

    minions: tuple[str, ...] = ()
    gently: bool = False


@dataclasses.dataclass(frozen=True)
class Queued:
    """The retry queue has taken minions over."""

    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class QueueRefused:
    """The retry queue does not take minions over, for this reason."""

    minions: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True)
class OpeningFound:
    """
    The first time that is not over in which the batch may send, in Unix time; ``closes`` is None where it does not end.

    ``opens`` is None where that could not be said, and ``trouble`` says why.
    """

    opens: float | None
    closes: float | None = None
    trouble: str = ""


@dataclasses.dataclass(frozen=True)
class Checked:
    """What came of the check of a stage; ``reason`` says why it was not passed."""

    stage: int
    passed: bool
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Approved:
    """Somebody wants the batch to go on after this stage."""

    stage: int
    user: str = ""


@dataclasses.dataclass(frozen=True)
class StopRequested:
    """Somebody wants no more minions to be sent to, and with ``kill`` those in flight to be killed."""

    kill: bool
    user: str = ""


@dataclasses.dataclass(frozen=True)
class PauseRequested:
    """Somebody wants no more minions to be sent to for now."""

    user: str = ""


@dataclasses.dataclass(frozen=True)
class ResumeRequested:
    """
    Somebody wants a paused batch to go on. ``rights`` are that one's ``owner`` and ``on_behalf``, as a Spec has them; empty
    in a request of an earlier version.
    """

    user: str = ""
    rights: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class RightsChecked:
    """
    What came of a question: why the batch may not be sent on; empty where it may. ``trouble`` is why that could not be said.
    """

    question: int
    reason: str = ""
    trouble: str = ""


@dataclasses.dataclass(frozen=True)
class Allotted:
    """
    To which minions the batch may send now, and what there is too little of for more, where ``limit`` may be in flight (see
    ``room.py``). ``taken`` are minions on which another batch is in flight, with its jid: they wait until they are in
    ``free``, or are allotted.
    """

    minions: tuple[str, ...] = ()
    lacks: str = ""
    limit: int = 0
    taken: Mapping[str, str] = dataclasses.field(default_factory=dict)
    free: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Recovered:
    """
    The engine has started anew: whatever was under way has no outcome.

    ``settled_at``: the master has just started too, and until then (Unix time) minions are still connecting to it; 0.0 where
    that is not so.

    ``boot`` and ``offset`` say by which clock the engine goes: during one run of the machine the difference between two
    offsets tells by how much the clock was set between two starts. ``boot`` is empty where that cannot be told.

    ``taken_over``: another master drove the batch before, or may have, and may have ended with its engine.

    ``shared``: it sends only to minions that it is allotted.
    """

    settled_at: float = 0.0
    boot: str = ""
    offset: float = 0.0
    taken_over: bool = False
    shared: bool = False


@dataclasses.dataclass(frozen=True)
class Tick:
    """Time has passed beyond ``Batch.next_due``."""


@dataclasses.dataclass(frozen=True)
class Closed:
    """All that the end of a batch calls for was done."""


Fact = (
    Seen
    | Gathered
    | PingFailed
    | Returned
    | Acknowledged
    | Started
    | Hinted
    | EventsLost
    | Published
    | PublishFailed
    | LookedUp
    | Probed
    | NeverBegun
    | KillSent
    | Queued
    | QueueRefused
    | OpeningFound
    | Checked
    | Approved
    | StopRequested
    | PauseRequested
    | ResumeRequested
    | RightsChecked
    | Allotted
    | Recovered
    | Tick
    | Closed
)

_NAMES: dict[type, str] = {
    Seen: "seen",
    Gathered: "gathered",
    PingFailed: "pingfail",
    Returned: "ret",
    Acknowledged: "ack",
    Started: "started",
    Hinted: "hint",
    EventsLost: "gap",
    Published: "pub",
    PublishFailed: "pubfail",
    LookedUp: "lookup",
    Probed: "probe",
    NeverBegun: "never",
    KillSent: "kill",
    Queued: "queued",
    QueueRefused: "unqueued",
    OpeningFound: "opening",
    Checked: "check",
    Approved: "approve",
    StopRequested: "stop",
    PauseRequested: "pause",
    ResumeRequested: "resume",
    RightsChecked: "rights",
    Allotted: "room",
    Recovered: "recover",
    Tick: "tick",
    Closed: "closed",
}
_KINDS = {name: kind for kind, name in _NAMES.items()}


def record_of(fact: Fact, now: float) -> list[Any]:
    """Return a fact in the form in which a journal holds it: ``[name, time, field, …]``."""
    return [_NAMES[type(fact)], now, *(getattr(fact, name) for name in fact.__dataclass_fields__)]


def fact_of(record: Any) -> tuple[Fact, float]:
    """
    Return the fact of a record, and when it happened.

    :raises ValueError: when the record is none of ours.
    """
    try:
        kind = _KINDS[record[0]]
        return kind(*(_frozen(value) for value in record[2:])), float(record[1])
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        raise ValueError(f"not a batch fact: {record!r:.200}") from exc


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, (list, tuple)) else value


# -- effects ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Gather:
    """
    Ping these minions, or the target where there are none. Report those that answer as Seen, as they do; after this you must
    report Gathered or PingFailed.
    """

    minions: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Publish:
    """Publish the job to these minions. After this you must report Published or PublishFailed."""

    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class LookUp:
    """Look in the job cache for returns of these minions. After this you must report LookedUp."""

    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Probe:
    """Ask these minions whether they run the job. After this you must report Probed, as they answer: each minion once."""

    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class AskRecords:
    """
    Ask these minions, which do not run the job, what they have on record about it, and have the job cache take the returns
    that they have kept. Report those that have NeverBegun, if any.
    """

    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Kill:
    """Send the job's processes on these minions SIGKILL, or gently SIGTERM. After this you must report KillSent."""

    minions: tuple[str, ...]
    gently: bool = False


@dataclasses.dataclass(frozen=True)
class Queue:
    """Hand these minions over to the retry queue. After this you must report Queued or QueueRefused."""

    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FindOpening:
    """Say when the batch may send, by its start time and its windows. After this you must report OpeningFound."""


@dataclasses.dataclass(frozen=True)
class CheckRights:
    """
    Find out whether the batch may still be sent to these minions on behalf of its owner. After this you must report
    RightsChecked, with this number.
    """

    question: int
    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Check:
    """
    Find out whether the batch may go on after this stage, in which these minions have completed. After this you must report
    Checked.
    """

    stage: int
    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Announce:
    """
    Fire an event of this kind: new, paused, resumed, check, checked, complete or halted. ``details`` go into its payload.
    """

    kind: str
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Close:
    """The batch has ended. After the effects before this one you must report Closed."""


Effect = (
    Gather | Publish | LookUp | Probe | AskRecords | Kill | Queue | FindOpening | CheckRights | Check | Announce | Close
)
