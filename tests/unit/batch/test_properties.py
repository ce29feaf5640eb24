"""What holds for a batch whatever happens: hypothesis makes it happen."""

from __future__ import annotations

import collections

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from tests.unit.batch.bench import BEGIN, Bench

MINIONS = "abcdefg"
COMMON = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

names = st.sampled_from(MINIONS)
groups = st.lists(names, unique=True, max_size=4).map(tuple)
any_fact = st.one_of(
    groups.map(facts.Pinged),
    st.builds(facts.Returned, names, st.integers(0, 2)),
    names.map(facts.Acknowledged),
    groups.map(facts.Published),
    st.builds(facts.PublishFailed, st.just("no"), st.booleans()),
    st.builds(facts.LookedUp, groups, st.lists(st.tuples(names, st.integers(0, 1)), max_size=3).map(tuple)),
    st.builds(facts.Probed, groups, groups, groups, groups),
    groups.map(facts.NeverBegun),
    st.just(facts.KillSent()),
    st.builds(facts.KillSent, groups, st.booleans()),
    groups.map(facts.Queued),
    st.builds(facts.StopRequested, st.booleans()),
    st.just(facts.PauseRequested()),
    st.just(facts.ResumeRequested()),
    st.just(facts.Recovered()),
    st.just(facts.Recovered(shared=True)),
    st.builds(facts.Allotted, st.integers(0, 3), st.sampled_from([None, 0, 3])),
    st.builds(
        facts.OpeningFound, st.sampled_from([None, 0.0, BEGIN + 20]), st.sampled_from([None, BEGIN + 60, BEGIN + 1e6])
    ),
    st.just(facts.Tick()),
)
any_options = st.fixed_dictionaries(
    {
        "batch": st.sampled_from(["1", "3", "1,2,3", "50%", "10"]),
        "presence": st.sampled_from(["none", "ping"]),
        "offline": st.sampled_from(["skip", "fail", "queue"]),
        "batch_wait": st.sampled_from([0.0, 4.0]),
        "failhard": st.booleans(),
        "failures_allowed": st.sampled_from([None, 1.0]),
        "publish_window": st.sampled_from([0.0, 0.5]),
        "publish_retries": st.sampled_from([0, 2]),
        "probe_attempts": st.integers(1, 2),
        "kill_attempts": st.integers(1, 2),
        "max_runtime": st.sampled_from([None, 3.0, 100.0]),
        "window": st.sampled_from(["", "", "02:00-05:00"]),
        "groups": st.sampled_from([(), (("x", 2), ("y", 4), ("z", 1)), (("x", 6), ("y", 1))]),
    }
)
any_history = st.lists(st.tuples(any_fact, st.sampled_from([0.0, 0.3, 5.0, 70.0])), max_size=40)


@COMMON
@given(any_options, any_history)
def test_every_minion_is_in_exactly_one_place(options, history):
    bench = Bench(MINIONS, **options)
    for fact, pause in history:
        bench.wait(pause)
        bench.tell(fact)
        batch = bench.batch
        places = [*batch.pending(), *batch.flights, *batch.outcomes]
        assert sorted(places) == sorted(MINIONS)
        assert sum(batch.counts.values()) == len(batch.outcomes)
        assert all(count >= 0 for count in batch.counts.values())


@COMMON
@given(any_options, any_history)
def test_the_fold_of_the_journal_equals_the_live_state(options, history):
    bench = Bench(MINIONS, **options)
    for fact, pause in history:
        bench.wait(pause)
        bench.tell(fact)
    assert bench.replayed().snapshot() == bench.batch.snapshot()
    assert Batch.restore(bench.batch.snapshot()).snapshot() == bench.batch.snapshot()
    assert Batch.restore(bench.batch.snapshot()).next_due == bench.batch.next_due


@COMMON
@given(any_options, any_history)
def test_a_batch_that_shares_sends_only_to_as_many_minions_as_it_was_just_allotted(options, history):
    bench = Bench(MINIONS, **options)
    bench.tell(facts.Recovered(shared=True))
    for fact, pause in history:
        for effect in bench.wait(pause):
            assert not isinstance(effect, facts.Publish) or not bench.batch.room.shared
        for effect in bench.tell(fact):
            if isinstance(effect, facts.Publish) and bench.batch.room.shared:
                assert isinstance(fact, facts.Allotted)
                assert len(effect.minions) <= fact.count


@COMMON
@given(any_options, any_history)
def test_a_publish_never_exceeds_the_free_slots(options, history):
    bench = Bench(MINIONS, **options)
    for fact, pause in history:
        bench.now += pause
        flying, cooling = len(bench.batch.flights), len(bench.batch.pace.cooling)
        for effect in bench.tell(fact):
            if isinstance(effect, facts.Publish):
                assert len(bench.batch.flights) <= bench.batch.pace.size
                assert not bench.batch.halted
                assert not bench.batch.paused
        # What is in flight beyond the limit was given up and has come back: it was not published to.
        assert len(bench.batch.flights) <= max(bench.batch.pace.size, flying + 1), (flying, cooling)


@COMMON
@given(any_options, any_history)
def test_a_tick_that_is_due_leaves_nothing_due_at_the_same_moment(options, history):
    bench = Bench(MINIONS, **options)
    for fact, pause in history:
        bench.now += pause
        bench.tell(fact)
        for _ in range(20):
            due = bench.batch.next_due
            if due is None or due > bench.now:
                break
            bench.tell(facts.Tick())
        else:
            raise AssertionError("the machine asks for ticks without end")


class World:
    """
    Minions that behave, and a master and an engine that do not: publishes get lost, events get lost, engines crash.

    Minions tell the truth, so what is checked here is what really ran.
    """

    def __init__(self, draw, **options):
        self.draw = draw
        self.bench = Bench(MINIONS, timeout=20.0, gather_job_timeout=5.0, **options)
        self.running: dict[str, float] = {}  # until when
        self.returned: dict[str, int] = {}  # what the job cache holds
        self.received: collections.Counter[str] = collections.Counter()
        self.most = 0
        self.asked_since: set[str] = set(MINIONS)
        self.trouble = draw(st.integers(0, 12))  # how often something may go wrong yet
        self.todo = [effect for effect in self.bench.effects if not isinstance(effect, facts.Announce)]

    def tell(self, fact):
        self.todo += [effect for effect in self.bench.tell(fact) if not isinstance(effect, facts.Announce)]

    def goes_wrong(self) -> bool:
        if self.trouble and self.draw(st.booleans()):
            self.trouble -= 1
            return True
        return False

    def run(self):
        for _ in range(600):
            if self.bench.batch.closed:
                return
            if self.todo:
                self.perform(self.todo.pop(0))
            else:
                self.pass_time()
        raise AssertionError(f"the batch is stuck: {self.bench.batch.snapshot()}")

    def perform(self, effect):
        if self.goes_wrong():  # a crash: what was under way has no outcome
            self.todo.clear()
            if isinstance(effect, facts.Publish) and self.draw(st.booleans()):
                self.deliver(effect)
            self.tell(facts.Recovered())
        elif isinstance(effect, facts.Publish):
            self.publish(effect)
        elif isinstance(effect, facts.LookUp):
            found = tuple((minion, self.returned[minion]) for minion in effect.minions if minion in self.returned)
            self.tell(facts.LookedUp(effect.minions, found))
        elif isinstance(effect, facts.Probe):
            self.asked_since.update(effect.minions)
            running = tuple(minion for minion in effect.minions if minion in self.running)
            idle = tuple(minion for minion in effect.minions if minion not in self.running)
            self.tell(facts.Probed(running, idle))
        elif isinstance(effect, facts.AskRecords):
            silent = effect.minions if self.goes_wrong() else ()
            self.tell(facts.Recorded(() if silent else effect.minions, silent))
        elif isinstance(effect, facts.Kill):
            for minion in effect.minions:
                if self.draw(st.booleans()):
                    self.running.pop(minion, None)
            self.tell(facts.KillSent())
        elif isinstance(effect, facts.Close):
            self.tell(facts.Closed())

    def publish(self, effect):
        outcome = self.draw(st.sampled_from(["refused", "lost", "unanswered"])) if self.goes_wrong() else "ok"
        if outcome in ("ok", "unanswered"):
            self.deliver(effect)
        if outcome == "ok":
            self.tell(facts.Published())
        else:
            self.tell(facts.PublishFailed(outcome, certain=outcome == "refused"))

    def deliver(self, effect):
        for minion in effect.minions:
            assert minion in self.asked_since, f"{minion} was sent to twice without a question between"
            self.asked_since.discard(minion)
            self.received[minion] += 1
            self.running[minion] = self.bench.now + self.draw(st.sampled_from([0.0, 1.0, 30.0, 200.0]))
        self.most = max(self.most, len(self.running))

    def pass_time(self):
        ends = [*self.running.values(), self.bench.batch.next_due]
        self.bench.now = max(self.bench.now, min(end for end in ends if end is not None))
        for minion in [minion for minion, until in self.running.items() if until <= self.bench.now]:
            del self.running[minion]
            self.returned[minion] = self.draw(st.integers(0, 1))
            if not self.goes_wrong():  # else its event is never seen
                self.tell(facts.Returned(minion, self.returned[minion]))
        due = self.bench.batch.next_due
        if due is not None and due <= self.bench.now:
            self.tell(facts.Tick())


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data(), st.sampled_from(["1", "2", "1,2", "3"]), st.sampled_from([None, 60.0]))
def test_in_a_world_that_fails_the_limit_holds_and_no_minion_runs_twice(data, batch, stop_after):
    world = World(data.draw, batch=batch, publish_retries=100, failures_allowed=None)
    if stop_after is not None:
        world.bench.now += data.draw(st.sampled_from([0.0, 1.0, 25.0]))
        world.tell(facts.StopRequested(kill=data.draw(st.booleans())))
    world.run()
    assert world.most <= max(world.bench.spec.sizes)
    assert all(count == 1 for count in world.received.values())
    states = world.bench.states()
    for minion, retcode in world.returned.items():
        assert states[minion] == ("failed" if retcode else "completed"), minion
    if stop_after is None:
        assert set(states.values()) <= {"completed", "failed"}
