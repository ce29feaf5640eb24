"""Sizes, ramps and budgets of a batch."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch.plan import failures_allowed, sizes_of
from saltext.jobs.core.batch.spec import Spec
from tests.unit.batch.bench import spec


@pytest.mark.parametrize(
    ("batch", "total", "sizes"),
    [
        (10, 50, (10,)),
        ("10", 50, (10,)),
        ("25%", 50, (12,)),
        ("1%", 50, (1,)),
        ("100%", 3, (3,)),
        ("12.5%", 80, (10,)),
        ("1,10%,50%", 50, (1, 5, 25)),
        (" 1 , 10% ", 50, (1, 5)),
        ("100", 3, (100,)),
    ],
)
def test_a_size_is_a_count_a_percentage_or_a_ramp(batch, total, sizes):
    assert sizes_of(batch, total) == sizes


@pytest.mark.parametrize("batch", ["", "0", 0, -1, "-1", "0%", "101%", "ten", "1,", ",1", "5%%", 1.5, True, None, [1]])
def test_a_malformed_size_is_named(batch):
    with pytest.raises(ValueError, match="batch is") as caught:
        sizes_of(batch, 50)
    assert repr(batch) in str(caught.value)


@pytest.mark.parametrize(
    ("given", "allowed"), [(None, None), (0, 0.0), (3, 3.0), ("3", 3.0), ("10%", 5.0), ("0%", 0.0)]
)
def test_a_budget_is_a_count_or_a_percentage(given, allowed):
    assert failures_allowed(given, 50) == allowed


@pytest.mark.parametrize("given", ["", "x", -1, "101%", True, "1.5"])
def test_a_malformed_budget_is_named(given):
    with pytest.raises(ValueError, match="max_failures is"):
        failures_allowed(given, 50)


def test_a_spec_survives_being_written_down():
    original = spec("abc", "1,2", options={"metadata": {"a": 1}}, kwargs={"x": [1]}, arg=("y",), parent="j")
    assert Spec.from_dict(original.as_dict()) == original
