"""
Publishing to the next minions: how many, of which stage, when, and what follows from a failed publish.

Part of the batch machine. Freed slots are gathered for a while, so that many returns lead to one publish. It must never
send to a minion that may have received the job. Pure: stdlib only.
"""

from __future__ import annotations

from saltext.jobs.core.batch import attendance, ending, holding
from saltext.jobs.core.batch.facts import Allotted, Effect, Publish, Published, PublishFailed
from saltext.jobs.core.batch.state import State


def publish(batch: State, now: float) -> list[Effect]:
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
    is_first = not batch.pace.publishes or bool(batch.room.lacks)
    window = 0.0 if is_first else batch.publish_window.left(now, len(batch.inflight), gathers)
    if batch.pace.must_wait(now, window):
        return effects
    waiting, room = batch.waiting, batch.room
    minions = waiting.take_those(room.allotted, capacity) if room.shared else waiting.take(capacity)
    if not minions:
        batch.room.wanted = capacity
        return effects
    batch.tried.difference_update(minions)
    batch.inflight.send(minions, now)
    batch.pace.sends(len(minions))
    batch.publish_window.begin_anew()
    batch.last_progress = now
    return [*effects, Publish(minions)]


def allotted(batch: State, fact: Allotted, _now: float) -> list[Effect]:
    """It was said to whom the batch may send, in this step, and what it waits for."""
    batch.room.told(fact)
    return []


def _next_stages(batch: State, now: float) -> list[Effect]:
    """Go on to the next wave or group once this one has ended, has kept its budget and has passed its check."""
    while batch.waiting and batch.pace.stage_is_over(len(batch.inflight), batch.waiting.available):
        if not batch.waiting.available:
            if _group_awaits_signs(batch):
                return []
            reason = batch.record.overdrawn(over=batch.pace.group)
            if reason:
                return batch.halt(reason)
        if batch.rights.doubt_after(batch.pace.stage):
            return holding.heed_rights(batch, now)
        if batch.checks.must_begin(batch.pace.stage):
            return holding.begin_check(batch, now)
        if not batch.checks.may_go_on(batch.pace.stage):
            return []
        batch.pace.next_stage(batch.waiting.available)
        batch.waiting.open_to(batch.pace.group)
        batch.checks.next_stage(now)
    return []


def _group_awaits_signs(batch: State) -> bool:
    """Whether minions of this group, or of an earlier one, have shown no sign of life yet."""
    return any(batch.membership.of(minion) <= batch.pace.group for minion in batch.presence.unseen)


def published(batch: State, fact: Published, now: float) -> list[Effect]:
    """The publish under way has succeeded."""
    missed = set(fact.missed)
    batch.pace.failures = 0
    effects: list[Effect] = []
    for minion in batch.inflight.end_publish():
        if minion in missed:
            effects += attendance.leave_out(batch, [minion], now)
        else:
            batch.inflight.sent(minion, now)
    return effects + ending.kill_what_was_late(batch)


def publish_failed(batch: State, fact: PublishFailed, now: float) -> list[Effect]:
    """The publish under way was not confirmed: put its minions back, or find out whether they received it."""
    if not batch.is_publishing():
        batch.presence.pinging = False  # in a journal of the first release this also means a failed ping
    sending = batch.inflight.end_publish()
    effects: list[Effect] = []
    if fact.certain:
        batch.put_back(sending)
    else:
        for minion in sending:
            batch.flights[minion].unknown = True
        effects += ending.look_for(batch, sending)
    if not (fact.certain and batch.holds_publish(now)):
        effects += batch.failed_again(fact.reason, now)
    return effects + ending.kill_what_was_late(batch)
