"""
What becomes of minions that were sent to: they return; or they are overdue, asked, killed, and given up in the end. Minions
that are not there are left out, or handed over to the retry queue (``offline``).

Part of the batch machine: ``member.py`` decides what follows from what is known of a minion, and ``_carry_out`` does it.
Where returns can be proven, they are proven before they become facts. Starts are unauthenticated: a forged one causes a
short delay, never a success. A kill that was sent proves nothing: the minion is asked whether it still runs the job. This
part must never give a minion up before a last look into the job cache. Pure: stdlib only.
"""

from __future__ import annotations

from collections.abc import Iterable

from saltext.jobs.core.batch import facts, member
from saltext.jobs.core.batch.facts import Effect
from saltext.jobs.core.batch.member import IN_DOUBT, KILL_PAUSE, TERM_PAUSE, Decision, Outcome
from saltext.jobs.core.batch.state import BatchState
from saltext.jobs.core.delivery.known import Evidence, Said
from saltext.jobs.core.delivery.steps import Step


def returned(batch: BatchState, fact: facts.Returned, now: float) -> list[Effect]:
    """A minion has returned: this frees its slot."""
    if not batch.wants_return(fact.minion):
        return []
    _charge(batch, fact.minion)
    known = batch.members[fact.minion]
    # A job that was told to terminate may still return: its failure is our doing.
    bad = Outcome.TIMED_OUT if known.expired else Outcome.FAILED
    batch.settle(fact.minion, bad if fact.retcode else Outcome.COMPLETED, now, fact.retcode)
    return batch.check_budget()


def _charge(batch: BatchState, minion: str) -> None:
    """A minion has received the job: if it is pending, it counts against the wave after all."""
    if minion in batch.pending:
        batch.pace.charge(1)


def acknowledged(batch: BatchState, fact: facts.Acknowledged, now: float) -> list[Effect]:
    """A minion has begun. If it was given up or put back, it is in flight again."""
    minion = fact.minion
    if not batch.wants_acknowledgement(minion):
        return []
    known = batch.members[minion]
    if known.step is None:
        _charge(batch, minion)
        known.kills, known.expired = 0, False
    _runs(batch, minion, Evidence.BEGUN, now)
    return kill_what_was_late(batch, now)


def _runs(batch: BatchState, minion: str, evidence: Evidence, now: float) -> Decision:
    """A minion runs the job: take that, and return what follows unless it is just that the minion goes on."""
    known = batch.members[minion]
    doubted = known.step in IN_DOUBT or known.step is Step.LOOKING
    known.take(evidence, now)
    known.since = now
    if evidence is Evidence.BEGUN:
        known.claimed, known.ran_since = True, now
    decision = member.seen(known, batch.spec, now, doubted, batch.killing)
    due = decision.due if isinstance(decision, member.Go) else None
    batch.go(minion, Step.RUNNING, due)
    return decision


def started(batch: BatchState, fact: facts.Started, now: float) -> list[Effect]:
    """A minion's process has started."""
    if batch.wants_start(fact.minion):
        batch.change(fact.minion).starts(now)
    return []


def events_lost(batch: BatchState, _fact: facts.EventsLost, _now: float) -> list[Effect]:
    """The bus may have lost events."""
    batch.doubt_silence()
    return []


def ticked(batch: BatchState, _fact: facts.Tick, now: float) -> list[Effect]:
    """Time has passed: look for overdue minions. The first Tick starts the batch."""
    if batch.started is None:
        batch.started = now
        return [facts.Announce("new")]
    due = batch.overdue(now)
    last = batch.at(due, Step.ANSWERED)
    first = [minion for minion in due if minion not in set(last)] if last else due
    return look_for(batch, first, Step.LOOKING) + look_for(batch, last, Step.LOOKING_AGAIN)


def look_for(batch: BatchState, minions: Iterable[str], step: Step) -> list[Effect]:
    """Look for the returns of minions; after the last look (LOOKING_AGAIN), minions without one are given up."""
    chosen = tuple(minions)
    for minion in chosen:
        batch.go(minion, step)
    return [facts.LookUp(chosen)] if chosen else []


def looked_up(batch: BatchState, fact: facts.LookedUp, now: float) -> list[Effect]:
    """The job cache was read: take its returns, and ask the other minions or give them up."""
    effects: list[Effect] = []
    if fact.minions == batch.catching_up:
        batch.catching_up = ()
    for minion, retcode in fact.found:
        effects += returned(batch, facts.Returned(minion, retcode), now)
    to_ask = tuple(batch.at(fact.minions, Step.LOOKING))
    for minion in batch.at(fact.minions, Step.LOOKING_AGAIN):
        effects += _carry_out(batch, {minion: member.given_up(batch.members[minion], batch.spec)}, now)
    for minion in to_ask:
        batch.go(minion, Step.ASKING).ask(now)
    return effects + ([facts.Ask(to_ask)] if to_ask else []) + batch.check_budget()


def asked(batch: BatchState, fact: facts.Asked, now: float) -> list[Effect]:
    """Minions were asked whether they run the job. Silence is no evidence while minions still connect."""
    decisions = {}
    for evidence, minions in fact.told.items():
        if evidence is Evidence.RUNS:
            for minion in batch.at(minions, *IN_DOUBT):
                decisions[minion] = _runs(batch, minion, evidence, now)
            continue
        if evidence is Evidence.SILENT and now < batch.pending.settled_at:
            evidence = Evidence.UNASKED
        for minion in batch.at(minions, Step.ASKING):
            known = batch.members[minion]
            known.take(evidence, now, fact.said.get(minion, Said.NOTHING))
            decisions[minion] = member.answered(known, batch.spec, now)
    return _carry_out(batch, decisions, now)


def _carry_out(batch: BatchState, decisions: dict[str, Decision], now: float) -> list[Effect]:
    """Do what is decided about minions."""
    look, killed, gently = list[str](), list[str](), list[str]()
    effects: list[Effect] = []
    for minion, decision in decisions.items():
        if isinstance(decision, member.Kill):
            (gently if decision.gently else killed).append(minion)
        elif isinstance(decision, member.Again):
            batch.members[minion].resends += 1
            put_back(batch, [minion])
        elif isinstance(decision, member.End):
            if decision.outcome is None:
                leave_out(batch, [minion], now)
            else:
                batch.settle(minion, decision.outcome, now, None)
            effects += batch.check_budget()
        elif decision.step is Step.LOOKING_AGAIN:
            look.append(minion)
        elif decision.step is not Step.RUNNING:
            batch.go(minion, *decision)
    effects += look_for(batch, look, Step.LOOKING_AGAIN)
    return effects + kill(batch, gently, now, gently=True) + kill(batch, killed, now)


def put_back(batch: BatchState, minions: list[str]) -> None:
    """Make minions pending again."""
    batch.put_back(minions)
    batch.pace.charge(-len(minions))


def leave_out(batch: BatchState, minions: list[str], now: float) -> None:
    """
    Minions are not there: do with them what ``offline`` says. They do not count against the budget. With
    ``offline=queue`` they go to the retry queue later (``hand_over``).
    """
    outcome = Outcome.FAILED if batch.spec.offline == "fail" else Outcome.OFFLINE
    for minion in minions:
        batch.settle(minion, outcome, now, None)


def hand_over(batch: BatchState, now: float) -> list[Effect]:
    """
    Hand minions that were not there over to the retry queue, once all others have ended. Until then the batch may find
    that the job must not go on, and the queue knows nothing of stages, checks and failures.
    """
    waits = batch.paused or batch.pending or batch.flights or batch.is_publishing() or batch.pace.checking is not None
    if waits or batch.halted or not batch.hands_over():
        return []
    minions = tuple(minion for minion, known in batch.members.items() if known.ended is Outcome.OFFLINE)
    for minion in minions:
        batch.settle(minion, Outcome.QUEUED, now, None)
    return [facts.Queue(minions)]


# -- kills ------------------------------------------------------------------------------------------------------------


def kill_what_was_late(batch: BatchState, now: float) -> list[Effect]:
    """Kill the job on minions that were not killed yet, although an operator wants it: their publish was under way."""
    if not batch.killing:
        return []
    late = [minion for minion, known in batch.flights.items() if not known.kills and known.step is not Step.SENDING]
    return kill(batch, late, now)


def kill(batch: BatchState, minions: Iterable[str], now: float, gently: bool = False) -> list[Effect]:
    """
    Send minions a kill, and ask soon whether it has worked.

    :param gently: terminate the job on minions that have run it for too long; it is killed later if it does not end.
    """
    chosen = tuple(minions)
    for minion in chosen:
        known = batch.go(minion, Step.SENT, now + (TERM_PAUSE if gently else KILL_PAUSE))
        known.kills, known.unanswered = known.kills + 1, 0
        known.expired = known.expired or gently
    return [facts.Kill(chosen, gently)] if chosen else []
