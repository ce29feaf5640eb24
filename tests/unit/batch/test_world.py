"""
Batches in made-up worlds with their own ground truth: the limit, nobody twice, one stage after the other, checks, windows,
run times and the target are heeded, every batch ends, and the counts are true.
"""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch import inflight, overdue
from saltext.jobs.core.batch.checks import Checks
from saltext.jobs.core.batch.outcomes import Outcomes
from saltext.jobs.core.batch.pace import Pace
from saltext.jobs.core.batch.schedule import Schedule
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


# -- the worlds find out batches that break a promise ------------------------------------------------------------------


def one_idle_answer_suffices(patch):
    for module in (inflight, overdue):
        patch.setattr(module, "IDLE_ANSWERS", 1)


def one_silence_suffices(patch):
    def silent(self, minions, _now):
        return self.of(minions, inflight.Phase.PROBING)

    patch.setattr(inflight.InFlight, "silent", silent)


def a_check_is_not_waited_for(patch):
    patch.setattr(Checks, "may_go_on", lambda *_: True)


def a_window_does_not_shut(patch):
    patch.setattr(Schedule, "may_send", lambda self, _now: self.open or not self.bounded)


def a_stage_is_over_before_all_have_ended(patch):
    patch.setattr(Pace, "stage_is_over", lambda self, _flying, available: self.quota == 0 or not available)


def the_budget_of_a_group_is_forgotten(patch):
    patch.setattr(Outcomes, "_overdrawn_group", lambda *_: None)


def whatever_runs_has_run_for_too_long(patch):
    patch.setattr(inflight.InFlight, "has_run_too_long", lambda self, *_: self.spec.max_runtime is not None)


@pytest.mark.parametrize(
    "defect",
    [
        one_idle_answer_suffices,
        one_silence_suffices,
        a_check_is_not_waited_for,
        a_window_does_not_shut,
        a_stage_is_over_before_all_have_ended,
        the_budget_of_a_group_is_forgotten,
        whatever_runs_has_run_for_too_long,
    ],
    ids=lambda defect: defect.__name__,
)
def test_a_defect_does_not_go_unnoticed_in_three_hundred_worlds(defect, monkeypatch):
    defect(monkeypatch)
    with pytest.raises(AssertionError, match="world"):
        for seed in range(300):
            live_through(seed)
