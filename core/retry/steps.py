"""
The steps of a replay, and the only table of how one follows another. Pure: stdlib only.

A replay must never change its step in any other way. It can end at any step: its entry has then changed its state
(core/retry/entry.py).
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
    ANSWERED = "answered"  # the minion says it does not know the job; waits for another look at the job cache
    CHECKING_AGAIN = "checking again"  # that look is under way; a return sent before the answer has arrived by now
    TO_SEND = "to send"  # waits for its turn to be sent the job
    CLAIMING = "claiming"  # the claim is being made durable
    SENDING = "sending"  # the job is being published
    # The job is with the minion, or on its way
    SENT = "sent"  # waits for a sign of receipt
    RUNNING = "running"  # the minion has it
    # What became of the job is unknown
    DOUBTED = "doubted"  # waits for a look at the job cache, which may have the return
    LOOKING = "looking"  # that look is under way
    TO_PROBE = "to probe"  # waits for its turn to be asked again
    PROBING = "probing"  # waits for the answer
    GRACE = "grace"  # the minion does not run the job; its return may be on the way
    LAST_LOOK = "last look"  # the job cache is searched for the return once more

    __hash__ = object.__hash__  # Enum's own is in Python, and slow: each event looks up steps


#: The steps that may follow each step.
TRANSITIONS: Mapping[Step, frozenset[Step]] = {
    Step.GATHERING: frozenset({Step.CHECKING, Step.CHECKING_AGAIN}),  # CHECKING_AGAIN if an answer covers this job too
    Step.CHECKING: frozenset({Step.TO_ASK, Step.GATHERING}),  # back if the job cache cannot be read
    Step.TO_ASK: frozenset({Step.ASKING}),
    Step.ASKING: frozenset({Step.ANSWERED, Step.RUNNING, Step.GATHERING}),  # back if the minion could not be asked
    Step.ANSWERED: frozenset({Step.CHECKING_AGAIN}),
    Step.CHECKING_AGAIN: frozenset({Step.TO_SEND, Step.TO_PROBE, Step.ANSWERED}),
    Step.TO_SEND: frozenset({Step.CLAIMING, Step.TO_PROBE}),  # probed if a late event says that the job began
    Step.CLAIMING: frozenset({Step.SENDING, Step.TO_PROBE}),  # likewise
    Step.SENDING: frozenset({Step.SENT, Step.RUNNING}),  # RUNNING if its start is heard before the publish is confirmed
    Step.SENT: frozenset({Step.RUNNING, Step.DOUBTED}),
    Step.RUNNING: frozenset({Step.DOUBTED}),
    Step.DOUBTED: frozenset({Step.LOOKING}),
    Step.LOOKING: frozenset({Step.TO_PROBE, Step.DOUBTED}),
    Step.TO_PROBE: frozenset({Step.PROBING}),
    Step.PROBING: frozenset({Step.RUNNING, Step.SENT, Step.GRACE, Step.DOUBTED}),
    Step.GRACE: frozenset({Step.LAST_LOOK}),
    Step.LAST_LOOK: frozenset({Step.GRACE, Step.RUNNING}),  # RUNNING if the job began only now
}

#: Waiting for a look at the job cache -> looking.
LOOKS: Mapping[Step, Step] = {
    Step.GATHERING: Step.CHECKING,
    Step.ANSWERED: Step.CHECKING_AGAIN,
    Step.DOUBTED: Step.LOOKING,
    Step.GRACE: Step.LAST_LOOK,
}
#: Waiting for its turn to be asked -> being asked.
QUESTIONS: Mapping[Step, Step] = {Step.TO_ASK: Step.ASKING, Step.TO_PROBE: Step.PROBING}
#: The step of a look or a question that failed -> the step in which the replay waits for the next one.
BEFORE: Mapping[Step, Step] = {
    **{looking: waiting for waiting, looking in LOOKS.items()},
    Step.ASKING: Step.GATHERING,
    Step.PROBING: Step.DOUBTED,
}
#: The job may have reached the minion, and no look or question is under way.
RESTING = frozenset({Step.SENT, Step.RUNNING})
#: The replay has no claim on disk yet.
UNCLAIMED = frozenset(
    {Step.GATHERING, Step.CHECKING, Step.TO_ASK, Step.ASKING, Step.ANSWERED, Step.CHECKING_AGAIN, Step.TO_SEND}
)
#: The job may have reached the minion.
PUBLISHED = frozenset(Step) - UNCLAIMED - {Step.CLAIMING}


@dataclass(slots=True, eq=False)
class Replay:
    """The delivery of one job to one minion: its step, and what is known about it."""

    step: Step
    known: Knowledge

    @property
    def jid(self) -> str:
        """The jid of the job."""
        return self.known.entry.jid

    def go(self, to: Step) -> None:
        """Go to another step. :raises ValueError: when the table forbids it."""
        if to not in TRANSITIONS[self.step]:
            raise ValueError(f"a replay cannot go from {self.step.value} to {to.value}")
        self.step = to
