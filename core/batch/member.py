"""
What a batch knows of one minion that it was once to send to, or that has ended; and what it does about it.

``Member`` is the minion's row. It is in flight while it has a step; it has ended once ``ended`` says how; else it is to be
sent the job again, and may have received it. A batch sends first, and asks when a minion is overdue: first its return is
looked for in the job cache, then it is asked, together with many others. ``state.py`` alone changes members.

The functions at the end are the policy: they return a decision. They must never take silence for absence, nor have a job
sent again that may have begun where it would run twice. Pure: stdlib only.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saltext.jobs.core.delivery import known
from saltext.jobs.core.delivery.known import Delivery, Evidence, Said, Step, Verdict
from saltext.jobs.core.display.text import local

if TYPE_CHECKING:
    from saltext.jobs.core.batch.spec import Spec

#: Longest pause in seconds between two questions to a minion that still runs the job, unless ``timeout`` is longer.
LONGEST_CHECK = 600.0
#: Answers in a row after which a minion is believed not to run the job: after the first it may still be about to begin.
IDLE_ANSWERS = 2
#: How often a minion that still runs the job is sent a kill.
KILLS = 5
#: Seconds between a kill and asking whether it worked; and between a request to terminate, which takes longer, and that.
KILL_PAUSE, TERM_PAUSE = 1.0, 10.0
#: The batch finds out what became of the job: an answer that the minion runs it counts, even after one that it does not.
IN_DOUBT = frozenset({Step.ASKING, Step.WAITING, Step.ANSWERED, Step.LOOKING_AGAIN})


class Outcome(str, enum.Enum):
    """How a minion ended in a batch."""

    COMPLETED = "completed"  # returned with success
    FAILED = "failed"  # returned without success; or was away, and the batch counts that as failed
    LOST = "lost"  # may have begun, has not returned, and now is silent or does not run the job
    OFFLINE = "offline"  # was not there
    QUEUED = "queued"  # was not there, and was handed over to the retry queue
    KILLED = "killed"  # says that a stop has killed the job, and has not returned
    TIMED_OUT = "timed_out"  # says the same, because it ran longer than ``max_runtime``; has not returned with success


#: Outcomes that count against the failure budget.
_AGAINST_BUDGET = frozenset({Outcome.FAILED, Outcome.LOST, Outcome.TIMED_OUT})
#: What a row holds, after the step, what became of the publish, what the minion's records say, and how it ended.
_KEPT = (
    *("sent_at", "begun_at", "started_at", "unheard", "runs", "idle", "unanswered", "due", "since", "ran_since"),
    *("claimed", "kills", "expired", "resends", "retcode"),
)
_values = operator.attrgetter(*_KEPT)


@dataclass(slots=True, eq=False)
class Member(Delivery):
    """Times are Unix time in seconds, 0 for never."""

    due: float | None = None  # when the next step is due
    since: float = 0.0  # when it was last sent to or seen to run the job; once it has ended, when it ended
    ran_since: float = 0.0  # start of its run time: when it said that it had begun, or else when it was sent to
    claimed: bool = False  # an event said that it has begun; anybody can forge any number, so only the first counts
    kills: int = 0  # kills sent
    expired: bool = False  # it exceeded ``max_runtime``, and is being killed for that
    killed: bool = False  # it says that a kill has reached a process of the job; no row holds that
    resends: int = 0  # how often it was sent the job again
    ended: Outcome | None = None
    retcode: int | None = None  # of its return

    def sends(self, now: float) -> None:
        """It is about to be sent the job."""
        self.publish(now)
        self.step, self.since, self.ran_since, self.due, self.ended = Step.SENDING, now, now, None, None
        self.said, self.last = Said.NOTHING, Evidence.NONE
        self.claimed, self.kills, self.expired, self.killed = False, 0, False, False

    def is_killed(self) -> None:
        """It says that a kill has reached a process of the job."""
        self.killed = True
        self._has_begun(self.sent_at or self.asked_at)

    @property
    def has_begun(self) -> bool:
        """Whether it is known to have begun the job."""
        return self.claimed or bool(self.begun_at)

    @property
    def relies_on_memory(self) -> bool:
        """Whether it is sent the job again only because it still knows the jid, if it did receive the job."""
        has_it = self.sent_at is not None and self.said is not Said.NEVER and not self.has_begun
        return has_it and bool(self.idle) and not self.restarted

    @property
    def was_put_back(self) -> bool:
        """Whether it is pending again, but may have received the job: once it restarts, it is not sent that again."""
        return self.step is None and self.ended is None and self.relies_on_memory

    @property
    def is_failure(self) -> bool:
        """Whether it counts against the budget. FAILED without a return means away, which does not count."""
        return self.ended in _AGAINST_BUDGET and (self.retcode is not None or self.ended is not Outcome.FAILED)

    def row(self) -> list[Any]:
        step, ended = self.step and self.step.value, self.ended and self.ended.value
        return [step, self.outcome.value, self.said.value, ended, *_values(self)]

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Member:
        """Return the member that a row describes. :raises ValueError, TypeError: if it describes none."""
        step, outcome, said, ended, *values = row
        member = cls(
            step=None if step is None else Step(step),
            outcome=known.Outcome(outcome),
            said=Said(said),
            ended=None if ended is None else Outcome(ended),
            **dict(zip(_KEPT, values, strict=False)),  # an earlier version kept fewer
        )
        member.retcode = None if member.retcode is None else int(member.retcode)
        return member


# -- what follows -----------------------------------------------------------------------------------------------------


def seen(member: Member, spec: Spec, now: float, doubted: bool, killing: bool) -> float | None:
    """
    The minion says that it runs the job. Return when it is overdue next; None if the job is to be killed there. ``doubted``:
    the batch was finding out what became of it. ``killing``: an operator wants the job killed.
    """
    due = overdue_at(member, spec, now)
    if member.last is Evidence.BEGUN:  # which can be forged: it kills nothing, and the minion is asked soon
        due = min(due, member.due) if member.kills and member.due is not None else due
        return min(due, now + spec.gather_job_timeout) if doubted else due
    limit = spec.max_runtime
    is_too_long = member.expired or (limit is not None and now >= member.ran_since + limit)
    return None if (is_too_long or killing) and member.kills < KILLS else due


def overdue_at(member: Member, spec: Spec, now: float) -> float:
    """
    Return when a minion that may run the job is overdue: after ``timeout``, or when ``max_runtime`` has passed; one that
    keeps saying that it runs the job is asked less and less often, except between two kills.
    """
    limit, wait = spec.max_runtime, spec.timeout
    if member.runs > 1 and (not member.kills or member.kills >= KILLS):
        wait = max(wait, min(wait * 2.0 ** min(member.runs - 1, 30), LONGEST_CHECK))
    if limit is None or member.kills:
        return now + wait
    return min(now + wait, max(now, member.ran_since + limit))


def answered(member: Member, spec: Spec) -> Step:
    """Return the next step of a minion that was asked, and does not say that it runs the job; or could not be asked."""
    if member.last is Evidence.SILENT and member.unanswered >= spec.probe_attempts:
        return Step.LOOKING_AGAIN
    if member.last in (Evidence.IDLE, Evidence.FETCHED):
        # Its return may still be on the way.
        sure = member.idle >= IDLE_ANSWERS or member.last is Evidence.FETCHED or (member.kills and member.begun_at)
        return Step.ANSWERED if sure else Step.WAITING
    return Step.WAITING


def absent(spec: Spec) -> Outcome:
    """Return how a minion ends that is not there. One that counts as ``OFFLINE`` may be handed over later."""
    return Outcome.FAILED if spec.offline == "fail" else Outcome.OFFLINE


def given_up(member: Member, spec: Spec) -> Outcome | None:
    """
    Return how a minion ends for which the last look has found no return; None if it never got the job, and is sent it again:
    a minion that did receive the job ignores the duplicate jid until it restarts.
    """
    if member.killed and member.idle:
        return Outcome.TIMED_OUT if member.expired else Outcome.KILLED
    verdict, unsure = member.verdict(spec.acks), member.outcome is known.Outcome.IN_DOUBT
    if verdict is Verdict.SILENT:
        # It may hang, and begin the job later. The retry queue asks it first, and then sends the same jid.
        may_have_begun = member.begun_at or member.idle or not spec.acks
        return Outcome.LOST if spec.offline != "queue" or may_have_begun else Outcome.OFFLINE
    never_got_it = verdict in (Verdict.NEVER, Verdict.UNKNOWN) and member.resends < spec.probe_attempts
    may_be_unsent = unsure and verdict in (Verdict.NEVER, Verdict.UNKNOWN, Verdict.MAY_HAVE_BEGUN)
    # A kill that it has not answered may have reached the job before the minion said that it had begun.
    is_safe = verdict is Verdict.NEVER or not (member.restarted or member.kills)
    return None if is_safe and (never_got_it or may_be_unsent) else Outcome.LOST


def why_lost(member: Member) -> str:
    """Return what is known of a job that was given up on a minion: that decides whether it may run again."""
    began = "began it" if member.has_begun else "may have begun it"
    if member.said is Said.INTERRUPTED:
        return "its own record says that it began the job, and was interrupted"
    if member.unanswered or not member.idle:
        return f"{began}, and was silent at {local(member.since, None)[:16]}: ask it by saltutil.find_job whether it runs it"
    if member.restarted:
        # A minion that has only connected anew, to a master that was away, looks as one that has restarted.
        return f"{began}, and has connected anew since: interrupted if it was restarted, else its return was lost"
    if member.has_begun:
        return "began it, and it has ended there: its return was lost, unless its process was killed"
    return "may have run it: it does not run it now, and has no return"
