"""What a scenario's verdict is: the truth that minions have noted, beside what the engines say."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.fleet import verdict
from benchmarks.fleet.causes import Evidence
from benchmarks.fleet.truth import CUT, ENDED, Run, Truth

JID, M = "20270101000000000001", "m1"


ENGINE, NOTHING = "engine", Evidence()


def ran(minion=M, begun=0.0, end=1.0, how=ENDED, retcode=0, delivered=True, **more):
    """A run whose return, if it is delivered, the master has answered and stored."""
    more = {"sent": end, "answered": end, "stored": True, **more} if delivered and how is ENDED else more
    return Run(minion, JID, begun, end, how, retcode, **more)


def unstored(**more):
    """A run whose return the master has answered, and the job cache does not have."""
    return ran(stored=False, **more)


def truth_of(*runs):
    truth = Truth()
    truth.runs.extend(runs)
    truth.cached.update({(run.minion, run.jid): run.number for run in runs if run.stored})
    return truth


def judged(checks):
    return {check.what: check.good for check in checks}


@pytest.mark.parametrize(
    "state, runs",
    [
        ("completed", []),
        ("completed", [ran(retcode=1)]),
        ("completed", [ran(delivered=False)]),
        ("failed", [ran()]),
        ("failed", []),
        ("lost", [ran()]),
        ("offline", [ran(retcode=1)]),
        ("pending", [ran(how=CUT, delivered=False)]),
        ("active", [ran()]),
        ("killed", [ran()]),
        ("timed_out", [unstored()]),
    ],
)
def test_a_state_that_does_not_fit_is_wrong(state, runs):
    assert verdict.wrong_about(state, runs)


def test_a_batch_is_good_if_its_reports_are_true_and_its_limit_was_kept():
    truth = truth_of(ran(), ran("m2", begun=1.0, end=2.0))
    states = {"m1": {"state": "completed"}, "m2": {"state": "completed"}}
    assert all(judged(verdict.batch(truth, JID, ["m1", "m2"], states, 1, 9.0, ENGINE, NOTHING)).values())


FULL = Evidence(unstorable=[(0.0, 2.0, "the disk was full")])
#: The engine's process, by the time at which it was looked for: the same all the time, or another one later.
LIVES, ENDS, DOWN = (
    [(0.0, 7), (9.0, 7), (60.0, 7)],
    [(0.0, 7), (9.0, 7), (20.0, 8), (60.0, 8)],
    [(0.0, None), (60.0, 8)],
)


def twice(first, evidence=NOTHING, lives=None):
    evidence = dataclasses.replace(evidence, lives={ENGINE: lives or LIVES})
    return verdict.twice(truth_of(first, ran(begun=50.0, end=51.0, number=2, stored=False)), {JID}, ENGINE, evidence)


@pytest.mark.parametrize(
    "first, evidence, lives, why",
    [
        (ran(how=CUT, recorded=True), NOTHING, LIVES, "executor"),
        (ran(), NOTHING, LIVES, "the job cache has the return"),
        (ran(), FULL, ENDS, "the job cache has the return"),
        (unstored(), NOTHING, ENDS, "could store it, and does not have it"),
        (unstored(), FULL, LIVES, "engine heard of the return"),
        (
            unstored(begun=30.0, end=31.0),
            FULL,
            ENDS,
            "could store it, and does not have it",
        ),  # a fault at about that time is not enough
        (ran(how=CUT, told=True), NOTHING, LIVES, "engine heard that the first run began"),
        (
            ran(how=CUT, told=True),
            NOTHING,
            ENDS,
            "engine heard that the first run began",
        ),  # and had it on the disk by then
        (ran(how=CUT, told=True), FULL, LIVES, "engine heard that the first run began"),
    ],
)
def test_a_second_run_is_wrong_where_the_first_could_be_known(first, evidence, lives, why):
    check = twice(first, evidence, lives)
    assert not check.good and why in check.found and f"{M} {JID}" in check.found


@pytest.mark.parametrize(
    "first, evidence, lives, why",
    [
        (ran(how=CUT), NOTHING, LIVES, "heard nothing of the first run"),
        (ran(delivered=False), NOTHING, LIVES, "heard nothing of the first run"),
        (unstored(), FULL, ENDS, "not stored since the disk was full, and engine ended"),
        (ran(how=CUT, told=True), NOTHING, DOWN, "engine did not run"),
        (ran(how=CUT, told=True), FULL, ENDS, "could not be written down since the disk was full, and engine ended"),
    ],
)
def test_a_second_run_is_excused_by_evidence_which_is_named(first, evidence, lives, why):
    check = twice(first, evidence, lives)
    assert check.good and "excused: 1" in check.found and why in check.found
