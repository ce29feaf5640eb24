"""
What is known of one job on one minion, and what follows from that. Pure: stdlib only.

``Delivery`` is the base of what a wing keeps for each minion: a member of a batch, an entry of the queue. The wing tells it
what becomes known, and nothing else sets its fields:

* ``publish`` before a publish, ``ask`` before a question;
* ``take`` for each piece of evidence: outcomes of the publish, looks at the job cache, answers, starts that were heard;
* ``starts`` when the minion's process has started, and ``unheard = True`` once a start of the job may have gone unheard
  (events were lost, the engine has begun anew).

Then ``verdict`` says what this means, and the wing's policy what is done about it: a decision, which one place of the wing
carries out, and takes the delivery to its next step by ``go``. A batch sends first, and looks and asks once a minion is
overdue. The retry queue looks and asks first, then claims and sends. ``TRANSITIONS`` is the only table of how one step
follows another; a delivery can end at any step. It must never take silence for absence.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# -- where it stands ---------------------------------------------------------------------------------------------------


class Step(enum.Enum):
    """Where a delivery stands."""

    WAITING = "waiting"  # waits for a look at the job cache, with other minions that are owed the same job
    LOOKING = "looking"  # return, key and access are being looked up
    TO_ASK = "to ask"  # waits for its turn to be asked whether it runs the job or has run it
    ASKING = "asking"  # waits for the answer
    ANSWERED = "answered"  # the minion does not run the job; waits for another look, since its return may be on the way
    LOOKING_AGAIN = "looking again"  # that look is under way; it finds any return that was sent before the answer
    TO_SEND = "to send"  # waits for its turn to be sent the job
    CLAIMING = "claiming"  # the claim is being made durable
    SENDING = "sending"  # the job is being published
    SENT = "sent"  # waits for a sign of receipt
    RUNNING = "running"  # the minion has it

    __hash__ = object.__hash__  # Enum's own is in Python, and slow: each event looks up steps


#: The steps that may follow each step.
TRANSITIONS: Mapping[Step, frozenset[Step]] = {
    # -- what became of it: no conclusion without a look, a question, and a second look
    Step.WAITING: frozenset({Step.LOOKING, Step.LOOKING_AGAIN}),  # LOOKING_AGAIN if an answer covers this job too
    # WAITING if the job cache cannot be read; ASKING in a batch, which asks at once.
    Step.LOOKING: frozenset({Step.TO_ASK, Step.WAITING, Step.ASKING}),
    Step.TO_ASK: frozenset({Step.ASKING}),
    # Back if it could not be asked; SENT if it may still begin what it was sent; LOOKING_AGAIN if it was silent too often.
    Step.ASKING: frozenset({Step.ANSWERED, Step.RUNNING, Step.SENT, Step.WAITING, Step.LOOKING_AGAIN}),
    Step.ANSWERED: frozenset({Step.LOOKING_AGAIN}),
    # RUNNING if the job, which was sent earlier, began only now.
    Step.LOOKING_AGAIN: frozenset({Step.TO_SEND, Step.TO_ASK, Step.RUNNING, Step.ANSWERED}),
    # -- the publish: recorded before it is made
    Step.TO_SEND: frozenset({Step.CLAIMING, Step.TO_ASK}),  # TO_ASK if a late event says that the job began
    Step.CLAIMING: frozenset({Step.SENDING, Step.TO_ASK}),  # likewise
    Step.SENDING: frozenset({Step.SENT, Step.RUNNING}),  # RUNNING if its start is heard before the publish is confirmed
    # -- the job is with the minion: silence is followed by a look
    Step.SENT: frozenset({Step.RUNNING, Step.WAITING}),
    Step.RUNNING: frozenset({Step.WAITING}),
}
#: A batch may also go to these from any step: the minion says that it runs the job; a kill is sent; it is overdue, its
#: publish was not confirmed, or the engine has begun anew.
AT_ANY_TIME = frozenset({Step.RUNNING, Step.SENT, Step.LOOKING})

#: A step that waits for a look at the job cache -> the step during that look.
LOOKS: Mapping[Step, Step] = {Step.WAITING: Step.LOOKING, Step.ANSWERED: Step.LOOKING_AGAIN}
#: The step of a look or a question that failed -> the step in which the delivery waits for the next look.
BEFORE: Mapping[Step, Step] = {**{look: step for step, look in LOOKS.items()}, Step.ASKING: Step.WAITING}
#: The job may have reached the minion, and no look or question is under way.
RESTING = frozenset({Step.SENT, Step.RUNNING})


# -- what is known of it -----------------------------------------------------------------------------------------------


class Outcome(enum.Enum):
    """What became of the last publish."""

    NONE = "none"  # there was none
    IN_DOUBT = "in doubt"  # it was claimed, and perhaps made
    TAKEN = "taken"  # the master has taken it
    NOT_SENT = "not sent"  # nothing was published


class Said(enum.Enum):
    """What the minion's own records say of the job, if it has the executor ``job_once``."""

    NOTHING = "nothing"  # it is not known to keep records, or keeps none of such a job
    NOT_SURE = "not sure"  # it keeps records, but may have begun the job without one
    NEVER = "never"  # it has not begun the job
    INTERRUPTED = "interrupted"  # it has begun the job, and the job ended without a return
    NOT_AGAIN = "not again"  # the job was interrupted before the last publish; the minion has not begun it since

    @property
    def is_sure(self) -> bool:
        """Whether the minion knows if it has begun the job."""
        return self not in (Said.NOTHING, Said.NOT_SURE)


class Evidence(enum.Enum):
    """What has become known last."""

    NONE = "none"  # nothing yet
    DUE = "due"  # no receipt, or no return, came in time
    GAP = "gap"  # events may have been lost
    NOT_RETURNED = "not returned"  # the job cache has no return
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
    UNASKED = "unasked"  # it could not be asked, or its return and rights could not be looked up

    __hash__ = object.__hash__


#: Evidence that only the minion itself can have given.
ANSWERS = frozenset({Evidence.RUNS, Evidence.IDLE, Evidence.FETCHED})
_OUTCOMES = {
    Evidence.PUBLISHED: Outcome.TAKEN,
    Evidence.UNCONFIRMED: Outcome.IN_DOUBT,
    Evidence.REFUSED: Outcome.NOT_SENT,
    Evidence.FORBIDDEN: Outcome.NOT_SENT,
    Evidence.MISSED: Outcome.IN_DOUBT,  # the minion may hear it nevertheless, and match the target by itself
}


@dataclass(frozen=True)
class Answers:
    """What minions say about a job. ``said``, ``ran``, ``applying`` and ``free`` are about those that do not run it."""

    told: Mapping[Evidence, frozenset[str]]  # what they have shown; returns that they had kept are stored by now
    said: Mapping[str, Said] = field(default_factory=dict)  # what their records say of the job, if they keep any
    ran: Mapping[str, float] = field(default_factory=dict)  # when they last began it, by their records and clocks
    unmatched: frozenset[str] = frozenset()  # the job's target does not match them
    applying: frozenset[str] = frozenset()  # they run states
    free: frozenset[str] = frozenset()  # they run nothing at all, and their answer holds for every other job too
    more: bool = False  # the question goes on, and others may still answer


class Verdict(enum.Enum):
    """What follows for a job that may be with its minion and was not returned."""

    RUNS = "runs"  # it runs, or began after the minion was asked
    NEVER = "never"  # it was not published, or the minion's records say that it was not begun
    NOT_AGAIN = "not again"  # the minion's records say that it was begun before the last publish, and not since
    INTERRUPTED = "interrupted"  # it was begun, and ended without a return
    MAY_HAVE_BEGUN = "may have begun"  # the minion does not run it; its start may have gone unheard
    SILENT = "silent"  # the minion may not be there
    UNKNOWN = "unknown"  # the minion does not run it, and nothing shows that the minion got it


def _later(now: float, than: float) -> float:
    """Return ``now``, or what is just later ``than`` that, if the clock was set back since."""
    return max(now, math.nextafter(than, math.inf))


@dataclass(slots=True, eq=False, kw_only=True)
class Delivery:
    """What is known of one job on one minion. Times are Unix time in seconds, 0 for never."""

    step: Step | None = None  # where it stands; None if none is under way
    sent_at: float | None = None  # when the last publish was begun; None if there was none
    sent_before: float | None = None  # the one before
    outcome: Outcome = Outcome.NONE
    failure: str = ""  # why the publish failed
    begun_at: float = 0.0  # when its start became known; from then on it runs, or ran and has not returned
    started_at: float = 0.0  # when the minion's process last started, as far as was heard
    unheard: bool = False  # a start of the job since the last publish may have gone unheard
    asked_at: float = 0.0  # when the minion was last asked
    last: Evidence = Evidence.NONE
    said: Said = Said.NOTHING  # what the minion's records said in its last answer
    ran_at: float = 0.0  # when it last began, by the minion's records and clock
    ran_before: float = 0.0  # the same before the last publish
    runs: int = 0  # answers in a row that it runs the job; likewise ``idle`` and ``unanswered``
    idle: int = 0
    unanswered: int = 0

    def go(self, to: Step) -> None:
        """Go to another step. :raises ValueError: when the table forbids it."""
        if self.step is None or to not in TRANSITIONS[self.step]:
            raise ValueError(f"a delivery cannot go from {self.step and self.step.value} to {to.value}")
        self.step = to

    def inquire(self) -> None:
        """Begin to find out what became of it: what was said earlier does not count any more."""
        self.step, self.last, self.failure, self.said = Step.WAITING, Evidence.NONE, "", Said.NOTHING
        self.asked_at = self.ran_at = self.ran_before = 0.0
        self.runs = self.idle = self.unanswered = 0

    def publish(self, now: float) -> None:
        """It is about to be published: claims that it was begun concern an earlier publish."""
        self.sent_at, self.sent_before, self.outcome = now, self.sent_at, Outcome.IN_DOUBT
        self.begun_at, self.unheard, self.ran_before = 0.0, False, self.ran_at
        self.runs = self.idle = self.unanswered = 0

    def ask(self, now: float) -> None:
        self.asked_at, self.begun_at = now, min(self.begun_at, now)  # the clock may have been set back since it began

    def take(
        self, evidence: Evidence, now: float, said: Said = Said.NOTHING, ran_at: float = 0.0, failure: str = ""
    ) -> None:
        """
        Take what has become known. If the minion answers that it does not run the job: what its records say, and when it
        last began it by these. ``failure``: why the publish failed.
        """
        self.last, self.failure = evidence, failure
        self.outcome = _OUTCOMES.get(evidence, self.outcome)
        if evidence in (Evidence.REFUSED, Evidence.FORBIDDEN):
            # A start that was reported can only concern an earlier publish.
            self.sent_at = self.sent_before
            self.begun_at = 0.0 if self.sent_at is None else self.begun_at
        elif evidence is Evidence.BEGUN:
            self._has_begun(_later(now, self.asked_at))
            self.runs = self.idle = self.unanswered = 0
        elif evidence in (Evidence.FETCHED, Evidence.RUNS):
            self._has_begun(self.sent_at or self.asked_at)
            if evidence is Evidence.RUNS:
                self.runs, self.idle, self.unanswered = self.runs + 1, 0, 0
        elif evidence is Evidence.IDLE:
            again = said is Said.INTERRUPTED and 0.0 < ran_at == self.ran_before
            self.said, self.ran_at = Said.NOT_AGAIN if again else said, ran_at
            self.idle, self.runs, self.unanswered = self.idle + 1, 0, 0
            if self.said in (Said.NEVER, Said.NOT_AGAIN) and self.begun_at <= self.asked_at:
                self.begun_at = 0.0  # claims of a start were forged, or concern an earlier publish
        elif evidence is Evidence.SILENT:
            self.unanswered += 1

    def _has_begun(self, at: float) -> None:
        self.begun_at = self.begun_at or at
        if self.outcome is Outcome.IN_DOUBT:
            self.outcome = Outcome.TAKEN

    def starts(self, now: float) -> None:
        self.started_at = _later(now, self.sent_at or 0.0)

    @property
    def restarted(self) -> bool:
        """Whether the minion's process has started since the last publish: the minion has forgotten the jid."""
        return self.started_at > (self.sent_at or 0.0)

    def verdict(self, acks: bool) -> Verdict:
        """Return what follows from all that is known. ``acks``: whether minions say when they begin a job."""
        if self.outcome is Outcome.NOT_SENT and not self.begun_at:
            return Verdict.NEVER
        if self.last is Evidence.RUNS or self.begun_at > self.asked_at:
            return Verdict.RUNS
        if self.last in (Evidence.SILENT, Evidence.UNPROVEN):
            return Verdict.SILENT
        if self.said is Said.NEVER:
            return Verdict.NEVER
        if self.said is Said.INTERRUPTED or self.begun_at:
            return Verdict.INTERRUPTED
        if self.said is Said.NOT_AGAIN:
            return Verdict.NOT_AGAIN
        if self.restarted or self.unheard or not acks:
            return Verdict.MAY_HAVE_BEGUN
        return Verdict.UNKNOWN
