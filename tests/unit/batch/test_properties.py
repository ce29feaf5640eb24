"""What holds for a batch whatever happens: hypothesis makes it happen."""

from __future__ import annotations

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
    st.builds(facts.KillSent, groups, st.booleans()),
    groups.map(facts.Queued),
    st.builds(facts.Signalled, groups, st.booleans()),
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
        "failures_allowed": st.sampled_from([None, 0.0, 1.0]),
        "publish_window": st.sampled_from([0.0, 0.5]),
        "publish_retries": st.sampled_from([0, 2]),
        "probe_attempts": st.integers(1, 2),
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
