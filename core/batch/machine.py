"""
The batch state machine: facts in, effects out, time as an argument. All policy about batches is here and in its parts.

Pure: stdlib only, no clock, no I/O. It must never depend on anything but its state, the fact and the time that it is
given: the state is rebuilt after a crash by stepping through the same facts again.

A minion's way through a batch:

    pending -> in flight -> completed | failed | lost | offline | killed | timed_out
                  |  ^
                  v  '---- running: asked, and it does run the job
              overdue: looked for in the job cache, then asked (find_job); see Phase

Only a return, or evidence that the job is not running there, frees a slot. Silence is taken for absence only after
``probe_attempts`` questions. Who is still to be sent to is in ``pending.py``, how many at a time and when in ``pace.py``,
who is in flight in ``inflight.py``, and how each ended in ``outcomes.py``.
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
    Probe,
    Probed,
    Publish,
    Published,
    PublishFailed,
    Queue,
    Queued,
    Recovered,
    ResumeRequested,
    Returned,
    StopRequested,
    Tick,
)
from saltext.jobs.core.batch.flight import Flight, Outcome, Phase
from saltext.jobs.core.batch.inflight import InFlight
from saltext.jobs.core.batch.kept import Kept, kept, made
from saltext.jobs.core.batch.outcomes import GUESSED, Ended, Outcomes
from saltext.jobs.core.batch.pace import Pace
from saltext.jobs.core.batch.pending import Pending
from saltext.jobs.core.batch.plan import Membership
from saltext.jobs.core.batch.publish_window import PublishWindow
from saltext.jobs.core.batch.schedule import Schedule
from saltext.jobs.core.batch.spec import Spec


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
    publish_window: PublishWindow
    schedule: Schedule
    checks: Checks
    membership: Membership
    waiting: Pending = kept(Pending, list, Pending, name="pending")
    tried: set[str] = kept(set, sorted, set)  # minions pending again that may have received the job
    to_queue: dict[str, None] = kept(dict, list, dict.fromkeys)  # not handed over to the retry queue yet
    created: float = kept(float)
    started: float | None = kept(_nothing)  # when it was announced
    last_progress: float = kept(float)
    finished: float | None = kept(_nothing)
    closed: bool = kept(bool)
    halted: str | None = kept(_nothing)  # why nothing more is published
    paused: str | None = kept(_nothing)
    killing: bool = kept(bool)
    stopped_by: str = kept(str)
    gathering: bool = kept(bool)  # it is not known yet who is there
    pinging: bool = kept(bool)  # the presence ping is under way
    _parts: tuple[Kept, ...] = made(tuple)

    def __init__(self, spec: Spec, now: float) -> None:
        for field in dataclasses.fields(self):
            if field.default_factory is not dataclasses.MISSING:
                setattr(self, field.name, field.default_factory())
        self.spec, self.created, self.last_progress = spec, now, now
        self.membership = Membership(spec.minions, [count for _, count in spec.groups])
        self.inflight, self.record, self.pace = InFlight(spec), Outcomes(spec, self.membership), Pace(spec)
        self.publish_window, self.schedule, self.checks = PublishWindow(spec), Schedule(spec), Checks(spec)
        self._parts = (self.inflight, self.record, self.pace, self.publish_window, self.schedule, self.checks)
        self.pace.not_before = now
        self.gathering = spec.presence == "ping"
        self.waiting = Pending(spec.minions, self.membership)

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
        """Whether the job has succeeded on all its minions; None as long as that is open."""
        if not self.finished:
            return None
        wrong = (Outcome.FAILED, Outcome.LOST, Outcome.KILLED, Outcome.TIMED_OUT)
        return not self.halted and not any(self.counts[outcome] for outcome in wrong)

    @property
    def next_due(self) -> float | None:
        """When a Tick is next due, in Unix time; None as long as only a fact can change anything."""
        if self.started is None:
            return self.created
        cooling = self.pace.cooling[0] if self._waits_for_cooling() else None
        opening = self.schedule.next_due() if self._has_more() and not self.halted and not self.paused else None
        times = (self.pace.publish_at, cooling, self.inflight.next_due(), opening, self.checks.due)
        return min((time for time in times if time is not None), default=None)

    def pending(self) -> list[str]:
        """The minions that are still to be sent to, in order."""
        return list(self.waiting)

    def unsettled(self) -> list[str]:
        """The minions whose return would change something: those in flight, and those given up without one."""
        return [*self.flights, *(minion for minion, (outcome, *_) in self.outcomes.items() if outcome in GUESSED)]

    def wants_return(self, minion: str) -> bool:
        """Whether a return of ``minion`` changes anything."""
        return minion in self.inflight or minion in self.tried or self.record.is_guess(minion)

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
        effects = _HANDLERS[type(fact)](self, fact, now)
        return effects + self._advance(now)

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
        return effects + (self._ping(now) if self.gathering else self._publish(now))

    def _has_more(self) -> bool:
        """Whether there are minions to publish to, as far as is known."""
        return self.gathering or bool(self.waiting)

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
        busy = self.flights or self.is_publishing() or self.pinging or self.to_queue
        return not busy and (bool(self.halted) or (not self.gathering and not self.waiting))

    def _finish(self, now: float) -> list[Effect]:
        self.finished = now
        self.checks.end()
        self.paused = self.pace.publish_at = None
        return [Close()] if self.halted else [Announce("complete"), Close()]

    def _waits_for_cooling(self) -> bool:
        return bool(self.pace.cooling and self.waiting and not self.halted and not self.paused)

    # Who is there.

    def _ping(self, now: float) -> list[Effect]:
        if self.pinging or self.pace.must_wait(now, 0.0):
            return []
        self.pinging, self.pace.publish_at = True, None
        return [Gather()]

    def _gathered(self, fact: Gathered, now: float) -> list[Effect]:
        self.gathering = self.pinging = False
        self.pace.failures = 0
        if self.halted:
            return []
        there = set(fact.answered)
        absent = [minion for minion in self.waiting if minion not in there]
        outcome = Outcome.FAILED if self.spec.offline == "fail" else Outcome.OFFLINE
        for minion in absent:
            self.waiting.drop(minion)
            self._settle(minion, outcome, now, None, counts=False)
        return self._queue(absent)

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
                effects += self._give_up(minion, now)
            else:
                self.inflight.sent(minion, now)
        return effects + self._kill_what_was_late()

    def _publish_failed(self, fact: PublishFailed, now: float) -> list[Effect]:
        self.pinging = False
        may_try_again = self.pace.publish_failed(now)
        sending = self.inflight.end_publish()
        effects: list[Effect] = []
        if fact.certain:
            self._put_back(sending)
        else:
            for minion in sending:
                self.flights[minion].unknown = True
            effects += self._look_for(sending)
        if not may_try_again:
            effects += self._pause(f"{self.pace.failures} publishes failed in a row, the last one: {fact.reason}")
        return effects + self._kill_what_was_late()

    # Returns and acknowledgements.

    def _returned(self, fact: Returned, now: float) -> list[Effect]:
        if not self.wants_return(fact.minion):
            return []
        if fact.minion in self.tried:
            self.tried.discard(fact.minion)
            self.waiting.drop(fact.minion)
            self.pace.sends_elsewhere()
        self._settle(fact.minion, self._outcome_of(fact), now, fact.retcode)
        return self._check_budget()

    def _outcome_of(self, fact: Returned) -> Outcome:
        if not fact.retcode:
            return Outcome.COMPLETED
        flight = self.flights.get(fact.minion)
        # A job that is told to terminate may still return: that it failed is our doing.
        timed_out = flight.expired if flight else self.record.timed_out(fact.minion)
        return Outcome.TIMED_OUT if timed_out else Outcome.FAILED

    def _acknowledged(self, fact: Acknowledged, now: float) -> list[Effect]:
        minion = fact.minion
        if self.record.is_guess(minion) and not self.record.timed_out(minion) and not self.finished:
            self.record.reopen(minion)
            self.inflight.revive(minion, now)
        if minion in self.inflight and not self.inflight.is_in(minion, Phase.KILLING):
            self.inflight.seen_running(minion, now, begins=True)
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
        if not flight.idle:
            self._settle(minion, Outcome.OFFLINE, now, None)
            return [] if flight.seen else self._queue([minion])
        if flight.unknown and not flight.seen and not flight.kills:
            # Its publish had no outcome, it does not run the job and has not returned it: it never got it.
            self._put_back([minion])
            return []
        killed = Outcome.TIMED_OUT if flight.expired else Outcome.KILLED
        self._settle(minion, killed if flight.kills else Outcome.LOST, now, None)
        return []

    def _queue(self, minions: list[str]) -> list[Effect]:
        if self.spec.offline != "queue" or not minions:
            return []
        self.to_queue.update(dict.fromkeys(minions))
        return [Queue(tuple(minions))]

    def _queued(self, fact: Queued, _now: float) -> list[Effect]:
        for minion in fact.minions:
            self.to_queue.pop(minion, None)
        return []

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
        return self._kill([minion for minion, flight in self.flights.items() if not flight.kills])

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

    def _recover(self, _fact: Fact, now: float) -> list[Effect]:
        """The engine has started anew: nothing that was under way has an outcome, and the clock may have been set."""
        if self.closed or self.started is None:
            return []
        if self.finished:
            return [Announce("halted" if self.halted else "complete"), Close()]
        self.pinging = False
        self.pace.recover(now)
        self.publish_window.begin_anew()
        self.schedule.recover()
        effects: list[Effect] = [Announce("halted")] if self.halted else []
        if self.to_queue:
            effects.append(Queue(tuple(self.to_queue)))
        if self.checks.under_way:
            effects += self._check(now)
        to_look_for = self.inflight.recover()
        return [*effects, LookUp(to_look_for)] if to_look_for else effects

    def _close(self, _fact: Fact, _now: float) -> list[Effect]:
        self.closed = True
        return []


_HANDLERS: dict[type, Callable[[Any, Any, float], list[Effect]]] = {
    Gathered: Batch._gathered,
    Returned: Batch._returned,
    Acknowledged: Batch._acknowledged,
    Published: Batch._published,
    PublishFailed: Batch._publish_failed,
    LookedUp: Batch._looked_up,
    Probed: Batch._probed,
    KillSent: Batch._kill_sent,
    Queued: Batch._queued,
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
