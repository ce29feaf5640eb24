"""
Whether whoever a batch is carried out for still may: when that has to be found out, and what came of it.

Rights can be taken away while a batch waits, and while it runs. So nothing is sent on an answer that is older than FRESH,
nor on one from before a stage, a resume, an approval or the start of an engine. It must never decide what a right is: that
is asked. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.kept import Kept, kept
from saltext.jobs.core.batch.spec import Spec

#: Seconds for which an answer counts.
FRESH = 300.0
#: Seconds after which it is asked again, where that could not be said.
ASK_AGAIN = 60.0


def _nothing() -> None:
    return None


@dataclasses.dataclass(slots=True)
class Rights(Kept):
    """
    :param spec: what was asked for.
    """

    spec: Spec
    #: By whom, with that one's ``owner`` and ``on_behalf``; empty for nobody.
    taken_over: Mapping[str, Any] = kept(dict, name="rights_taken_over")
    fresh_until: float | None = kept(_nothing, name="rights_fresh_until")
    question: int = kept(int, name="rights_question")  # the number of the last one
    asking: bool = kept(bool, name="rights_asking")  # it is under way
    ask_at: float | None = kept(_nothing, name="rights_ask_at")  # when it is asked next; None for at once
    trouble: str = kept(str, name="rights_trouble")  # why it could not be said
    lacking: bool = kept(bool, name="rights_lacking")  # the batch is paused since they are
    looked_after: int | None = kept(
        _nothing, name="rights_looked_after"
    )  # the stage at whose end they were doubted last

    @property
    def owner(self) -> Mapping[str, Any]:
        """Whose rights count; empty for one of whom it was not kept."""
        found: Mapping[str, Any] = self.taken_over["owner"] if self.taken_over else self.spec.owner
        return found

    @property
    def on_behalf(self) -> Mapping[str, Any]:
        """The limits of a runner function that is called for the batch."""
        found: Mapping[str, Any] = self.taken_over["on_behalf"] if self.taken_over else self.spec.on_behalf
        return found

    @property
    def limited(self) -> bool:
        """Whether anything can be taken away."""
        return self.owner.get("kind") not in (None, "master")

    def may_send(self, now: float) -> bool:
        """Tell whether it is known that the batch may send."""
        return not self.limited or (self.fresh_until is not None and now < self.fresh_until)

    @property
    def waits(self) -> bool:
        """Whether nothing is sent until it is said that the batch may: an answer, or the next question, is to come."""
        return self.asking or self.ask_at is not None

    def must_ask(self, now: float) -> bool:
        """Tell whether it has to be asked, and count the question as under way if so."""
        if self.asking or (self.ask_at is not None and now < self.ask_at):
            return False
        self.asking, self.question = True, self.question + 1
        return True

    def doubt(self) -> None:
        """What was said does not count any more; nor does the answer to a question that is under way."""
        self.fresh_until, self.asking, self.ask_at = None, False, None

    def doubt_after(self, stage: int) -> bool:
        """Doubt them, once, at the end of a stage, and tell whether that was done."""
        if not self.limited or self.looked_after == stage:
            return False
        self.looked_after = stage
        self.doubt()
        return True

    def told(self, question: int, reason: str, trouble: str, now: float) -> bool:
        """Take an answer, and tell whether it says that rights are lacking."""
        if not self.asking or question != self.question:
            return False
        self.asking, self.trouble, self.lacking = False, trouble, bool(reason)
        if trouble:
            self.ask_at = now + ASK_AGAIN
        else:
            self.fresh_until, self.ask_at = (None if reason else now + FRESH), None
        return self.lacking

    def resumed(self, user: str, rights: Mapping[str, Any]) -> None:
        """Somebody wants the batch to go on. Whoever does so where rights are lacking vouches for it from now on."""
        if self.lacking and rights:
            self.taken_over = {**rights, "user": user}
        self.lacking = False
        self.doubt()

    def recover(self) -> None:
        """The engine has started: its configuration may be another one."""
        self.looked_after = None
        self.doubt()

    def next_due(self) -> float | None:
        """Return when it is asked again, where that is known."""
        return None if self.asking else self.ask_at
