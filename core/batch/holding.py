"""
What stops a batch and what lets it go on: windows, rights, checks, and the requests of operators (stop, pause, resume,
approve).

Part of the batch machine. A request is told to a batch that accepts it only (``BatchState.accepts``). Pure: stdlib only.
"""

from __future__ import annotations

from saltext.jobs.core.batch import ending, facts
from saltext.jobs.core.batch.facts import Effect
from saltext.jobs.core.batch.gates import PausedBy
from saltext.jobs.core.batch.inflight import Phase
from saltext.jobs.core.batch.outcomes import Outcome
from saltext.jobs.core.batch.state import BatchState


def heed_windows(batch: BatchState, may_send: bool) -> list[Effect]:
    """Announce each beginning and end of a wait for a window or the start time."""
    pause = batch.schedule.pause()
    if may_send and batch.announced:
        batch.announced = None
        return [facts.Announce("resumed", {"reason": "its window is open"})]
    if not may_send and batch.announced is not pause.by:
        batch.announced = pause.by
        return [facts.Announce("paused", {**pause.payload(), "opens_at": batch.schedule.opens})]
    return []


def heed_rights(batch: BatchState, now: float) -> list[Effect]:
    """Ask whether the owner of the batch may still run it, if that is due."""
    if batch.rights.may_send(now) or not batch.rights.must_ask(now):
        return []
    return [facts.CheckRights(batch.rights.question, tuple(batch.pending()))]


def rights_checked(batch: BatchState, fact: facts.RightsChecked, now: float) -> list[Effect]:
    """The rights were checked. If they are lacking, the batch pauses until a user with the rights resumes it."""
    if batch.halted or batch.finished or not batch.rights.told(fact.question, fact.reason, fact.trouble, now):
        return []
    return batch.pause(PausedBy.PERMISSION, fact.reason)


def begin_check(batch: BatchState, now: float) -> list[Effect]:
    """Begin the check of a stage."""
    stage = batch.pace.stage
    batch.checks.begin(stage, now)
    details = {**batch.spec.check, "stage": stage}
    if batch.checks.by_hand:
        return [facts.Announce("check", details)]
    done = [
        minion
        for minion, (outcome, since, *_) in batch.outcomes.items()
        if outcome is Outcome.COMPLETED and since >= batch.checks.began
    ]
    return [facts.Announce("check", details), facts.Check(stage, tuple(sorted(done)))]


def checked(batch: BatchState, fact: facts.Checked, _now: float) -> list[Effect]:
    """The check of a stage is over."""
    if batch.halted or batch.checks.by_hand or batch.checks.stage != fact.stage:
        return []
    if fact.passed:
        batch.checks.pass_()
        return [facts.Announce("checked", {**batch.spec.check, "stage": fact.stage})]
    return batch.halt(f"check {batch.spec.check['fun']}: {fact.reason}")


def stop(batch: BatchState, fact: facts.StopRequested, now: float) -> list[Effect]:
    """Send to no more minions; with ``kill``, also kill the job on those in flight."""
    effects: list[Effect] = []
    batch.last_progress = now
    batch.stopped_by = fact.user
    if not batch.halted:
        effects += batch.halt("stop")
    if fact.kill:
        batch.killing = True
        busy = (Phase.SENDING, Phase.KILLING)  # these are killed later, when the phase is over
        effects += ending.kill(batch, [minion for minion, flight in batch.flights.items() if flight.phase not in busy])
    return effects


def pause_requested(batch: BatchState, fact: facts.PauseRequested, _now: float) -> list[Effect]:
    """Send to no minion for now."""
    return batch.pause(PausedBy.OPERATOR, fact.user)


def resume(batch: BatchState, fact: facts.ResumeRequested, now: float) -> list[Effect]:
    """Go on."""
    batch.paused = None
    batch.rights.doubt()
    batch.pace.forget_failures(now)
    return [facts.Announce("resumed", {"user": fact.user})]


def approved(batch: BatchState, fact: facts.Approved, _now: float) -> list[Effect]:
    """Go on to the next stage."""
    batch.checks.pass_()
    batch.rights.doubt()
    return [facts.Announce("checked", {**batch.spec.check, "stage": fact.stage, "user": fact.user})]
