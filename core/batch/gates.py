"""
The gates that must be open before a batch sends to more minions: its windows, its owner's rights, the check of a stage,
and the room that other batches leave. Also why a batch is paused: a code for programs, and a sentence for people.

A gate counts as shut while its state is not known. The gates have no access lists or checks of their own: they say when to
ask, and keep the answers. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from saltext.jobs.core.batch.facts import Allotted
from saltext.jobs.core.batch.kept import Kept, kept, made, nothing
from saltext.jobs.core.batch.plan import APPROVE
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.windows import next_opening


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
#: Pauses that end when it is time.
SCHEDULED = frozenset({PausedBy.WINDOW, PausedBy.START})


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """
    :param by: what the batch waits for.
    :param detail: who has paused the batch, or what went wrong.
    """

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
    PausedBy.APPROVAL: ("waits for approval", "waits for approval: "),
    PausedBy.WINDOW: ("outside its window", "when it may send is not known: "),
    PausedBy.START: ("before its start time", "when it may send is not known: "),
    PausedBy.RIGHTS: (_UNKNOWN, f"{_UNKNOWN}: "),
}


def write_pause(pause: Pause | None) -> list[str] | None:
    """Return a pause in the form of a snapshot."""
    return None if pause is None else [pause.by.value, pause.detail]


def read_pause(data: Any) -> Pause | None:
    """Return the pause in a snapshot. :raises ValueError, TypeError:"""
    return None if data is None else Pause(PausedBy(data[0]), str(data[1]))


def write_code(by: PausedBy | None) -> str | None:
    """Return a code in the form of a snapshot."""
    return by and by.value


def read_code(data: str | None) -> PausedBy | None:
    """Return the code that ``write_code`` wrote. :raises ValueError: if it is unknown."""
    return None if data is None else PausedBy(data)


#: Seconds after which a question without an answer is asked again.
ASK_AGAIN = 60.0
#: Seconds by which a time may be wrong that was converted from one clock to another.
_SLACK = 0.001


@dataclasses.dataclass(slots=True)
class Schedule(Kept):
    """
    When a batch may send: not before its start time, and only while one of its windows is open. All times are of the wall
    clock, so it follows a clock that is set. They are worked out again when a window opens or closes.

    :param spec: what was asked for.
    """

    spec: Spec
    opens: float | None = kept(nothing)  # when it may send next, or since when; None if that is not known
    closes: float | None = kept(nothing)  # when it must stop sending again, if ever
    open: bool = kept(bool)  # it may send now
    trouble: str = kept(str)  # why that is not known
    ahead: float = made(float)  # seconds by which the wall clock is ahead of the engine's
    looked_at: float | None = made(nothing)
    look_at: float | None = made(nothing)  # when to look again; None for never

    @property
    def bounded(self) -> bool:
        """Whether there are times at which the batch may not send."""
        return bool(self.spec.window) or self.spec.start_at is not None

    def look(self, wall: float) -> bool:
        """Tell whether the batch may send at a time of the wall clock."""
        if not self.bounded:
            return True
        wall += _SLACK
        is_known = self.looked_at is not None and self.looked_at <= wall
        if is_known and (self.look_at is None or wall < self.look_at):
            return self.open
        self.looked_at = wall
        try:
            found = next_opening(self.spec.start_at, self.spec.window, self.spec.timezone, wall)
        except ValueError as exc:
            self.opens, self.closes, self.open, self.trouble = None, None, False, str(exc)
            self.look_at = wall + ASK_AGAIN
        else:
            self.opens, self.closes, self.open, self.trouble = found.opens, found.closes, found.opens <= wall, ""
            self.look_at = found.closes if self.open else found.opens
        return self.open

    def next_due(self) -> float | None:
        """Return when to look again, by the engine's clock; None if no time is set."""
        return None if self.look_at is None else self.look_at - self.ahead

    def pause(self) -> Pause:
        """Return why the batch waits."""
        return Pause(PausedBy.WINDOW if self.spec.window else PausedBy.START, self.trouble)


#: Seconds for which an answer counts.
FRESH = 300.0


@dataclasses.dataclass(slots=True)
class Rights(Kept):
    """
    Whether the owner of a batch may still run it: when to ask, and the answer.

    Rights can be taken away while a batch waits and while it runs. So an answer counts for ``FRESH`` seconds at most, and
    never beyond a resume, an approval or a restart of the engine.

    :param spec: what was asked for.
    """

    spec: Spec
    fresh_until: float | None = kept(nothing)
    question: int = kept(int)  # the number of the last question
    asking: bool = kept(bool)  # a question is under way
    ask_at: float | None = kept(nothing)  # when to ask next; None for at once
    trouble: str = kept(str)  # why there is no answer

    @property
    def limited(self) -> bool:
        """Whether there are rights that could be taken away."""
        return self.spec.owner.get("kind") not in (None, "master")

    def may_send(self, now: float) -> bool:
        """Tell whether it is known that the batch may send."""
        return not self.limited or (self.fresh_until is not None and now < self.fresh_until)

    @property
    def waits(self) -> bool:
        """Whether the batch waits for an answer, or for the next question."""
        return self.asking or self.ask_at is not None

    def must_ask(self, now: float) -> bool:
        """Tell whether to ask about the rights now; if so, the question counts as under way."""
        if self.asking or (self.ask_at is not None and now < self.ask_at):
            return False
        self.asking, self.question = True, self.question + 1
        return True

    def doubt(self) -> None:
        """Drop the last answer, and the answer to a question that is under way."""
        self.fresh_until, self.asking, self.ask_at = None, False, None

    def told(self, question: int, reason: str, trouble: str, now: float) -> bool:
        """Take an answer, and tell whether it says that rights are lacking."""
        if not self.asking or question != self.question:
            return False
        self.asking, self.trouble = False, trouble
        if trouble:
            self.ask_at = now + ASK_AGAIN
        else:
            self.fresh_until, self.ask_at = (None if reason else now + FRESH), None
        return bool(reason)

    def next_due(self) -> float | None:
        """Return when to ask again; None if no time is set."""
        return None if self.asking else self.ask_at


#: Seconds by which the answer of a check may be late before the check counts as timed out.
_GRACE = 10.0


@dataclasses.dataclass(slots=True)
class Checks(Kept):
    """
    The checks between stages: which one is under way, until when, and which was passed.

    A check that was under way when an engine ended begins again, once the batch may go on. It is never skipped.

    :param spec: what was asked for.
    """

    spec: Spec
    stage: int | None = kept(nothing)  # the stage whose check is under way
    passed: int | None = kept(nothing)  # the stage whose check was passed last
    due: float | None = kept(nothing)  # when the check under way times out
    began: float = kept(float)  # when the present stage began

    @property
    def by_hand(self) -> bool:
        """Whether the check is an approval."""
        return self.spec.check.get("kind") == APPROVE

    @property
    def under_way(self) -> bool:
        """Whether a check is under way."""
        return self.stage is not None

    def must_begin(self, stage: int) -> bool:
        """Tell whether the check of a stage that is over must begin."""
        return bool(self.spec.check) and self.stage != stage and self.passed != stage

    def may_go_on(self, stage: int) -> bool:
        """Tell whether the next stage may begin after this one."""
        return not self.spec.check or self.passed == stage

    def begin(self, stage: int, now: float) -> None:
        """Begin the check of a stage."""
        self.stage = stage
        self.due = None if self.by_hand else now + self.spec.check_timeout + _GRACE

    def pass_(self) -> None:
        """The check under way was passed."""
        self.passed, self.stage, self.due = self.stage, None, None

    def end(self) -> None:
        """The check under way has failed, or no longer matters."""
        self.stage = self.due = None

    def next_stage(self, now: float) -> None:
        """A stage begins."""
        self.began = now

    def recover(self, now: float) -> None:
        """The engine has restarted; the clock may have been set. An approval is still waited for."""
        self.began = min(self.began, now)
        if not self.by_hand:
            self.end()

    def timed_out(self, now: float) -> str | None:
        """Return why the batch may not go on if the check under way has taken too long; else None."""
        if self.due is None or now < self.due:
            return None
        return f"check {self.spec.check['fun']}: no answer within {self.spec.check_timeout:g} s"


@dataclasses.dataclass(slots=True)
class Room(Kept):
    """
    Room for a batch beside the others: how much the batch wants, what it was given, and why it waits.

    ``live.py`` limits how many minions are in flight over all batches.

    :param spec: what was asked for.
    """

    spec: Spec
    shared: bool = kept(bool)  # it sends only to as many minions as it was allotted
    wanted: int = kept(int)  # how many minions it would send to now
    #: The limit that keeps it from sending to more, as last told; None if nothing keeps it.
    limit: int | None = kept(nothing)
    allotted: int = made(int)  # how many minions it may send to in this step

    def told(self, fact: Allotted) -> None:
        """Take an answer."""
        self.allotted, self.limit = fact.count, fact.limit

    def suffices(self) -> None:
        """It has all the room that it wants."""
        self.wanted, self.limit = 0, None

    def recover(self, shared: bool) -> None:
        """An engine has started, and its options may have changed: forget what the batch was told."""
        self.shared = shared
        self.suffices()

    def why(self, flying: int) -> str:
        """Return a sentence about what the batch waits for; empty for nothing. ``flying``: its minions in flight."""
        if self.limit is None:
            return ""
        many = f"{self.limit} of {self.limit} minions are in flight over all batches"
        return f"waits for room: {many}, {flying} of them of this"
