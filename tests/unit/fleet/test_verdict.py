"""What a scenario's verdict is: the truth that minions have noted, beside what the engines say."""

from __future__ import annotations

import dataclasses
import math

import pytest

from benchmarks.fleet import grow, verdict
from benchmarks.fleet.causes import Evidence
from benchmarks.fleet.picture import Panel, draw, thinned
from benchmarks.fleet.truth import CUT, ENDED, KILLED, Publish, Run, Truth, ideal, makespan
from benchmarks.fleet.watch import Answer, Load, Sample, files_left

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
        ("completed", [ran()]),
        ("failed", [ran(retcode=1)]),
        ("failed", [ran(how=CUT, delivered=False)]),  # its executor says so
        ("lost", [ran(how=CUT, delivered=False)]),
        ("lost", [ran(delivered=False)]),
        ("offline", []),
        ("pending", []),
        ("killed", [ran(how=KILLED, delivered=False)]),
        ("timed_out", [ran(how=KILLED, delivered=False)]),
        ("active", [ran(end=None, how=None, delivered=False)]),
    ],
)
def test_a_state_that_fits_what_happened_is_right(state, runs):
    assert verdict.wrong_about(state, runs) is None


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
    ],
)
def test_a_state_that_does_not_fit_is_wrong(state, runs):
    assert verdict.wrong_about(state, runs)


def test_salts_own_manager_may_report_a_minion_without_a_return_as_failed():
    assert verdict.wrong_about("failed", [ran(how=CUT, delivered=False)], native=True) is None
    assert verdict.wrong_about("failed", [ran()], native=True)


def test_a_batch_is_good_if_its_reports_are_true_and_its_limit_was_kept():
    truth = truth_of(ran(), ran("m2", begun=1.0, end=2.0))
    states = {"m1": {"state": "completed"}, "m2": {"state": "completed"}}
    assert all(judged(verdict.batch(truth, JID, ["m1", "m2"], states, 1, 9.0, ENGINE, NOTHING)).values())


def test_problems_of_a_batch_are_reported():
    truth = truth_of(ran(), ran(begun=0.5, end=2.0), ran("stranger", begun=0.1, stored=False))
    checks = verdict.batch(truth, JID, ["m1", "m2"], {"m1": {"state": "lost"}}, 1, 9.0, ENGINE, NOTHING)
    assert not any(judged(checks).values())
    assert "m1 is lost, but has returned" in checks[0].found and "m2 is not named" in checks[0].found


FULL = Evidence(unstorable=[(0.0, 2.0, "the disk was full")])
#: The engine's process, by the time at which it was looked for: the same all the time, or another one later.
LIVES, ENDS, DOWN = (
    [(0.0, 7), (9.0, 7), (60.0, 7)],
    [(0.0, 7), (9.0, 7), (20.0, 8), (60.0, 8)],
    [(0.0, None), (60.0, 8)],
)


def twice(first, evidence=NOTHING, lives=None):
    evidence = dataclasses.replace(evidence, lives={ENGINE: lives or LIVES})
    second = ran(begun=50.0, end=51.0, number=2, stored=False)
    return verdict.twice(truth_of(first, second), {JID}, ENGINE, evidence)


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


def test_an_engine_has_written_what_it_heard_once_it_has_answered_a_later_request():
    busy = Evidence(answers={ENGINE: [(0.0, 0.1), (4.0, 8.0), (8.0, 15.0), (15.0, 15.1)]})
    assert busy.durable_at(ENGINE, 2.0) == 15.0 and busy.durable_at(ENGINE, 30.0) == math.inf
    assert NOTHING.durable_at(ENGINE, 2.0) == 7.0
    first, ends = ran(how=CUT, told=True), [(0.0, 7), (9.0, 7), (12.0, 8), (60.0, 8)]
    assert not twice(first, NOTHING, ends).good
    assert twice(first, busy, ends).good, "it ended before"
    assert not twice(first, busy, LIVES).good


def test_a_return_may_have_been_stored_earlier_where_the_fleet_is_late_with_all_that_it_does():
    late = unstored(sent=1.0, answered=15.0)
    assert FULL.why_not_stored(late) is None
    assert dataclasses.replace(FULL, lag=4.0).why_not_stored(late) == "the disk was full"
    assert dataclasses.replace(FULL, lag=4.0).why_not_stored(unstored(sent=3.0, answered=15.0)) is None


def test_every_earlier_run_must_be_excused():
    runs = [ran(how=CUT), ran(begun=2.0, end=3.0, number=2), ran(begun=50.0, end=51.0, number=3, stored=False)]
    check = verdict.twice(truth_of(*runs), {JID}, ENGINE, NOTHING)
    assert not check.good and "the job cache has the return" in check.found


@pytest.mark.parametrize(
    "presence, good",
    [
        ([(0.0, "m2", True)], False),
        ([], True),
        ([(2.0, "m2", True)], True),  # it came when the batch had begun
        ([(0.0, "m2", True), (3.0, "m2", False), (4.0, "m2", True)], True),  # it was away in between
        ([(0.0, "m2", True), (0.5, "m2", False), (0.6, "m2", True)], False),
    ],
)
def test_a_minion_that_was_there_all_the_time_must_be_reached(presence, good):
    truth = truth_of(ran())
    truth.presence += [(0.0, M, True), *presence]
    assert verdict.reached(truth, JID, [M, "m2"], 1.0).good is good


def test_the_job_cache_shows_which_run_a_return_belongs_to():
    truth = truth_of(ran(stored=False), ran(begun=50.0, end=51.0, number=2, stored=False))
    truth.look_up({(M, JID): 2})
    assert [run.stored for run in truth.runs] == [False, True]


def test_a_return_that_the_master_took_and_could_not_store_is_missing_with_a_reason():
    truth = truth_of(unstored())
    assert not verdict.taken(truth, {JID}, NOTHING).good
    check = verdict.taken(truth, {JID}, FULL)
    assert check.good and "excused: 1: the disk was full" in check.found
    assert verdict.wrong_about("lost", truth.runs) is None and verdict.wrong_about("completed", truth.runs)


def owed(truth, entries=()):
    return judged(verdict.owed(truth, [(M, JID)], entries, ENGINE, NOTHING))


def test_an_owed_job_ran_once_or_is_in_the_queue():
    assert all(owed(truth_of(ran())).values())
    assert all(owed(Truth(), entries=[{"minion": M, "jid": JID, "state": "held"}]).values())


def test_an_owed_job_that_neither_ran_nor_is_in_the_queue_is_lost():
    assert [good for good in owed(Truth()).values() if not good] == [False]


@pytest.mark.parametrize(
    "there, state, good", [(True, "pending", False), (True, "held", True), (False, "pending", True)]
)
def test_a_job_owed_to_a_minion_that_is_there_must_not_wait(there, state, good):
    truth = Truth()
    truth.presence += [(0.0, M, True), *([] if there else [(1.0, M, False)])]
    assert all(owed(truth, entries=[{"minion": M, "jid": JID, "state": state}]).values()) is good


def test_a_minion_whose_unreported_run_is_over_waits_for_nothing():
    truth = truth_of(ran(delivered=False))
    truth.presence += [(0.0, M, True)]
    assert all(owed(truth, entries=[{"minion": M, "jid": JID, "state": "pending"}]).values())
    assert truth.silent(9.0) == {(M, JID)} and truth.silent(0.5) == set()
    assert truth_of(ran(delivered=False), ran(begun=2.0)).silent(9.0) == set()
    assert truth_of(ran(end=None, how=None, delivered=False)).silent(9.0) == set()


def test_a_return_that_the_master_took_must_be_in_the_job_cache():
    assert list(owed(truth_of(unstored())).values()).count(False) == 1


def test_no_entry_is_kept_for_a_job_with_a_return():
    entries = [{"minion": M, "jid": JID, "state": "sent"}]
    assert list(owed(truth_of(ran()), entries).values()).count(False) == 1


def sample(at, seconds=0.1, waited=0.0, came=True, process=1, resident=100e6, files=20, left=5):
    kinds = {"engine": Load(0.0, int(resident), files, 0)}
    return Sample(at, kinds, {"engine": Answer(seconds, waited, came)}, (left, 0), {"engine": process})


def is_responsive(samples, spared=(), within=2.0):
    (check,) = verdict.responsive(samples, spared, within)
    return check.good


def test_an_engine_answers_in_time_or_not():
    assert is_responsive([sample(0), sample(1)])
    for slow in ({"seconds": 2.5}, {"seconds": 20.0, "came": False}):
        assert not is_responsive([sample(0), sample(1, **slow)])
        assert is_responsive([sample(0), sample(1, **slow)], [(0.5, 1.5)])
        assert is_responsive([sample(0), sample(1, **slow)], within=25.0)


def test_seconds_without_a_core_do_not_count_for_the_engine():
    assert is_responsive([sample(0), sample(1, seconds=9.0, waited=7.5)])
    assert is_responsive([sample(0), sample(1, seconds=20.0, waited=19.0, came=False)])
    assert not is_responsive([sample(0), sample(1, seconds=20.0, waited=17.0, came=False)])
    assert not is_responsive([sample(0), sample(1, seconds=9.0, waited=6.5)])


def test_a_request_that_was_waiting_when_the_engine_was_killed_says_nothing():
    waiting = [sample(1, seconds=10.0, came=False)]
    assert is_responsive(waiting, [(8.0, 9.0)]) and not is_responsive(waiting, [(12.0, 13.0)])


def test_the_first_answer_of_a_process_may_take_longer_and_no_other():
    started = sample(1, seconds=12.0, process=2)
    assert is_responsive([sample(0), started, sample(14, process=2)])
    assert not is_responsive([sample(0), started, sample(14, seconds=3.0, process=2)])
    assert not is_responsive([sample(0), sample(1, seconds=12.0)])
    never = [sample(at, seconds=20.0, came=False, process=2) for at in (1, 22)]
    assert not is_responsive([sample(0), *never]), "it must answer at some time"


def test_the_first_answer_after_a_time_in_which_none_could_be_expected_may_take_longer():
    assert is_responsive([sample(0), sample(1), sample(3, seconds=12.0)], [(0.5, 2.0)])
    assert not is_responsive([sample(0), sample(1), sample(3), sample(4, seconds=12.0)], [(0.5, 2.0)])


def ends_well(samples, spared):
    (check,) = verdict.alive(samples, spared, ["engine"])
    return check.good


def test_an_engine_must_not_end_unless_it_is_killed():
    ended = [sample(0), sample(5), sample(9, process=2)]
    assert ends_well([sample(0), sample(5)], [])
    assert ends_well(ended, [(7.0, 7.0)])
    assert not ends_well(ended, []) and not ends_well(ended, [(3.0, 3.0)]) and not ends_well(ended, [(10.0, 12.0)])


def test_growth_is_reported_once_the_run_is_long_enough_to_show_it():
    steady = [sample(float(at)) for at in range(200)]
    assert all(judged(verdict.flat(steady, ["engine"])).values())
    growing = [sample(float(at), resident=100e6 + at * 1e6, files=20 + at, left=5 + at) for at in range(200)]
    assert not any(judged(verdict.flat(growing, ["engine"])).values())
    killed = [sample(float(at), resident=0 if at % 2 else 100e6) for at in range(200)]
    assert all(judged(verdict.flat(killed, ["engine"])).values())
    assert verdict.flat(growing[:60], ["engine"]) == []


def test_records_kept_as_long_as_jobs_are_no_growth(tmp_path):
    (tmp_path / "1.ended").write_text("123")
    (tmp_path / "2.journal").write_text("12")
    assert files_left(tmp_path) == (1, 2)


# -- the truth -------------------------------------------------------------------------------------------------------------


def test_runs_that_touch_do_not_overlap_and_one_without_an_end_still_runs():
    truth = truth_of(ran(end=1.0), ran("m2", begun=1.0, end=None), ran("m3", begun=1.5, end=2.0))
    assert truth.most_at_once(JID, 9.0) == 2 and truth.busy({JID}, 9.0)[-1] == (9.0, 0)


def test_the_ideal_fills_each_slot_the_moment_it_is_free():
    runs = [ran("a", 0, 4), ran("b", 0, 1), ran("c", 2, 5)]
    assert (makespan(runs), ideal(runs, 2), ideal(runs, 3)) == (5, 4, 4)


def test_publishes_are_counted_apart_from_questions():
    truth = Truth()
    truth.publishes += [
        Publish(0.0, "1", "f", 1, False),
        Publish(1.0, "2", "f", 1, False),
        Publish(2.0, "3", "q", 1, True),
    ]
    assert truth.published() == (2, 1) and truth.published({"1"}) == (1, 1) and truth.published(since=1.0) == (1, 1)


# -- the picture -----------------------------------------------------------------------------------------------------------


def test_a_picture_shows_curves_limits_and_marks_whatever_their_names():
    panel = Panel("at once", {"a<b": [(0.0, 1.0), (10.0, 5.0)], "none": []}, limit=6.0)
    drawn = draw("title & more", [panel], [(5.0, "killed"), (5.1, "again")])
    assert drawn.startswith("<svg") and "a&lt;b" in drawn and "title &amp; more" in drawn
    assert "limit 6" in drawn and "killed" in drawn and "again" not in drawn


def test_a_long_curve_is_thinned_out_and_keeps_its_peak_and_its_end():
    points = [(float(at), 1.0) for at in range(10_000)]
    points[5_001] = (5_001.0, 9.0)
    found = thinned(points, 100)
    assert len(found) <= 101 and (5_001.0, 9.0) in found and found[-1] == points[-1]


def test_the_curves_of_growth_have_a_panel_for_each_figure():
    found = {"one": {"100": dict.fromkeys(grow.CURVES, 3.0), "2000": dict.fromkeys(grow.CURVES, 40.0)}}
    drawn = grow.draw(found)
    assert drawn.count("<polyline") == len(grow.CURVES) and drawn.count("<circle") == 2 * len(grow.CURVES)
    assert "| a batch, a tenth at a time | 2,000 | 40 |" in grow.table(found)
