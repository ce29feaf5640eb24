"""A batch goes group by group: one must end within the budget before the next begins."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.pending import Pending
from saltext.jobs.core.batch.plan import Membership
from saltext.jobs.core.batch.summary import counts, minions, summary
from tests.unit.batch.bench import Bench, kinds, published

TWO = (("eu", 3), ("us", 3))


def test_a_group_must_end_before_the_next_begins():
    bench = Bench("abcdef", "2", groups=TWO)
    assert published(bench.effects) == ["ab"]
    bench.sent()
    assert published(bench.returns("a")) == ["c"]
    bench.sent()
    assert not published(bench.returns("b")), "c is of this group and still runs, d is of the next"
    assert published(bench.returns("c")) == ["de"]
    bench.sent()
    assert published(bench.returns("d")) == ["f"]
    bench.sent()
    assert kinds(bench.returns("e", "f")) == ["complete", "Close"]


def test_each_group_goes_through_the_whole_ramp():
    bench = Bench("abcdef", "1,100%", groups=TWO)
    sent = published(bench.effects)
    for minion in "abcdef":
        bench.sent()
        sent += published(bench.returns(minion))
    assert sent == ["a", "bc", "d", "ef"]


def test_a_group_smaller_than_a_wave_ends_with_it():
    bench = Bench("abcd", "2,100%", groups=(("x", 1), ("y", 3)))
    sent = published(bench.effects)
    for minion in "abcd":
        bench.sent()
        sent += published(bench.returns(minion))
    assert sent == ["a", "bc", "d"]


def test_batch_wait_of_a_group_passes_before_the_next_begins():
    bench = Bench("ab", "1", groups=(("x", 1), ("y", 1)), batch_wait=30.0)
    bench.sent()
    assert not published(bench.returns("a"))
    assert not published(bench.wait(29))
    assert published(bench.wait(2)) == ["b"]


def test_a_minion_put_back_is_sent_to_before_the_next_group_begins():
    bench = Bench("ab", "1", groups=(("x", 1), ("y", 1)))
    bench.tell(facts.PublishFailed("no", certain=True))
    assert published(bench.wait(1)) == ["a"]
    bench.sent()
    assert published(bench.returns("a")) == ["b"]


def test_a_group_without_a_present_minion_is_passed_over():
    bench = Bench("abcd", "2", groups=(("x", 1), ("y", 2), ("z", 1)), presence="ping")
    assert published(bench.present(("a", "d"))) == ["a"]
    bench.sent()
    assert published(bench.returns("a")) == ["d"]


# -- the budget of a group ---------------------------------------------------------------------------------------------


def test_more_failures_than_a_group_may_have_stop_the_batch_at_once():
    bench = Bench("abcdef", "1", groups=TWO, group_failures_allowed=(1.0, 1.0))
    bench.sent()
    bench.returns("a", retcode=1)
    bench.sent()
    assert kinds(bench.returns("b", retcode=1)) == ["halted", "Close"]
    assert bench.batch.halted == "max_failures in group eu"


def test_failures_of_one_group_do_not_count_in_another():
    bench = Bench("abcdef", "3", groups=TWO, group_failures_allowed=(1.0, 1.0))
    bench.sent()
    bench.returns("a", retcode=1)
    assert published(bench.returns("b", "c")) == ["def"]
    bench.sent()
    bench.returns("d", retcode=1)
    assert kinds(bench.returns("e", "f")) == ["complete", "Close"]


def test_a_plain_count_of_failures_is_for_all_groups_together():
    bench = Bench("abcdef", "3", groups=TWO, failures_allowed=1.0)
    bench.sent()
    bench.returns("a", retcode=1)
    bench.returns("b", "c")
    bench.sent()
    assert "halted" in kinds(bench.returns("d", retcode=1))


def test_a_group_that_has_ended_is_judged_however_few_have_run():
    for budget in ({"failures_allowed": 0.0}, {"group_failures_allowed": (0.0, 0.0)}):
        bench = Bench("abcdef", "3", groups=TWO, min_executed=100, **budget)
        bench.sent()
        assert not kinds(bench.returns("a", retcode=1))
        assert kinds(bench.returns("b", "c")) == ["halted", "Close"]
        assert bench.batch.state == "halted"
        assert bench.batch.pending() == ["d", "e", "f"]


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_the_summary_has_the_group_and_the_stage_within_it():
    bench = Bench("abcdef", "1,100%", groups=TWO, by="grains:region")
    bench.sent()
    bench.returns("a")
    shown = summary(bench.batch, bench.now)
    assert (shown["group"], shown["group_number"], shown["groups"]) == ("eu", 1, 2)
    assert (shown["stage"], shown["stages"], shown["by"]) == (2, 2, "grains:region")
    bench.sent()
    bench.returns("b", "c")
    assert counts(bench.batch)["group"] == "us"
    assert minions(bench.batch)["a"]["group"] == "eu"


def test_a_batch_without_groups_shows_none():
    bench = Bench("ab", "1")
    assert "group" not in counts(bench.batch)
    assert "group" not in minions(bench.batch)["a"]
    assert "by" not in summary(bench.batch, bench.now)


# -- the order, whatever happens ---------------------------------------------------------------------------------------

places = st.lists(st.integers(0, 3), min_size=1, max_size=12).map(sorted)
moves = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 5)),
        st.tuples(st.just("drop"), st.integers(0, 11)),
        st.tuples(st.just("put"), st.integers(0, 11)),
        st.tuples(st.just("open"), st.integers(1, 2)),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(places, moves)
def test_no_minion_is_taken_before_the_turn_of_its_group_and_the_number_available_is_always_known(places, moves):
    ids = [f"m{number}" for number in range(len(places))]
    membership = Membership(ids, [places.count(place) for place in range(4)])
    pending, there, turn = Pending(ids, membership), set(ids), 0
    for move, value in moves:
        one = ids[value % len(ids)]
        if move == "take":
            taken = pending.take(value)
            assert all(membership.of(minion) <= turn for minion in taken)
            assert len(taken) == min(value, sum(membership.of(minion) <= turn for minion in there))
            assert [membership.of(minion) for minion in taken] == sorted(membership.of(minion) for minion in taken)
            there -= set(taken)
        elif move == "drop":
            pending.drop(one)
            there.discard(one)
        elif move == "put" and one not in there:
            pending.put_first([one])
            there.add(one)
        elif move == "open" and turn < 3:
            turn = min(3, turn + value)
            pending.open_to(turn)
        assert set(pending) == there
        assert len(list(pending)) == len(pending) == len(there)
        assert pending.available == sum(membership.of(minion) <= turn for minion in there)
        assert [membership.of(minion) for minion in pending] == sorted(membership.of(minion) for minion in pending)
