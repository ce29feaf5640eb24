"""
From the turn to be published to the minion's receipt: the claim, the publish, the wait. Part of the retry machine, and as
pure as it.

It must never publish a job whose claim is not durable.
"""

from __future__ import annotations

from saltext.jobs.core.retry.ends import Ends
from saltext.jobs.core.retry.entry import Entry, State
from saltext.jobs.core.retry.facts import Claim, Claimed, Effect, Publish, SendFailed, Sent
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.steps import Replay, Said, Step
from saltext.jobs.core.retry.timers import Timers
from saltext.jobs.core.retry.turns import Turns

#: Seconds after a publish at which a minion that has shown no receipt is asked, and at which it is asked first where minions
#: do not say that they begin a job.
RECEIPT, EARLY = 4.0, 1.0
#: Seconds without a receipt or an answer of any minion after which a master has taken in all that came (a busy one may stand
#: still for some, and who is asked then makes it busier), and seconds after a publish at which that is not waited for any
#: longer.
_QUIET, _LONGEST_RECEIPT = 10.0, 120.0
#: Seconds after which a minion is asked at first whether it still runs a job.
STILL_RUNNING = 60.0
#: Seconds after which a claim that the store was slow to take is not published: what was looked up before it, and whether
#: an operator has killed the job since, must be looked at again.
STALE = 10.0
#: The reason where a minion has said so unasked.
BEGUN = "the minion says that it has begun"
#: The reason where its records say so.
RECORDED = "the minion has a record that it has begun"


class Publishing:
    """
    :param queue: what is owed.
    :param timers: the machine's; the keys ``("replay", id)`` are set here.
    :param turns: whether replays are paused, and which job may be sent now.
    :param ends: how a replay ends.
    :param acks: whether minions say when they begin a job.
    """

    def __init__(self, queue: Queue, timers: Timers, turns: Turns, ends: Ends, acks: bool) -> None:
        self._queue, self._timers, self._turns, self._ends, self._acks = queue, timers, turns, ends, acks
        self._heard = 0.0  # when a minion last showed a receipt, or answered

    def claim(self, jid: str, minions: tuple[str, ...]) -> list[Effect]:
        """Have claims made durable of what may be published now."""
        claimed = []
        for entry, replay in self._queue.replays(jid, minions, Step.TO_SEND):
            if not self._turns.may_be_sent(entry):
                self._ends.land(entry)
                continue
            replay.go(Step.CLAIMING)
            replay.sent_before = entry.sent_at
            entry.claim(self._queue.now)
            self._queue.touch(entry)
            claimed.append(entry.minion)
        return [Claim(jid, tuple(claimed))] if claimed else []

    def claimed(self, fact: Claimed) -> list[Effect]:
        """Publish what is durably claimed."""
        ready, named, rerun, recorded = [], set(), False, True
        for entry, replay in self._queue.replays(fact.jid, fact.minions, Step.CLAIMING):
            if self._turns.paused:
                self._not_published(entry, replay, "replays were paused before it was published")
                continue
            if not self._turns.may_be_sent(entry):
                self._not_published(entry, replay, "its window closed before it was published")
                continue
            if self._queue.now - (entry.sent_at or 0.0) > STALE:
                self._not_published(entry, replay, "the store was slow to take the claim")
                continue
            replay.go(Step.SENDING)
            ready.append(entry.minion)
            rerun = rerun or replay.said is Said.INTERRUPTED
            recorded = recorded and replay.said not in (Said.NOTHING, Said.NOT_SURE)
            if entry.named:
                named.add(entry.minion)
            self._queue.tell(entry, "sent")
        if ready:
            self._queue.replayed[fact.jid] = self._queue.now
        return [Publish(fact.jid, tuple(ready), frozenset(named), rerun, recorded)] if ready else []

    def sent(self, fact: Sent) -> None:
        """Wait for a sign of receipt."""
        if fact.jid in self._queue.jobs:
            self._queue.replayed[fact.jid] = self._queue.now
        for entry, replay in self._queue.replays(fact.jid, fact.minions, Step.SENDING):
            if entry.minion in fact.missed:
                self._ends.not_received(entry, replay, "the master does not know the minion", alive=False)
            else:
                self._await_receipt(entry, replay, "published")

    def send_failed(self, fact: SendFailed) -> None:
        """Try again where nothing can have been received; otherwise wait for a sign of receipt."""
        for entry, replay in self._queue.replays(fact.jid, fact.minions, Step.SENDING):
            if fact.certain:
                self._not_published(entry, replay, f"the publish was refused: {fact.reason}")
            else:
                self._await_receipt(entry, replay, f"the publish was not confirmed: {fact.reason}")

    def _not_published(self, entry: Entry, replay: Replay, reason: str) -> None:
        """Nothing was published after a claim: that the minion begins the job cannot be said of it."""
        entry.sent_at, tries = replay.sent_before, entry.tries
        self._ends.not_received(entry, replay, reason, alive=True)
        if replay.said is Said.INTERRUPTED:
            entry.tries = tries  # by which a second run would be told

    def _await_receipt(self, entry: Entry, replay: Replay, reason: str) -> None:
        replay.go(Step.SENT)
        self._queue.move(entry, State.SENT, reason)
        if entry.acknowledged:
            self.received(entry, replay, BEGUN)
        else:
            acks = self._acks or replay.said is not Said.NOTHING
            self._timers.set(("replay", entry.minion), self._queue.now + (RECEIPT if acks else EARLY))

    def heard(self) -> None:
        """
        A minion has shown a receipt, or answered a question: the master hands on what minions send.

        Not for what anybody can say again and again in its name: what has been said of a publish already, or what the job
        cache does not have.
        """
        self._heard = self._queue.now

    def may_come(self, entry: Entry, replay: Replay) -> bool:
        """
        Tell whether the receipt of a minion may still come: a busy master may have it and not have got to it, as long as it
        hands on those of others. A question would have to wait behind it, and make the master busier.
        """
        if not self._acks or replay.step is not Step.SENT or self._ends.restarted(entry, replay):
            return False
        until = min(self._heard + _QUIET, (entry.sent_at or 0.0) + _LONGEST_RECEIPT)
        if until <= self._queue.now:
            return False
        self._timers.set(("replay", entry.minion), until)
        return True

    def received(self, entry: Entry, replay: Replay, reason: str) -> None:
        """The minion has the job."""
        self.note_receipt(entry, reason)
        self.let_run(entry, replay)

    def let_run(self, entry: Entry, replay: Replay) -> None:
        """Wait for the return. Its process may die without one: that is asked about, ever less often."""
        replay.go(Step.RUNNING)
        wait = max(STILL_RUNNING, self._queue.now - entry.since)
        self._timers.set(("replay", entry.minion), self._queue.now + wait)

    def note_receipt(self, entry: Entry, reason: str) -> None:
        """Note that the minion got the job: from now on it is known to have been begun."""
        if entry.state is State.RUNNING:
            return
        if entry.state is State.PENDING:
            entry.attempts += 1
        entry.tries = entry.lost = 0
        self._queue.move(entry, State.RUNNING, reason)
