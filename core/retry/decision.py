"""
What to do about a job that is owed, at each step of its replay and for all that can become known. Only this module decides.

It changes nothing: replay.py carries out the decisions. It must never take silence for absence. Nor must it repeat a job
that is known to have begun, unless ``max_attempts`` or an operator asks for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, State
from saltext.jobs.core.retry.knowledge import Evidence, Knowledge, Said, Verdict
from saltext.jobs.core.retry.looks import DOUBTED
from saltext.jobs.core.retry.steps import BEFORE, Step
from saltext.jobs.core.retry.timers import AGAIN, GRACE

#: Seconds after a publish before a minion is first asked: if its receipt is missing; if minions send no receipts.
RECEIPT, EARLY = 4.0, 1.0
#: Seconds without a receipt or an answer from any minion after which the master counts as having no backlog; and the
#: longest wait for a backlog, in seconds from the publish. A busy master may forward nothing for seconds, and a
#: question makes it busier.
_QUIET, _LONGEST_RECEIPT = 10.0, 120.0
#: Seconds before a minion is first asked whether it still runs a job.
STILL_RUNNING = 60.0
#: If the store takes more than this many seconds for a claim, the job is not published: return, key, access and kills are
#: checked again.
STALE = 10.0
#: The usual wait of a minion after a try without a return, in seconds.
_COOLDOWN = 30.0
#: The longest wait between two tries, and after false signs of life, in seconds.
LONGEST_BACKOFF, LONGEST_COOLDOWN = 3600.0, 300.0
#: A job is held after this many publishes that the minion may have begun although no receipt came: a job that takes down
#: its own minion must not do so at each start.
_LOST = 2
#: A job steps aside for others after this many publishes that the minion ignored although it was there. As a rule the minion
#: knows the jid, and its return was lost.
IN_VAIN = 3
#: A job is held after this many publishes that the minion ignored while it lived: it knows the jid. If it restarts before
#: the last of them, it would run the job again, so the job is held then.
_IGNORED = 2
#: Appended to a reason if a publish may have reached the minion.
REACHED = "; it may have been begun"
#: Why a job is held that its minion knows, does not run, and has not returned.
_RAN, _SILENTLY = "it ran without a return", "the minion lived, and ignored it"
#: Why it is tried again before that.
_NOT_TAKEN = "no sign of receipt; the minion does not run it"
#: Why a job counts as begun: the minion has said so unasked; the minion's records say so.
BEGUN, RECORDED = "the minion says that it has begun", "the minion has a record that it has begun"
#: What the minion's records say of a publish that it did not take.
_NOT_BEGUN = {
    Verdict.NEVER: "the minion has never begun it",
    Verdict.NOT_AGAIN: "the minion has not begun it again",
}


@dataclass(frozen=True)
class Terms:
    """
    The rules for trying a job again: the options, or what the job says about itself. ``backoff`` is in seconds; ``acks``
    tells whether minions say when they begin a job.
    """

    backoff: float
    max_attempts: int
    acks: bool

    @property
    def cooldown(self) -> float:
        """Shortest time in seconds between two tries for one minion after a try that ended without a return."""
        return min(_COOLDOWN, self.backoff / 2)


class Permits(NamedTuple):
    """
    What else a decision depends on.

    ``denied``: why the job must not be sent; ``unsure``: why that cannot be determined; ``shut``: why it must not be sent
    now; ``barred``: the minion's key is not accepted now; ``matches``: the job's target matches the minion; ``occupied``:
    Salt would refuse the job there, because another one runs; ``waited_for``: another job that may be sent now waits for
    this one; ``heard``: Unix time of the last receipt or answer of any minion.
    """

    denied: str = ""
    unsure: str = ""
    shut: str = ""
    barred: bool = False
    matches: bool = True
    occupied: bool = False
    waited_for: bool = False
    heard: float = 0.0


class Decision(NamedTuple):
    """
    What to do. Without a step and a state: nothing.

    ``step``: the replay goes on there, and waits there for ``wait`` seconds. Without a step the replay ends and the entry
    goes to ``state``; PENDING means that the job is tried again, after ``wait`` seconds at the earliest. ``begun``: why the
    job counts as begun from now on.

    For a job that is tried again: ``received``: the publish counts as an attempt. ``unsent``: nothing was published.
    ``forget``: earlier claims that the minion has begun the job do not count any more. ``alive``: the minion is there.
    ``pause``: seconds for which the minion gets nothing, since its signs of life were false. ``tries``, ``lost``, ``vain``:
    new values of the entry's counters, None to keep them. ``reached``: the publish may have reached the minion.
    """

    step: Step | None = None
    state: State | None = None
    reason: str = ""
    begun: str = ""
    wait: float = 0.0
    tries: int | None = None
    lost: int | None = None
    vain: int | None = None
    reached: bool = False
    received: bool = True
    forget: bool = False
    alive: bool = False
    pause: float = 0.0
    unsent: bool = False


#: Made once, since a decision is made for each event.
_GO = {step: Decision(step) for step in Step}
_STAY = Decision()
_RETURNED = Decision(state=State.DONE, reason="the job cache has its return")
_SENT = Decision(Step.SENT, State.SENT, "published", wait=RECEIPT)
_BEGUN = Decision(Step.RUNNING, begun=BEGUN, wait=STILL_RUNNING)
_DOUBT = Decision(Step.WAITING, wait=DOUBTED)
_FETCHED = Decision(state=State.DONE, reason="the minion had run it; its return was fetched")
_LATER = {step: Decision(before, wait=AGAIN) for step, before in BEFORE.items()}
NOTHING_ELSE = Permits()


def decide(known: Knowledge, permits: Permits, terms: Terms, now: float) -> Decision:
    """Return what to do."""
    if known.last is Evidence.RETURNED:
        return _RETURNED
    if known.last is Evidence.FETCHED:
        return _FETCHED
    if known.step is None:
        return _without_replay(known, permits, now)
    if known.last in (Evidence.UNREADABLE, Evidence.UNASKED):
        return _LATER[known.step]
    if known.last is Evidence.BEGUN:
        return _begun(known.step, known, now)
    decides = _UNDER_WAY_AT if known.entry.state in UNDER_WAY else _AT
    return decides[known.step](known, permits, terms, now)


def _without_replay(known: Knowledge, permits: Permits, now: float) -> Decision:
    entry, is_over = known.entry, known.last is Evidence.NOT_RETURNED and known.entry.expires_at <= now
    if permits.waited_for and entry.state is State.PENDING and entry.vain >= IN_VAIN:
        return Decision(state=State.HELD, reason=_steps_aside(entry.vain, entry.reason, entry.reached))
    if is_over and entry.state in (State.PENDING, State.HELD):
        return Decision(state=State.EXPIRED, reason="its time to live has passed")
    return _STAY


# -- before the job is sent --------------------------------------------------------------------------------------------


def _forbidden(permits: Permits, terms: Terms) -> Decision | None:
    if permits.denied:
        return Decision(state=State.DEAD, reason=permits.denied)
    if permits.unsure:
        return Decision(state=State.HELD, reason=permits.unsure)
    return Decision(state=State.PENDING, wait=terms.backoff) if permits.barred else None


def _checked(known: Knowledge, permits: Permits, terms: Terms, now: float) -> Decision:
    return _forbidden(permits, terms) or _GO[Step.TO_ASK]


def _answered(known: Knowledge, permits: Permits, terms: Terms, now: float) -> Decision:
    if known.last is Evidence.RUNS:
        return _run(known, now, "the minion says that it runs it")
    if known.last is Evidence.IDLE:
        if permits.occupied:  # the refusal would be the return of the job
            return _unmatched(known, permits) or Decision(state=State.PENDING, wait=terms.backoff, alive=True)
        return _unmatched(known, permits) or _GO[Step.ANSWERED]
    # Signs of life can be forged, so each false one doubles the pause. An unproven answer may reach the job cache late,
    # so the minion counts as there.
    pause = min(terms.cooldown * 2 ** min(known.signs.false_signs, 20), LONGEST_COOLDOWN)
    return Decision(state=State.PENDING, pause=pause, alive=known.last is Evidence.UNPROVEN)


def _unmatched(known: Knowledge, permits: Permits) -> Decision | None:
    if permits.matches or known.entry.named or known.may_be_running:
        return None
    return Decision(state=State.DEAD, reason="it no longer matches the job's target")


def _checked_again(known: Knowledge, permits: Permits, terms: Terms, now: float) -> Decision:
    entry = known.entry
    if forbidden := _forbidden(permits, terms):
        return forbidden
    if entry.acknowledged:
        return Decision(Step.TO_ASK, begun=BEGUN)
    # If ``reached``, the interrupted run may be newer than the last known start of the job, or than the operator's
    # request. Nobody has asked to repeat that run.
    may_run_again = entry.asker is not None or terms.max_attempts > 1
    if known.said is Said.INTERRUPTED and (entry.reached or not may_run_again):
        return _interrupted(known, terms)
    was_ignored = entry.vain > 0 and entry.reason == _NOT_TAKEN and known.said in (Said.NOTHING, Said.NOT_SURE)
    if was_ignored and known.signs.started > (entry.sent_at or 0.0):
        return Decision(state=State.HELD, reason=f"{_RAN}: {_SILENTLY}, and has restarted since")
    return _GO[Step.TO_SEND]


def _claimed(known: Knowledge, permits: Permits, terms: Terms, now: float) -> Decision:
    if permits.shut:
        return _not_sent(known, permits.shut, terms)
    if now - (known.entry.sent_at or 0.0) > STALE:
        return _not_sent(known, "the store was slow to take the claim", terms)
    return _GO[Step.SENDING]


def _published(known: Knowledge, permits: Permits, terms: Terms, now: float) -> Decision:
    if known.last is Evidence.REFUSED:
        return _not_sent(known, f"the publish was refused: {known.why}", terms)
    if known.last is Evidence.FORBIDDEN:
        reason = f"the master does not let it be published: {known.why}"
        return Decision(state=State.HELD, reason=reason, received=False, **_unsent(known))
    if known.last is Evidence.MISSED:
        missed = _not_received(known.entry, "the master does not know the minion", terms)
        return _in_vain(known.entry, missed, permits)
    soon = terms.acks or known.said is not Said.NOTHING
    if known.last is Evidence.PUBLISHED and soon and not known.entry.acknowledged:
        return _SENT
    reason = f"the publish was not confirmed: {known.why}" if known.last is Evidence.UNCONFIRMED else "published"
    if known.entry.acknowledged:
        return _run(known, now, BEGUN)._replace(state=State.SENT, reason=reason)
    return Decision(Step.SENT, State.SENT, reason, wait=RECEIPT if soon else EARLY)


# -- the job may be with the minion ------------------------------------------------------------------------------------


def _begun(step: Step, known: Knowledge, now: float) -> Decision:
    """A claim has come, perhaps late, that the minion has begun the job."""
    if step is Step.SENT:
        return _run(known, now, BEGUN)
    if step in (Step.TO_SEND, Step.CLAIMING):
        return Decision(Step.TO_ASK, begun=BEGUN)  # an earlier publish was received after all
    # While the minion is being asked, the claim counts, whatever the answer will be.
    return Decision(begun=BEGUN) if known.entry.state in UNDER_WAY and step is not Step.SENDING else _STAY


def _run(known: Knowledge, now: float, begun: str = "") -> Decision:
    """Wait for the return. The job may die without one, so the minion is asked, ever less often."""
    if known.entry.state is not State.RUNNING:
        return _BEGUN if begun == BEGUN else Decision(Step.RUNNING, begun=begun, wait=STILL_RUNNING)
    return Decision(Step.RUNNING, begun=begun, wait=max(STILL_RUNNING, now - known.entry.since))


def _overdue(known: Knowledge, permits: Permits, terms: Terms, now: float) -> Decision:
    """
    No receipt, or no return, came in time. As long as the master forwards receipts of others, this one may be queued there.
    A question would be queued behind it, and make the master busier.
    """
    entry = known.entry
    if known.last is Evidence.DUE and entry.state is State.SENT and terms.acks and not known.restarted:
        until = min(permits.heard + _QUIET, (entry.sent_at or 0.0) + _LONGEST_RECEIPT)
        if until > now:
            return Decision(Step.SENT, wait=until - now)
    return _DOUBT


def _probed(known: Knowledge, permits: Permits, terms: Terms, now: float) -> Decision:
    """The minion was asked about a job that it may have."""
    entry, verdict = known.entry, known.verdict(terms.acks)
    if known.last is Evidence.UNPROVEN:
        return _LATER[Step.ASKING]  # the answer is forged, or the job cache does not have it yet
    if verdict is Verdict.RUNS:
        return _run(known, now, "the minion says that it runs it" if known.last is Evidence.RUNS else "")
    if verdict is not Verdict.SILENT:
        if unmatched := _unmatched(known, permits):
            return unmatched
        if entry.state is State.SENT and not known.restarted and abs(now - (entry.sent_at or 0.0)) < RECEIPT:
            return Decision(Step.SENT, wait=RECEIPT - EARLY)  # the job may still begin
        return Decision(Step.ANSWERED, wait=GRACE)
    if entry.state is not State.RUNNING:
        # A minion that keeps records refuses a job that it has begun, so the job may be sent again.
        begun = known.said in (Said.NOTHING, Said.NOT_SURE)
        return _not_received(entry, "no sign of receipt, and it does not answer", terms, begun, reached=True)
    if entry.expires_at <= now:
        expired = "it was begun, but nothing more was heard of it in its time to live"
        return Decision(state=State.EXPIRED, reason=expired)
    return _LATER[Step.ASKING] if known.was_away else _run(known, now)


def _vanished(known: Knowledge, permits: Permits, terms: Terms, now: float) -> Decision:
    """The minion is there and does not run the job, and the second look has found no return."""
    entry, verdict = known.entry, known.verdict(terms.acks)
    if verdict is Verdict.RUNS:
        return _run(known, now)
    if verdict is Verdict.INTERRUPTED:
        return _interrupted(known, terms)
    if verdict is Verdict.NEVER and known.said is not Said.NEVER:
        return _not_received(entry, "the engine ended before it was published", terms, alive=True)
    if verdict in _NOT_BEGUN:
        # Claims that it has begun the job were forged, or concern an earlier publish.
        never = _not_received(entry, _NOT_BEGUN[verdict], terms, alive=True)._replace(forget=True)
        return never if known.restarted else _in_vain(entry, never, permits)
    begun = verdict is Verdict.MAY_HAVE_BEGUN
    decision = _not_received(entry, _NOT_TAKEN, terms, begun, True, reached=True)
    if begun and (known.restarted or known.was_under_way):
        return decision
    vain = entry.vain + 1
    if vain < _IGNORED:
        return decision._replace(vain=vain)
    return decision._replace(vain=vain, state=State.HELD, reason=f"{_RAN}: {_SILENTLY} {vain} times")


# -- what did not succeed ----------------------------------------------------------------------------------------------


def _interrupted(known: Knowledge, terms: Terms) -> Decision:
    """The job was begun, and ended without a return."""
    entry, begun = known.entry, RECORDED if known.said is Said.INTERRUPTED else ""
    # _note_begun will count it; the first publish of the job is counted only if somebody has told of its start
    attempts = max(1, entry.attempts + bool(begun and entry.state is State.PENDING))
    reason = "it was begun and ended without a return"
    if attempts >= terms.max_attempts:
        reason += f", {attempts} times" if attempts > 1 else ""
        return Decision(state=State.HELD, reason=reason, begun=begun)
    reason += "; it will be run again"
    return Decision(None, State.PENDING, reason, begun, terms.backoff, forget=True, alive=True)


def _not_sent(known: Knowledge, reason: str, terms: Terms) -> Decision:
    """Nothing was published after the claim. So a start that was reported can only concern an earlier publish."""
    return _not_received(known.entry, reason, terms, alive=True)._replace(**_unsent(known))


def _unsent(known: Knowledge) -> dict[str, Any]:
    return {"unsent": True, "forget": known.sent_before is None}


def _not_received(
    entry: Entry, reason: str, terms: Terms, begun: bool = False, alive: bool = False, reached: bool = False
) -> Decision:
    """
    Nothing shows that the minion got the job, so the publish does not count as an attempt.

    :param begun: whether the minion may have begun the job nevertheless.
    :param alive: whether the minion is there.
    :param reached: whether the publish may have reached the minion.
    """
    lost = entry.lost + begun
    if begun and lost >= _LOST:
        held = f"it was sent {lost} times without a sign of receipt, and may have been begun"
        return Decision(state=State.HELD, reason=held, lost=lost, reached=True)
    wait = min(terms.backoff * 2 ** min(entry.tries, 20), LONGEST_BACKOFF)
    again = Decision(state=State.PENDING, reason=reason, wait=wait, tries=entry.tries + 1, lost=lost)
    return again._replace(received=False, alive=alive, reached=reached)


def _in_vain(entry: Entry, decision: Decision, permits: Permits) -> Decision:
    """The minion is there and did not take the job. After some such tries the job steps aside for others that wait."""
    vain, reason = entry.vain + 1, decision.reason
    if vain < IN_VAIN or not permits.waited_for:
        return decision._replace(vain=vain)
    held = _steps_aside(vain, reason, entry.reached or decision.reached)
    return decision._replace(vain=vain, state=State.HELD, reason=held)


def _steps_aside(vain: int, reason: str, reached: bool) -> str:
    return f"it was sent {vain} times in vain, and others wait for it: {reason}{REACHED if reached else ''}"


_Decides = Callable[[Knowledge, Permits, Terms, float], Decision]
#: Which function decides at each step: before the job is sent, and once the minion may have it. ``decide`` itself handles
#: what means the same at all steps.
_AT: Mapping[Step, _Decides] = {
    Step.LOOKING: _checked,
    Step.ASKING: _answered,
    Step.LOOKING_AGAIN: _checked_again,
    Step.TO_SEND: lambda *_: _GO[Step.CLAIMING],
}
_UNDER_WAY_AT: Mapping[Step, _Decides] = {
    Step.CLAIMING: _claimed,
    Step.SENDING: _published,
    Step.SENT: _overdue,
    Step.RUNNING: _overdue,
    Step.LOOKING: lambda *_: _GO[Step.TO_ASK],
    Step.ASKING: _probed,
    Step.LOOKING_AGAIN: _vanished,
}
