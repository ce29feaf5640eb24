"""
The batch state machine: facts in, effects out, time as an argument. All policy about batches is here and in its parts.

Pure: stdlib only, no clock, no I/O. It must never depend on anything but its state, the fact and the time that it is
given: the state is rebuilt after a crash by stepping through the same facts again.

A minion's way through a batch:

    pending -> in flight -> completed | failed | lost | offline | killed | timed_out
                  |  ^
                  v  '---- running: asked, and it does run the job
              overdue: looked for in the job cache, then asked (find_job); see Phase

Only a return, or evidence that the job is not running there, frees a slot. Silence counts only after ``probe_attempts``
questions, and is absence only of a minion that was never known to be there. Who is still to be sent to is in ``pending.py``,
who of them is there in ``presence.py``, how many at a time and when in ``pace.py``, who is in flight in ``inflight.py``, and
how each ended in ``outcomes.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from saltext.jobs.core.batch.checks import Checks
from saltext.jobs.core.batch.facts import (
    Acknowledged,
    Announce,
    Approved,
    Check,
    Checked,
    Close,
    Closed,
    Effect,
    EventsLost,
    Fact,
    FindOpening,
    Gather,
    Gathered,
    Kill,
    KillSent,
    LookedUp,
    LookUp,
    OpeningFound,
    PauseRequested,
    PingFailed,
    Probe,
    Probed,
    Publish,
    Published,
    PublishFailed,
    Queue,
    Queued,
    QueueRefused,
    Recovered,
    ResumeRequested,
    Returned,
    Seen,
    Started,
    StopRequested,
    Tick,
)
from saltext.jobs.core.batch.flight import Flight, Outcome, Phase
from saltext.jobs.core.batch.inflight import IDLE_ANSWERS, InFlight
from saltext.jobs.core.batch.kept import Kept, kept, made
from saltext.jobs.core.batch.outcomes import GUESSED, Ended, Outcomes
from saltext.jobs.core.batch.pace import Pace
from saltext.jobs.core.batch.pending import Pending
from saltext.jobs.core.batch.plan import Membership
from saltext.jobs.core.batch.presence import Presence
from saltext.jobs.core.batch.publish_window import PublishWindow
from saltext.jobs.core.batch.schedule import Schedule
from saltext.jobs.core.batch.spec import Spec

#: Of the policy by which facts are folded. A journal that an engine with another one has begun is folded by this one: then
#: it is not known any more who was sent to.
POLICY = 2
#: Seconds before the end of an engine of which it is doubtful whether a publish has left a master that ended with it.
DOUBTFUL = 5.0


def _nothing() -> None:
    return None


@dataclasses.dataclass(slots=True, init=False, eq=False, repr=False)
class Batch(Kept):
    """
    One batch. Build it from a Spec, then feed it a Tick, and from then on every fact there is.

    :param spec: what was asked for.
    :param now: Unix time in seconds.
    """

    spec: Spec
    inflight: InFlight
    record: Outcomes
    pace: Pace
    presence: Presence
    publish_window: PublishWindow
    schedule: Schedule
    checks: Checks
    membership: Membership
    waiting: Pending = kept(Pending, list, Pending, name="pending")
    tried: set[str] = kept(set, sorted, set)  # minions pending again that may have received the job
    resent: dict[str, int] = kept(dict, dict, dict)  # how often a minion is taken not to have received it
    to_queue: dict[str, None] = kept(dict, list, dict.fromkeys)  # not handed over to the retry queue yet
    queue_refused: str = kept(str)  # why the retry queue did not take minions
    created: float = kept(float)
    started: float | None = kept(_nothing)  # when it was announced
    last_progress: float = kept(float)
    finished: float | None = kept(_nothing)
    closed: bool = kept(bool)
    halted: str | None = kept(_nothing)  # why nothing more is published
    paused: str | None = kept(_nothing)
    killing: bool = kept(bool)
    stopped_by: str = kept(str)
    stepped_at: float = kept(float)  # when the last fact became known
    policy: int = kept(lambda: POLICY)
    _parts: tuple[Kept, ...] = made(tuple)

    def __init__(self, spec: Spec, now: float) -> None:
        for field in dataclasses.fields(self):
            if field.default_factory is not dataclasses.MISSING:
                setattr(self, field.name, field.default_factory())
        self.spec, self.created, self.last_progress = spec, now, now
        self.membership = Membership(spec.minions, [count for _, count in spec.groups])
        self.inflight, self.record, self.pace = InFlight(spec), Outcomes(spec, self.membership), Pace(spec)
        self.presence, self.publish_window = Presence(spec), PublishWindow(spec)
        self.schedule, self.checks = Schedule(spec), Checks(spec)
        sending = (self.inflight, self.record, self.pace, self.presence, self.publish_window)
        self._parts = (*sending, self.schedule, self.checks)
        self.pace.not_before = now
        self.waiting = Pending(spec.minions if spec.presence == "none" else (), self.membership)
        if spec.presence == "ping":
            self.presence.gathering = True
            self.presence.doubt(spec.minions)

    # -- what the shell asks ------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return all that makes the batch, in plain values."""
        data = {"spec": self.spec.as_dict(), **self.values()}
        for part in self._parts:
            data.update(part.values())
        return data

    @classmethod
    def restore(cls, data: Mapping[str, Any]) -> Batch:
        """
        Return the batch of a snapshot, equal in every respect.

        :raises ValueError, KeyError, TypeError: when it is none.
        """
        batch = cls(Spec.from_dict(data["spec"]), data["created"])
        for part in (batch, *batch._parts):
            part.load(data)
        batch.waiting = Pending(batch.waiting, batch.membership, batch.pace.group)
        if "policy" not in data:
            batch.policy = 1
            if batch.presence.gathering:
                batch._await_signs()
        return batch

    @property
    def flights(self) -> Mapping[str, Flight]:
        """The minions in flight."""
        return self.inflight.flights

    @property
    def outcomes(self) -> Mapping[str, Ended]:
        """``{minion: (outcome, since, retcode)}`` of the minions that have ended."""
        return self.record.ended

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """How many minions have ended in which way."""
        return self.record.counts

    @property
    def state(self) -> str:
        """running, paused, stopping, complete or halted."""
        if self.halted:
            return "halted" if self.finished else "stopping"
        if self.finished:
            return "complete"
        return "paused" if self.waits_for() else "running"

    def waits_for(self) -> str | None:
        """Return why nothing is published although there is somebody to publish to; None where that is not so."""
        if self.paused or self.halted or self.finished or not self._has_more():
            return self.paused
        if self.checks.under_way and self.checks.by_hand:
            return "waits for approval"
        return self.schedule.reason() if self.schedule.bounded and not self.schedule.open else None

    @property
    def success(self) -> bool | None:
        """
        Whether it has succeeded: all of its minions completed, or were left out by ``offline=skip``, and at least one ran.

        None as long as that is open.
        """
        if not self.finished:
            return None
        left_out = self.counts[Outcome.OFFLINE] if self.spec.offline == "skip" else 0
        completed = self.counts[Outcome.COMPLETED]
        return not self.halted and completed > 0 and completed + left_out == len(self.spec.minions)

    @property
    def next_due(self) -> float | None:
        """When a Tick is next due, in Unix time; None as long as only a fact can change anything."""
        if self.started is None:
            return self.created
        cooling = self.pace.cooling[0] if self._waits_for_cooling() else None
        opening = self.schedule.next_due() if self._has_more() and not self.halted and not self.paused else None
        tick_due = (self.pace.publish_at, cooling, opening, self.inflight.next_due(), self.checks.due, self._ping_due())
        return min((time for time in tick_due if time is not None), default=None)

    def pending(self) -> list[str]:
        """The minions that are still to be sent to, in order."""
        return [*self.waiting, *self.presence.unseen]

    def count_pending(self) -> int:
        """How many minions are still to be sent to."""
        return len(self.waiting) + len(self.presence.unseen)

    def unsettled(self) -> list[str]:
        """The minions whose return would change something: those in flight, and those given up without one."""
        return [*self.flights, *(minion for minion, (outcome, *_) in self.outcomes.items() if outcome in GUESSED)]

    def wants_return(self, minion: str) -> bool:
        """Whether a return of ``minion`` changes anything."""
        return minion in self.inflight or minion in self.tried or self.record.is_guess(minion)

    def wants_start(self, minion: str) -> bool:
        """Whether it matters that a process of ``minion`` has started."""
        return minion in self.inflight or minion in self.presence.unseen

    def accepts(self, fact: Fact) -> bool:
        """Whether a request changes anything."""
        if self.finished:
            return False
        if isinstance(fact, StopRequested):
            return not self.halted or (fact.kill and not self.killing and bool(self.flights))
        if isinstance(fact, PauseRequested):
            return not self.halted and not self.paused
        if isinstance(fact, Approved):
            return not self.halted and self.checks.by_hand and self.checks.stage == fact.stage
        return isinstance(fact, ResumeRequested) and bool(self.paused)

    def has_taken(self, request: Fact) -> bool:
        """Whether the batch already is as a request wants it."""
        if isinstance(request, StopRequested):
            return self.halted == "stop" and (self.killing or not request.kill)
        if isinstance(request, Approved):
            return self.checks.passed is not None and self.checks.passed >= request.stage
        return isinstance(request, PauseRequested) == bool(self.paused) and not self.halted

    def is_publishing(self) -> bool:
        """Whether a publish is under way: minions may be sent to although the batch is paused or halted."""
        return self.inflight.publishing is not None

    def survivors(self) -> list[str]:
        """The minions that still run the job although it was killed as often as it may be."""
        return self.inflight.survivors()

    # -- the machine --------------------------------------------------------------------------------------------------

    def step(self, fact: Fact, now: float) -> list[Effect]:
        """Take a fact that has become known at ``now``, and return what is to be done, in this order."""
        effects = _HANDLERS[type(fact)](self, fact, now) + self._advance(now)
        self.stepped_at = now
        return effects

    def _advance(self, now: float) -> list[Effect]:
        """Do what the state calls for, whatever fact led to it."""
        self.pace.warm(now)
        if self.finished or self.started is None:
            return []
        if self._is_over():
            return self._finish(now)
        if self.halted or self.paused:
            self.pace.publish_at = None
            return []
        effects = self._heed_windows(now)
        if self._has_more() and not self.schedule.may_send(now):
            self.pace.publish_at = None
            return effects
        effects += self._ping(now)
        return effects if self.presence.gathering else effects + self._publish(now)

    def _has_more(self) -> bool:
        """Whether there are minions to publish to, as far as is known."""
        return bool(self.waiting or self.presence.unseen)

    def _heed_windows(self, now: float) -> list[Effect]:
        """Ask when the batch may send, where that has to be asked, and announce when it begins to wait and ends to."""
        schedule = self.schedule
        if not self._has_more() or not schedule.bounded:
            return []
        may_send = schedule.may_send(now)
        effects: list[Effect] = [FindOpening()] if schedule.must_ask(now) else []
        if may_send and schedule.told:
            schedule.told = False
            effects.append(Announce("resumed", {"reason": "its window is open"}))
        elif not may_send and not schedule.asking and not schedule.told:
            schedule.told = True
            effects.append(Announce("paused", {"reason": schedule.reason(), "opens_at": schedule.opens}))
        return effects

    def _opening_found(self, fact: OpeningFound, now: float) -> list[Effect]:
        self.schedule.found(fact.opens, fact.closes, fact.trouble, now)
        return []

    def _is_over(self) -> bool:
        busy = self.flights or self.is_publishing() or self.to_queue
        return not busy and (bool(self.halted) or not self._has_more())

    def _finish(self, now: float) -> list[Effect]:
        self.finished = now
        self.checks.end()
        self.paused = self.pace.publish_at = None
        return [Close()] if self.halted else [Announce("complete"), Close()]

    def _waits_for_cooling(self) -> bool:
        return bool(self.pace.cooling and self.waiting and not self.halted and not self.paused)

    # Who is there.

    def _ping(self, now: float) -> list[Effect]:
        if now < self.pace.not_before or not self.presence.may_ping(now):
            return []
        return [Gather(self.presence.ping())]

    def _ping_due(self) -> float | None:
        due = self.presence.next_due()
        if due is None or self.halted or self.paused:
            return None
        shut = self.schedule.bounded and not self.schedule.open
        return None if shut else max(due, self.pace.not_before)

    def _seen(self, fact: Seen, _now: float) -> list[Effect]:
        self.waiting.put_last(self.presence.seen(fact.minions))
        return []

    def _gathered(self, fact: Gathered, now: float) -> list[Effect]:
        first, self.pace.failures = self.presence.gathering, 0
        self._seen(Seen(fact.answered), now)
        absent = self.presence.ping_over(now)
        if first:
            self._order_pending()
        if self.spec.presence == "none":
            self.waiting.put_last(absent)
            return []
        return self._leave_out(absent, now)

    def _ping_failed(self, fact: PingFailed, now: float) -> list[Effect]:
        self.presence.pinging = False
        return self._failed_again(fact.reason, now)

    def _leave_out(self, minions: list[str], now: float) -> list[Effect]:
        """Minions are not there: ``offline`` says what becomes of them. None of it is against the budget."""
        outcome = Outcome.FAILED if self.spec.offline == "fail" else Outcome.OFFLINE
        for minion in minions:
            self._settle(minion, outcome, now, None, counts=False)
        if self.spec.offline != "queue":
            return []
        certain = tuple(minion for minion in minions if minion not in self.spec.unsure)
        if len(certain) < len(minions):
            self.queue_refused = "whether the target matches them is not known"
        self.to_queue.update(dict.fromkeys(certain))
        return [Queue(certain)] if certain else []

    def _order_pending(self) -> None:
        """Send in the order of the target, whoever answered first."""
        present = [minion for minion in self.spec.minions if minion in self.waiting]
        self.waiting = Pending(present, self.membership, self.pace.group)

    def _await_signs(self) -> None:
        """Send to no pending minion before it has shown a sign of life."""
        self.presence.doubt(self.waiting)
        self.waiting = Pending((), self.membership, self.pace.group)

    def _queued(self, fact: Queued, _now: float) -> list[Effect]:
        for minion in fact.minions:
            self.to_queue.pop(minion, None)
        return []

    def _queue_refused(self, fact: QueueRefused, now: float) -> list[Effect]:
        """What nobody will deliver has failed; that the minions were away is no failure of theirs, nor of the job."""
        self.queue_refused = fact.reason
        for minion in fact.minions:
            self.to_queue.pop(minion, None)
            if minion in self.outcomes and self.outcomes[minion][0] is Outcome.OFFLINE:
                self._settle(minion, Outcome.FAILED, now, None, counts=False)
        return []

    # Sending: freed slots are gathered for a while, so that many returns lead to one publish.

    def _publish(self, now: float) -> list[Effect]:
        if self.is_publishing():
            self.pace.publish_at = None
            return []
        effects = self._next_stages(now)
        if self.halted:
            return effects + self._advance(now)
        capacity = self.pace.capacity(len(self.inflight), self.waiting.available)
        if not capacity:
            self.pace.publish_at = None
            return effects
        gathers = capacity < self.waiting.available and capacity != self.pace.quota
        window = self.publish_window.left(now, len(self.inflight), gathers) if self.pace.publishes else 0.0
        if self.pace.must_wait(now, window):
            return effects
        minions = self.waiting.take(capacity)
        self.tried.difference_update(minions)
        self.inflight.send(minions, now)
        self.pace.sends(len(minions))
        self.publish_window.begin_anew()
        self.last_progress = now
        return [*effects, Publish(minions)]

    def _next_stages(self, now: float) -> list[Effect]:
        """Go on to the next wave or group once all of this one have ended, a group within its budget, and it is checked."""
        while self.waiting and self.pace.stage_is_over(len(self.inflight), self.waiting.available):
            if not self.waiting.available:
                if self._group_awaits_signs():
                    return []
                reason = self.record.overdrawn(over=self.pace.group)
                if reason:
                    return self._halt(reason)
            if self.checks.must_begin(self.pace.stage):
                return self._check(now)
            if not self.checks.may_go_on(self.pace.stage):
                return []
            self.pace.next_stage(self.waiting.available)
            self.waiting.open_to(self.pace.group)
            self.checks.next_stage(now)
        return []

    def _group_awaits_signs(self) -> bool:
        """Whether minions of this group, or of an earlier one, are still waited for."""
        return any(self.membership.of(minion) <= self.pace.group for minion in self.presence.unseen)

    # Checks between stages.

    def _check(self, now: float) -> list[Effect]:
        """Find out whether the batch may go on."""
        stage = self.pace.stage
        self.checks.begin(stage, now)
        details = {**self.spec.check, "stage": stage}
        if self.checks.by_hand:
            return [Announce("check", details)]
        done = [
            minion
            for minion, (outcome, since, _) in self.outcomes.items()
            if outcome is Outcome.COMPLETED and since >= self.checks.began
        ]
        return [Announce("check", details), Check(stage, tuple(sorted(done)))]

    def _checked(self, fact: Checked, _now: float) -> list[Effect]:
        if self.halted or self.checks.by_hand or self.checks.stage != fact.stage:
            return []
        if fact.passed:
            self.checks.pass_()
            return [Announce("checked", {**self.spec.check, "stage": fact.stage})]
        return self._halt(f"check {self.spec.check['fun']}: {fact.reason}")

    def _approved(self, fact: Approved, _now: float) -> list[Effect]:
        if not self.accepts(fact):
            return []
        self.checks.pass_()
        return [Announce("checked", {**self.spec.check, "stage": fact.stage, "user": fact.user})]

    def _put_back(self, minions: list[str]) -> None:
        """Make minions pending again, before all others."""
        for minion in minions:
            self.inflight.remove(minion)
        self.waiting.put_first(minions)
        self.tried.update(minions)
        self.pace.takes_back(len(minions))

    def _published(self, fact: Published, now: float) -> list[Effect]:
        missed = set(fact.missed)
        self.pace.failures = 0
        effects: list[Effect] = []
        for minion in self.inflight.end_publish():
            if minion in missed:
                effects += self._leave_out([minion], now)
            else:
                self.inflight.sent(minion, now)
        return effects + self._kill_what_was_late()

    def _publish_failed(self, fact: PublishFailed, now: float) -> list[Effect]:
        if not self.is_publishing():
            self.presence.pinging = False  # a journal of the first release tells so of a ping
        sending = self.inflight.end_publish()
        effects: list[Effect] = []
        if fact.certain:
            self._put_back(sending)
        else:
            for minion in sending:
                self.flights[minion].unknown = True
            effects += self._look_for(sending)
        return effects + self._failed_again(fact.reason, now) + self._kill_what_was_late()

    def _failed_again(self, reason: str, now: float) -> list[Effect]:
        """A publish or ping has failed: wait longer each time, and for somebody in the end."""
        if self.pace.publish_failed(now):
            return []
        return self._pause(f"{self.pace.failures} publishes failed in a row, the last one: {reason}")

    # Returns and acknowledgements.

    def _returned(self, fact: Returned, now: float) -> list[Effect]:
        if not self.wants_return(fact.minion):
            return []
        self._has_received_it(fact.minion)
        self._settle(fact.minion, self._outcome_of(fact), now, fact.retcode)
        return self._check_budget()

    def _has_received_it(self, minion: str) -> bool:
        """A minion that is pending again has received the job all the same; tells whether it was."""
        if minion not in self.tried:
            return False
        self.tried.discard(minion)
        self.waiting.drop(minion)
        self.presence.unseen.pop(minion, None)
        self.pace.sends_elsewhere()
        return True

    def _outcome_of(self, fact: Returned) -> Outcome:
        if not fact.retcode:
            return Outcome.COMPLETED
        flight = self.flights.get(fact.minion)
        # A job that is told to terminate may still return: that it failed is our doing.
        timed_out = flight.expired if flight else self.record.timed_out(fact.minion)
        return Outcome.TIMED_OUT if timed_out else Outcome.FAILED

    def _acknowledged(self, fact: Acknowledged, now: float) -> list[Effect]:
        minion = fact.minion
        if self.finished:
            return []
        if self.record.is_guess(minion) and not self.record.timed_out(minion):
            self.record.reopen(minion)
            self.inflight.revive(minion, now)
        elif self._has_received_it(minion):
            self.inflight.revive(minion, now)
        if minion in self.inflight and not self.inflight.is_in(minion, Phase.KILLING):
            self.inflight.seen_running(minion, now, begins=True)
        return self._kill_what_was_late()

    def _started(self, fact: Started, now: float) -> list[Effect]:
        self.inflight.forget(fact.minion)
        return self._seen(Seen((fact.minion,)), now)

    def _events_lost(self, _fact: Fact, _now: float) -> list[Effect]:
        self.inflight.doubt_silence()
        return []

    def _settle(self, minion: str, outcome: Outcome, now: float, retcode: int | None, counts: bool = True) -> None:
        flight = self.flights.get(minion)
        if flight is not None and self.inflight.remove(minion):
            self.pace.cool(now)
            self.pace.publish_at = None  # it depends on which slots are free
            self.publish_window.freed(now)
            if retcode is not None:
                self.publish_window.ran(now - flight.began)
        self.record.settle(minion, outcome, now, retcode, counts)
        self.last_progress = now

    def _check_budget(self) -> list[Effect]:
        if self.halted or self.finished:
            return []
        reason = self.record.overdrawn()
        return self._halt(reason) if reason else []

    # Overdue minions.

    def _ticked(self, _fact: Fact, now: float) -> list[Effect]:
        if self.started is None:
            self.started = now
            return [Announce("new")]
        again, last = self.inflight.overdue(now)
        late = None if self.halted else self.checks.timed_out(now)
        effects = self._halt(late) if late else []
        return effects + self._look_for(again) + self._look_for(last, last=True)

    def _look_for(self, minions: Iterable[str], last: bool = False) -> list[Effect]:
        chosen = self.inflight.look_for(minions, last)
        return [LookUp(chosen)] if chosen else []

    def _looked_up(self, fact: LookedUp, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for minion, retcode in fact.found:
            effects += self._returned(Returned(minion, retcode), now)
        to_ask, to_give_up = self.inflight.not_found(fact.asked)
        for minion in to_give_up:
            effects += self._give_up(minion, now)
        if to_ask:
            effects.append(Probe(to_ask))
        return effects + self._check_budget()

    def _probed(self, fact: Probed, now: float) -> list[Effect]:
        to_kill, to_terminate = [], []
        for minion in self.inflight.of(fact.running, Phase.PROBING):
            self.inflight.seen_running(minion, now)
            too_long, kills = self.inflight.has_run_too_long(minion, now), self.flights[minion].kills
            if too_long and not kills and not self.killing:
                to_terminate.append(minion)
            elif (too_long or self.killing) and kills < self.spec.kill_attempts:
                to_kill.append(minion)
        self.inflight.idle(fact.idle, now)
        final = self.inflight.silent(fact.silent, now)
        self.inflight.unasked(fact.unasked, now)
        return self._look_for(final, last=True) + self._terminate(to_terminate) + self._kill(to_kill)

    def _give_up(self, minion: str, now: float) -> list[Effect]:
        """No return anywhere: say what became of the minion."""
        flight = self.flights[minion]
        if self._never_got_it(minion, flight):
            self.resent[minion] = self.resent.get(minion, 0) + 1
            self._put_back([minion])
            return []
        if flight.kills and flight.idle:
            self._settle(minion, Outcome.TIMED_OUT if flight.expired else Outcome.KILLED, now, None)
        elif flight.seen or (minion not in self.spec.unsure and (flight.idle or self.presence.was_there(minion))):
            self._settle(minion, Outcome.LOST, now, None)
        else:
            return self._leave_out([minion], now)
        return self._check_budget()

    def _never_got_it(self, minion: str, flight: Flight) -> bool:
        """
        Tell whether a minion that does not run the job, and has not returned it, is to get it once more.

        Either its publish had no outcome; or it would have said that it began, and we would have heard that. In both cases
        the minion itself refuses a job that it has received all the same.
        """
        if flight.seen or flight.kills or flight.idle < IDLE_ANSWERS:
            return False
        if flight.unknown:
            return True
        if minion in self.spec.unsure:
            return False  # the target may not match it
        return self.spec.acks and not flight.deaf and self.resent.get(minion, 0) < self.spec.probe_attempts

    # Requests.

    def _stop(self, fact: StopRequested, now: float) -> list[Effect]:
        if not self.accepts(fact):
            return []
        effects: list[Effect] = []
        self.last_progress = now
        self.stopped_by = fact.user
        if not self.halted:
            effects += self._halt("stop")
        if fact.kill:
            self.killing = True
            busy = (Phase.SENDING, Phase.KILLING)  # those are killed once that is over
            effects += self._kill(minion for minion, flight in self.flights.items() if flight.phase not in busy)
        return effects

    def _halt(self, reason: str) -> list[Effect]:
        self.halted = reason
        self.checks.end()
        self.paused = self.pace.publish_at = None
        return [Announce("halted")]

    def _kill_what_was_late(self) -> list[Effect]:
        """Kill the job on minions to which it was still being published when the kill was asked for."""
        if not self.killing:
            return []
        late = (minion for minion, flight in self.flights.items() if not flight.kills)
        return self._kill([minion for minion in late if not self.inflight.is_in(minion, Phase.SENDING)])

    def _kill(self, minions: Iterable[str]) -> list[Effect]:
        chosen = self.inflight.kill(minions)
        return [Kill(chosen)] if chosen else []

    def _terminate(self, minions: Iterable[str]) -> list[Effect]:
        """Minions have run the job for too long: terminate it, before it is killed."""
        chosen = self.inflight.kill(minions, expired=True)
        return [Kill(chosen, gently=True)] if chosen else []

    def _kill_sent(self, fact: KillSent, now: float) -> list[Effect]:
        # A journal of the first release does not say whom the kill was for: it was for all.
        self.inflight.kill_sent(fact.minions or list(self.flights), fact.gently, now)
        return []

    def _pause_requested(self, fact: PauseRequested, _now: float) -> list[Effect]:
        return self._pause(f"paused by {fact.user}" if fact.user else "paused") if self.accepts(fact) else []

    def _pause(self, reason: str) -> list[Effect]:
        if self.halted:
            return []
        self.paused, self.pace.publish_at = reason, None
        return [Announce("paused", {"reason": reason})]

    def _resume(self, fact: ResumeRequested, now: float) -> list[Effect]:
        if not self.accepts(fact):
            return []
        self.paused = None
        self.pace.begin_anew(now)
        return [Announce("resumed", {"user": fact.user})]

    # The start of an engine, and the end.

    def _recover(self, fact: Recovered, now: float) -> list[Effect]:
        """Nothing that was under way has an outcome, and the clock may be another one."""
        if self.closed or self.started is None:
            return []
        if self.finished:
            return [Announce("halted" if self.halted else "complete"), Close()]
        young = fact.settled_at > now
        self.pace.recover(now)
        self.publish_window.begin_anew()
        self.schedule.recover()
        self._recover_presence(fact.settled_at, now)
        if self.policy != POLICY:
            self._doubt_everything(now)
        effects: list[Effect] = [Announce("halted")] if self.halted else []
        if self.to_queue:
            effects.append(Queue(tuple(self.to_queue)))
        if self.checks.under_way:
            effects += self._check(now)
        to_look_for, last = self.inflight.recover(now, self.stepped_at - DOUBTFUL if young else None)
        return effects + [LookUp(minions) for minions in (to_look_for, last) if minions]

    def _recover_presence(self, settled_at: float, now: float) -> None:
        self.presence.recover(now)
        if self.presence.gathering and self.waiting:
            self.presence.gathering = False
            self._order_pending()
        if settled_at > now:
            self.presence.settled_at = settled_at
            self._await_signs()

    def _doubt_everything(self, now: float) -> None:
        """The facts so far were folded by another policy: whoever has not ended may have been sent to."""
        doubtful = self.pending()
        self.waiting = Pending((), self.membership, self.pace.group)
        self.presence.unseen.clear()
        self.tried.difference_update(doubtful)
        self.pace.sends_elsewhere(len(doubtful))
        self.inflight.send((*(self.inflight.publishing or ()), *doubtful), now)
        self.policy = POLICY

    def _close(self, _fact: Fact, _now: float) -> list[Effect]:
        self.closed = True
        return []


_HANDLERS: dict[type, Callable[[Any, Any, float], list[Effect]]] = {
    Seen: Batch._seen,
    Gathered: Batch._gathered,
    PingFailed: Batch._ping_failed,
    Returned: Batch._returned,
    Acknowledged: Batch._acknowledged,
    Started: Batch._started,
    EventsLost: Batch._events_lost,
    Published: Batch._published,
    PublishFailed: Batch._publish_failed,
    LookedUp: Batch._looked_up,
    Probed: Batch._probed,
    KillSent: Batch._kill_sent,
    Queued: Batch._queued,
    QueueRefused: Batch._queue_refused,
    OpeningFound: Batch._opening_found,
    Checked: Batch._checked,
    Approved: Batch._approved,
    StopRequested: Batch._stop,
    PauseRequested: Batch._pause_requested,
    ResumeRequested: Batch._resume,
    Recovered: Batch._recover,
    Tick: Batch._ticked,
    Closed: Batch._close,
}
