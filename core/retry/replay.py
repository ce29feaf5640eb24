"""
How a job goes to a minion, or what has become of it: what becomes known is taken (knowledge.py), what to do about it is
decided (decision.py), and that is carried out here and nowhere else. The steps stand in steps.py; when the next replay
begins, turns.py says.

It must never let a minion have two replays, leave one with a replay whose entry has ended, publish a job whose claim is not
durable, nor let a job be sent before the minion has said that it does not run it. "I run nothing" covers every job that was
published before the answer: until it starts anew, a minion ignores a jid that it has seen.
"""

from __future__ import annotations

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.decision import NOTHING_ELSE, Decision, Permits, decide
from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, State
from saltext.jobs.core.retry.knowledge import ANSWERS, Evidence, Knowledge, Said
from saltext.jobs.core.retry.looks import DOUBTED, LONGEST, Gathering, Inflow
from saltext.jobs.core.retry.outbox import Kind, Outbox
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.steps import LOOKS, PUBLISHED, QUESTIONS, RESTING, UNCLAIMED, Replay, Step
from saltext.jobs.core.retry.turns import Turns

#: Why a minion waits for a look: for others that are owed the same job, or have answered too, or until it is time.
GATHERINGS = ("company", "answered", "look")
#: At these steps it matters at once that a minion has begun the job; at others it counts before the job is sent.
_HEEDFUL = frozenset({Step.TO_SEND, Step.CLAIMING, *PUBLISHED})


class Replays:
    """
    The timers ``replay`` and those of GATHERINGS are set here.

    :param queue: what is owed.
    :param outbox: what waits for its turn to be published.
    :param turns: when the next replay begins.
    """

    def __init__(self, queue: Queue, outbox: Outbox, turns: Turns) -> None:
        self._queue, self._outbox, self._turns = queue, outbox, turns
        # Those owed the same job wait for each other, those that have answered a question likewise; or for a look at a time.
        self._gathered = {name: Gathering(name, queue.timers) for name in GATHERINGS}
        self._company, self._answered, self._looks = self._gathered.values()
        self._inflow = Inflow(queue.settings.gather)
        # When a minion last showed a receipt, or answered: the master hands on what minions send. Not for what anybody can
        # say again and again in its name: what has been said of a publish already, or what the job cache does not have.
        self._heard = 0.0

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
            backlog.replay = Replay(Step.DOUBTED, Knowledge(entry, backlog, now))
            self._looks.add(entry.jid, minion, now + DOUBTED)
        elif self._turns.holds_up(entry):
            known, permits = Knowledge(entry, backlog, now), Permits(waited_for=True)
            self._carry_out(entry, None, decide(None, known, permits, self._queue.terms_of(entry), now))
            self._turns.wake(minion, now)
        elif entry.next_at > now:
            self._turns.wake(minion, entry.next_at)  # no newer job overtakes it
        else:
            backlog.replay = Replay(Step.GATHERING, Knowledge(entry, backlog, now))
            latest = now + self._inflow.wait(entry.jid, now)
            self._company.put_off(entry.jid, minion, now + self._queue.settings.gather, latest)

    # -- what is decided, and carried out -----------------------------------------------------------------------------

    def _decide(self, entry: Entry, replay: Replay, permits: Permits = NOTHING_ELSE) -> None:
        terms = self._queue.terms_of(entry)
        self._carry_out(entry, replay, decide(replay.step, replay.known, permits, terms, self._queue.now))

    def _carry_out(self, entry: Entry, replay: Replay | None, decision: Decision) -> None:
        """Do what was decided. Nothing else moves a replay, or an entry that has one, but for what an operator ends."""
        if decision.step is not None and decision.state is not None:
            self._queue.move(entry, decision.state, decision.reason)
        if decision.begun:
            self._note_begun(entry, decision.begun)
        if decision.step is not None and replay is not None:
            self._go(entry, replay, decision.step, decision.wait)
        elif decision.state is State.PENDING and replay is not None:
            self.land(entry) if decision.at_once else self._try_again(entry, replay, decision)
        elif decision.state is not None:
            if decision.state is not State.DONE:
                self._count(entry, replay, decision)
            self.end(entry, decision.state, decision.reason)

    def _note_begun(self, entry: Entry, reason: str) -> None:
        """Note that the minion got the job: from now on it is known to have been begun."""
        if entry.state is not State.RUNNING:
            entry.attempts += entry.state is State.PENDING
            entry.forget_tries()
            self._queue.move(entry, State.RUNNING, reason)

    def _go(self, entry: Entry, replay: Replay, step: Step, wait: float) -> None:
        """Let a replay go on, and begin what is waited for there."""
        minion, jid, now = entry.minion, entry.jid, self._queue.now
        if replay.step is Step.TO_SEND:
            self._outbox.withdraw(minion, jid)
        if replay.step is not step:
            replay.go(step)
        if step in QUESTIONS:
            self._outbox.line_up(Kind.QUESTION, jid, (minion,))
        elif step is Step.TO_SEND:
            self._outbox.line_up(Kind.JOB, jid, (minion,))
        elif step is Step.CLAIMING:
            replay.known.sent_before = entry.sent_at
            entry.claim(now)
            self._queue.touch(entry)
        elif step is Step.SENDING:
            self._queue.tell(entry, "sent")
        elif step in RESTING:
            self._queue.timers.set(("replay", minion), now + wait)
        elif step is Step.ANSWERED and not wait:
            # Once no more answers come, nobody waits for those that are late; few at a time would be many publishes.
            self._answered.put_off(jid, minion, now + self._queue.settings.gather, now + LONGEST)
        else:
            self._queue.timers.cancel(("replay", minion))
            # No look for another one cuts short the time in which a return may come.
            self._looks.add(jid, minion, now + wait, no_sooner=step is Step.GRACE)

    @staticmethod
    def _count(entry: Entry, replay: Replay | None, decision: Decision) -> None:
        for name in ("tries", "lost", "vain"):
            count = getattr(decision, name)
            if count is not None:
                setattr(entry, name, count)
        entry.reached = entry.reached or decision.reached
        entry.attempts -= not decision.received
        entry.acknowledged = entry.acknowledged and not decision.forget
        if decision.unsent and replay is not None:
            entry.sent_at = replay.known.sent_before

    def _try_again(self, entry: Entry, replay: Replay, decision: Decision) -> None:
        """
        End a replay without a return: the entry waits for the next sign of life, and for ``cooldown`` or a pause, whichever
        is longer.
        """
        backlog, known, now = self._queue.backlogs[entry.minion], replay.known, self._queue.now
        self._count(entry, replay, decision)
        entry.next_at = now + decision.wait if decision.wait else entry.next_at
        if entry.state is not State.PENDING:
            self._queue.move(entry, State.PENDING, decision.reason)
        backlog.not_before = now + max(decision.pause, self._queue.settings.cooldown)
        self._drop(entry.minion)
        alive = decision.alive
        if known.restarted:
            entry.next_at = 0.0
        if backlog.urged > known.since:
            entry.next_at = backlog.not_before = 0.0
            alive = True
        else:
            backlog.at_any_time.discard(entry.jid)  # what an operator asks for is one try
        if alive or backlog.seen > known.since:
            self._turns.wake(entry.minion, now + self._queue.settings.settle)
        elif len(backlog.entries) > 1:
            # Nothing says that the minion is there. Its next sign of life sets the timer anew, for whatever it is owed then.
            self._queue.timers.cancel(("minion", entry.minion))
        if decision.pause:
            backlog.false_signs += 1
            backlog.at_any_time.clear()  # an operator's request was for now

    def _drop(self, minion: str) -> None:
        self._queue.backlogs[minion].replay = None
        self._queue.timers.cancel(("replay", minion))

    def land(self, entry: Entry) -> None:
        """End the replay of an entry, if it has one; the next one may begin."""
        backlog = self._queue.backlogs[entry.minion]
        if backlog.replay is not None and backlog.replay.jid == entry.jid:
            self._drop(entry.minion)
            self._outbox.withdraw(entry.minion, entry.jid)
            self._turns.wake(entry.minion, self._queue.now)

    def end(self, entry: Entry, state: State, reason: str) -> None:
        """End an entry: bring it to a state that it does not leave by itself."""
        self._queue.move(entry, state, reason)
        self._queue.backlogs[entry.minion].at_any_time.discard(entry.jid)
        self.land(entry)
        self._queue.tell(entry, state.value)
        if state is State.DONE:
            self.remove(entry)

    def remove(self, entry: Entry) -> None:
        """Forget an entry."""
        self.land(entry)
        self._queue.remove(entry)
        if entry.minion not in self._queue.backlogs:
            self._queue.timers.cancel(("minion", entry.minion))
            self._outbox.withdraw(entry.minion)

    def pause(self) -> None:
        """Begin no replay, and end those that have not claimed their job: nothing more is published."""
        self._turns.paused = True
        for backlog in self._queue.backlogs.values():
            if backlog.replay is not None and backlog.replay.step in UNCLAIMED:
                self.land(backlog.entries[backlog.replay.jid])

    def shut(self, jid: str) -> None:
        """End the replays of a job that have not claimed it: its window is shut."""
        for entry, _ in list(self._queue.replays(jid, self._queue.minions_of(jid), *UNCLAIMED)):
            if not self._turns.may_be_sent(entry):
                self.land(entry)

    # -- looks at the job cache ---------------------------------------------------------------------------------------

    def doubt(self, minion: str, evidence: Evidence = Evidence.GAP) -> None:
        """Find out what has become of a job that may be with a minion, unless its receipt may still come."""
        backlog = self._queue.backlogs.get(minion)
        replay = backlog.replay if backlog else None
        if backlog and replay and replay.step in RESTING:
            replay.known.take(evidence)
            self._decide(backlog.entries[replay.jid], replay, Permits(heard=self._heard))

    def overdue(self, minion: str) -> None:
        """A minion has not shown in time that it got its job, or what has become of it."""
        self.doubt(minion, Evidence.DUE)

    def due(self, gathering: str, jid: str) -> list[facts.Effect]:
        """Look up the minions that have gathered for a job, for the reason that the gathering has."""
        wanted = self._gathered[gathering].take(jid, self._queue.now)
        minions, publish = tuple(minion for minion in wanted if self._queue.has(minion, jid)), False
        askers = {}
        for entry, replay in self._queue.replays(jid, minions, *LOOKS):
            answered = replay.step is Step.GATHERING and replay.known.has_answered(
                self._queue.jobs[jid], self._queue.republished.get(jid, 0.0), self._queue.now
            )
            replay.go(Step.CHECKING_AGAIN if answered else LOOKS[replay.step])
            publish = publish or (replay.step is Step.LAST_LOOK and entry.state is State.CLAIMED)
            if entry.asker is not None:
                askers[entry.minion] = entry.asker
        return [facts.LookUp(jid, minions, publish=publish, askers=askers)] if minions else []

    def unreadable(self, fact: facts.Unreadable) -> None:
        """Look again later."""
        for entry, replay in self._queue.replays(fact.jid, fact.minions, *LOOKS.values()):
            replay.known.take(Evidence.UNREADABLE)
            self._decide(entry, replay)

    def returned(self, fact: facts.Returned) -> None:
        """End what was returned, and what was not in its time to live."""
        for minion in (*fact.minions, *fact.missing):
            entry, is_there = self._queue.entry(minion, fact.jid), minion in fact.minions
            if entry is None or not (is_there or entry.expires_at <= self._queue.now):
                continue
            if is_there and not fact.searched:
                self._heard = self._queue.now
            known = Knowledge(entry, self._queue.backlogs[minion], self._queue.now)
            known.take(Evidence.RETURNED if is_there else Evidence.NOT_RETURNED)
            permits, terms = Permits(unreturned=True), self._queue.terms_of(entry)
            self._carry_out(entry, None, decide(None, known, permits, terms, self._queue.now))

    def looked_up(self, fact: facts.LookedUp) -> None:
        """Go on with what the job cache, the keys and the access lists say."""
        self.returned(facts.Returned(fact.jid, fact.returned, searched=True))
        for entry, replay in self._queue.replays(fact.jid, fact.minions, *LOOKS.values()):
            minion, permits = entry.minion, NOTHING_ELSE
            replay.known.published = fact.last
            replay.known.take(Evidence.NOT_RETURNED)
            if replay.step is Step.LAST_LOOK:
                permits = Permits(waited_for=self._turns.is_waited_for(entry))
            elif minion in fact.denied or minion in fact.unsure or minion in fact.barred:
                permits = Permits(
                    fact.denied.get(minion, ""), fact.unsure.get(minion, ""), barred=minion in fact.barred
                )
            self._decide(entry, replay, permits)

    # -- questions and their answers ----------------------------------------------------------------------------------

    def ask(self, jid: str, minions: tuple[str, ...]) -> facts.Effect:
        """Ask minions, whose turn has come, about a job."""
        doubted = []
        for entry, replay in self._queue.replays(jid, minions, *QUESTIONS):
            replay.go(QUESTIONS[replay.step])
            replay.known.asked = self._queue.now
            if entry.sent_at is not None:
                doubted.append(entry.minion)
        return facts.Ask(jid, minions, tuple(doubted))

    def asked(self, fact: facts.Asked) -> None:
        """Go on with what minions say about a job."""
        for evidence, minions in fact.told.items():
            if minions and evidence in ANSWERS:
                self._heard = self._queue.now
            for entry, replay in self._queue.replays(fact.jid, minions, *QUESTIONS.values()):
                said = fact.said.get(entry.minion, Said.NOTHING)
                replay.known.take(evidence, said, free=entry.minion in fact.free)
                unmatched = entry.minion in fact.unmatched
                self._decide(entry, replay, Permits(matches=False) if unmatched else NOTHING_ELSE)
        if not fact.more:
            self._answered.hasten(fact.jid, self._queue.now)

    def acknowledged(self, fact: facts.Acknowledged, proven: bool = False) -> None:
        """
        A minion says that it has begun a job, or returned it. That is believed, however late it comes.

        :param proven: whether the minion itself is known to have said so.
        """
        entry = self._queue.entry(fact.minion, fact.jid)
        if entry is None:
            return
        backlog = self._queue.backlogs[fact.minion]
        replay = self._queue.replay(fact.minion, fact.jid, *_HEEDFUL)
        known = replay.known if replay else Knowledge(entry, backlog, self._queue.now)
        claiming = replay is not None and replay.step is Step.CLAIMING
        is_news = known.believe(proven, claiming, self._queue.now)
        if is_news is None:
            return
        self._queue.touch(entry)
        if replay is not None and (is_news or entry.state is not State.RUNNING):
            self._heard = self._queue.now if is_news else self._heard
            self._decide(entry, replay)

    # -- the claim, the publish, the receipt --------------------------------------------------------------------------

    def claim(self, jid: str, minions: tuple[str, ...]) -> list[facts.Effect]:
        """Have claims made durable of what may be published now."""
        claimed = []
        for entry, replay in self._queue.replays(jid, minions, Step.TO_SEND):
            shut = "" if self._turns.may_be_sent(entry) else "its window is shut"
            self._decide(entry, replay, Permits(shut=shut) if shut else NOTHING_ELSE)
            if replay.step is Step.CLAIMING:
                claimed.append(entry.minion)
        return [facts.Claim(jid, tuple(claimed))] if claimed else []

    def claimed(self, fact: facts.Claimed) -> list[facts.Effect]:
        """Publish what is durably claimed."""
        ready = []
        for entry, replay in self._queue.replays(fact.jid, fact.minions, Step.CLAIMING):
            shut = "" if self._turns.may_be_sent(entry) else "its window closed before it was published"
            shut = "replays were paused before it was published" if self._turns.paused else shut
            self._decide(entry, replay, Permits(shut=shut) if shut else NOTHING_ELSE)
            if replay.step is Step.SENDING:
                ready.append((entry, replay.known.said))
        if not ready:
            return []
        self._queue.replayed[fact.jid] = self._queue.now
        said = [what for _, what in ready]
        recorded = not {Said.NOTHING, Said.NOT_SURE}.intersection(said)
        named = frozenset(entry.minion for entry, _ in ready if entry.named)
        minions = tuple(entry.minion for entry, _ in ready)
        return [facts.Publish(fact.jid, minions, named, Said.INTERRUPTED in said, recorded)]

    def sent(self, fact: facts.Sent) -> None:
        """The publish is over."""
        if fact.outcome is Evidence.PUBLISHED and fact.jid in self._queue.jobs:
            self._queue.replayed[fact.jid] = self._queue.now
        for entry, replay in self._queue.replays(fact.jid, fact.minions, Step.SENDING):
            is_missed = entry.minion in fact.missed
            replay.known.take(Evidence.MISSED if is_missed else fact.outcome, why=fact.why)
            missed = is_missed and self._turns.is_waited_for(entry)
            self._decide(entry, replay, Permits(waited_for=True) if missed else NOTHING_ELSE)
