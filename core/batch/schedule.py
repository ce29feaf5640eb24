"""
When a batch may send: not before its first moment, and only while one of its windows is open.

It knows no calendar: it asks when the windows open and close next, and again each time they do. So it follows a clock that
is set, and a zone whose rules change. Where it is not known whether a window is open, it counts as shut. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses

from saltext.jobs.core.batch.kept import Kept, kept
from saltext.jobs.core.batch.spec import Spec

#: Seconds after which it is asked again when the windows open, where that could not be said.
ASK_AGAIN = 60.0
#: Seconds after which it is asked again where they never close.
ASK_DAILY = 86400.0
#: Seconds by which an answer may be wrong, since it is converted from one clock to another.
_SLACK = 0.001


def _nothing() -> None:
    return None


@dataclasses.dataclass(slots=True)
class Schedule(Kept):
    """
    :param spec: what was asked for.
    """

    spec: Spec
    opens: float | None = kept(
        _nothing, name="window_opens"
    )  # when the batch may next send, in Unix time, where that is known
    closes: float | None = kept(_nothing, name="window_closes")  # when that ends, if it does
    open: bool = kept(bool, name="window_open")  # it was said that it may send now
    asking: bool = kept(bool, name="window_asking")  # the question is under way
    ask_at: float | None = kept(_nothing, name="window_ask_at")  # when it is asked next; None for at once
    trouble: str = kept(str, name="window_trouble")  # why it could not be said
    told: bool = kept(bool, name="window_told")  # it was announced that the batch waits

    @property
    def bounded(self) -> bool:
        """Whether the batch may not send at any time."""
        return bool(self.spec.window) or self.spec.start_at is not None

    def may_send(self, now: float) -> bool:
        """Tell whether the batch may send."""
        if self.open and self.closes is not None and now >= self.closes:
            self.open = False
        return self.open or not self.bounded

    def must_ask(self, now: float) -> bool:
        """Tell whether it has to be asked when the windows open, and count the question as under way if so."""
        if self.asking or not self.bounded or (self.ask_at is not None and now < self.ask_at):
            return False
        self.asking = True
        return True

    def found(self, opens: float | None, closes: float | None, trouble: str, now: float) -> None:
        """Take the answer: when the batch may send next, or that it may now; None where that is not known."""
        self.asking, self.opens, self.closes, self.trouble = False, opens, closes, trouble
        self.open = opens is not None and opens <= now + _SLACK and (closes is None or now < closes)
        if opens is None:
            self.ask_at = now + ASK_AGAIN
        elif self.open:
            self.ask_at = closes if closes is not None else now + ASK_DAILY
        else:
            self.ask_at = max(opens, now + 1.0)

    def recover(self) -> None:
        """Forget the answer: the clock may have been set."""
        self.asking, self.open, self.ask_at = False, False, None

    def next_due(self) -> float | None:
        """Return when something changes, where that is known."""
        return None if self.asking or not self.bounded else self.ask_at

    def reason(self) -> str:
        """Return why the batch waits."""
        if self.trouble:
            return f"when it may send is not known: {self.trouble}"
        return "outside its window" if self.spec.window else "before its start time"
