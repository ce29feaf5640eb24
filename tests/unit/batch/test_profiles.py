"""Batches in worlds in which one thing goes wrong often: see ``profiles.py``."""

from __future__ import annotations

import pytest

from tests.unit.batch import profiles
from tests.unit.batch.profiles import live_through


@pytest.mark.parametrize("profile", profiles.PROFILES)
def test_in_worlds_in_which_one_thing_goes_wrong_often_batches_keep_their_promises(profile):
    for seed in range(40):
        live_through(profile, seed)


@pytest.mark.slow
@pytest.mark.parametrize("profile", profiles.PROFILES)
def test_in_six_hundred_worlds_of_each_profile_they_keep_them_too(profile):
    for seed in range(1000, 1600):
        live_through(profile, seed)


@pytest.mark.parametrize(
    ("profile", "seed"),
    [
        # A minion was left out, which does not count against the budget. A report that it had begun then gave budget back.
        (profiles.Forged, 98),
        (profiles.Restarts, 446),
        # The wall clock was set while a window was open: the batch went by what it had been told before.
        (profiles.Clocks, 53),
        (profiles.Clocks, 308),
        # A publish that was already decided went out after the batch had been paused.
        (profiles.Clocks, 956),
        (profiles.Rollcrash, 1909),
        # The clock was set while the answer to the question when the window opens was on its way.
        (profiles.Hell, 161),
        # It was set between two engines: jobs were killed before their time.
        (profiles.Clocks, 241),
        # A minion that had been put back had begun: the wave had sent to one more than it may, and never ended.
        (profiles.Forged, 641),
        # A minion whose publish had no outcome had begun the job, and its process started anew: it was sent to again.
        (profiles.Killed, 37),
        (profiles.Restarts, 30),
        # The only minion had shown a sign of life before the first ping: that was waited for, for ever.
        (profiles.Clocks, 9501),
        (profiles.Rollout, 4584),
        # A minion that may have begun, and says nothing, was recorded as not there.
        (profiles.Clocks, 111),
        (profiles.Power, 71),
        (profiles.Rollout, 12954),
        # … as was one that could not answer yet, since the master had just been started.
        (profiles.Power, 58),
        # A fault of the world: a minion's statement counted as old because of the publish that began the next stage.
        (profiles.Rollcrash, 1013871),
    ],
)
def test_worlds_that_once_went_wrong_go_right(profile, seed):
    live_through(profile, seed)
