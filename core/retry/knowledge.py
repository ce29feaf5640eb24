"""
What is known of a minion, and of one job that it is owed: who has said what, at which step the replay is, and what follows
from that.

The entry holds what must outlive the engine; this module holds what was learned since the replay began. It must never take
silence for absence, nor believe a bus event about a job that this engine has not sent.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, Job, State
from saltext.jobs.core.retry.steps import TRANSITIONS, Step

#: States in which a claimed start changes something.
_OPEN = frozenset({State.PENDING, *UNDER_WAY})
#: Seconds for which the answer "I run nothing" counts.
BELIEVED = 600.0


class Said(enum.Enum):
    """What the minion's own records say of the job, if it has the executor ``job_once``."""

    NOTHING = "nothing"  # it is not known to keep records, or keeps none of such a job
    NOT_SURE = "not sure"  # it keeps records, but may have begun the job without one
    NEVER = "never"  # it has not begun the job
    INTERRUPTED = "interrupted"  # it has begun the job, and the job ended without a return
    NOT_AGAIN = "not again"  # the job was interrupted before the last publish; the minion has not begun it since


class Evidence(enum.Enum):
    """What has become known last."""

    NONE = "none"  # nothing since the replay began
    DUE = "due"  # no receipt, or no return, came in time
    GAP = "gap"  # events may have been lost
    UNREADABLE = "unreadable"  # the job cache cannot be read now
    RETURNED = "returned"  # the job cache has its return
    NOT_RETURNED = "not returned"  # it has none
    FETCHED = "fetched"  # the minion had kept its return, which is in the job cache now
    PUBLISHED = "published"  # the master has taken the publish
    UNCONFIRMED = "unconfirmed"  # the publish was begun, and its outcome is not known
    REFUSED = "refused"  # the master has published nothing
    FORBIDDEN = "forbidden"  # the master has published nothing, and never will
    MISSED = "missed"  # the publish was made, but the master does not know the minion
    BEGUN = "begun"  # an event claims that the minion has begun the job
    RUNS = "runs"  # the minion answers that it runs the job
    IDLE = "idle"  # it answers that it does not
    SILENT = "silent"  # it was asked, and did not answer
    UNPROVEN = "unproven"  # an answer in its name was on the bus, but is not in the job cache
    UNASKED = "unasked"  # it could not be asked

    __hash__ = object.__hash__


#: Evidence that only the minion itself can have given.
ANSWERS = frozenset({Evidence.RUNS, Evidence.IDLE, Evidence.FETCHED})


class Verdict(enum.Enum):
    """What follows for a job that may be with its minion and was not returned."""

    RUNS = "runs"  # it runs, or began after the minion was asked
    NEVER = "never"  # it was not published, or the minion's records say that it was not begun
    NOT_AGAIN = "not again"  # the minion's records say that it was begun before the last publish, and not since
    INTERRUPTED = "interrupted"  # it was begun, and ended without a return
    MAY_HAVE_BEGUN = "may have begun"  # the minion does not run it; its start may have gone unheard
    SILENT = "silent"  # the minion may not be there
    UNKNOWN = "unknown"  # the minion does not run it, and nothing shows that the minion got it


@dataclass(slots=True, eq=False)
class Signs:
    """What is known of a minion itself. Times are Unix time in seconds, 0 for never."""

    seen: float = 0.0  # its last sign of life
    started: float = 0.0  # its last start, when it forgot which jids it had seen
    free_at: float = 0.0  # when it was asked, if its last answer was "I run nothing"
    false_signs: int = 0  # signs of life in a row after which it did not answer


@dataclass(slots=True, eq=False)
class Knowledge:
    """
    What is known of one job and one minion since the Unix time ``since``. ``step``: that of the replay that began then; None
    if there is no replay.
    """

    entry: Entry
    signs: Signs
    since: float
    step: Step | None = None
    last: Evidence = Evidence.NONE
    why: str = ""  # why the publish failed
    said: Said = Said.NOTHING  # what the minion's records said in its last answer
    ran: float = 0.0  # when it last began the job, by these records and its own clock
    asked: float = 0.0  # when the minion was asked last
    begun: float = 0.0  # when its start was first claimed
    unsent: bool = False  # the job cache has the first publish of the job, and no other
    # When the job was last claimed before this replay, and so may have been sent.
    sent_before: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.sent_before = self.entry.sent_at

    def go(self, to: Step) -> None:
        """Go to another step. :raises ValueError: when the table forbids it."""
        if self.step is None or to not in TRANSITIONS[self.step]:
            raise ValueError(f"a replay cannot go from {self.step and self.step.value} to {to.value}")
        self.step = to

    def take(
        self, evidence: Evidence, said: Said = Said.NOTHING, ran: float = 0.0, free: bool = False, why: str = ""
    ) -> None:
        """
        Take what has become known.

        :param said: what the minion's records say, if it answers that it does not run the job.
        :param ran: when it last began the job, by these records.
        :param free: whether it runs nothing at all and has no records, so that the answer holds for every other job too.
        :param why: why the publish failed.
        """
        self.last, self.why = evidence, why
        if evidence is Evidence.IDLE:
            is_known = ran and ran == self.ran and not self.was_under_way
            self.said, self.ran = Said.NOT_AGAIN if is_known and said is Said.INTERRUPTED else said, ran
            self.signs.false_signs, self.signs.free_at = 0, self.asked if free else 0.0
        elif evidence in (Evidence.SILENT, Evidence.UNPROVEN):
            self.signs.free_at = 0.0

    def believe(self, proven: bool, now: float) -> bool | None:
        """
        Take the claim that the minion has begun the job. Returns whether that is new; None if the claim is ignored.

        :param proven: whether the claim is authenticated. Otherwise it is ignored, unless this engine has sent the job.
        """
        entry = self.entry
        if entry.state not in _OPEN:
            return None
        # If the job is being claimed now, the minion can only mean an earlier publish.
        if not proven and not (self.sent_before is not None if self.step is Step.CLAIMING else entry.sent_at):
            return None
        self.last, is_news, entry.acknowledged = Evidence.BEGUN, not entry.acknowledged, True
        if is_news:
            self.begun = now
        return is_news

    @property
    def may_be_running(self) -> bool:
        """Whether anything says that the minion runs the job, or has run it."""
        return self.entry.state is State.RUNNING or self.entry.acknowledged

    @property
    def was_away(self) -> bool:
        """Whether the minion has not answered, and has started since it was asked: then its silence tells nothing."""
        return self.last is Evidence.SILENT and self.signs.started > self.asked

    @property
    def restarted(self) -> bool:
        """Whether the minion has started since the job was published to it."""
        return self.signs.started > (self.since if self.was_under_way else self.entry.sent_at or self.since)

    @property
    def was_under_way(self) -> bool:
        """Whether the job was published before this replay began, and not since."""
        return self.entry.sent_at == self.sent_before

    def has_answered(self, job: Job, republished: float, now: float) -> bool:
        """Tell whether an earlier answer covers the job: the minion ran nothing, and was never sent the job from here."""
        free_at = self.signs.free_at
        newest = max(self.entry.queued, self.signs.started, republished)
        is_told = newest < free_at and now < free_at + BELIEVED
        is_new = self.entry.state is State.PENDING and self.entry.sent_at is None
        return is_told and is_new and (job.by_id or self.entry.named)

    def verdict(self, acks: bool) -> Verdict:
        """Return what follows from all that is known. ``acks``: whether minions say when they begin a job."""
        entry = self.entry
        if entry.state is State.CLAIMED and not entry.acknowledged and self.unsent:
            return Verdict.NEVER
        if self.last is Evidence.RUNS or self.begun > self.asked:
            return Verdict.RUNS
        if self.last in (Evidence.SILENT, Evidence.UNPROVEN):
            return Verdict.SILENT
        if self.said is Said.NEVER:
            return Verdict.NEVER
        if self.said is Said.INTERRUPTED or self.may_be_running:
            return Verdict.INTERRUPTED
        if self.said is Said.NOT_AGAIN:
            return Verdict.NOT_AGAIN
        # A job that was under way when the engine started may have been begun before that.
        if self.restarted or self.was_under_way or not acks:
            return Verdict.MAY_HAVE_BEGUN
        return Verdict.UNKNOWN
