"""
Batches in simulated worlds with their own ground truth. The limit, checks, windows, run times and the target are heeded, no
minion runs twice, stages follow each other, every batch ends, and the counts are true.
"""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch.gates import Checks, Schedule
from saltext.jobs.core.batch.inflight import InFlight, Phase
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.outcomes import Outcomes
from saltext.jobs.core.batch.pace import Pace
from tests.unit.batch.bench import BEGIN
from tests.unit.batch.world import World, live_through


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_in_a_world_that_fails_in_every_way_batches_keep_their_promises(first):
    for seed in range(first, first + 100):
        live_through(seed)


def test_worlds_that_once_went_wrong_go_right():
    for seed in (
        1569,  # an entry of the heap that was out of date decided whether minions were overdue
        2207,  # a minion that survived its kills, beyond its run time, was asked without a pause
    ):
        live_through(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 1000))
def test_in_two_thousand_such_worlds_too(first):
    for seed in range(first, first + 1000):
        live_through(seed)


def test_a_window_is_open_up_to_the_moment_at_which_it_shuts_and_opens_as_exactly_as_clocks_can_be_read():
    world = next(world for world in map(World, range(50)) if world.spec.window)
    for at, is_open in ((-0.01, False), (-1e-6, True), (world.length - 1e-6, True), (world.length + 1e-6, False)):
        world.now = BEGIN + world.opens + at
        assert world.is_open() is is_open, at


# -- the worlds find out batches that break a promise ------------------------------------------------------------------


def with_defect(name, part):
    """A batch with a defect: its part of this name has another class."""

    class Defective(Batch):
        __slots__ = ()

        def __init__(self, spec, now):
            super().__init__(spec, now)
            made = part(spec, self.membership) if name == "record" else part(spec)
            made.load(getattr(self, name).values())
            setattr(self, name, made)

    return Defective


class OneIdleAnswerSuffices(InFlight):
    __slots__ = ()

    @staticmethod
    def is_idle(flight):
        return flight.idle >= 1


class OneSilenceSuffices(InFlight):
    __slots__ = ()

    def silent(self, minions, now):
        return self.of(minions, Phase.PROBING)


class WhateverRunsHasRunForTooLong(InFlight):
    __slots__ = ()

    def has_run_too_long(self, minion, now):
        return self.spec.max_runtime is not None


class ACheckIsNotWaitedFor(Checks):
    __slots__ = ()

    def may_go_on(self, stage):
        return True


class AWindowDoesNotShut(Schedule):
    __slots__ = ()

    def may_send(self, now):
        return self.open or not self.bounded


class AStageIsOverBeforeAllHaveEnded(Pace):
    __slots__ = ()

    def stage_is_over(self, flying, available):
        return self.quota == 0 or not available


class TheBudgetOfAGroupIsForgotten(Outcomes):
    __slots__ = ()

    def overdrawn(self, ended_group=None):
        limit = super().overdrawn(ended_group)
        return None if limit and "group" in limit else limit


class ForgedStartsAreBelieved(InFlight):
    __slots__ = ()

    def awaits_begin(self, minion):
        return minion in self.flights and not self.is_in(minion, Phase.KILLING)


@pytest.mark.parametrize(
    ("name", "defect"),
    [
        ("inflight", OneIdleAnswerSuffices),
        ("inflight", OneSilenceSuffices),
        ("inflight", WhateverRunsHasRunForTooLong),
        ("inflight", ForgedStartsAreBelieved),
        ("checks", ACheckIsNotWaitedFor),
        ("schedule", AWindowDoesNotShut),
        ("pace", AStageIsOverBeforeAllHaveEnded),
        ("record", TheBudgetOfAGroupIsForgotten),
    ],
)
def test_a_defect_does_not_go_unnoticed_in_a_thousand_worlds(name, defect):
    machine = with_defect(name, defect)
    with pytest.raises(AssertionError, match="world"):
        for seed in range(1000):
            live_through(seed, machine)
