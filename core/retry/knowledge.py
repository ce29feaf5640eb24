"""
What is known of a minion, and of one job that it is owed: who has said what, and what follows from that.

What must outlive the engine stands in the entry; what was learned since its replay began stands here. It must never take
silence for absence, nor believe a word from the bus about a job that was not sent from here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, Job, State

#: In these states it matters that the minion has begun the job.
_OPEN = frozenset({State.PENDING, *UNDER_WAY})
#: Seconds for which it is believed that a minion ran nothing.
BELIEVED = 600.0


class Said(enum.Enum):
    """What the minion's own records say of the job, where it has the executor ``job_once``."""

    NOTHING = "nothing"  # it has none, as far as is known, or they would not tell of this job
    NOT_SURE = "not sure"  # it has them, and may have begun the job without a record
    NEVER = "never"  # it has not begun the job
    INTERRUPTED = "interrupted"  # it has begun the job, which ended without a return


class Evidence(enum.Enum):
    """What has become known last."""

    NONE = "none"  # nothing since the replay began
    DUE = "due"  # the time is up in which a sign of receipt, or a return, was waited for
    GAP = "gap"  # events may have been lost
    UNREADABLE = "unreadable"  # the job cache cannot be read now
    RETURNED = "returned"  # the job cache has its return
    NOT_RETURNED = "not returned"  # it has none
    FETCHED = "fetched"  # the minion had kept its return, which is in the job cache now
    PUBLISHED = "published"  # the master has taken the publish
    UNCONFIRMED = "unconfirmed"  # the publish was begun, and nobody knows what has become of it
    REFUSED = "refused"  # the master has published nothing
    FORBIDDEN = "forbidden"  # likewise, and it will not
    MISSED = "missed"  # the publish was made, but the master does not know the minion
    BEGUN = "begun"  # it is said in the minion's name, unasked, that it has begun the job
    RUNS = "runs"  # the minion answers that it runs the job
    IDLE = "idle"  # it answers that it does not
    SILENT = "silent"  # it was asked, and did not answer
    UNPROVEN = "unproven"  # somebody has answered in its name, and nobody knows who
    UNASKED = "unasked"  # it could not be asked

    __hash__ = object.__hash__


#: What only the minion can have told.
ANSWERS = frozenset({Evidence.RUNS, Evidence.IDLE, Evidence.FETCHED})


class Verdict(enum.Enum):
    """What follows for a job that may be with its minion."""

    RETURNED = "returned"
    RUNS = "runs"  # it runs, or has begun since the minion was asked
    NEVER = "never"  # it was not published, or the minion's records say that it was not begun
    INTERRUPTED = "interrupted"  # it was begun, and ended without a return
    MAY_HAVE_BEGUN = (
        "may have begun"  # the minion is there and does not run it; that it began might not have been heard
    )
    SILENT = "silent"  # nobody knows whether the minion is there
    UNKNOWN = "unknown"  # the minion is there and does not run it, and nothing says that it got it


@dataclass(slots=True, eq=False)
class Signs:
    """What is known of a minion itself. Times are Unix time in seconds, 0 for never."""

    seen: float = 0.0  # its last sign of life
    started: float = 0.0  # its last start: then it has forgotten which jids it has seen
    free_at: float = 0.0  # when it was last asked, and said that it ran nothing
    false_signs: int = 0  # how often in a row it did not answer, though it seemed to be there


@dataclass(slots=True, eq=False)
class Knowledge:
    """
    What is known of one job and one minion, for as long as a replay takes.

    :param since: Unix time since when; what was heard before is known of from the entry alone.
    """

    entry: Entry
    signs: Signs
    since: float
    last: Evidence = Evidence.NONE
    why: str = ""  # what was said where a publish failed
    said: Said = Said.NOTHING  # what the minion's records said when it answered last
    asked: float = 0.0  # when the minion was asked last
    begun: float = 0.0  # when it was first said that it begins the job
    sent_before: float | None = None  # when the job was claimed, and so may have been sent, before this replay
    published: float | None = None  # the job's newest publish, where the job cache was asked for that

    def take(self, evidence: Evidence, said: Said = Said.NOTHING, free: bool = False, why: str = "") -> None:
        """
        Take what has become known.

        :param said: what the minion's records say, where it answers that it does not run the job.
        :param free: whether it runs nothing at all, and would know of no other job more than that.
        :param why: what was said where a publish failed.
        """
        self.last, self.why = evidence, why
        if evidence is Evidence.IDLE:
            self.said = said
            self.signs.false_signs, self.signs.free_at = 0, self.asked if free else 0.0
        elif evidence in (Evidence.SILENT, Evidence.UNPROVEN):
            self.signs.free_at = 0.0

    def believe(self, proven: bool, claiming: bool, now: float) -> bool | None:
        """
        It is said in the minion's name that it has begun the job. Returns whether that is new; None where it does not count.

        :param proven: whether the minion itself is known to have said so; else one that we have not sent cannot be meant.
        :param claiming: whether the job is being claimed just now, so that only an earlier publish can be meant.
        """
        entry = self.entry
        if entry.state not in _OPEN:
            return None
        if not proven and not (self.sent_before is not None if claiming else entry.sent_at):
            return None
        self.last, is_news, entry.acknowledged = Evidence.BEGUN, not entry.acknowledged, True
        if is_news:
            self.begun = now
        return is_news

    @property
    def may_be_running(self) -> bool:
        """Whether anything says that the minion has begun the job."""
        return self.entry.state is State.RUNNING or self.entry.acknowledged

    @property
    def restarted(self) -> bool:
        """Whether the minion has started since the job was published to it."""
        return self.signs.started > max(self.since, self.entry.sent_at or 0.0)

    def has_answered(self, job: Job, republished: float, now: float) -> bool:
        """Tell whether the minion has said already that it does not run a job that was never sent to it from here."""
        free_at = self.signs.free_at
        newest = max(self.entry.queued_at, self.signs.started, republished)
        is_told = newest < free_at and now < free_at + BELIEVED
        return is_told and self.entry.sent_at is None and (job.by_id or self.entry.named)

    def verdict(self, acks: bool) -> Verdict:
        """Return what follows from all of it. ``acks``: whether minions say when they begin a job."""
        entry, sent_at = self.entry, self.entry.sent_at or 0.0
        if self.last in (Evidence.RETURNED, Evidence.FETCHED):
            return Verdict.RETURNED
        unpublished = self.published is not None and self.published < sent_at
        if entry.state is State.CLAIMED and not entry.acknowledged and unpublished:
            return Verdict.NEVER
        if self.last is Evidence.RUNS or self.begun > self.asked:
            return Verdict.RUNS
        if self.last in (Evidence.SILENT, Evidence.UNPROVEN):
            return Verdict.SILENT
        if self.said is Said.NEVER:
            return Verdict.NEVER
        if self.said is Said.INTERRUPTED or self.may_be_running:
            return Verdict.INTERRUPTED
        # One that was found under way may have been begun while nobody listened.
        if self.restarted or self.since > sent_at or not acks:
            return Verdict.MAY_HAVE_BEGUN
        return Verdict.UNKNOWN
