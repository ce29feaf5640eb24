"""How room is divided among batches: never more than there is, all of it where a batch wants it, evenly."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from saltext.jobs.core.batch.sharing import Demand, share

counts = st.integers(0, 12)
any_demands = st.dictionaries(
    st.sampled_from("ABCDE"), st.builds(Demand, counts, counts, st.integers(0, 3)), max_size=5
)


@settings(deadline=None)
@given(st.integers(-3, 30), any_demands)
def test_no_batch_gets_more_than_it_wants_or_than_there_is_and_no_room_is_left_over(free, demands):
    got = share(free, demands)
    assert all(count <= demands[jid].wanted for jid, count in got.items())
    assert got.total() == min(max(0, free), sum(demand.wanted for demand in demands.values()))


def test_batches_that_want_more_than_there_is_get_the_same_and_a_small_one_all_that_it_wants():
    assert share(20, {"A": Demand(0, 1000), "B": Demand(0, 500), "C": Demand(0, 2)}) == {"A": 9, "B": 9, "C": 2}


def test_freed_room_goes_to_the_batch_that_has_least_even_beside_one_that_had_everything():
    assert share(4, {"A": Demand(16, 1000), "B": Demand(0, 500)}) == {"B": 4}


def test_among_equal_batches_the_one_served_last_is_last_so_that_one_slot_goes_round():
    served, order = dict.fromkeys("ABC", 0), []
    for number in range(1, 7):
        (jid,) = share(1, {jid: Demand(0, 5, served[jid]) for jid in "ABC"})
        served[jid] = number
        order.append(jid)
    assert "".join(order) == "ABCABC"
