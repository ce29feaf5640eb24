"""
What operators ask of a batch that runs: stop, pause, resume, approve.

Part of the batch machine. A request that would change nothing does nothing (``State.accepts``). Pure: stdlib only.
"""

from __future__ import annotations

from saltext.jobs.core.batch import kills
from saltext.jobs.core.batch.facts import (
    Announce,
    Approved,
    Effect,
    PauseRequested,
    ResumeRequested,
    StopRequested,
)
from saltext.jobs.core.batch.flight import Phase
from saltext.jobs.core.batch.state import State


def stop(batch: State, fact: StopRequested, now: float) -> list[Effect]:
    """Send to nobody any more, and kill what runs if that was asked for."""
    if not batch.accepts(fact):
        return []
    effects: list[Effect] = []
    batch.last_progress = now
    batch.stopped_by = fact.user
    if not batch.halted:
        effects += batch.halt("stop")
    if fact.kill:
        batch.killing = True
        busy = (Phase.SENDING, Phase.KILLING)  # those are killed once that is over
        effects += kills.kill(batch, [minion for minion, flight in batch.flights.items() if flight.phase not in busy])
    return effects


def pause_requested(batch: State, fact: PauseRequested, _now: float) -> list[Effect]:
    """Send to nobody for now."""
    return batch.pause(f"paused by {fact.user}" if fact.user else "paused") if batch.accepts(fact) else []


def resume(batch: State, fact: ResumeRequested, now: float) -> list[Effect]:
    """Go on."""
    if not batch.accepts(fact):
        return []
    batch.paused = None
    batch.rights.resumed(fact.user, fact.rights)
    batch.pace.begin_anew(now)
    return [Announce("resumed", {"user": fact.user})]


def approved(batch: State, fact: Approved, _now: float) -> list[Effect]:
    """Go on to the next stage."""
    if not batch.accepts(fact):
        return []
    batch.checks.pass_()
    batch.rights.doubt()
    return [Announce("checked", {**batch.spec.check, "stage": fact.stage, "user": fact.user})]
