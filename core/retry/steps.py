"""
The steps of a replay. Pure: stdlib only.

The table of transitions stands here and nowhere else; a replay must never change its step except by it. A replay ends from
any step: by then its entry has gone to another state, which core/retry/entry.py tells.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from saltext.jobs.core.retry.knowledge import Knowledge


class Step(enum.Enum):
    """Where a replay stands."""

    # Before the job is published
    GATHERING = "gathering"  # waits for other minions that are owed the same job
    CHECKING = "checking"  # return, key and access are being looked up
    TO_ASK = "to ask"  # waits for its turn to be asked whether it runs the job or has run it
    ASKING = "asking"  # waits for the answer
    ANSWERED = "answered"  # waits for another look at the job cache: the minion says that it knows nothing of the job
    CHECKING_AGAIN = "checking again"  # that look is under way: what it returned before it answered is there by now
    TO_SEND = "to send"  # waits for its turn to be sent the job
    CLAIMING = "claiming"  # the claim is being made durable
    SENDING = "sending"  # the job is being published
    # The job is with the minion, or on its way
    SENT = "sent"  # waits for a sign of receipt
    RUNNING = "running"  # the minion has it
    # It is in doubt what has become of the job
    DOUBTED = "doubted"  # waits for a look at the job cache, for its return
    LOOKING = "looking"  # that look is under way
    TO_PROBE = "to probe"  # waits for its turn to be asked, as above
    PROBING = "probing"  # waits for the answer
    GRACE = "grace"  # the minion does not run the job: its return may be on the way
    LAST_LOOK = "last look"  # its return is looked for once more

    __hash__ = object.__hash__  # that of an Enum is written in Python, and steps are looked up for each event


#: To which steps a replay may go from each.
TRANSITIONS: Mapping[Step, frozenset[Step]] = {
    Step.GATHERING: frozenset(
        {Step.CHECKING, Step.CHECKING_AGAIN}
    ),  # the latter where an answer holds for this job too
    Step.CHECKING: frozenset({Step.TO_ASK, Step.GATHERING}),  # back where the job cache cannot be read
    Step.TO_ASK: frozenset({Step.ASKING}),
    Step.ASKING: frozenset({Step.ANSWERED, Step.RUNNING, Step.GATHERING}),  # back where nobody could be asked
    Step.ANSWERED: frozenset({Step.CHECKING_AGAIN}),
    Step.CHECKING_AGAIN: frozenset({Step.TO_SEND, Step.TO_PROBE, Step.ANSWERED}),
    Step.TO_SEND: frozenset({Step.CLAIMING, Step.TO_PROBE}),  # asked once more where it says late that it has begun
    Step.CLAIMING: frozenset({Step.SENDING, Step.TO_PROBE}),  # likewise
    Step.SENDING: frozenset(
        {Step.SENT, Step.RUNNING}
    ),  # the latter where it says that it has begun before that is known
    Step.SENT: frozenset({Step.RUNNING, Step.DOUBTED}),
    Step.RUNNING: frozenset({Step.DOUBTED}),
    Step.DOUBTED: frozenset({Step.LOOKING}),
    Step.LOOKING: frozenset({Step.TO_PROBE, Step.DOUBTED}),
    Step.TO_PROBE: frozenset({Step.PROBING}),
    Step.PROBING: frozenset({Step.RUNNING, Step.SENT, Step.GRACE, Step.DOUBTED}),
    Step.GRACE: frozenset({Step.LAST_LOOK}),
    Step.LAST_LOOK: frozenset({Step.GRACE, Step.RUNNING}),  # the latter where it has begun only now
}

#: It waits for a look at the job cache -> the look has been begun.
LOOKS: Mapping[Step, Step] = {
    Step.GATHERING: Step.CHECKING,
    Step.ANSWERED: Step.CHECKING_AGAIN,
    Step.DOUBTED: Step.LOOKING,
    Step.GRACE: Step.LAST_LOOK,
}
#: It waits for its turn to be asked -> it is being asked.
QUESTIONS: Mapping[Step, Step] = {Step.TO_ASK: Step.ASKING, Step.TO_PROBE: Step.PROBING}
#: A look or a question that came to nothing -> where it waits for the next one.
BEFORE: Mapping[Step, Step] = {
    **{looking: waiting for waiting, looking in LOOKS.items()},
    Step.ASKING: Step.GATHERING,
    Step.PROBING: Step.DOUBTED,
}
#: The job may have reached the minion, and nothing is being found out about that.
RESTING = frozenset({Step.SENT, Step.RUNNING})
#: Nothing of it is on disk yet.
UNCLAIMED = frozenset(
    {Step.GATHERING, Step.CHECKING, Step.TO_ASK, Step.ASKING, Step.ANSWERED, Step.CHECKING_AGAIN, Step.TO_SEND}
)
#: The job may have reached the minion.
PUBLISHED = frozenset(Step) - UNCLAIMED - {Step.CLAIMING}


@dataclass(slots=True, eq=False)
class Replay:
    """The job that a minion is getting: where that stands, and what is known of it."""

    step: Step
    known: Knowledge

    @property
    def jid(self) -> str:
        """The job's."""
        return self.known.entry.jid

    def go(self, to: Step) -> None:
        """Go to another step. :raises ValueError: when the table does not know this way."""
        if to not in TRANSITIONS[self.step]:
            raise ValueError(f"a replay cannot go from {self.step.value} to {to.value}")
        self.step = to
