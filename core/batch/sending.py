"""
Reaching the next minions: the gates that must be open, pings that find out which minions are there, and publishes. It
decides how many, in which stage, and when; and what follows from a failed ping or publish.

Part of the batch machine. Freed slots are gathered, so that many returns lead to one publish. It must never send the job
under another jid to a minion that may have received it: the same one the minion runs once. Pure: stdlib only.
"""

from __future__ import annotations

from saltext.jobs.core.batch import ending, facts, member
from saltext.jobs.core.batch.facts import Announce, Effect
from saltext.jobs.core.batch.member import Outcome
from saltext.jobs.core.batch.pace import PausedBy
from saltext.jobs.core.batch.state import BatchState
from saltext.jobs.core.delivery.known import Evidence, Step


def go_on(batch: BatchState, now: float) -> list[Effect]:
    """Find out which minions are there, and send to the next ones, unless something forbids that."""
    pace, rights, pending = batch.pace, batch.rights, batch.pending
    if batch.halted or batch.paused or not pending:
        return []
    may_send = batch.schedule.look(now)
    effects = _announce_windows(batch, may_send)
    batch.look_again(batch.schedule.next_due())
    if not may_send:
        return effects
    if not rights.may_send(now):
        ask = [facts.CheckRights(tuple(pending.in_order()))] if rights.must_ask(now) else []
        batch.look_again(None if rights.asking else rights.ask_at)
        return [*effects, *ask]
    if pending.first_ping and not pending.pinged and not pending.unseen:
        pending.first_ping = False  # every minion has shown a sign of life without the first ping
    if pending.unseen and not pending.pinged:
        ping_at = max(pending.ping_at, pace.not_before)
        if now >= ping_at:
            effects.append(facts.Ping(pending.ping(pace.size)))
        else:
            batch.look_again(ping_at)
    return effects if pending.first_ping else effects + publish(batch, now)


def _announce_windows(batch: BatchState, may_send: bool) -> list[Effect]:
    """Announce each beginning and end of a wait for a window or the start time."""
    pause = batch.schedule.pause()
    if may_send and batch.announced:
        batch.announced = None
        return [
            Announce("resumed", {"reason": f"its {'window is open' if batch.spec.window else 'start time has come'}"})
        ]
    if not may_send and batch.announced is not pause.by:
        batch.announced = pause.by
        return [Announce("paused", {**pause.payload(), "opens_at": batch.schedule.opens})]
    return []


def rights_checked(batch: BatchState, fact: facts.RightsChecked, now: float) -> list[Effect]:
    """The rights were checked. If they are lacking, the batch pauses until a user with the rights resumes it."""
    if batch.halted or batch.finished or not batch.rights.told(fact.reason, fact.trouble, now):
        return []
    return batch.pause(PausedBy.PERMISSION, fact.reason)


# -- pings ------------------------------------------------------------------------------------------------------------


def misses(batch: BatchState, minion: str) -> bool:
    """Whether ``minion`` was left out before it was sent to, and is sent to if it shows a sign of life now."""
    known = None if batch.halted or batch.finished else batch.members.get(minion)
    if known is None or known.ended in (None, Outcome.QUEUED):
        return False
    return known.sent_at is None and known.retcode is None


def pinged(batch: BatchState, fact: facts.Pinged, now: float) -> list[Effect]:
    """
    Minions are there, and may be sent to: also if they were left out, since they may have been too busy to answer. Or a
    confirmed ping is over: leave out those pinged often enough.
    """
    if fact.minions:
        batch.pending.see(fact.minions)
        for minion in fact.minions:
            if misses(batch, minion):
                batch.reopen(minion)
                batch.pending.put([minion])
        return []
    if fact.failure:
        batch.pending.pinged = ()
        return _failed_again(batch, fact.failure, now)
    batch.pace.failures = 0
    absent = batch.pending.ping_over(now)
    if batch.spec.presence == "none":
        batch.pending.put(absent)
    else:
        for minion in absent:
            batch.settle(minion, member.absent(batch.spec), now, None)
    return []


def _failed_again(batch: BatchState, reason: str, now: float) -> list[Effect]:
    """A publish or ping has failed: wait longer each time, and pause in the end."""
    if batch.pace.publish_failed(now):
        return []
    return batch.pause(PausedBy.PUBLISH, f"{batch.pace.failures} publishes failed in a row, the last one: {reason}")


# -- publishes --------------------------------------------------------------------------------------------------------


def publish(batch: BatchState, now: float) -> list[Effect]:
    """Send to as many minions as there are free slots, if the stage allows it and freed slots have gathered long enough."""
    if batch.publishing or batch.catching_up:
        return []
    effects = _next_stages(batch, now)
    if batch.pace.cooling and batch.pending.ready:
        batch.look_again(batch.pace.cooling[0])
    count, again = batch.pace.turn(now, len(batch.flights), batch.pending.available)
    batch.look_again(again)
    minions = batch.pending.take(count)
    if not minions:
        return effects
    batch.send(minions, now)
    return [*effects, facts.Publish(minions)]


def allotted(batch: BatchState, fact: facts.Allotted, _now: float) -> list[Effect]:
    """Note how many minions the batch may send to in this step, and what it waits for."""
    batch.pace.allotted, batch.pace.limit = fact.count, fact.limit
    return []


def published(batch: BatchState, fact: facts.Published, now: float) -> list[Effect]:
    """The publish under way is over. If it was not confirmed, put its minions back, or find out whether they received it."""
    sent, missed = batch.end_publish(), set(fact.missed)
    if fact.failure:
        for minion in sent:
            batch.flights[minion].take(Evidence.REFUSED if fact.certain else Evidence.UNCONFIRMED, now)
        if not fact.certain:
            return ending.look_for(batch, sent, Step.LOOKING) + _failed_again(batch, fact.failure, now)
        batch.put_back(sent)
        return [] if batch.holds_publish(now) else _failed_again(batch, fact.failure, now)
    batch.pace.failures = 0
    for minion in sent:
        known = batch.flights[minion]
        if minion in missed:
            known.take(Evidence.MISSED, now)
            batch.settle(minion, member.absent(batch.spec), now, None)
        else:
            known.take(Evidence.PUBLISHED, now)
            known.ran_since = now
            batch.go(minion, Step.SENT, member.overdue_at(known, batch.spec, now))
    return []


# -- stages -----------------------------------------------------------------------------------------------------------


def _next_stages(batch: BatchState, now: float) -> list[Effect]:
    """Go on to the next wave or group once this one has ended, has kept its budget and has passed its check."""
    pace, pending = batch.pace, batch.pending
    while pending.ready and pace.stage_is_over(len(batch.flights), pending.available):
        if not pending.available and pending.awaits_signs():
            return []
        if not pace.may_go_on():
            return [] if pace.checking == pace.stage else _begin_check(batch)
        pace.next_stage(pending.available, now)
        pending.open_to(pace.group)
    return []


def _begin_check(batch: BatchState) -> list[Effect]:
    stage = batch.pace.checking = batch.pace.stage
    announced = Announce("check", {**batch.spec.check, "stage": stage})
    if batch.pace.by_hand:
        return [announced]
    done = [
        minion
        for minion, known in batch.members.items()
        if known.ended is Outcome.COMPLETED and known.since >= batch.pace.began
    ]
    return [announced, facts.Check(tuple(sorted(done)), stage)]


def checked(batch: BatchState, fact: facts.Checked, _now: float) -> list[Effect]:
    if batch.halted or batch.pace.by_hand or batch.pace.checking != fact.stage:
        return []
    if fact.reason:
        return batch.halt(f"check {batch.spec.check['fun']}: {fact.reason}")
    batch.pace.pass_check()
    return [Announce("checked", {**batch.spec.check, "stage": fact.stage})]
