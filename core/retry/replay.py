"""
The replays: when one begins, its way from a look at the job cache to the minion's receipt, and its end. Part of the retry
machine, and as pure as it. The steps stand in steps.py; what is concluded where no return comes, in verdict.py.

It must never let a minion have two replays, nor publish a job whose claim is not durable or about which the minion was not
asked first.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from saltext.jobs.core.retry import verdict
from saltext.jobs.core.retry.backlog import Backlog
from saltext.jobs.core.retry.capture import AGAIN, GRACE
from saltext.jobs.core.retry.entry import UNDER_WAY, Entry, State
from saltext.jobs.core.retry.facts import (
    Acknowledged,
    Ask,
    Asked,
    Claim,
    Claimed,
    Effect,
    LookedUp,
    LookUp,
    Publish,
    ReturnHeard,
    SendFailed,
    Sent,
    Unreadable,
)
from saltext.jobs.core.retry.looks import HEARD, Gathering, Hearsay
from saltext.jobs.core.retry.outbox import Outbox
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.steps import LOOKS, PUBLISHED, QUESTIONS, RESTING, UNCLAIMED, Replay, Step
from saltext.jobs.core.retry.timers import Timers

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Seconds after a publish at which a minion that has shown no receipt is asked, and at which it is asked first where minions
#: do not say that they begin a job.
RECEIPT, EARLY = 4.0, 1.0
#: Seconds after which a minion is asked at first whether it still runs a job.
STILL_RUNNING = 60.0
#: Longest wait after signs of life of a minion that then did not answer, in seconds.
LONGEST_COOLDOWN = 300.0
#: Seconds by which starts of a minion, one soon after the other, may put off what it is owed.
LONGEST_DELAY = 60.0
_BEGUN = "the minion says that it has begun"


class Replays:
    """
    :param settings: the options under ``job_retry``.
    :param queue: what is owed.
    :param outbox: what waits for its turn to be published.
    :param timers: the machine's; the keys ``minion``, ``company``, ``look``, ``heard`` and ``replay`` are set here.
    :param acks: whether minions say when they begin a job.
    :param paused: whether no replay begins.
    """

    def __init__(
        self, settings: RetrySettings, queue: Queue, outbox: Outbox, timers: Timers, acks: bool, paused: bool
    ) -> None:
        self._settings, self._queue, self._outbox, self._timers = settings, queue, outbox, timers
        self._acks = acks
        self.paused = paused
        self._company = Gathering("company", timers)
        self._looks = Gathering("look", timers)
        self._heard = Hearsay(timers)
        self._due: list[Effect] = []

    def take_due(self) -> list[Effect]:
        """Return what has become due since the last call."""
        due, self._due = self._due, []
        return due

    # -- when one begins ----------------------------------------------------------------------------------------------

    def alive(self, minion: str, start: bool = False) -> None:
        """A minion is there: send it soon what it is owed. ``start``: it has just started."""
        backlog = self._queue.backlogs.get(minion)
        if backlog is None:
            return
        backlog.seen = self._queue.now
        if start:
            backlog.started = self._queue.now
            for entry in backlog.entries.values():
                entry.next_at = 0.0
        if backlog.replay is None:
            # The jitter spreads a fleet that starts at once; it is the same for a minion each time.
            spread = 1.0 + zlib.crc32(minion.encode()) / 2**32
            self.wake(minion, self._queue.now + self._settings.settle * spread, anew=start and self._may_delay(backlog))
        elif start and backlog.replay.step in RESTING:
            self._timers.set(("replay", minion), self._queue.now + self._settings.settle)

    def _may_delay(self, backlog: Backlog) -> bool:
        """Tell whether a start may put the next replay off: starts can be forged, so only for so long in all."""
        if backlog.delayed == 0.0:
            backlog.delayed = self._queue.now
        return self._queue.now < backlog.delayed + LONGEST_DELAY

    def wake(self, minion: str, at: float, anew: bool = False) -> None:
        """Begin the next replay to a minion at ``at``, or as soon after that as it may begin."""
        backlog = self._queue.backlogs.get(minion)
        if backlog is None or backlog.replay is not None or self.paused:
            return
        first = self._first(backlog)
        if first is not None:
            at = max(at, backlog.not_before, 0.0 if first.state in UNDER_WAY else first.next_at)
            (self._timers.set if anew else self._timers.no_later)(("minion", minion), at)

    def begin(self, minion: str) -> None:
        """Begin with what a minion is owed first: what may be with it already, then the job that was published first."""
        backlog = self._queue.backlogs.get(minion)
        if backlog is None or backlog.replay is not None or self.paused:
            return
        entry, now = self._first(backlog), self._queue.now
        if entry is None:
            return
        backlog.delayed = 0.0
        if entry.state in UNDER_WAY:
            backlog.replay = Replay(entry.jid, Step.DOUBTED, now)
            self._looks.add(entry.jid, minion, now + HEARD)
        elif entry.next_at > now:
            self.wake(minion, entry.next_at)  # no newer job overtakes it
        else:
            backlog.replay = Replay(entry.jid, Step.GATHERING, now)
            self._company.add(entry.jid, minion, now + self._settings.window)

    def _first(self, backlog: Backlog) -> Entry | None:
        return min(backlog.waiting, key=self._turn, default=None)

    def _turn(self, entry: Entry) -> tuple[bool, float, str]:
        return entry.state is State.PENDING, self._queue.jobs[entry.jid].published_at, entry.jid

    # -- looks at the job cache ---------------------------------------------------------------------------------------

    def doubt(self, minion: str) -> None:
        """Find out what has become of a job that may be with a minion."""
        backlog = self._queue.backlogs.get(minion)
        replay = backlog.replay if backlog else None
        if replay is not None and replay.step in RESTING:
            self._timers.cancel(("replay", minion))
            self._look_again(replay, Step.DOUBTED, minion, HEARD)

    def company_due(self, jid: str) -> None:
        """Look up the minions that have gathered for a job."""
        self._look_up(jid, self._company.take(jid))

    def look_due(self, jid: str) -> None:
        """Look up the minions that are to be looked up for a job."""
        self._look_up(jid, self._looks.take(jid))

    def _look_up(self, jid: str, wanted: Iterable[str]) -> None:
        minions = tuple(minion for minion in wanted if self._queue.has(minion, jid))
        for _entry, replay in self._find_all(jid, minions, *LOOKS):
            replay.go(LOOKS[replay.step])
        if minions:
            self._due.append(LookUp(jid, minions))

    def look_for_returns(self, jid: str, minions: Iterable[str]) -> None:
        """Look whether the job cache has returns of which nothing was heard."""
        self._due.append(LookUp(jid, tuple(minions), only_returns=True))

    def _look_again(self, replay: Replay, step: Step, minion: str, wait: float) -> None:
        replay.go(step)
        self._looks.add(replay.jid, minion, self._queue.now + wait)

    def unreadable(self, fact: Unreadable) -> None:
        """Look again later."""
        waiting = {looking: step for step, looking in LOOKS.items()}
        for entry, replay in self._find_all(fact.jid, fact.minions, *waiting):
            self._look_again(replay, waiting[replay.step], entry.minion, AGAIN)
        for minion in fact.minions:
            self._heard.later(minion, fact.jid, self._queue.now + AGAIN)

    def return_heard(self, fact: ReturnHeard) -> None:
        """Look whether the job cache has a return that the bus told of."""
        if self._queue.has(fact.minion, fact.jid):
            self._heard.add(fact.minion, fact.jid)
            self._looks.add(fact.jid, fact.minion, self._queue.now + HEARD)

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
                self.end(entry, State.DONE, "the job cache has its return")
                continue
            self._heard.missed(minion, fact.jid, self._queue.now)
            if fact.only_returns:
                self._expire(entry)
                continue
            replay = self._find(minion, fact.jid, *LOOKS.values())
            if replay is None:
                continue
            if replay.step is Step.LOOKING:
                self._ask(entry, replay, Step.TO_PROBE)
            elif replay.step is Step.LAST_LOOK:
                unheard = self._restarted(entry, replay) or replay.began > (entry.sent_at or 0.0)
                self._carry_out(entry, replay, verdict.vanished(entry, unheard, self._queue.terms_of(entry)))
            else:
                self._may_be_sent(entry, replay, minion in fact.barred, fact.denied.get(minion, ""))

    def _expire(self, entry: Entry) -> None:
        """End what is past its time, now that it is known that it was not returned."""
        if entry.state in (State.PENDING, State.HELD) and entry.expires_at <= self._queue.now:
            self.end(entry, State.EXPIRED, "its time to live has passed")

    def _may_be_sent(self, entry: Entry, replay: Replay, barred: bool, denied: str) -> None:
        if denied:
            self.end(entry, State.DEAD, denied)
        elif barred:
            entry.next_at = self._queue.now + self._settings.backoff
            self._back(entry, replay, alive=False)
        elif replay.step is Step.CHECKING:
            self._ask(entry, replay, Step.TO_ASK)
        elif entry.acknowledged:
            self._begun_after_all(entry, replay)
        else:
            replay.go(Step.TO_SEND)
            self._outbox.send(entry.jid, entry.minion)

    # -- questions and their answers ----------------------------------------------------------------------------------

    def _ask(self, entry: Entry, replay: Replay, step: Step) -> None:
        replay.go(step)
        self._outbox.ask(entry.jid, (entry.minion,))

    def ask(self, jid: str, minions: tuple[str, ...]) -> None:
        """Ask minions, whose turn has come, about a job."""
        for _entry, replay in self._find_all(jid, minions, *QUESTIONS):
            replay.go(QUESTIONS[replay.step])
        self._due.append(Ask(jid, minions))

    def asked(self, fact: Asked) -> None:
        """Go on with what minions say about a job."""
        asking = tuple(QUESTIONS.values())
        for entry, replay in self._find_all(fact.jid, fact.unasked, *asking):
            if replay.step is Step.ASKING:
                replay.go(Step.GATHERING)
                self._company.add(entry.jid, entry.minion, self._queue.now + AGAIN)
            else:
                self._look_again(replay, Step.DOUBTED, entry.minion, AGAIN)
        for entry, _ in self._find_all(fact.jid, fact.ran, *asking):
            self.end(entry, State.DONE, "the minion had run it; its return was fetched")
        for entry, replay in self._find_all(fact.jid, fact.running, *asking):
            self._received(entry, replay, "the minion says that it runs it")
        for entry, replay in self._find_all(fact.jid, fact.idle, *asking):
            self._queue.backlogs[entry.minion].false_signs = 0
            if entry.minion in fact.unmatched and not entry.named and not self._may_have_begun(entry):
                self.end(entry, State.DEAD, "it no longer matches the job's target")
            else:
                self._idle(entry, replay)
        for entry, replay in self._find_all(fact.jid, fact.silent, *asking):
            self._silent(entry, replay)

    @staticmethod
    def _may_have_begun(entry: Entry) -> bool:
        return entry.state is State.RUNNING or entry.acknowledged

    def _idle(self, entry: Entry, replay: Replay) -> None:
        if replay.step is Step.ASKING:
            self._look_again(replay, Step.ANSWERED, entry.minion, 0.0)
        elif self._is_early(entry, replay):
            replay.go(Step.SENT)
            self._timers.set(("replay", entry.minion), self._queue.now + RECEIPT - EARLY)
        else:
            self._look_again(replay, Step.GRACE, entry.minion, GRACE)

    def _is_early(self, entry: Entry, replay: Replay) -> bool:
        """Tell whether the minion was asked so soon after the publish that it may not have begun yet."""
        if entry.state is not State.SENT or entry.sent_at is None or self._restarted(entry, replay):
            return False
        return self._queue.now < entry.sent_at + RECEIPT

    def _silent(self, entry: Entry, replay: Replay) -> None:
        if replay.step is Step.ASKING:
            # It seemed to be there and was not: signs of life can be forged, so that counts less each time.
            backlog = self._queue.backlogs[entry.minion]
            backlog.false_signs += 1
            self._back(entry, replay, alive=False)
            wait = self._settings.cooldown * 2 ** min(backlog.false_signs - 1, 20)
            backlog.not_before = max(backlog.not_before, self._queue.now + min(wait, LONGEST_COOLDOWN))
            return
        decision = verdict.silent(entry, self._queue.now, self._queue.terms_of(entry))
        if decision is None:
            self._let_run(entry, replay)
        else:
            self._carry_out(entry, replay, decision)

    def _restarted(self, entry: Entry, replay: Replay) -> bool:
        """Tell whether the minion has started since its job was published."""
        return self._queue.backlogs[entry.minion].started > max(replay.began, entry.sent_at or 0.0)

    def _received(self, entry: Entry, replay: Replay, reason: str) -> None:
        self._note_receipt(entry, reason)
        self._let_run(entry, replay)

    def _let_run(self, entry: Entry, replay: Replay) -> None:
        """Wait for the return. Its process may die without one: that is asked about, ever less often."""
        replay.go(Step.RUNNING)
        wait = max(STILL_RUNNING, self._queue.now - entry.since)
        self._timers.set(("replay", entry.minion), self._queue.now + wait)

    def _begun_after_all(self, entry: Entry, replay: Replay) -> None:
        """Find out what has become of a job that was taken for not received."""
        self._note_receipt(entry, _BEGUN)
        self._ask(entry, replay, Step.TO_PROBE)

    def _note_receipt(self, entry: Entry, reason: str) -> None:
        if entry.state is State.RUNNING:
            return
        if entry.state is State.PENDING:
            entry.attempts += 1
        entry.tries = entry.lost = 0
        self._queue.move(entry, State.RUNNING, reason)

    def acknowledged(self, fact: Acknowledged) -> None:
        """A minion says that it has begun a job. That is believed, however late it comes."""
        entry = self._queue.entry(fact.minion, fact.jid)
        if entry is None or entry.sent_at is None or entry.state not in {State.PENDING, *UNDER_WAY}:
            return
        entry.acknowledged = True
        self._queue.touch(entry)
        replay = self._find(fact.minion, fact.jid, Step.TO_SEND, *PUBLISHED)
        if replay is None:
            return  # it counts before the job is sent again
        if replay.step is Step.SENT:
            self._received(entry, replay, _BEGUN)
        elif replay.step is Step.TO_SEND:
            self._outbox.withdraw(entry.jid, entry.minion)
            self._begun_after_all(entry, replay)
        elif replay.step is not Step.SENDING:
            # The minion is being asked just now: whether or not it answers, this stays.
            self._note_receipt(entry, _BEGUN)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def claim(self, jid: str, minions: tuple[str, ...]) -> None:
        """Have claims made durable of what may be published now."""
        claimed = []
        for entry, replay in self._find_all(jid, minions, Step.TO_SEND):
            replay.go(Step.CLAIMING)
            entry.claim(self._queue.now)
            self._queue.touch(entry)
            claimed.append(entry.minion)
        if claimed:
            self._due.append(Claim(jid, tuple(claimed)))

    def claimed(self, fact: Claimed) -> None:
        """Publish what is durably claimed."""
        ready, named = [], set()
        for entry, replay in self._find_all(fact.jid, fact.minions, Step.CLAIMING):
            if self.paused:
                self._not_received(entry, replay, "replays were paused before it was published", alive=True)
                continue
            replay.go(Step.SENDING)
            ready.append(entry.minion)
            if entry.named:
                named.add(entry.minion)
            self._queue.tell(entry, "sent")
        if ready:
            self._due.append(Publish(fact.jid, tuple(ready), frozenset(named)))

    def sent(self, fact: Sent) -> None:
        """Wait for a sign of receipt."""
        for entry, replay in self._find_all(fact.jid, fact.minions, Step.SENDING):
            if entry.minion in fact.missed:
                self._not_received(entry, replay, "the master does not know the minion", alive=False)
            else:
                self._await_receipt(entry, replay, "published")

    def send_failed(self, fact: SendFailed) -> None:
        """Try again where nothing can have been received; otherwise wait for a sign of receipt."""
        for entry, replay in self._find_all(fact.jid, fact.minions, Step.SENDING):
            if fact.certain:
                self._not_received(entry, replay, f"the publish was refused: {fact.reason}", alive=True)
            else:
                self._await_receipt(entry, replay, f"the publish was not confirmed: {fact.reason}")

    def _await_receipt(self, entry: Entry, replay: Replay, reason: str) -> None:
        replay.go(Step.SENT)
        self._queue.move(entry, State.SENT, reason)
        if entry.acknowledged:
            self._received(entry, replay, _BEGUN)
        else:
            self._timers.set(("replay", entry.minion), self._queue.now + (RECEIPT if self._acks else EARLY))

    def _not_received(self, entry: Entry, replay: Replay, reason: str, alive: bool) -> None:
        terms = self._queue.terms_of(entry)
        self._carry_out(entry, replay, verdict.not_received(entry, reason, terms, begun=False, alive=alive))

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _carry_out(self, entry: Entry, replay: Replay, decision: verdict.Decision) -> None:
        entry.tries, entry.lost = decision.tries, decision.lost
        if decision.state is not State.PENDING:
            self.end(entry, decision.state, decision.reason)
            return
        if decision.received:
            entry.acknowledged = False
        else:
            entry.attempts -= 1
        entry.next_at = self._queue.now + decision.wait
        if entry.state is not State.PENDING:
            self._queue.move(entry, State.PENDING, decision.reason)
        self._back(entry, replay, decision.alive)

    def _back(self, entry: Entry, replay: Replay, alive: bool) -> None:
        """End a replay without a return: the entry waits for the next sign of life."""
        backlog = self._queue.backlogs[entry.minion]
        backlog.not_before = self._queue.now + self._settings.cooldown
        self._drop(backlog, entry.minion)
        if self._restarted(entry, replay):
            entry.next_at = 0.0
        if backlog.urged > replay.began:
            entry.next_at = backlog.not_before = 0.0
            alive = True
        if alive or backlog.seen > replay.began:
            self.wake(entry.minion, self._queue.now + self._settings.settle)
        elif len(backlog.entries) > 1:
            # Nothing speaks for this minion; still, what is behind must not wait for ever once something does.
            self._timers.cancel(("minion", entry.minion))

    def _drop(self, backlog: Backlog, minion: str) -> None:
        backlog.replay = None
        self._timers.cancel(("replay", minion))

    def land(self, entry: Entry) -> None:
        """End the replay of an entry, if it has one; the next one may begin."""
        backlog = self._queue.backlogs[entry.minion]
        if backlog.replay is not None and backlog.replay.jid == entry.jid:
            self._drop(backlog, entry.minion)
            self._outbox.withdraw(entry.jid, entry.minion)
            self.wake(entry.minion, self._queue.now)

    def end(self, entry: Entry, state: State, reason: str) -> None:
        """End an entry: bring it to a state that it does not leave by itself."""
        self._queue.move(entry, state, reason)
        self.land(entry)
        self._queue.tell(entry, state.value)
        if state is State.DONE:
            self.remove(entry)

    def remove(self, entry: Entry) -> None:
        """Forget an entry."""
        self.land(entry)
        self._heard.forget(entry.minion, entry.jid)
        self._queue.remove(entry)
        if entry.minion not in self._queue.backlogs:
            self._timers.cancel(("minion", entry.minion))
            self._outbox.withdraw_ping(entry.minion)

    def pause(self) -> None:
        """Let no replay begin, and none go on that has not claimed its job: nothing more is published."""
        self.paused = True
        for backlog in self._queue.backlogs.values():
            if backlog.replay is not None and backlog.replay.step in UNCLAIMED:
                self.land(backlog.entries[backlog.replay.jid])

    # -- where one stands ---------------------------------------------------------------------------------------------

    def _find(self, minion: str, jid: str, *steps: Step) -> Replay | None:
        backlog = self._queue.backlogs.get(minion)
        replay = backlog.replay if backlog else None
        return replay if replay is not None and replay.jid == jid and replay.step in steps else None

    def _find_all(self, jid: str, minions: Iterable[str], *steps: Step) -> Iterator[tuple[Entry, Replay]]:
        """Yield the entry and the replay of those that get this job and are at one of these steps, ordered by minion."""
        for minion in sorted(minions):
            replay = self._find(minion, jid, *steps)
            if replay is not None:
                yield self._queue.backlogs[minion].entries[jid], replay
