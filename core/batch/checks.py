"""
The checks between the stages of a batch: which one is under way, until when, and which was passed.

A check that was begun is begun again after a crash, and never skipped. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses

from saltext.jobs.core.batch.kept import Kept, kept
from saltext.jobs.core.batch.plan import APPROVE
from saltext.jobs.core.batch.spec import Spec

#: Seconds that the answer of a check may be late before it counts as timed out.
_GRACE = 10.0


def _nothing() -> None:
    return None


@dataclasses.dataclass(slots=True)
class Checks(Kept):
    """
    :param spec: what was asked for.
    """

    spec: Spec
    stage: int | None = kept(_nothing, name="check_stage")  # the stage whose check is under way
    passed: int | None = kept(_nothing, name="check_passed")  # the stage whose check was passed last
    due: float | None = kept(_nothing, name="check_due")  # when the check under way times out
    began: float = kept(float, name="stage_began")  # when the present stage began

    @property
    def by_hand(self) -> bool:
        """Whether somebody has to approve."""
        return self.spec.check.get("kind") == APPROVE

    @property
    def under_way(self) -> bool:
        """Whether it is being found out whether the batch may go on."""
        return self.stage is not None

    def must_begin(self, stage: int) -> bool:
        """Tell whether a stage that is over has to be checked, and is not yet."""
        return bool(self.spec.check) and self.stage != stage and self.passed != stage

    def may_go_on(self, stage: int) -> bool:
        """Tell whether the next stage may begin after this one."""
        return not self.spec.check or self.passed == stage

    def begin(self, stage: int, now: float) -> None:
        """Begin the check of a stage, or begin it again after a crash."""
        again, self.stage = self.stage == stage, stage
        if not self.by_hand:
            self.due = now + self.spec.check_timeout + _GRACE
        elif not again:
            self.due = None if self.spec.approve_timeout is None else now + self.spec.approve_timeout

    def pass_(self) -> None:
        """The check under way was passed."""
        self.passed, self.stage, self.due = self.stage, None, None

    def end(self) -> None:
        """The check under way was not passed, or does not matter any more."""
        self.stage = self.due = None

    def next_stage(self, now: float) -> None:
        """A stage begins."""
        self.began = now

    def timed_out(self, now: float) -> str | None:
        """Return why the batch may not go on, if the check under way took too long."""
        if self.due is None or now < self.due:
            return None
        if self.by_hand:
            return f"nobody has approved it within {self.spec.approve_timeout:g} s"
        return f"check {self.spec.check['fun']}: no answer within {self.spec.check_timeout:g} s"
