"""Batches in made-up worlds with their own ground truth: the limit, nobody twice, every batch ends, the counts are true."""

from __future__ import annotations

import pytest

from tests.unit.batch.world import live_through


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_in_a_world_that_fails_in_every_way_batches_keep_their_promises(first):
    for seed in range(first, first + 100):
        live_through(seed)


def test_what_once_went_wrong_in_such_a_world_does_not_again():
    for seed in (1569,):  # an entry of the heap that was out of date decided whether minions were overdue
        live_through(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 21000, 1000))
def test_in_twenty_thousand_such_worlds_too(first):
    for seed in range(first, first + 1000):
        live_through(seed)
