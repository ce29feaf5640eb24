"""
Where the delivery of a job to a minion stands, and the only table of how one step follows another. Pure: stdlib only.

A batch sends first, and looks and asks once a minion is overdue. The retry queue looks and asks first, then claims and
sends. Both find out in the same way what became of a publish. A delivery must never change its step in any other way; it
can end at any step.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


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
    # Back if the minion could not be asked; SENT if it may still begin what it was sent; LOOKING_AGAIN if it was silent
    # often enough.
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
#: A batch may also go to these from any step: the minion says that it runs the job; a kill is sent, and asked about soon; it
#: is overdue, its publish was not confirmed, or the engine has begun anew.
AT_ANY_TIME = frozenset({Step.RUNNING, Step.SENT, Step.LOOKING})

#: A step that waits for a look at the job cache -> the step during that look.
LOOKS: Mapping[Step, Step] = {Step.WAITING: Step.LOOKING, Step.ANSWERED: Step.LOOKING_AGAIN}
#: The step of a look or a question that failed -> the step in which the delivery waits for the next look.
BEFORE: Mapping[Step, Step] = {
    Step.LOOKING: Step.WAITING,
    Step.ASKING: Step.WAITING,
    Step.LOOKING_AGAIN: Step.ANSWERED,
}
#: The job may have reached the minion, and no look or question is under way.
RESTING = frozenset({Step.SENT, Step.RUNNING})
