"""Batches in worlds in which one thing goes wrong often: see ``profiles.py``."""

from __future__ import annotations

import pytest

from tests.unit.batch import profiles


def live_through(profile, seed):
    world = profile(seed)
    try:
        world.run()
        world.verdict()
    except AssertionError as exc:
        raise AssertionError(f"{profile.__name__} {seed}: {exc}") from exc


@pytest.mark.parametrize(
    ("profile", "seed"),
    [
        # A minion that was left out, which is not against the budget, was said to have begun: that gave the budget back.
        (profiles.Forged, 98),
        (profiles.Restarts, 446),
    ],
)
def test_what_once_went_wrong_does_not_again(profile, seed):
    live_through(profile, seed)
