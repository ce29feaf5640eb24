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
class Gathered:
    """The minions that answered the presence ping."""

    answered: tuple[str, ...]


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
class Published:
    """The publish that was under way has succeeded; ``missed`` are those of its minions that the master doesn't know."""

    missed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PublishFailed:
    """The publish or presence ping under way was not confirmed; ``certain`` when no minion can have received it."""

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
class KillSent:
    """A kill that was asked for has been tried. Whether it worked, only a probe tells."""

    minions: tuple[str, ...] = ()
    gently: bool = False


@dataclasses.dataclass(frozen=True)
class Queued:
    """Minions were handed over to the retry queue."""

    minions: tuple[str, ...]


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
    """Somebody wants a paused batch to go on."""

    user: str = ""


@dataclasses.dataclass(frozen=True)
class Recovered:
    """The engine has started anew: whatever was under way has no outcome."""


@dataclasses.dataclass(frozen=True)
class Tick:
    """Time has passed beyond ``Batch.next_due``."""


@dataclasses.dataclass(frozen=True)
class Closed:
    """All that the end of a batch calls for was done."""


Fact = (
    Gathered
    | Returned
    | Acknowledged
    | Published
    | PublishFailed
    | LookedUp
    | Probed
    | KillSent
    | Queued
    | OpeningFound
    | Checked
    | Approved
    | StopRequested
    | PauseRequested
    | ResumeRequested
    | Recovered
    | Tick
    | Closed
)

_NAMES: dict[type, str] = {
    Gathered: "gathered",
    Returned: "ret",
    Acknowledged: "ack",
    Published: "pub",
    PublishFailed: "pubfail",
    LookedUp: "lookup",
    Probed: "probe",
    KillSent: "kill",
    Queued: "queued",
    OpeningFound: "opening",
    Checked: "check",
    Approved: "approve",
    StopRequested: "stop",
    PauseRequested: "pause",
    ResumeRequested: "resume",
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
    """Ping the target. After this you must report Gathered or PublishFailed."""


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
    """Ask these minions whether they run the job. After this you must report Probed."""

    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Kill:
    """Send the job's processes on these minions SIGKILL, or gently SIGTERM. After this you must report KillSent."""

    minions: tuple[str, ...]
    gently: bool = False


@dataclasses.dataclass(frozen=True)
class Queue:
    """Hand these minions over to the retry queue. After this you must report Queued."""

    minions: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FindOpening:
    """Say when the batch may send, by its start time and its windows. After this you must report OpeningFound."""


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


Effect = Gather | Publish | LookUp | Probe | Kill | Queue | FindOpening | Check | Announce | Close
