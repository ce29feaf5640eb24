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
        # The clock on the wall was set while a window was open: the batch went by what it had been told before.
        (profiles.Clocks, 53),
        (profiles.Clocks, 308),
        # What was decided to be published went out after the batch had been paused.
        (profiles.Rollcrash, 1909),
    ],
)
def test_what_once_went_wrong_does_not_again(profile, seed):
    live_through(profile, seed)
