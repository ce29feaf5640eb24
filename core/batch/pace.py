"""
How many minions a batch may send to, and when: its size, the waves of a ramp and the checks between them, ``batch_wait``,
the room that other batches leave, the wait between attempts, and how long freed slots are gathered for one publish; its
windows, and its owner's rights. Also why a batch is paused: a code for programs, and a sentence for people.

Every minion decrypts every publish, so slots are gathered; but a slot that waits is idle. So that is done only while more
can be expected, and for longer if the batch's jobs run longer. What is not known counts as shut. Nobody is asked here: it is
said when to ask, and the answers are kept. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from saltext.jobs.core.windows import next_opening

if TYPE_CHECKING:
    from saltext.jobs.core.batch.spec import Spec

#: Seconds before a failed publish is first tried again. Each further try waits twice as long, up to the longest wait.
FIRST_BACKOFF, LONGEST_BACKOFF = 1.0, 60.0
#: A slot waits for others for at most this share of the usual run time, and for at most this many seconds.
LONGEST = 0.04
LONGEST_SECONDS = 5.0
#: By how much a run time moves the usual one up or down at most: so that stays near the median of the last ones.
_STEP = 1.1


class Part:
    """A part of a batch's state. Subclasses are dataclasses with slots; ``KEPT`` names the fields that its row holds."""

    __slots__ = ()
    KEPT: ClassVar[tuple[str, ...]] = ()

    def values(self) -> dict[str, Any]:
        """Return ``{name: value}`` of the kept fields, as plain values."""
        return {name: getattr(self, name) for name in self.KEPT}

    def load(self, values: Mapping[str, Any]) -> None:
        """Set the kept fields from what ``values`` returned, but for those that an earlier version did not keep."""
        for name in values.keys() & self.KEPT:
            setattr(self, name, values[name])


@dataclasses.dataclass(slots=True, eq=False)
class Pace(Part):
    """
    Each stage of a group but the last is a wave: it sends to ``size`` minions, and to no more until all of them have ended.
    In the last stage each freed slot is used at once. A check that an engine's end interrupts begins again.
    """

    KEPT = (
        *("stage", "quota", "cooling", "failures", "publishes", "publish_failures", "usual"),
        *("checking", "passed", "began", "limit", "first_sent"),
    )

    spec: Spec
    stage: int = 0
    quota: float = math.inf  # minions that this wave may still send to
    cooling: list[float] = dataclasses.field(default_factory=list)  # until when slots stay empty, in order
    not_before: float = 0.0  # nothing goes out before this Unix time
    failures: int = 0  # publishes that failed in a row
    publishes: int = 0
    first_sent: float | None = None
    publish_failures: int = 0
    usual: float = 0.0  # for how many seconds minions run the job
    freed_at: float | None = None  # since when there are slots that wait for a publish
    checking: int | None = None  # the stage whose check is under way
    passed: int | None = None  # the stage whose check was passed last
    began: float = 0.0  # when the present stage began
    wanted: int = 0  # how many minions it would send to now
    limit: int | None = None  # over all batches, if that keeps it from sending to more; else None
    room: int | None = None  # how many minions ``live.py`` lets it send to in this step; None for any number

    def __post_init__(self) -> None:
        self.quota = self.spec.stages[self.stage].quota

    @property
    def size(self) -> int:
        """The most minions that may be in flight at this stage."""
        return self.spec.stages[self.stage].size

    @property
    def group(self) -> int:
        """The place of the group whose turn it is."""
        return self.spec.stages[self.stage].group

    def stage_is_over(self, flying: int, available: int) -> bool:
        """Tell whether all minions of a wave, or of a group, have ended."""
        # Below 0: a minion was put back, but had begun.
        return not flying and not self.cooling and (self.quota <= 0 or not available)

    @property
    def to_approve(self) -> int | None:
        """The stage that waits for an approval, counted from 1 through all groups; None if none does."""
        return self.checking + 1 if self.spec.by_hand and self.checking is not None else None

    def pass_check(self) -> None:
        self.passed, self.checking = self.checking, None

    def next_stage(self, available: int, now: float) -> None:
        """Go on to the next stage, of the next group if this group has no ``available`` minions left."""
        self.began = now
        if available:
            self.stage += 1
        else:
            self.stage = next(place for place, stage in enumerate(self.spec.stages) if stage.group > self.group)
        self.quota = self.spec.stages[self.stage].quota

    def sends(self, now: float) -> None:
        self.freed_at, self.first_sent = None, self.first_sent or now
        self.publishes += 1

    def publish_failed(self, now: float) -> bool:
        """Note a failed publish, and tell whether to try again after a pause."""
        self.failures += 1
        self.publish_failures += 1
        if self.failures > self.spec.publish_retries:
            return False
        self.not_before = now + min(FIRST_BACKOFF * 2 ** (self.failures - 1), LONGEST_BACKOFF)
        return True

    def recover(self, now: float) -> None:
        """An engine has started, so the clock may have been set: set all times again. An approval is still waited for."""
        self.limit, self.not_before, self.began = None, now, min(self.began, now)
        self.checking = self.checking if self.spec.by_hand else None
        self.cooling = [min(until, now + self.spec.batch_wait) for until in self.cooling]

    # -- freed slots --------------------------------------------------------------------------------------------------

    def freed(self, now: float, ran: float | None) -> None:
        """Note that a minion has freed its slot, which stays empty for ``batch_wait``. ``ran``: for how many seconds."""
        if self.spec.batch_wait:
            self.cooling.append(now + self.spec.batch_wait)
        if self.freed_at is None:
            self.freed_at = now
        if ran is not None:
            self.usual = min(max(ran, self.usual / _STEP), self.usual * _STEP) or max(0.0, ran)

    def warm(self, now: float) -> None:
        """Free the slots that were kept empty long enough."""
        self.cooling = [until for until in self.cooling if until > now]

    @property
    def longest(self) -> float:
        """For how many seconds to gather slots if others are likely to become free meanwhile."""
        return max(self.spec.publish_window, min(LONGEST * self.usual, LONGEST_SECONDS))

    def turn(self, now: float, flying: int, available: int) -> tuple[int, float]:
        """
        Return to how many of the ``available`` minions to send now, while ``flying`` are in flight, each of which may free a
        slot; and the Unix time until which the slots that are free now wait, infinite if they do not.
        """
        capacity = int(min(self.size - flying - len(self.cooling), self.quota, available))
        if capacity <= 0:
            self.limit = None  # it has all the room that it wants
            return 0, math.inf
        if self.freed_at is None:
            self.freed_at = now
        window = self.spec.publish_window
        if not self.publishes or self.limit is not None:
            window = 0.0  # where there is too little room, slots are gathered for all batches together
        elif capacity < available and capacity != self.quota and not self.spec.batch_wait:
            # If so few minions are in flight that none is likely to end meanwhile, waiting gains nothing.
            window = self.longest if flying * self.longest >= self.usual else window
        publish_at = max(self.freed_at + window, self.not_before)
        if now < publish_at:
            return 0, publish_at
        count = capacity if self.room is None else min(capacity, self.room)
        self.wanted = 0 if count else capacity
        return count, math.inf


# -- why it is paused ---------------------------------------------------------------------------------------------------


class PausedBy(str, enum.Enum):
    """What a batch waits for."""

    OPERATOR = "operator"  # an operator has paused it
    PUBLISH = "publish"  # publishes or pings failed too often
    PERMISSION = "permission"  # its owner may not run it any more
    APPROVAL = "approval"  # a stage is over and needs an approval
    WINDOW = "window"  # its window is shut
    START = "start"  # its time has not come
    RIGHTS = "rights"  # it is not known now whether its owner may still run it


_UNKNOWN = "it is not known now whether its owner may still run it"
#: Pauses that a resume ends.
HELD = frozenset({PausedBy.OPERATOR, PausedBy.PUBLISH, PausedBy.PERMISSION})


class Pause(NamedTuple):
    """Why a batch is paused. ``detail``: who has paused it, or what went wrong."""

    by: PausedBy
    detail: str = ""

    @property
    def reason(self) -> str:
        """The sentence for people."""
        plain, detailed = _SENTENCES[self.by]
        return f"{detailed}{self.detail}" if self.detail else plain

    def payload(self) -> dict[str, Any]:
        """Return the fields of the event ``paused``."""
        return {"reason": self.reason, "paused_by": self.by.value}


#: The sentence without a detail, and what comes before a detail.
_SENTENCES = {
    PausedBy.OPERATOR: ("paused", "paused by "),
    PausedBy.PUBLISH: ("publishes failed", ""),
    PausedBy.PERMISSION: ("its owner may not run it any more", ""),
    PausedBy.APPROVAL: ("waits for approval", "waits for approval by "),
    PausedBy.WINDOW: ("outside its window", "when it may send is not known: "),
    PausedBy.START: ("before its start time", "when it may send is not known: "),
    PausedBy.RIGHTS: (_UNKNOWN, f"{_UNKNOWN}: "),
}


# -- windows, and the owner's rights --------------------------------------------------------------------------------------

#: Seconds after which a question without an answer is asked again.
ASK_AGAIN = 60.0
#: Seconds by which a time may be wrong that was converted from one clock to another.
_SLACK = 0.001


@dataclasses.dataclass(slots=True, eq=False)
class Schedule(Part):
    """
    When a batch may send: not before its start time, and only while one of its windows is open. All times are of the wall
    clock, so it follows a clock that is set.
    """

    KEPT = ("opens", "open", "trouble")

    spec: Spec
    opens: float | None = None  # when it may send next, or since when; None if that is not known
    open: bool = False  # it may send now
    trouble: str = ""  # why that is not known
    ahead: float = 0.0  # seconds by which the wall clock is ahead of the engine's, as ``live.py`` says
    looked_at: float = math.inf
    look_at: float = math.inf  # when to look again, by the wall clock

    @property
    def bounded(self) -> bool:
        """Whether there are times at which the batch may not send."""
        return bool(self.spec.window) or self.spec.start_at is not None

    def look(self, now: float) -> bool:
        """Tell whether the batch may send now."""
        if not self.bounded:
            return True
        wall = now + self.ahead + _SLACK
        if self.looked_at <= wall < self.look_at:
            return self.open
        self.looked_at = wall
        try:
            found = next_opening(self.spec.start_at, self.spec.window, self.spec.timezone, wall)
        except ValueError as exc:
            self.opens, self.open, self.trouble, self.look_at = None, False, str(exc), wall + ASK_AGAIN
        else:
            self.opens, self.open, self.trouble = found.opens, found.opens <= wall, ""
            self.look_at = (found.closes or math.inf) if self.open else found.opens
        return self.open

    def pause(self) -> Pause:
        return Pause(PausedBy.WINDOW if self.spec.window else PausedBy.START, self.trouble)


#: Seconds for which an answer counts.
FRESH = 300.0


@dataclasses.dataclass(slots=True, eq=False)
class Rights(Part):
    """
    Whether the owner of a batch may still run it. Rights can be taken away at any time, so an answer counts for ``FRESH``
    seconds at most; a resume, an approval and a restart of the engine drop it.
    """

    KEPT = ("trouble",)

    spec: Spec
    granted_until: float = 0.0  # while the last answer counts
    ask_at: float = 0.0  # when to ask next; infinite while a question is under way
    trouble: str = ""  # why there is no answer

    @property
    def limited(self) -> bool:
        """Whether the owner has rights that could be taken away."""
        return self.spec.owner.get("kind") not in (None, "master")

    def may_send(self, now: float) -> bool:
        """Tell whether it is known that the batch may send."""
        return not self.limited or now < self.granted_until

    def must_ask(self, now: float) -> bool:
        """Tell whether to ask about the rights now; if so, the question counts as under way."""
        if now < self.ask_at:
            return False
        self.ask_at = math.inf
        return True

    def doubt(self) -> None:
        """Drop the last answer."""
        self.granted_until = self.ask_at = 0.0

    def told(self, reason: str, trouble: str, now: float) -> bool:
        """Take an answer, and tell whether it says that rights are lacking."""
        self.trouble, self.ask_at = trouble, now + (ASK_AGAIN if trouble else FRESH)
        self.granted_until = 0.0 if reason or trouble else self.ask_at
        return bool(reason)
