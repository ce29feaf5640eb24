"""How room is divided among batches: never more than there is, all of it where a batch wants it, evenly."""

from __future__ import annotations

import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from saltext.jobs.core.batch.pending import Pending
from saltext.jobs.core.batch.plan import Membership
from saltext.jobs.core.batch.sharing import Demand, share
from saltext.jobs.core.settings import InFlightLimit

LANES = ("eu", "us", "(without)")
ONE = {"": 10**6}

counts = st.integers(0, 12)
by_lane = st.dictionaries(st.sampled_from(LANES), counts)


@st.composite
def demand(draw):
    flying = draw(by_lane)
    return Demand(sum(flying.values()), draw(counts), draw(by_lane), flying, draw(st.integers(0, 3)))


any_demands = st.dictionaries(st.sampled_from("ABCDE"), demand(), max_size=5)
limits = st.one_of(
    st.builds(InFlightLimit, st.integers(1, 30)),
    st.builds(InFlightLimit, st.none(), st.just("grains:dc"), st.integers(1, 12)),
    st.builds(InFlightLimit, st.integers(1, 30), st.just("grains:dc"), st.integers(1, 12)),
)


def given_to(shares):
    return {jid: sum(lanes.values()) for jid, lanes in shares.items()}


@settings(deadline=None)
@given(limits, any_demands)
def test_no_batch_gets_more_than_it_wants_or_than_there_is_and_no_room_is_left_over(limit, demands):
    shares = share(limit, demands)
    got = given_to(shares)
    flying = collections.Counter()
    for jid, demand in demands.items():
        flying.update(demand.by_lane)
        lanes = shares.get(jid, {})
        assert got.get(jid, 0) <= demand.wanted
        assert all(0 < count <= demand.lanes[lane] for lane, count in lanes.items())
    before = flying.copy()
    for lanes in shares.values():
        flying.update(lanes)
    if limit.total is not None and got:
        assert sum(flying.values()) <= limit.total
    for lane in LANES if limit.each is not None else ():
        assert flying[lane] <= max(limit.each, before[lane])
    for jid, demand in demands.items():  # a batch that wants more finds no room
        if got.get(jid, 0) == demand.wanted or (limit.total is not None and sum(flying.values()) >= limit.total):
            continue
        for lane, available in demand.lanes.items():
            full = limit.each is not None and flying[lane] >= limit.each
            assert full or shares.get(jid, {}).get(lane, 0) == available


@settings(deadline=None)
@given(st.integers(1, 30), any_demands)
def test_a_batch_that_has_less_than_others_gets_room_before_they_do(total, demands):
    got = given_to(share(InFlightLimit(total), demands))
    for jid, demand in demands.items():
        if got.get(jid, 0) < min(demand.wanted, sum(demand.lanes.values())):
            has = demand.flying + got.get(jid, 0)
            for other, count in got.items():
                assert other == jid or demands[other].flying + count <= has + 1, (jid, other)
                assert count == 0 or demands[other].flying + count - 1 <= has


def test_batches_that_want_more_than_there_is_get_the_same_and_a_small_one_all_that_it_wants():
    shares = share(InFlightLimit(20), {"A": Demand(0, 1000, ONE), "B": Demand(0, 500, ONE), "C": Demand(0, 2, ONE)})
    assert given_to(shares) == {"A": 9, "B": 9, "C": 2}


def test_freed_room_goes_to_the_batch_that_has_least_even_beside_one_that_had_everything():
    shares = share(InFlightLimit(20), {"A": Demand(16, 1000, ONE), "B": Demand(0, 500, ONE)})
    assert given_to(shares) == {"B": 4}


def test_among_equal_batches_the_one_served_last_is_last_so_that_one_slot_goes_round():
    served, order = dict.fromkeys("ABC", 0), []
    for number in range(1, 7):
        (jid,) = share(InFlightLimit(1), {jid: Demand(0, 5, ONE, served=served[jid]) for jid in "ABC"})
        served[jid] = number
        order.append(jid)
    assert "".join(order) == "ABCABC"


def test_a_full_group_of_minions_keeps_no_other_group_waiting():
    limit = InFlightLimit(100, "grains:dc", 10)
    shares = share(limit, {"A": Demand(10, 50, {"eu": 40, "us": 4}, {"eu": 10}), "B": Demand(0, 3, {"eu": 3})})
    assert shares == {"A": {"us": 4}}


def test_freed_room_in_a_group_goes_to_the_batch_that_has_least_of_that_group():
    limit = InFlightLimit(1000, "grains:dc", 100)
    demands = {"A": Demand(99, 50, {"eu": 50}, {"eu": 99}), "B": Demand(400, 5, {"eu": 5}, {"us": 400})}
    assert share(limit, demands) == {"B": {"eu": 1}}


def test_an_exceeded_limit_gives_no_batch_anything():
    assert share(InFlightLimit(5), {"A": Demand(9, 3, ONE), "B": Demand(0, 3, ONE)}) == {}


def test_without_a_limit_every_batch_gets_what_it_wants():
    assert share(InFlightLimit(), {"A": Demand(9, 3, ONE), "B": Demand(0, 3, {"": 2})}) == {"A": {"": 3}, "B": {"": 2}}


@settings(deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(1, 25), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_no_batch_starves_whenever_room_becomes_free(total, sizes, chance):
    left = {f"B{number}": size for number, size in enumerate(sizes)}
    flying, served = collections.Counter(), collections.Counter()
    waited = collections.Counter()
    for number in range(1, 1000):
        if not any(left.values()) and not flying.total():
            break
        demands = {jid: Demand(flying[jid], count, {"": count}, served=served[jid]) for jid, count in left.items()}
        for jid, count in given_to(share(InFlightLimit(total), demands)).items():
            left[jid] -= count
            flying[jid] += count
            served[jid] = number
            waited[jid] = 0
        assert flying.total() == min(total, flying.total() + sum(left.values())), "room is left over"
        assert max(waited.values(), default=0) <= 2 * len(sizes), "a batch starves"
        ending = chance.choice([jid for jid in sorted(flying) if flying[jid]])
        flying[ending] -= 1
        waited.update(jid for jid, count in left.items() if count and not flying[jid])
    assert not any(left.values())


# -- who is next in a lane ---------------------------------------------------------------------------------------------


def in_lanes(**lanes):
    membership = Membership("abcdef", (4, 2))
    membership.lanes = {minion: lane for lane, minions in lanes.items() for minion in minions}
    return Pending("abcdef", membership)


def no_holder(_minion):
    return ""


def test_the_next_minions_of_a_lane_are_named_in_order_and_stay_pending():
    pending = in_lanes(eu="bde", us="acf")
    assert pending.lanes() == {"us": 2, "eu": 2}, "of the group whose turn it is, the lane of the first one first"
    assert pending.first("eu", 5, no_holder) == (["b", "d"], {})
    assert pending.first("us", 1, no_holder) == (["a"], {})
    assert "".join(pending) == "abcdef"
    pending.open_to(1)
    assert pending.first("eu", 5, no_holder) == (["b", "d", "e"], {})


def test_a_minion_that_is_passed_over_keeps_its_place_and_is_offered_once_it_is_let_go():
    pending = in_lanes(eu="abcdef")
    assert pending.first("eu", 2, {"a": "A", "c": "C"}.get) == (["b", "d"], {"a": "A", "c": "C"})
    assert (pending.lanes(), pending.available, "".join(pending)) == ({"eu": 2}, 4, "abcdef")
    assert pending.first("eu", 4, no_holder) == (["b", "d"], {})
    pending.let_go("c")
    pending.drop("a")
    pending.let_go("a")
    assert pending.first("eu", 4, no_holder) == (["b", "c", "d"], {})
    pending.put_first(["d"])
    assert pending.first("eu", 4, no_holder) == (["d", "b", "c"], {})
    assert pending.lanes() == {"eu": 3}


def test_lanes_that_become_known_later_change_no_order():
    membership = Membership("abcdef", ())
    pending = Pending("bca", membership)
    pending.put_first("fe")
    membership.lanes = {"a": "eu", "b": "us", "c": "eu", "e": "us", "f": "us"}
    pending.order_by_lanes()
    assert pending.lanes() == {"us": 3, "eu": 2}
    assert pending.take_those("aef", 2) == ("a", "e")
    assert "".join(pending) == "fbc"
    assert pending.take(9) == ("f", "b", "c")
    assert (len(pending), pending.available, pending.lanes()) == (0, 0, {})
