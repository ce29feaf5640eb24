"""
The gates that must be open before a batch sends to more minions: its windows, and its owner's rights. Also why a batch is
paused: a code for programs, and a sentence for people.

A gate counts as shut while its state is not known. The gates ask nobody: they say when to ask, and keep the answers. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

from saltext.jobs.core.batch.spec import Part, Spec
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
    PausedBy.APPROVAL: ("waits for approval", "waits for approval: "),
    PausedBy.WINDOW: ("outside its window", "when it may send is not known: "),
    PausedBy.START: ("before its start time", "when it may send is not known: "),
    PausedBy.RIGHTS: (_UNKNOWN, f"{_UNKNOWN}: "),
}

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
    ahead: float = 0.0  # seconds by which the wall clock is ahead of the engine's
    looked_at: float | None = None
    look_at: float | None = None  # when to look again; None for never

    @property
    def bounded(self) -> bool:
        """Whether there are times at which the batch may not send."""
        return bool(self.spec.window) or self.spec.start_at is not None

    @property
    def shut(self) -> bool:
        """Whether the batch may not send, as last looked at."""
        return self.bounded and not self.open

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
            self.opens, self.open, self.trouble, self.look_at = None, False, str(exc), wall + ASK_AGAIN
        else:
            self.opens, self.open, self.trouble = found.opens, found.opens <= wall, ""
            self.look_at = found.closes if self.open else found.opens
        return self.open

    def next_due(self) -> float | None:
        """Return when to look again, by the engine's clock; None if no time is set."""
        return None if self.look_at is None else self.look_at - self.ahead

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
    granted: bool = False  # the last answer; it counts until it is time to ask again
    asking: bool = False  # a question is under way
    ask_at: float = 0.0  # when to ask next
    trouble: str = ""  # why there is no answer

    @property
    def limited(self) -> bool:
        """Whether the owner has rights that could be taken away."""
        return self.spec.owner.get("kind") not in (None, "master")

    def may_send(self, now: float) -> bool:
        """Tell whether it is known that the batch may send."""
        return not self.limited or (self.granted and now < self.ask_at)

    def must_ask(self, now: float) -> bool:
        """Tell whether to ask about the rights now; if so, the question counts as under way."""
        if self.asking or now < self.ask_at:
            return False
        self.asking = True
        return True

    def doubt(self) -> None:
        """Drop the last answer."""
        self.granted, self.ask_at = False, 0.0

    def told(self, reason: str, trouble: str, now: float) -> bool:
        """Take an answer, and tell whether it says that rights are lacking."""
        self.asking, self.trouble, self.granted = False, trouble, not (reason or trouble)
        self.ask_at = now + (ASK_AGAIN if trouble else FRESH)
        return bool(reason)
