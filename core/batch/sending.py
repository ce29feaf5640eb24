"""
Reaching the next minions: pings find out which are there, and publishes send them the job. It decides how many, in which
stage, and when; and what follows from a failed ping or publish.

Part of the batch machine. Freed slots are gathered for a while, so that many returns lead to one publish. A minion that
may have received the job may be sent it again only under the same jid, which it runs once. Pure: stdlib only.
"""

from __future__ import annotations

from saltext.jobs.core.batch import ending, facts, holding
from saltext.jobs.core.batch.facts import Effect
from saltext.jobs.core.batch.state import BatchState


def ping(batch: BatchState, now: float) -> list[Effect]:
    """Ping the minions that have shown no sign of life, if that is due."""
    presence = batch.presence
    if presence.first_ping and not presence.pinged and not presence.unseen:
        presence.first_ping = False  # every minion has shown a sign of life without the first ping
        batch.order_pending()
    if now < batch.pace.not_before or not batch.presence.may_ping(now):
        return []
    return [facts.Ping(batch.presence.ping(batch.pace.size))]


def seen(batch: BatchState, fact: facts.Seen, _now: float) -> list[Effect]:
    """Minions are there, and may now be sent to."""
    batch.waiting.put_last(batch.presence.seen(fact.minions))
    return []


def pinged(batch: BatchState, _fact: facts.Pinged, now: float) -> list[Effect]:
    """A ping is over: leave out the minions that have been pinged often enough."""
    first, batch.pace.failures = batch.presence.first_ping, 0
    absent = batch.presence.ping_over(now)
    if first:
        batch.order_pending()
    if batch.spec.presence == "none":
        batch.waiting.put_last(absent)
        return []
    ending.leave_out(batch, absent, now)
    return []


def ping_failed(batch: BatchState, fact: facts.PingFailed, now: float) -> list[Effect]:
    """A ping was not confirmed, so no minion is left out because of it."""
    batch.presence.pinged = ()
    return batch.failed_again(fact.reason, now)


def publish(batch: BatchState, now: float) -> list[Effect]:
    """Send to as many minions as there are free slots, if the stage allows it and freed slots have gathered long enough."""
    if batch.is_publishing() or batch.catching_up:
        batch.pace.publish_at = None
        return []
    effects = _next_stages(batch, now)
    if batch.halted:
        return effects
    capacity = batch.pace.capacity(len(batch.inflight), batch.waiting.available)
    if not capacity:
        batch.pace.publish_at = None
        batch.room.suffices()
        return effects
    gathers = capacity < batch.waiting.available and capacity != batch.pace.quota
    # Where there is too little room, freed slots are gathered for all batches together.
    is_first = not batch.pace.publishes or batch.room.limit is not None
    window = 0.0 if is_first else batch.publish_window.left(now, len(batch.inflight), gathers)
    if batch.pace.must_wait(now, window):
        return effects
    minions = batch.waiting.take(min(capacity, batch.room.allotted) if batch.room.shared else capacity)
    if not minions:
        batch.room.wanted = capacity
        return effects
    batch.maybe_received.difference_update(minions)
    batch.inflight.send(minions, now)
    batch.pace.sends(len(minions))
    batch.publish_window.reset()
    batch.last_progress = now
    return [*effects, facts.Publish(minions)]


def allotted(batch: BatchState, fact: facts.Allotted, _now: float) -> list[Effect]:
    """Note how many minions the batch may send to in this step, and what it waits for."""
    batch.room.told(fact)
    return []


def _next_stages(batch: BatchState, now: float) -> list[Effect]:
    """Go on to the next wave or group once this one has ended, has kept its budget and has passed its check."""
    while batch.waiting and batch.pace.stage_is_over(len(batch.inflight), batch.waiting.available):
        if not batch.waiting.available and _group_awaits_signs(batch):
            return []
        if batch.checks.must_begin(batch.pace.stage):
            return holding.begin_check(batch, now)
        if not batch.checks.may_go_on(batch.pace.stage):
            return []
        batch.pace.next_stage(batch.waiting.available)
        batch.waiting.open_to(batch.pace.group)
        batch.checks.next_stage(now)
    return []


def _group_awaits_signs(batch: BatchState) -> bool:
    """Whether minions of this group, or of an earlier one, have shown no sign of life yet."""
    return any(batch.membership.of(minion) <= batch.pace.group for minion in batch.presence.unseen)


def published(batch: BatchState, fact: facts.Published, now: float) -> list[Effect]:
    """The publish under way has succeeded."""
    missed = set(fact.missed)
    batch.pace.failures = 0
    for minion in batch.inflight.end_publish():
        if minion in missed:
            ending.leave_out(batch, [minion], now)
        else:
            batch.inflight.sent(minion, now)
    return ending.kill_what_was_late(batch)


def publish_failed(batch: BatchState, fact: facts.PublishFailed, now: float) -> list[Effect]:
    """The publish under way was not confirmed: put its minions back, or find out whether they received it."""
    sending = batch.inflight.end_publish()
    effects: list[Effect] = []
    if fact.certain:
        batch.put_back(sending)
    else:
        batch.inflight.doubt_publish(sending)
        effects += ending.look_for(batch, sending)
    if not (fact.certain and batch.holds_publish(now + batch.schedule.ahead)):
        effects += batch.failed_again(fact.reason, now)
    return effects + ending.kill_what_was_late(batch)
