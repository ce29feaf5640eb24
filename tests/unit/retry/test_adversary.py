"""Whatever goes wrong: nothing is lost, nothing that is known to have begun runs again, nothing loops."""

from __future__ import annotations

import pytest

from tests.unit.retry.adversary import Adversary, CutOff


def play(seed, kind=Adversary):
    with kind(seed) as world:
        try:
            world.play(steps=30)
            world.judge()
        except AssertionError as exc:
            raise AssertionError(f"seed {seed}: {exc}") from exc


@pytest.mark.parametrize("seed", range(0, 80, 20))
def test_nothing_is_lost_and_nothing_that_has_begun_runs_again(seed):
    for each in range(seed, seed + 20):
        play(each)


@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_nothing_waits_for_ever_behind_what_its_minion_does_not_take(seed):
    for each in range(seed, seed + 20):
        play(each, CutOff)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 2000, 100))
@pytest.mark.parametrize("kind", [Adversary, CutOff])
def test_nothing_is_lost_and_nothing_that_has_begun_runs_again_in_many_worlds(kind, seed):
    for each in range(seed, seed + 50):
        play(each, kind)
