"""Batches and the retry queue share minions, a master and what is stored: whatever goes wrong, both keep their promises."""

from __future__ import annotations

import pytest

from tests.many_worlds import live_through, quiet
from tests.worlds.together import PROFILES, Clocks


@pytest.mark.parametrize("profile", PROFILES)
def test_a_batch_and_the_queue_that_meet_run_each_job_once_and_heed_each_stop_and_kill(profile):
    with quiet():
        for seed in range(20 if issubclass(profile, Clocks) else 40):  # those take longest
            live_through(profile, seed)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_they_do_so_in_many_worlds(profile):
    with quiet():
        for seed in range(1000, 1050):
            live_through(profile, seed)
