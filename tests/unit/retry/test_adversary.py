"""Whatever goes wrong: nothing is lost, nothing that is known to have begun runs again, nothing loops."""

from __future__ import annotations

import pytest

from tests.unit.retry.adversary import Adversary, CutOff


def play(seed, kind=Adversary):
    world = kind(seed)
    try:
        world.play(steps=30)
        world.judge()
    except AssertionError as exc:
        raise AssertionError(f"seed {seed}: {exc}") from exc


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_nothing_is_lost_and_nothing_that_has_begun_runs_again(seed):
    for each in range(seed, seed + 20):
        play(each)


@pytest.mark.parametrize("seed", range(0, 100, 20))
def test_nothing_waits_for_ever_behind_what_its_minion_does_not_take(seed):
    for each in range(seed, seed + 20):
        play(each, CutOff)


@pytest.mark.slow
@pytest.mark.parametrize("thousand", range(20))
def test_nothing_is_lost_and_nothing_that_has_begun_runs_again_in_many_worlds(thousand):
    for seed in range(1000 * (thousand + 1), 1000 * (thousand + 2)):
        play(seed)
