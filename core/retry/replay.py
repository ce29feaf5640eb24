"""
What is found out about the job that a minion is to get, or may have got: looks at the job cache, questions to the minion,
and what follows from both. Part of the retry machine, and as pure as it. The steps stand in steps.py; what is between the
turn to be sent and the receipt in publishing.py, how a replay ends in ends.py, when the next one begins in turns.py.

It must never let a minion have two replays, nor let a job be sent before the minion has said that it does not run it. A
minion that says that it runs nothing has said so of all its jobs that were not published since: what it gets while it lives
it knows again, and takes once. That holds until it starts anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from saltext.jobs.core.retry import verdict
from saltext.jobs.core.retry.capture import AGAIN, GRACE
from saltext.jobs.core.retry.ends import Ends
from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, State
from saltext.jobs.core.retry.facts import (
    Acknowledged,
    Ask,
    Asked,
    Effect,
    LookedUp,
    LookUp,
    ReturnHeard,
    Unreadable,
)
from saltext.jobs.core.retry.inflow import LONGEST, Inflow
from saltext.jobs.core.retry.looks import HEARD, Gathering, Hearsay
from saltext.jobs.core.retry.outbox import Outbox
from saltext.jobs.core.retry.publishing import BEGUN, EARLY, RECEIPT, RECORDED, Publishing
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.steps import LOOKS, PUBLISHED, QUESTIONS, RESTING, Replay, Said, Step
from saltext.jobs.core.retry.timers import Timers
from saltext.jobs.core.retry.turns import Turns

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds for which it is believed that a minion ran nothing.
BELIEVED = 600.0


class Replays:
    """
    :param settings: the options under ``job_retry``.
    :param queue: what is owed.
    :param outbox: what waits for its turn to be published.
    :param timers: the machine's; the keys ``company``, ``answered``, ``look``, ``heard`` and ``replay`` are set here.
    :param turns: when the next replay begins.
    :param ends: how one ends.
    :param publishing: what is between the turn to be sent and the receipt.
    :param heard: returns that the bus has told of.
    """

    def __init__(
        self,
        settings: RetrySettings,
        queue: Queue,
        outbox: Outbox,
        timers: Timers,
        turns: Turns,
        ends: Ends,
        publishing: Publishing,
        heard: Hearsay,
    ) -> None:
        self._settings, self._queue, self._outbox, self._timers = settings, queue, outbox, timers
        self._turns, self._ends, self._publishing, self._heard = turns, ends, publishing, heard
        self._company = Gathering("company", timers)
        self._looks = Gathering("look", timers)
        self._answered = Gathering("answered", timers)
        self._inflow = Inflow(settings.gather)

    def begin(self, minion: str) -> None:
        """Begin with what a minion is owed first: what may be with it already, then the job that was published first."""
        backlog = self._queue.backlogs.get(minion)
        if backlog is None or backlog.replay is not None or self._turns.paused:
            return
        entry, now = self._turns.first(backlog), self._queue.now
        if entry is None:
            return
        backlog.delayed = 0.0
        if entry.state in UNDER_WAY:
            backlog.replay = Replay(entry.jid, Step.DOUBTED, now)
            self._looks.add(entry.jid, minion, now + HEARD)
        elif entry.next_at > now:
            self._turns.wake(minion, entry.next_at)  # no newer job overtakes it
        else:
            backlog.replay = Replay(entry.jid, Step.GATHERING, now)
            latest = now + self._inflow.wait(entry.jid, now)
            self._company.put_off(entry.jid, minion, now + self._settings.gather, latest)

    # -- looks at the job cache ---------------------------------------------------------------------------------------

    def doubt(self, minion: str) -> None:
        """Find out what has become of a job that may be with a minion."""
        backlog = self._queue.backlogs.get(minion)
        replay = backlog.replay if backlog else None
        if replay is not None and replay.step in RESTING:
            self._timers.cancel(("replay", minion))
            self._look_again(replay, Step.DOUBTED, minion, HEARD)

    def overdue(self, minion: str) -> None:
        """A minion has not shown in time that it got its job, or what has become of it."""
        backlog = self._queue.backlogs.get(minion)
        replay = backlog.replay if backlog else None
        if backlog and replay and not self._publishing.may_come(backlog.entries[replay.jid], replay):
            self.doubt(minion)

    def company_due(self, jid: str) -> list[Effect]:
        """Look up the minions that have gathered for a job."""
        return self._look_up(jid, self._company.take(jid))

    def answered_due(self, jid: str) -> list[Effect]:
        """Look up once more the minions that have answered a question about a job."""
        return self._look_up(jid, self._answered.take(jid))

    def look_due(self, jid: str) -> list[Effect]:
        """Look up the minions that are to be looked up for a job."""
        return self._look_up(jid, self._looks.take(jid, self._queue.now))

    def _look_up(self, jid: str, wanted: Iterable[str]) -> list[Effect]:
        minions, publish = tuple(minion for minion in wanted if self._queue.has(minion, jid)), False
        askers = {}
        for entry, replay in self._queue.replays(jid, minions, *LOOKS):
            answered = replay.step is Step.GATHERING and self._has_answered(entry)
            replay.go(Step.CHECKING_AGAIN if answered else LOOKS[replay.step])
            publish = publish or (replay.step is Step.LAST_LOOK and entry.state is State.CLAIMED)
            if entry.asker is not None:
                askers[entry.minion] = entry.asker
        return [LookUp(jid, minions, publish=publish, askers=askers)] if minions else []

    def look_for_returns(self, jid: str, minions: Iterable[str]) -> Effect:
        """Look whether the job cache has returns of which nothing was heard."""
        return LookUp(jid, tuple(minions), only_returns=True)

    def _look_again(self, replay: Replay, step: Step, minion: str, wait: float) -> None:
        replay.go(step)
        # No look for another one cuts short the time in which a return may come.
        self._looks.add(replay.jid, minion, self._queue.now + wait, no_sooner=step is Step.GRACE)

    def unreadable(self, fact: Unreadable) -> None:
        """Look again later."""
        waiting = {looking: step for step, looking in LOOKS.items()}
        for entry, replay in self._queue.replays(fact.jid, fact.minions, *waiting):
            self._look_again(replay, waiting[replay.step], entry.minion, AGAIN)
        for minion in fact.minions:
            self._heard.later(minion, fact.jid, self._queue.now + AGAIN)

    def return_heard(self, fact: ReturnHeard) -> None:
        """Look whether the job cache has a return that the bus told of."""
        if self._queue.has(fact.minion, fact.jid):
            self._heard.add(fact.minion, fact.jid)
            self._looks.add(fact.jid, fact.minion, self._queue.now + HEARD)

    def is_hearsay(self, minion: str, jid: str) -> bool:
        """Tell whether the bus has told of a return that the job cache does not have yet."""
        return (minion, jid) in self._heard

    def heard_due(self, minion: str, jid: str) -> None:
        """Look again for a return that the bus told of."""
        if (minion, jid) in self._heard:
            self._looks.add(jid, minion, self._queue.now + HEARD)

    def looked_up(self, fact: LookedUp) -> None:
        """Go on with what the job cache, the keys and the access lists say."""
        for minion in fact.minions:
            entry = self._queue.entry(minion, fact.jid)
            if entry is None:
                continue
            if minion in fact.returned:
                if (minion, fact.jid) in self._heard:
                    self._publishing.heard()
                self._ends.end(entry, State.DONE, "the job cache has its return")
                continue
            self._heard.missed(minion, fact.jid, self._queue.now)
            if fact.only_returns:
                self._expire(entry)
                continue
            replay = self._queue.replay(minion, fact.jid, *LOOKS.values())
            if replay is None:
                continue
            if replay.step is Step.LOOKING:
                self._ask(entry, replay, Step.TO_PROBE)
            elif replay.step is Step.LAST_LOOK:
                self._vanished(entry, replay, fact.last)
            else:
                self._may_be_sent(entry, replay, fact)

    def _vanished(self, entry: Entry, replay: Replay, published: float | None) -> None:
        """The minion is there, and neither runs nor has returned the job, whose newest publish was at ``published``."""
        sent_at = entry.sent_at or 0.0
        if entry.state is State.CLAIMED and not entry.acknowledged and published is not None and published < sent_at:
            self._ends.not_received(entry, replay, "the engine ended before it was published", alive=True)
            return
        if replay.acked > replay.asked:
            self._publishing.let_run(entry, replay)  # it has begun since it answered
            return
        unheard = self._ends.restarted(entry, replay) or replay.began > sent_at
        if replay.said is Said.NEVER:
            entry.acknowledged = False  # that was forged, or said before it began
        elif replay.said is Said.INTERRUPTED:
            self._publishing.note_receipt(entry, RECORDED)
        self._ends.carry_out(entry, replay, verdict.vanished(entry, unheard, self._queue.terms_of(entry), replay.said))

    def _expire(self, entry: Entry) -> None:
        """End what is past its time, now that it is known that it was not returned."""
        if entry.state in (State.PENDING, State.HELD) and entry.expires_at <= self._queue.now:
            self._ends.end(entry, State.EXPIRED, "its time to live has passed")

    def _may_be_sent(self, entry: Entry, replay: Replay, fact: LookedUp) -> None:
        if entry.minion in fact.denied:
            self._ends.end(entry, State.DEAD, fact.denied[entry.minion])
        elif entry.minion in fact.unsure:
            self._ends.end(entry, State.HELD, fact.unsure[entry.minion])
        elif entry.minion in fact.barred:
            entry.next_at = self._queue.now + self._settings.backoff
            self._ends.back(entry, replay, alive=False)
        elif replay.step is Step.CHECKING:
            self._ask(entry, replay, Step.TO_ASK)
        elif entry.acknowledged:
            self._begun_after_all(entry, replay)
        elif replay.said is Said.INTERRUPTED and (entry.tries or not self._may_run_again(entry)):
            # What was sent without a receipt since somebody asked for it, or since it was begun last, has begun too.
            self._publishing.note_receipt(entry, RECORDED)
            self._ends.carry_out(entry, replay, verdict.interrupted(entry, self._queue.terms_of(entry)))
        else:
            replay.go(Step.TO_SEND)
            self._outbox.send(entry.jid, entry.minion)

    def _has_answered(self, entry: Entry) -> bool:
        """Tell whether the minion has said already that it does not run a job that was never sent to it from here."""
        backlog, job = self._queue.backlogs[entry.minion], self._queue.jobs[entry.jid]
        newest = max(entry.queued_at, backlog.started, self._queue.republished.get(entry.jid, 0.0))
        known = newest < backlog.free_at and self._queue.now < backlog.free_at + BELIEVED
        return known and entry.sent_at is None and (job.by_id or entry.named)

    def _may_run_again(self, entry: Entry) -> bool:
        """Tell whether a job that was interrupted is to run again: it says so, or somebody has asked for it by hand."""
        return entry.asker is not None or self._queue.terms_of(entry).retry_interrupted

    # -- questions and their answers ----------------------------------------------------------------------------------

    def _ask(self, entry: Entry, replay: Replay, step: Step) -> None:
        replay.go(step)
        self._outbox.ask(entry.jid, (entry.minion,))

    def ask(self, jid: str, minions: tuple[str, ...]) -> Effect:
        """Ask minions, whose turn has come, about a job."""
        doubted = []
        for entry, replay in self._queue.replays(jid, minions, *QUESTIONS):
            replay.go(QUESTIONS[replay.step])
            replay.asked = self._queue.now
            if entry.sent_at is not None:
                doubted.append(entry.minion)
        return Ask(jid, minions, tuple(doubted))

    def asked(self, fact: Asked) -> None:
        """Go on with what minions say about a job."""
        asking = tuple(QUESTIONS.values())
        if fact.running or fact.ran or fact.idle:
            self._publishing.heard()
        for entry, replay in self._queue.replays(fact.jid, fact.unasked, *asking):
            if replay.step is Step.ASKING:
                replay.go(Step.GATHERING)
                self._company.add(entry.jid, entry.minion, self._queue.now + AGAIN)
            else:
                self._look_again(replay, Step.DOUBTED, entry.minion, AGAIN)
        for entry, _ in self._queue.replays(fact.jid, fact.ran, *asking):
            self._ends.end(entry, State.DONE, "the minion had run it; its return was fetched")
        for entry, replay in self._queue.replays(fact.jid, fact.running, *asking):
            self._publishing.received(entry, replay, "the minion says that it runs it")
        for entry, replay in self._queue.replays(fact.jid, fact.idle, *asking):
            backlog = self._queue.backlogs[entry.minion]
            backlog.false_signs, backlog.free_at = 0, replay.asked if entry.minion in fact.free else 0.0
            replay.said = fact.said.get(entry.minion, Said.NOTHING)
            if replay.step is Step.PROBING and replay.acked > replay.asked:
                self._publishing.let_run(entry, replay)  # it has begun since it answered
            elif entry.minion in fact.unmatched and not entry.named and not self._may_have_begun(entry):
                self._ends.end(entry, State.DEAD, "it no longer matches the job's target")
            else:
                self._idle(entry, replay)
        if not fact.more:
            self._answered.hasten(fact.jid, self._queue.now)
        for entry, replay in self._queue.replays(fact.jid, fact.silent, *asking):
            self._queue.backlogs[entry.minion].free_at = 0.0
            if entry.minion in fact.unproven and replay.step is Step.PROBING:
                # Forged, or the job cache is slow to take it: nothing is concluded about a job that may have been begun.
                self._look_again(replay, Step.DOUBTED, entry.minion, AGAIN)
            else:
                self._silent(entry, replay)
                if entry.minion in fact.unproven:  # it seems to be there, and may have been a moment too late
                    self._turns.alive(entry.minion)

    @staticmethod
    def _may_have_begun(entry: Entry) -> bool:
        return entry.state is State.RUNNING or entry.acknowledged

    def _idle(self, entry: Entry, replay: Replay) -> None:
        if replay.step is Step.ASKING:
            # Once no more answers come, nobody waits for those that are late; few at a time would be many publishes.
            replay.go(Step.ANSWERED)
            now = self._queue.now
            self._answered.put_off(entry.jid, entry.minion, now + self._settings.gather, now + LONGEST)
        elif self._is_early(entry, replay):
            replay.go(Step.SENT)
            self._timers.set(("replay", entry.minion), self._queue.now + RECEIPT - EARLY)
        else:
            self._look_again(replay, Step.GRACE, entry.minion, GRACE)

    def _is_early(self, entry: Entry, replay: Replay) -> bool:
        """Tell whether the minion was asked so soon after the publish that it may not have begun yet."""
        if entry.state is not State.SENT or entry.sent_at is None or self._ends.restarted(entry, replay):
            return False
        return self._queue.now < entry.sent_at + RECEIPT

    def _silent(self, entry: Entry, replay: Replay) -> None:
        if replay.step is Step.ASKING:
            self._ends.false_sign(entry, replay)
            return
        decision = verdict.silent(entry, self._queue.now, self._queue.terms_of(entry), replay.said)
        if decision is None:
            self._publishing.let_run(entry, replay)
        else:
            self._ends.carry_out(entry, replay, decision)

    def _begun_after_all(self, entry: Entry, replay: Replay) -> None:
        """Find out what has become of a job that was taken for not received."""
        self._publishing.note_receipt(entry, BEGUN)
        self._ask(entry, replay, Step.TO_PROBE)

    def acknowledged(self, fact: Acknowledged, proven: bool = False) -> None:
        """
        A minion says that it has begun a job. That is believed, however late it comes.

        :param proven: whether the minion itself is known to have said so; else one that we have not sent cannot be meant.
        """
        entry = self._queue.entry(fact.minion, fact.jid)
        if entry is None or entry.state not in {State.PENDING, *UNDER_WAY} or not (proven or entry.sent_at):
            return
        replay = self._queue.replay(fact.minion, fact.jid, Step.TO_SEND, Step.CLAIMING, *PUBLISHED)
        if replay is not None and replay.step is Step.CLAIMING and not (proven or replay.sent_before is not None):
            return
        is_news, entry.acknowledged = not entry.acknowledged, True
        self._queue.touch(entry)
        if replay is None:
            return  # it counts before the job is sent again
        if is_news:
            replay.acked = self._queue.now
            self._publishing.heard()
        if replay.step is Step.SENT:
            self._publishing.received(entry, replay, BEGUN)
        elif replay.step in (Step.TO_SEND, Step.CLAIMING):
            self._outbox.withdraw(entry.jid, entry.minion)
            self._begun_after_all(entry, replay)
        elif replay.step is not Step.SENDING:
            # The minion is being asked just now: whether or not it answers, this stays.
            self._publishing.note_receipt(entry, BEGUN)
