"""Values as they stand in the database of ``cache: sqlite`` or ``postgresql``."""

from __future__ import annotations

import random

import pytest
import salt.payload

from saltext.jobs.core.ledger import stored

FLEET = [f"web{number:06}.example.com" for number in range(10_000)]


@pytest.mark.parametrize("value", [None, {}, "x" * 100_000, FLEET, {"return": "é" * 50_000}, b"\xff" * 50_000])
def test_a_value_is_read_as_it_was_stored(value):
    assert stored.loads(stored.dumps(value)) == value


def test_a_long_return_takes_a_fifth():
    assert len(stored.dumps({"return": FLEET})) < len(salt.payload.dumps({"return": FLEET})) / 5


@pytest.mark.parametrize(
    "value", [{"return": FLEET[:1000]}, random.Random(1).randbytes(100_000), FLEET], ids=["short", "dense", "list"]
)
def test_a_short_or_dense_value_and_a_list_are_stored_as_they_are_serialized(value):
    assert stored.dumps(value) == salt.payload.dumps(value, use_bin_type=True)


@pytest.mark.parametrize(
    "broken", [b"\xc1", b"\xc1x", stored.dumps({"x": FLEET})[:-9], stored.dumps({"x": FLEET})[:40]]
)
def test_a_broken_value_is_a_value_error(broken):
    with pytest.raises(ValueError):
        stored.loads(broken)
