"""Sets of minions as bytes: the same as Python's sets, whatever is in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saltext.jobs.core.sqlite import minion_sets

NUMBERS = st.one_of(
    st.sets(st.integers(0, 40)), st.sets(st.integers(0, 70_000), max_size=30), st.sets(st.integers(500, 900))
)


def members(data, top=70_001):
    return {number for number in range(top) if minion_sets.has(data, number)}


@given(numbers=NUMBERS, others=NUMBERS)
def test_a_set_has_its_members_and_a_union_those_of_both(numbers, others):
    both = [minion_sets.pack(numbers), minion_sets.pack(list(others))]
    top = max(numbers | others, default=0) + 40
    assert members(both[0], top) == numbers
    assert minion_sets.union(both) == minion_sets.pack(numbers | others), "equal sets are equal bytes"
    assert members(minion_sets.union(both), top) == numbers | others


@pytest.mark.parametrize("top", [*range(20), 255, 256, 257])
def test_the_same_set_is_the_same_bytes_however_it_came_about(top):
    for count in range(1, min(top, 12) + 2):
        numbers = [top - number for number in range(count)]
        assert minion_sets.union(minion_sets.pack([number]) for number in numbers) == minion_sets.pack(numbers)


def test_a_number_is_found_where_it_begins_and_not_across_two_others():
    data = minion_sets.pack([0x01000000, 0x02000000])
    assert members(data, 0x300) == set()
    assert minion_sets.has(data, 0x01000000) and minion_sets.has(data, 0x02000000)


def test_all_of_a_large_fleet_take_a_few_bytes_and_half_of_it_a_bit_each():
    assert len(minion_sets.pack(range(1, 50_001))) < 100
    assert len(minion_sets.pack(range(1, 50_001, 7))) < 50_000 / 8 + 10
    assert len(minion_sets.pack([49_990, 7, 30_000])) == 13


@pytest.mark.parametrize("damaged", [b"", b"\x07abc", b"\x02nothing squeezed"])
def test_a_damaged_set_may_have_any_number(damaged):
    assert minion_sets.may_have(damaged, 3)
    with pytest.raises(Exception, match=r"begins with|decompressing"):
        minion_sets.union([damaged, minion_sets.pack([1])])
