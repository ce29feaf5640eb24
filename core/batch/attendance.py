"""
Which minions are there, and what becomes of the others: pings, ``offline``, and the hand-over to the retry queue.

Part of the batch machine. It must never leave out a minion that was not pinged. Pure: stdlib only.
"""

from __future__ import annotations

from saltext.jobs.core.batch.facts import (
    Effect,
    Gather,
    Gathered,
    Hinted,
    PingFailed,
    Queue,
    Queued,
    QueueRefused,
    Seen,
)
from saltext.jobs.core.batch.flight import Outcome
from saltext.jobs.core.batch.state import State


def ping(batch: State, now: float) -> list[Effect]:
    """Ping the minions that have shown no sign of life, if that is due."""
    presence = batch.presence
    if presence.gathering and not presence.pinging and not presence.unseen:
        presence.gathering = False  # every minion has shown a sign of life without the first ping
        batch.order_pending()
    if now < batch.pace.not_before or not batch.presence.may_ping(now):
        return []
    return [Gather(batch.presence.ping())]


def seen(batch: State, fact: Seen, _now: float) -> list[Effect]:
    """Minions are there, and may now be sent to."""
    batch.waiting.put_last(batch.presence.seen(fact.minions))
    return []


def hinted(batch: State, fact: Hinted, _now: float) -> list[Effect]:
    """
    Ping a minion once more before it is left out: the ping under way may have come too early for it. That is done only once,
    since anybody can fire such events in the minion's name.
    """
    if batch.presence.wants_hint(fact.minion):
        batch.presence.hinted.add(fact.minion)
    return []


def gathered(batch: State, fact: Gathered, now: float) -> list[Effect]:
    """A ping is over: leave out the minions that have been pinged often enough."""
    first, batch.pace.failures = batch.presence.gathering, 0
    seen(batch, Seen(fact.answered), now)
    absent = batch.presence.ping_over(now)
    if first:
        batch.order_pending()
    if batch.spec.presence == "none":
        batch.waiting.put_last(absent)
        return []
    return leave_out(batch, absent, now)


def ping_failed(batch: State, fact: PingFailed, now: float) -> list[Effect]:
    """A ping was not confirmed, so no minion is left out because of it."""
    batch.presence.pinging = False
    return batch.failed_again(fact.reason, now)


def leave_out(batch: State, minions: list[str], now: float) -> list[Effect]:
    """Minions are not there: do with them what ``offline`` says. They do not count against the budget."""
    outcome = Outcome.FAILED if batch.spec.offline == "fail" else Outcome.OFFLINE
    for minion in minions:
        batch.settle(minion, outcome, now, None)
    if batch.spec.offline != "queue":
        return []
    certain = tuple(minion for minion in minions if minion not in batch.spec.unsure)
    if len(certain) < len(minions):
        batch.queue_refused = "whether the target matches them is not known"
    batch.to_queue.update(dict.fromkeys(certain))
    return [Queue(certain)] if certain else []


def queued(batch: State, fact: Queued, _now: float) -> list[Effect]:
    """The retry queue has taken these minions, and delivers the job to them."""
    for minion in fact.minions:
        batch.to_queue.pop(minion, None)
    return []


def queue_refused(batch: State, fact: QueueRefused, now: float) -> list[Effect]:
    """The minions have failed, since nobody delivers the job to them; absence does not count against the budget."""
    batch.queue_refused = fact.reason
    for minion in fact.minions:
        batch.to_queue.pop(minion, None)
        if minion in batch.outcomes and batch.outcomes[minion][0] is Outcome.OFFLINE:
            batch.settle(minion, Outcome.FAILED, now, None)
    return []
