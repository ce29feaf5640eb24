"""Whatever goes wrong: nothing is lost, nothing that is known to have begun runs again, nothing loops."""

from __future__ import annotations

import pytest

from tests.many_worlds import live_through, quiet
from tests.worlds import sites
from tests.worlds.adversary import PROFILES, Adversary


@pytest.mark.parametrize("profile", PROFILES + sites.PROFILES)
def test_nothing_is_lost_and_nothing_that_has_begun_runs_again(profile):
    with quiet():
        for seed in range(30 if profile is Adversary else 12):
            live_through(profile, seed)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES + sites.PROFILES)
def test_nothing_is_lost_and_nothing_that_has_begun_runs_again_in_many_worlds(profile):
    with quiet():
        for seed in range(1000, 1050):
            live_through(profile, seed)
