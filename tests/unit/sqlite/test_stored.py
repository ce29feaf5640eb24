"""Values as they stand in the file of ``cache: sqlite``."""

from __future__ import annotations

import random

import pytest
import salt.payload

from saltext.jobs.core.sqlite import stored

FLEET = [f"web{number:06}.example.com" for number in range(10_000)]


@pytest.mark.parametrize("value", [None, {}, "x" * 100_000, FLEET, {"return": "é" * 50_000}, b"\xff" * 50_000])
def test_a_value_is_read_as_it_was_stored(value):
    assert stored.loads(stored.dumps(value)) == value
    assert stored.serialized(stored.dumps(value)) == salt.payload.dumps(value, use_bin_type=True)


def test_a_long_list_of_minions_takes_a_fifth():
    assert len(stored.dumps(FLEET)) < len(salt.payload.dumps(FLEET)) / 5


@pytest.mark.parametrize("value", [FLEET[:1000], random.Random(1).randbytes(100_000)], ids=["short", "dense"])
def test_a_short_or_dense_value_is_stored_as_it_is_serialized(value):
    assert stored.dumps(value) == salt.payload.dumps(value, use_bin_type=True)


@pytest.mark.parametrize("broken", [b"\xc1", b"\xc1x", stored.dumps(FLEET)[:-9], stored.dumps(FLEET)[:40]])
def test_a_broken_value_is_a_value_error(broken):
    with pytest.raises(ValueError):
        stored.loads(broken)
