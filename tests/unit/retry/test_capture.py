"""Who is owed a job: what capture knows of kills, of what was begun, and of further publishes under one jid."""

from __future__ import annotations

import contextlib
import math

import pytest

from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.capture import LATEST
from saltext.jobs.core.retry.entry import Key, Kind, Limits, State
from saltext.jobs.core.retry.knowledge import Evidence
from saltext.jobs.core.retry.notes import Notes
from saltext.jobs.core.retry.open_job import MOST_BEGUN
from saltext.jobs.core.retry.timers import Timers
from tests.unit.retry.test_machine import away
from tests.worlds.world import ANSWERS, PATIENCE, START, Kept, World


def forge_publish(world, jid, fun="state.apply", arg=()):
    """A minion fires the event of a publish that there was not."""
    world.fire(f"salt/job/{jid}/new", {"jid": jid, "fun": fun, "arg": list(arg), "minions": sorted(world.minions)})


# -- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1.0, PATIENCE - 1, PATIENCE + 1.0, PATIENCE + 30.0])
def test_a_job_that_an_operator_killed_is_cancelled_in_the_operators_name_and_not_run_again(after):
    world = World(duration=300.0)
    world.publish("j1")
    world.run(after)
    world.kill("j1", user="ann")
    world.run(60)
    for name in world.minions:
        world.start(name)
    world.run(7200)
    assert set(world.runs.values()) == {1}
    assert {entry.state for entry in world.machine.entries()} == {State.CANCELLED}
    assert {entry.reason for entry in world.machine.entries()} == {"killed by ann"}


@pytest.mark.parametrize("before", [0.0, 1.0, 2.0, 3.0, 4.0])  # seconds since the log was read by itself
def test_a_job_is_not_delivered_after_its_kill_even_if_the_event_of_the_kill_is_lost(before):
    world = away(settle=0.0)
    world.part = 1
    world.run(60 + before)
    with world.deaf():
        for number in range(20):
            world.publish(f"other{number}", targets=("a",))
        world.kill("j1")
    world.start("b")
    world.run(600)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.CANCELLED, 0)


@pytest.mark.parametrize("before", [0.0, 1.0, 2.0, 3.0, 4.0])
def test_a_kill_of_everything_ends_what_it_met_even_if_the_minion_answers_before_its_event_is_heard(before):
    world = away(duration=300.0, retry_interrupted=True, settle=0.0)
    world.start("b")
    world.run(60 + before)
    assert world.state("b", "j1") is State.RUNNING
    with world.deaf():
        world.kill("")
    world.start("b")
    world.run(600)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.CANCELLED, 1)


def test_an_engine_that_dies_before_it_has_read_all_of_the_log_leaves_no_job_behind_if_the_log_is_lost_as_well(
    monkeypatch,
):
    saved, save = [], Kept.save
    monkeypatch.setattr(Kept, "save", lambda kept, record, *more: (saved.append(record), save(kept, record, *more)))
    world = World(minions=("a", "b"))
    world.run(LATEST + 30)  # the search of the first start is over
    world.stop("b")
    world.crash()
    for number in range(20):
        world.publish(f"j{number}", targets=("b",))
    world.run(300)
    world.part = 1
    saved.clear()
    world.boot()
    world.run(1)
    world.crash()
    world.checkpoint = next(record for record in saved if len(record["open"]) < 20)
    world.lose_log()
    world.boot()
    world.run(60)
    assert {world.state("b", f"j{number}") for number in range(20)} == {State.PENDING}


def test_a_kill_of_some_minions_leaves_the_others_alone():
    world = World(duration=30.0)
    world.stop("c")
    world.publish("j1")
    world.run(2)
    world.kill("j1", targets=("a",))
    world.run(60)
    assert (world.state("a", "j1"), world.state("b", "j1"), world.state("c", "j1")) == (
        State.CANCELLED,
        None,
        State.PENDING,
    )


def test_a_forged_kill_kills_nothing():
    world = away()
    forge_publish(world, "forged", "saltutil.kill_job", ["j1"])
    world.run(300)
    assert world.state("b", "j1") is State.PENDING
    assert world.machine.capture.open == {}


# -- what was begun ---------------------------------------------------------------------------------------------------


def test_a_minion_that_said_that_it_begins_and_went_away_is_not_sent_the_job():
    world = World(minions=("a",), duration=300.0)
    world.publish("j1")
    world.run(3)
    world.stop("a")
    world.run(30)
    assert world.state("a", "j1") is State.RUNNING
    world.start("a")
    world.run(60)
    assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.HELD, 1)


@pytest.mark.parametrize("restarts", ["before it is asked", "after it was asked"])
def test_a_job_whose_return_was_heard_and_could_not_be_stored_is_held_and_not_run_again(restarts):
    world = World(minions=("a",), acks=False)
    world.keeps_returns = False  # the master's disk is full
    world.publish("j1")
    world.run(3 if restarts == "before it is asked" else PATIENCE + 20)
    world.start("a")
    world.keeps_returns = True
    world.run(600)
    assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.HELD, 1)


@pytest.mark.parametrize("said", ["that it begins", "what came of it"])
def test_what_a_minion_of_a_further_publish_says_while_others_are_asked_is_not_forgotten(said):
    world = World(minions=("a", "b"), acks=said == "that it begins")
    world.stop("a")
    world.publish("j1", targets=("a",))
    world.run_until(lambda: world.effects(facts.Inquire))
    world.keeps_returns = False
    world.publish("j1", targets=("b",))
    if world.acks:
        world.killed.add(("b", "j1"))  # its process dies, and returns nothing
    world.run(2)
    assert world.machine.capture.open["j1"].asking == {"a"}
    world.start("b")
    world.keeps_returns = True
    world.run(600)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.HELD, 1)


@pytest.mark.parametrize("said", [facts.Acknowledged])
def test_any_number_of_forged_beginnings_takes_little_memory_and_no_genuine_one_is_forgotten(said):
    world = World(duration=1e6)
    world.publish("j1")
    world.run(1)
    world.killed.add(("a", "j1"))  # its process dies, and returns nothing
    world.minions["a"].running.clear()
    for number in range(10 * MOST_BEGUN):
        world.tell(said(f"made-up-{number}", "j1"))
        world.run(0.0005)
        assert len(world.machine.capture.open["j1"].begun) <= 3 * MOST_BEGUN
    assert len(world.effects(facts.CheckKeys)) < 20
    world.stop("a")
    world.run(60)
    assert (world.state("a", "j1"), world.machine.total) == (State.RUNNING, 1)
    assert "made-up-1" not in world.notes["j1"]["begun"]


def test_the_minions_of_a_fleet_that_has_begun_a_job_are_looked_at_a_few_times_each():
    world = World(minions=[f"m{number}" for number in range(5000)], duration=1e6)
    world.publish("j1")
    world.run(2)
    assert len(world.machine.capture.open["j1"].begun) == 5000
    assert len(world.effects(facts.CheckKeys)) <= 3


@pytest.mark.parametrize(
    ("more", "read"),
    [(0, facts.KeysRead(frozenset("a"))), (MOST_BEGUN, facts.KeysRead(frozenset("abc"), none=True))],
    ids=["one key is not found", "no key is found at all"],
)
def test_a_start_is_not_forgotten_because_keys_are_not_found_for_a_moment(more, read):
    world = World(minions=("a", "b", "c", *(f"m{number}" for number in range(more))), duration=1e6)
    world.publish("j1")
    world.run(2)
    world.tell(read)
    assert world.machine.capture.open["j1"].begun == world.minions.keys()


def test_a_return_that_is_heard_long_before_it_is_stored_ends_the_job():
    world = World(minions=("a",), acks=False)
    world.keeps_returns = False  # the master is slow
    world.publish("j1")
    world.run(PATIENCE + 2)
    world.returned.add(("a", "j1"))
    world.run(600)
    assert world.machine.total == 0 and world.runs["a", "j1"] == 1


@pytest.mark.parametrize(("later", "then"), [(1.0, "is there"), (2.5, "is there"), (1.0, "is gone")])
def test_the_answer_of_a_minion_to_a_question_about_another_job_counts(later, then):
    world = World(minions=("a", "b"), acks=False, duration=200.0)
    world.stop("b")
    world.publish("other")
    world.run(later)
    world.publish("j1", targets=("a",))
    world.run_until(lambda: world.effects(facts.Inquire))
    world.run(0.5)  # it has said what it runs; the engine still waits for the other one, which does not answer
    world.stop("a")
    if then == "is there":
        world.start("a")
    world.run(300)
    assert len(world.effects(facts.Inquire)) > 1
    assert world.state("a", "j1") is {"is there": State.HELD, "is gone": State.RUNNING}[then]
    assert world.runs["a", "j1"] == 1


def test_an_answer_that_a_minion_runs_the_job_is_not_forgotten_by_a_further_publish():
    world = World(minions=("a", "b"), acks=False, duration=200.0)
    world.publish("j1", targets=("a",))
    world.run(PATIENCE + 5)
    world.start("a")  # what it ran is gone
    world.publish("j1", targets=("b",))
    world.run(60)
    assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.HELD, 1)


def test_an_answer_that_a_minion_runs_the_job_is_not_forgotten_by_a_crash():
    world = World(minions=("a",), acks=False, duration=200.0)
    world.publish("j1")
    world.run(PATIENCE + 3)
    world.crash()
    world.start("a")
    world.run(3)
    world.boot()
    world.checkpoint = 0.0
    world.run(700)
    assert world.runs["a", "j1"] == 1
    assert world.state("a", "j1") is State.HELD


def test_a_job_that_ended_without_a_return_after_it_was_asked_about_is_held_at_the_next_sweep():
    world = World(minions=("a",), acks=False, duration=2000.0)
    world.publish("j1")
    world.run(60)
    assert world.machine.total == 0
    world.start("a")
    world.run(700)
    assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.HELD, 1)


def test_a_job_that_was_begun_is_not_forgotten_while_the_key_of_its_minion_is_not_accepted():
    world = World(minions=("a",), acks=False, duration=1e6)
    world.publish("j1")
    world.run(60)
    world.barred = {"a"}
    world.run(700)
    world.barred = set()
    world.start("a")
    world.run(700)
    assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.HELD, 1)


def test_a_kill_is_not_forgotten_while_the_key_of_its_minion_is_not_accepted():
    world = World(minions=("a", "b"))
    world.stop("a")
    world.publish("j1", targets=("a",))
    world.run(5)
    world.barred = {"a"}
    world.kill("j1", targets=("a",))
    world.run(60)
    world.barred = set()
    world.publish("j1", targets=("b",))
    world.run(60)
    world.start("a")
    world.run(60)
    assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.CANCELLED, 0)


def is_held_once_the_job_is_found_again(world):
    world.start("a")
    world.publish("j1", targets=("b",))
    world.run(700)
    assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.HELD, 1)


def test_a_start_is_not_forgotten_if_the_key_of_its_minion_is_rejected_before_the_job_is_looked_at():
    world = World(minions=("a", "b"), duration=1e6)
    world.publish("j1")
    world.run(2)
    world.barred = {"a"}
    world.run(600)
    world.barred = set()
    is_held_once_the_job_is_found_again(world)


def test_a_start_is_not_forgotten_because_there_is_no_room_in_the_queue():
    world = World(minions=("a", "b"), duration=1e6, max_queue_per_minion=1)
    world.run(LATEST + 50)  # the engine does not search any more
    world.freeze("a")
    world.publish("j1", targets=("a",))
    world.run(60)
    world.publish("j2", targets=("a",))
    world.run(PATIENCE + 1.0)  # it is asked about the second job now
    world.wake("a")
    world.run(60)
    assert world.told("j2") == [("a", "dead")]
    world.request("cancel", minion="a", jid="j1")
    world.start("a")
    world.publish("j2", targets=("b",))
    world.run(700)
    assert (world.state("a", "j2"), world.runs["a", "j2"]) == (State.HELD, 1)


def test_a_start_is_not_forgotten_because_the_job_cannot_be_read_for_long():
    world = World(minions=("a", "b"), duration=1e6, ttl=300.0)
    world.publish("j1", limits=Limits(given=True, ttl=1e6))
    world.run(2)
    world.cache_up = False
    world.run(1000)
    assert [warning.message for warning in world.effects(facts.Warn)] == [
        "Who missed job j1 is not known: the job cache could not be read in its time to live"
    ]
    world.cache_up = True
    is_held_once_the_job_is_found_again(world)


def test_a_start_is_not_forgotten_that_is_heard_while_others_are_asked():
    world = World(minions=("a", "b"), duration=1e6)
    world.stop("b")
    with world.deaf():
        world.publish("j1")
        world.run(1)
    world.barred = {"a"}
    world.run(PATIENCE + 1.0)  # b is asked now
    world.acknowledge("a", "j1")
    world.run(60)
    world.barred = set()
    is_held_once_the_job_is_found_again(world)


@pytest.mark.parametrize("back", [303.0, 309.0])  # the search finds the job before it is read, and after that
def test_a_job_whose_time_to_live_is_over_is_not_run_again_if_its_record_is_younger(back):
    world = World(minions=("a", "b"), duration=1e6)
    world.lag = 60.0
    world.publish("j1", targets=("a",), limits=Limits(given=True, ttl=300.0))
    world.run(2)
    world.cache_up = False
    world.run(280)
    world.notice()
    world.run(back - 282)
    world.start("a")
    world.cache_up = True
    world.run(700)
    assert (world.told("j1"), world.runs["a", "j1"]) == ([], 1)
    assert world.machine.capture.open == {}


def search_from_now_on(world):
    """Have an engine start that must search the job cache, and cannot use it yet."""
    world.run(LATEST + 50)
    world.crash()
    world.cache_up = False
    world.lose_log()


def test_a_kill_of_a_job_with_a_long_time_to_live_counts_even_if_the_job_cannot_be_read_for_long():
    world = World(minions=("a", "b"), ttl=300.0)
    search_from_now_on(world)
    world.stop("a")
    world.publish("j1", targets=("a",), limits=Limits(given=True, ttl=1e6))
    world.lose_log()
    world.boot()
    world.run(5)
    world.kill("j1")
    world.run(1000)
    world.cache_up = True
    world.run(60)
    world.start("a")
    world.run(600)
    assert (world.state("a", "j1"), world.runs["a", "j1"]) == (State.CANCELLED, 0)


def test_a_kill_of_everything_that_a_search_finds_again_long_afterwards_ends_nothing_that_was_published_since():
    world = World(minions=("a", "b"))
    search_from_now_on(world)
    world.boot()
    world.kill("")
    world.run(700)
    world.kill("another")
    world.freeze("b")
    world.publish("j1", targets=("b",))
    world.run(30)
    world.cache_up = True
    world.run(60)
    world.start("b")
    world.run(60)
    assert world.runs["b", "j1"] == 1


def test_a_note_is_kept_until_the_latest_time_that_it_was_given():
    changed = {}
    notes = Notes(timers := Timers(), changed)
    notes.add("j1", 100.0, killed={"a": "ann"})
    changed.clear()
    notes.add("j1", 300.0)
    assert timers.next() == 300.0
    assert list(changed) == [Key(Kind.NOTE, "j1")]


@pytest.mark.parametrize("since", ["an hour", "a restart"])
def test_a_kill_on_all_minions_cancels_nothing_that_is_published_to_others_long_afterwards(since):
    world = World(minions=("a", "b"), duration=30.0)
    world.stop("b")
    world.publish("j1", targets=("a",))
    world.run(5)
    world.kill("j1", targets=("a", "b"))
    if since == "a restart":
        world.run(5)
        world.restart()
    else:
        world.run(3500)
    world.run(LATEST + 10)
    world.publish("j1", targets=("b",))
    world.run(60)
    world.start("b")
    world.run(60)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (None, 1)


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_kill_cancels_nothing_that_was_published_again_after_it_however_often_the_engine_restarts_since(restarts):
    world = World(minions=("a", "b"), duration=1e6)
    world.run(LATEST + 10)
    world.publish("j1", targets=("a",))
    world.run(5)
    world.kill("j1", targets=("a", "b"))
    world.run(5)
    world.publish("j1", targets=("b",))
    world.run(60)
    assert world.machine.capture.open == {}
    for _ in range(restarts):
        world.restart()
        world.run(30)
    del world.minions["b"].running["j1"]  # its process dies, and returns nothing
    world.run(1300)
    assert world.state("b", "j1") is State.HELD


@pytest.mark.parametrize("again", ["nothing", "a restart", "a restart that reads the log again"])
def test_a_minion_that_got_a_job_after_its_kill_keeps_it_although_others_are_killed_once_more(again):
    world = World(minions=("a", "b"), duration=1e6)
    world.run(LATEST + 10)
    world.stop("b")
    world.cache_up = False
    world.publish("j1", targets=("a",))
    world.run(5)
    world.kill("j1", targets=("a", "b"))
    world.run(5)
    world.publish("j1", targets=("b",))
    world.run(5)
    world.kill("j1", targets=("a",))
    world.run(5)
    if again != "nothing":
        world.crash()
        world.reboot(len(world.doings)) if "log" in again else None
        world.boot()
    world.run(30)
    world.cache_up = True
    world.run(60)
    assert world.state("b", "j1") is State.PENDING


def test_a_request_from_before_a_kill_hides_no_publish_from_after_it():
    world = World(minions=("b",))
    world.run(LATEST + 10)
    world.stop("b")
    world.publish("j1")
    world.cache_up = False  # so the request has to wait
    world.enqueue("j1", ["b"])
    world.run(1)
    world.kill("j1")
    world.run(1)
    world.publish("j1")
    world.run(1)
    world.cache_up = True
    world.run(60)
    assert world.answers == [0]
    assert world.state("b", "j1") is State.PENDING


@pytest.mark.parametrize("event", ["heard", "missed", "missed, which is noticed after the kill"])
@pytest.mark.parametrize("acks", [False, True])
def test_a_kill_counts_for_a_job_that_was_published_before_it_and_stored_after_it(event, acks):
    world = World(minions=("a", "b"), acks=acks, duration=30.0)
    world.run(LATEST + 10)
    world.stop("b")
    world.publish("j1", targets=("a",))
    world.run(5)
    world.lag = 40.0
    with world.deaf() if event.startswith("missed") else contextlib.nullcontext():
        world.publish("j1", targets=("b",))
    world.lag = 0.0
    if event == "missed":
        world.notice()
    world.run(2)
    world.kill("j1")
    world.run(5)
    if event == "missed, which is noticed after the kill":
        world.notice()
    world.run(150)
    world.start("b")
    world.run(60)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.CANCELLED, 0)


def test_a_kill_cancels_no_later_job_even_if_an_earlier_one_is_stored_after_it():
    world = World(minions=("a", "b", "c"), duration=30.0)
    world.run(LATEST + 10)
    world.stop("b")
    world.stop("c")
    world.publish("j1", targets=("a",))
    world.run(5)
    world.lag = 10.0
    with world.deaf():
        world.publish("j1", targets=("b",))
    world.lag = 0.0
    world.kill("j1")
    world.run(LATEST + 10)
    world.publish("j1", targets=("c",))
    world.run(60)
    world.start("c")
    world.run(60)
    assert (world.state("b", "j1"), world.state("c", "j1"), world.runs["c", "j1"]) == (State.CANCELLED, None, 1)


def test_a_kill_that_is_stored_late_counts_soon_after_that():
    world = away(duration=300.0)
    world.run(LATEST + 10)
    world.lag = 70.0
    world.kill("j1")
    world.run(70.0 + 70.0 / 4 + 0.5)
    assert world.state("b", "j1") is State.CANCELLED


def test_a_part_of_a_kill_counts_even_if_a_later_part_is_recorded_first():
    world = World(minions=("a", "b", "c"))
    for name in ("a", "b", "c"):
        world.stop(name)
    world.publish("j1")
    world.run_until(lambda: world.state("b", "j1") is State.PENDING)
    signal = world.kill("j1", targets=("a",))
    world.run(1)
    world.lag = 30.0
    world.kill("j1", targets=("b",), signal=signal)
    world.lag = 0.0
    world.run(1)
    world.kill("j1", targets=("c",), signal=signal)
    world.run(60)
    assert {world.state(name, "j1") for name in ("a", "b", "c")} == {State.CANCELLED}


def test_a_long_job_costs_one_record_and_leaves_none_behind():
    world = World(minions=tuple(f"m{n}" for n in range(50)), acks=False, duration=100.0)
    world.publish("j1")
    world.run(60)
    assert (len(world.notes), len(world.notes["j1"]["begun"]), world.stored) == (1, 50, {})
    world.run(1300)
    assert (world.notes, world.machine.notes) == ({}, {})


def test_minions_that_begin_a_job_and_never_return_it_are_named_once_its_time_to_live_is_over():
    world = World(minions=tuple(f"m{n}" for n in range(6)), acks=False, duration=1e6, ttl=3600.0)
    world.publish("j1")
    world.run(3500)
    assert world.effects(facts.Warn) == []
    world.run(200)
    assert [effect.message for effect in world.effects(facts.Warn)] == [
        "6 minions have begun job j1 and not returned it in its time to live: m0, m1, m2, m3, m4"
    ]
    assert (world.notes, world.machine.total) == ({}, 0)


# -- further publishes under one jid ----------------------------------------------------------------------------------


def test_minions_of_a_further_publish_have_as_long_as_those_of_the_first():
    world = World(minions=("a", "b"), acks=False, duration=3.0)
    world.stop("a")
    world.publish("j1", targets=("a",))
    world.run(PATIENCE - 1)
    world.publish("j1", targets=("b",))
    world.run(2)
    assert world.effects(facts.Inquire) == []
    world.run(PATIENCE + 5)
    assert [effect.minions for effect in world.effects(facts.Inquire)] == [("a",)]


@pytest.mark.parametrize("moment", ["just before it is read", "while it is read", "while others are asked"])
@pytest.mark.parametrize("lag", [0.3, 3.0, PATIENCE + 5, 60.0])
def test_a_further_publish_that_the_master_stores_after_the_job_was_read_is_not_lost(moment, lag):
    world = World(minions=("a", "b", "c"))
    world.run(LATEST + 10)  # and what it looks for at its start is over
    world.stop("b")
    world.stop("c")
    world.publish("j1", targets=("a", "c") if moment == "while others are asked" else ("a",))
    if moment == "while others are asked":
        world.run_until(lambda: world.effects(facts.Inquire))
    else:
        world.run(PATIENCE + (0.02 if moment == "while it is read" else -0.1))
    world.lag = lag
    world.publish("j1", targets=("b",))
    world.run(300)
    assert world.state("b", "j1") is State.PENDING


def test_an_answer_to_the_question_of_another_user_is_not_taken_for_an_answer_to_this_engines():
    world = World(minions=("a", "b"))
    world.stop("a")
    world.publish("j1", targets=("a",))
    world.run(30)
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run_until(lambda: len(world.effects(facts.Inquire)) > 1)
    world.tell(facts.Asked("j1", {Evidence.SILENT: frozenset({"a"})}))
    world.run(60)
    assert world.state("b", "j1") is State.PENDING


def test_a_further_publish_that_is_stored_after_a_replay_of_the_same_jid_is_not_lost():
    world = World(minions=("a", "b"), duration=1.0)
    world.run(LATEST + 10)  # and what it looks for at its start is over
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run_until(lambda: world.state("b", "j1") is State.PENDING)
    world.stop("a")
    world.lag = 60.0
    world.publish("j1", targets=("a",))
    world.lag = 0.0
    world.start("b")
    world.run(300)
    assert world.runs["b", "j1"] == 1
    assert world.state("a", "j1") is State.PENDING


def test_a_further_publish_is_not_lost_even_if_a_later_one_is_recorded_first():
    world = World(minions=("a", "b", "c"), duration=1.0)
    world.run(LATEST + 10)
    world.stop("b")
    world.publish("j1", targets=("a",))
    world.run(20)
    world.lag = 60.0
    world.publish("j1", targets=("b",))
    world.run(3)
    world.lag = 0.0
    world.publish("j1", targets=("c",))
    world.run(2 * LATEST)
    assert world.state("b", "j1") is State.PENDING
    assert "j1" not in world.machine.capture.open


def test_a_further_publish_stored_after_a_late_stored_replay_is_not_lost():
    world = World(minions=("a", "b"), duration=1.0)
    world.run(LATEST + 10)
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run_until(lambda: world.state("b", "j1") is State.PENDING)
    world.lag = 40.0
    world.start("b")
    world.run_until(lambda: world.runs["b", "j1"])
    world.run(5)
    world.stop("a")
    world.lag = 80.0
    world.publish("j1", targets=("a",))
    world.run(300)
    assert world.state("a", "j1") is State.PENDING


@pytest.mark.parametrize("why", ["the engine was down", "events were lost"])
def test_a_start_of_an_unheard_publish_that_is_stored_late_is_not_forgotten(why):
    world = World(minions=("a", "b"), duration=5.0)
    world.run(LATEST + 10)
    world.publish("j1", targets=("a",))
    world.run(1)
    world.keeps_returns = False
    world.lag = 40.0
    with world.deaf():
        world.publish("j1", targets=("b",))
    world.run(1)
    if why == "events were lost":
        world.notice()
    else:
        world.restart()
    world.run(30)
    world.keeps_returns = True
    world.run(2 * LATEST)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.HELD, 1)


def test_a_start_of_a_publish_that_is_stored_late_is_not_forgotten_even_if_the_job_was_open_before_events_were_lost():
    world = World(minions=("a", "b", "c"), duration=1.0)
    world.run(LATEST + 50)
    world.notice()
    world.run(2 * LATEST)
    world.publish("j1", targets=("a",))
    world.run(2)
    world.publish("j1", targets=("c",))
    world.run(30)
    world.keeps_returns = False
    world.lag = 90.0
    with world.deaf():
        world.publish("j1", targets=("b",))
    world.run(0.5)
    world.notice()
    world.run(8)
    world.keeps_returns = True
    world.stop("b")
    world.run(3 * LATEST)
    world.start("b")
    world.run(100)
    assert world.runs["b", "j1"] == 1


def test_the_next_publish_of_a_job_is_looked_at_in_time_while_the_record_of_an_earlier_one_may_follow():
    world = World(minions=("a", "b", "c"), duration=1.0)
    world.run(LATEST + 10)
    world.publish("j1", targets=("a",))
    world.run(2)
    world.publish("j1", targets=("b",))
    world.run(45)  # between two looks for it
    world.stop("c")
    world.publish("j1", targets=("c",))
    world.run(PATIENCE + ANSWERS + 2)
    assert world.state("c", "j1") is State.PENDING


def test_lost_events_of_replays_open_few_of_their_jobs_again():
    names = tuple(f"m{n}" for n in range(100))
    world = World(minions=names, rate=10.0, duration=0.5)
    world.run(LATEST + 10)
    for name in names:
        world.stop(name)
    for number in range(500):
        world.publish(f"j{number}", targets=(names[number % 100],))
    world.run(60)
    for name in names:
        world.start(name)
    for _ in range(6):
        world.run(10)
        world.notice()
        assert len(world.machine.capture.open) < 100


def test_a_kill_of_a_kill_changes_nothing_and_leaves_nothing_open():
    world = away(duration=300.0)
    world.run(LATEST)  # and nothing is searched for any more: that would find the kill once more
    signal = world.kill("j1")
    world.run(10)
    world.enqueue("j1", ["b"])
    world.run(0.5)
    world.kill(signal)
    world.run(2 * LATEST)
    assert world.state("b", "j1") is State.PENDING
    assert (world.machine.capture.open, world.notes) == ({}, {})


def test_a_running_job_is_looked_at_once_when_all_are_looked_at_again():
    world = World(duration=3000.0)
    world.publish("j1")
    world.run(500)
    reads = len(world.effects(facts.Read))
    world.run(160)  # in which they are
    assert 0 < len(world.effects(facts.Read)) - reads <= 2
    assert "j1" not in world.machine.capture.open


def settle(world):
    """Have the store written to, after which what is over is forgotten."""
    world.tell(facts.Requested("pause"))
    world.tell(facts.Requested("resume"))
    world.run(1)


@pytest.mark.parametrize("why", ["events are lost", "the engine is restarted"])
def test_a_kill_of_long_ago_is_not_carried_out_again(why):
    world = away(duration=300.0)
    world.run(LATEST + 10)
    world.kill("j1")
    world.run(5)
    world.enqueue("j1", ["b"])
    world.run(0.5)
    world.run(60)
    if why == "events are lost":
        world.notice()
    else:
        world.restart()
    for _ in range(40):
        world.run(10)
        settle(world)
    assert world.state("b", "j1") is State.PENDING


@pytest.mark.parametrize("twice", [False, True])
def test_a_kill_that_was_carried_out_is_not_carried_out_again_by_an_engine_that_starts_and_searches(twice):
    world = away(duration=300.0)
    world.run(60)
    world.kill("j1")
    world.run(5)
    assert world.state("b", "j1") is State.CANCELLED
    world.enqueue("j1", ["b"])
    world.run(2)
    world.lose_log()
    for _ in range(1 + twice):
        world.restart()
        world.run(15)
    world.run(400)
    assert world.state("b", "j1") is State.PENDING


def test_a_kill_that_a_search_finds_too_while_the_log_has_it_counts():
    world = World(duration=300.0)
    with world.deaf():
        world.publish("j1")
        signal = world.kill("j1")
    for jid in ("j1", signal):
        world.tell(facts.Published(jid, world.now, found=True))
    world.fire("salt/job/any/new", {"jid": "any", "fun": "test.ping"})  # the log is read before the job cache is
    world.run(PATIENCE + ANSWERS + 10)
    assert {entry.state for entry in world.machine.entries()} == {State.CANCELLED}


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("between", [0.1, 5.0, 60.0])
def test_a_part_of_a_kill_counts_even_if_a_power_cut_takes_only_this_part_from_the_log(between, everything):
    world = World(minions=("a", "b", "c"), acks=False, duration=500.0)
    world.run(LATEST + 10)
    world.publish("j1", targets=("a", "b"))
    world.crash()
    named = {"jid": "", "fun": "saltutil.kill_all_jobs"} if everything else {"jid": "j1"}
    signal = world.kill(**named, targets=("a",))
    world.run(between)
    world.kill(**named, targets=("b",), signal=signal)
    for name in ("a", "b"):
        world.stop(name)
    world.reboot(len(world.doings) - 1)
    world.boot()
    world.run(60)
    world.start("b")
    world.run(7200)
    assert world.runs["b", "j1"] == 1
    assert world.state("b", "j1") is State.CANCELLED


@pytest.mark.parametrize("fun", ["saltutil.kill_job", "saltutil.kill_all_jobs", "test.ping,saltutil.kill_job"])
def test_a_job_published_after_a_kill_is_owed_even_if_a_search_finds_the_kill_again(fun):
    world = World(minions=("a", "b", "c"), duration=1.0)
    world.run(LATEST + 10)
    world.stop("b")
    world.publish("j1", targets=("a",))
    world.run(1)
    world.lag = 2.0
    world.kill("" if "all" in fun else "j1", fun=fun, targets=("a", "b"))
    world.lag = 0.0
    world.run(5)
    world.publish("j1", targets=("b",))
    world.run(5)
    world.shell.on_lost()  # what the log tells from now on may lack records
    world.run(60)
    world.start("b")
    world.run(600)
    assert world.runs["b", "j1"] == 1


def test_a_further_part_of_a_kill_found_by_a_search_leaves_alone_what_was_enqueued_since_the_first_part():
    world = World(duration=300.0)
    for name in ("a", "b"):
        world.stop(name)
    world.publish("j1", targets=("a", "b"))
    world.run(PATIENCE + ANSWERS + 5)
    signal = world.kill("j1", targets=("a",))
    world.run(5)
    world.enqueue("j1", ["a"])
    world.run(20)
    assert [world.state(name, "j1") for name in "ab"] == [State.PENDING] * 2
    world.kill("j1", targets=("b",), signal=signal)
    world.run(20)
    world.crash()
    world.lose_log()
    world.boot()
    world.run(60)
    assert [world.state(name, "j1") for name in "ab"] == [State.PENDING, State.CANCELLED]


@pytest.mark.parametrize("kind", ["saltutil.kill_job", "saltutil.kill_all_jobs"])
def test_kills_that_come_every_minute_hold_nothing_back(kind):
    world = World(minions=("a", "b"), duration=1.0)
    world.run(LATEST + 10)
    for number in range(30):
        world.publish(f"j{number}")
        world.run(5)
        world.kill("j0" if kind == "saltutil.kill_job" else "", fun=kind)
        world.run(55)
    assert len(world.machine.capture.open) < 5


@pytest.mark.parametrize("lag", [0.0, 70.0])
def test_a_job_published_between_two_kills_of_everything_is_killed_by_the_second(lag):
    world = World(minions=("a", "b"), acks=False, duration=300.0)
    world.run(LATEST + 10)
    world.publish("j1", targets=("a",))
    world.run(5)
    world.kill("", fun="saltutil.kill_all_jobs")
    world.run(40)
    world.lag = lag
    world.publish("j1", targets=("b",))
    world.lag = 0.0
    world.run(3)
    world.kill("", fun="saltutil.kill_all_jobs")
    world.minions["b"].running.clear()
    world.killed.add(("b", "j1"))
    world.run(200)
    assert world.state("b", "j1") is State.CANCELLED


@pytest.mark.parametrize("after", [0.3, 0.52, 0.6, 3.0])
@pytest.mark.parametrize("lag", [0.1, 5.0])
def test_a_further_publish_of_a_kill_counts_whenever_it_comes(after, lag):
    world = World(minions=("a", "b"))
    world.stop("a")
    world.stop("b")
    world.publish("j1")
    world.run_until(lambda: world.state("b", "j1") is State.PENDING)
    signal = world.kill("j1", targets=("a",))
    world.run(after)
    world.lag = lag
    world.kill("j1", targets=("b",), signal=signal)
    world.run(60)
    assert world.state("b", "j1") is State.CANCELLED


def test_a_kill_among_other_functions_of_a_job_is_looked_at_as_soon_as_one_alone():
    world = away(duration=300.0)
    world.kill("j1", fun="test.ping,saltutil.kill_job")
    world.run(3)
    assert world.state("b", "j1") is State.CANCELLED


@pytest.mark.parametrize("lag", [PATIENCE + 1, 30.0, 90.0])
@pytest.mark.parametrize("event", ["heard", "lost", "heard by an engine that dies then"])
def test_a_job_that_a_busy_master_stores_long_after_its_event_is_queued_all_the_same(lag, event):
    world = World()
    world.run(LATEST + 10)  # and what it looks for at its start is over
    world.stop("b")
    world.lag = lag
    if event == "lost":
        world.crash()
    world.publish("j1")
    world.run(1)
    if event != "heard":
        world.restart()
    world.run(300)
    assert world.state("b", "j1") is State.PENDING


@pytest.mark.parametrize("cache", ["up", "down from then on"])
def test_a_job_that_is_stored_late_is_queued_although_the_engine_dies_again(cache):
    world = World()
    world.stop("b")
    world.lag = 30.0
    world.publish("j1")
    world.run(1)
    world.restart()
    world.run(75)
    world.lag = 0.0
    world.publish("j2")
    world.run(20)  # the engine has not looked again for what was stored late
    assert ("b", "j2") in world.stored
    world.cache_up = cache == "up"
    world.run(0 if world.cache_up else 20)
    world.restart()
    world.run(60)
    world.cache_up = True
    world.run(300)
    assert world.state("b", "j1") is State.PENDING


# -- where the log does not tell of everything ------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_published_as_long_as_the_log_cannot_be_written_is_found_once_it_can(restarts):
    world = World()
    world.run(LATEST + 10)
    world.disk.is_writable = False
    for name in ("a", "b"):
        world.stop(name)
    world.publish("j1")
    world.publish("j2")
    world.kill("j1")
    world.run(600)
    if restarts:
        world.restart()
    world.lose_log()
    world.disk.is_writable = True
    world.run(PATIENCE + ANSWERS + 10)
    assert [world.state("b", jid) for jid in ("j1", "j2")] == [State.CANCELLED, State.PENDING]


# -- time -------------------------------------------------------------------------------------------------------------


def test_nothing_is_asked_about_jobs_whose_time_to_live_has_passed():
    world = World(ttl=100.0)
    world.crash()
    world.stop("b")
    for n in range(20):
        world.publish(f"j{n}")
    world.run(1000)
    world.boot()
    world.run(60)
    assert world.effects(facts.Inquire) == []
    assert world.machine.capture.open == {}


def test_many_jobs_of_one_minion_are_one_question():
    world = World(minions=("a",), ttl=1e6)
    world.crash()
    world.stop("a")
    for n in range(100):
        world.publish(f"j{n:03}")
    world.run(1000)
    world.boot()
    world.run(60)
    assert world.machine.total == 100
    assert len(world.effects(facts.Inquire)) <= 2


def test_a_clock_that_was_set_back_expires_nothing():
    world = World()
    world.stop("b")
    world.publish("j1")
    world.recorded["j1"] = (world.now + 86400.0,) * 2  # the record has another clock's time
    world.run(30)
    assert world.machine.entry("b", "j1").expires_at == pytest.approx(START + 86400, abs=1.0)


@pytest.mark.parametrize("restarts", [False, True], ids=["", "and the engine is killed"])
@pytest.mark.parametrize("before", [False, True], ids=["set after both", "set between both"])
def test_a_job_that_is_published_again_goes_in_its_order_whatever_the_clock_is_set_to(before, restarts):
    world = World(minions=("b",))
    world.stop("b")
    world.publish("j1")
    world.run(5)
    world.publish("j2")
    world.run(1)
    world.clock_ahead = 7200.0 if before else 0.0
    world.publish("j2")
    world.run(5)
    world.clock_ahead = 7200.0
    if restarts:
        world.tell(facts.Requested("pause"))  # the checkpoint is moved on
        world.run(1)
        world.restart()
    world.run(60)
    world.start("b")
    world.run(600)
    assert [effect.jid for effect in world.effects(facts.Publish)] == ["j1", "j2"]


def test_a_job_is_as_old_as_its_first_publish_although_only_the_job_cache_remembers_that():
    world = World(minions=("a", "b", "c"), ttl=3600.0)
    world.stop("b")
    world.publish("j1", targets=("a",))
    world.run(1800)
    assert world.machine.capture.open == {}
    world.publish("j1", targets=("b",))
    world.run(62)
    assert world.machine.entry("b", "j1").expires_at == pytest.approx(START + 3600, abs=0.1)


def test_a_job_published_again_after_its_time_is_not_owed_to_minions_that_an_operator_cancelled():
    world = away(ttl=3600.0, keep=60.0)
    world.tell(facts.Requested("cancel", {"minion": "b", "jid": None}))
    world.run(7200)
    assert world.machine.total == 0
    world.publish("j1", targets=("a",))
    world.run(60)
    world.start("b")
    world.run(600)
    assert world.runs["b", "j1"] == 0


@pytest.mark.parametrize("ahead", [(7200.0, 7200.0), (0.0, 7200.0)])
def test_a_job_published_around_a_change_of_the_clock_is_found_if_the_log_was_lost(ahead):
    world = World(minions=("b",))
    world.run(600)
    world.stop("b")
    world.crash()
    world.clock_ahead = ahead[0]
    world.publish("j1")
    world.clock_ahead = ahead[1]
    world.lose_log()
    world.run(300)
    world.boot()
    world.run(60)
    assert world.state("b", "j1") is State.PENDING


def test_an_engine_that_dies_before_its_first_search_is_over_leaves_its_place_in_the_log_behind():
    world = World(minions=("b",))
    world.cache_up = False
    world.checkpoint = None
    world.restart()
    world.run(1)
    world.stop("b")
    world.publish("j1")
    world.restart()
    world.run(1)
    assert list(world.machine.capture.open) == ["j1"]
    assert world.machine.capture.open["j1"].publishes


def test_a_log_that_was_made_again_is_read_whole_whatever_the_clock_is_set_to():
    world = World(minions=("b",))
    world.run(600)
    world.stop("b")
    world.lose_log()
    world.crash()
    world.clock_ahead = -7200.0
    world.publish("j1")
    world.clock_ahead = 0.0
    world.boot()
    world.run(60)
    assert world.state("b", "j1") is State.PENDING


def test_a_publish_stored_late_is_found_by_an_engine_that_starts_before_the_search_is_over():
    world = World(minions=("b",))
    world.run(600)
    world.stop("b")
    world.lag = 80.0
    world.publish("j1")
    world.lose_log()
    world.run_until(lambda: world.checkpoint["search"] < math.inf and world.checkpoint["at"] > START + 480)
    world.restart()
    assert world.shell.machine.capture.open == {}
    world.run(200)
    assert world.state("b", "j1") is State.PENDING


def test_as_long_as_a_search_is_not_over_the_checkpoint_is_a_place_in_the_log_as_well():
    world = World(minions=("b",))
    world.run(600)
    world.lose_log()
    world.run_until(lambda: world.checkpoint["search"] < math.inf)
    assert world.checkpoint["position"]["log"] == world.disk.log_name
    world.run_until(lambda: world.checkpoint["search"] == math.inf)


# -- power cuts of the master -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fun", ["saltutil.kill_job", "saltutil.kill_all_jobs"])
@pytest.mark.parametrize("searches", [True, False])
@pytest.mark.parametrize("has_note", [True, False])
@pytest.mark.parametrize("waited", [2.0, 20.0])
def test_a_kill_of_which_anything_is_stored_is_left_in_the_log_by_a_power_cut(fun, searches, has_note, waited):
    world = World(minions=("a", "b"), duration=1.0)
    world.run(LATEST + 50)
    world.stop("b")
    world.cache_up = False  # so that the job stays open
    world.publish("j1", targets=("b",))
    world.run(5)
    signal = world.kill("" if "all" in fun else "j1", fun=fun, targets=("b",))
    world.run(waited)
    world.crash()
    if not has_note:
        world.notes.clear()  # the power cut has taken it, too
    world.reboot(0)
    for _ in range(2):
        world.restart()
        world.run(30)
    if not searches:
        del world.recorded[signal]  # the power cut has taken it from the job cache, too
    world.cache_up = True
    world.run(60)
    world.start("b")
    world.run(600)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.CANCELLED, 0)


@pytest.mark.parametrize("fun", ["saltutil.kill_job", "saltutil.kill_all_jobs"])
def test_a_kill_counts_after_a_power_cut_although_the_job_was_killed_and_published_before(fun):
    world = World(minions=("a", "b"), duration=1.0)
    world.run(LATEST + 50)
    world.stop("b")
    world.cache_up = False
    for _ in range(2):
        world.publish("j1", targets=("b",))
        world.run(3)
        world.kill("" if "all" in fun else "j1", fun=fun, targets=("b",))
        world.run(3)
    world.run(20)
    world.crash()
    world.reboot(len(world.doings) - 1)
    world.boot()
    world.run(30)
    world.cache_up = True
    world.run(60)
    assert world.state("b", "j1") is State.CANCELLED


@pytest.mark.parametrize("fun", ["saltutil.kill_job", "saltutil.kill_all_jobs"])
@pytest.mark.parametrize("again", [True, False])
def test_a_job_published_after_a_kill_is_owed_even_if_the_log_is_read_again_after_a_power_cut(fun, again):
    world = World(minions=("a", "b"), duration=1.0)
    world.run(LATEST + 50)
    world.stop("b")
    world.cache_up = False
    if again:
        world.publish("j1", targets=("b",))
    world.run(5)
    world.kill("" if "all" in fun else "j1", fun=fun, targets=("b",))
    world.run(3)
    world.publish("j1", targets=("b",))
    world.run(20)
    world.crash()
    world.reboot(len(world.doings))
    world.boot()
    world.run(30)
    world.cache_up = True
    world.run(60)
    world.start("b")
    world.run(600)
    assert world.runs["b", "j1"] == 1


@pytest.mark.parametrize("fun", ["saltutil.kill_job", "saltutil.kill_all_jobs"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_kill_that_is_read_again_in_the_log_after_a_power_cut_cancels_nothing_that_was_published_after_it(
    fun, is_there
):
    world = World(minions=("a", "b"), duration=1e6)
    world.run(LATEST + 50)
    world.publish("j1", targets=("a",))
    if not is_there:
        world.stop("b")
    world.run(5)
    world.kill("" if "all" in fun else "j1", fun=fun, targets=("a", "b"))
    world.run(5)
    world.publish("j1", targets=("b",))
    world.run(50)
    assert world.machine.capture.open == {}
    world.crash()
    world.reboot(len(world.doings))
    world.boot()
    world.run(30)
    if is_there:
        del world.minions["b"].running["j1"]  # its process dies, and returns nothing
        world.run(1300)
    assert world.state("b", "j1") is (State.HELD if is_there else State.PENDING)


@pytest.mark.parametrize("fun", ["saltutil.kill_job", "saltutil.kill_all_jobs"])
@pytest.mark.parametrize("wanted", [False, True])
def test_a_kill_in_the_checkpoint_counts_even_if_a_power_cut_brings_back_the_entry_that_it_ended(fun, wanted):
    world = World(minions=("a", "b"), duration=300.0)
    world.run(LATEST + 50)
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run(40)
    if "all" in fun:
        world.start("b")  # such a kill ends what has been sent
        world.run_until(lambda: world.state("b", "j1") is State.RUNNING)
    stored = dict(world.banks["job_retry/queue/b"])
    world.kill("" if "all" in fun else "j1", fun=fun, targets=("b",))
    world.run(15)
    if wanted:
        world.enqueue("j1", ["b"])
        world.run(15)
    else:
        world.banks["job_retry/queue/b"] = stored
    world.crash()
    world.reboot(len(world.doings) - 1)
    world.boot()
    world.run(5)
    assert (world.state("b", "j1") is State.CANCELLED) is not wanted


@pytest.mark.parametrize(("kept", "is_new"), [("its entry", False), ("its entry", True), ("nothing", False)])
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_job_whose_return_a_power_cut_leaves_only_in_the_log_is_not_sent_again(kept, is_new, restarts):
    world = World(minions=("a", "b"), duration=1.0)
    world.run(LATEST + 50)
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run(400 if kept == "its entry" else 40)  # what was published long before is not read again
    checkpoint, stored = world.checkpoint, {}
    if is_new:
        world.lose_log()
        world.run(10)
    world.start("b")

    def is_running():
        stored.update({bank: dict(found) for bank, found in world.banks.items()})
        return world.runs["b", "j1"] == 1

    world.run_until(is_running)
    world.run_until(lambda: ("b", "j1") in world.returned)
    world.run(5)
    assert world.state("b", "j1") is None
    world.crash()
    if kept == "its entry":
        world.banks.update(stored)
    if is_new:
        world.checkpoint = checkpoint  # it has a place in the log before
    world.returned.discard(("b", "j1"))
    world.reboot(len(world.doings))
    for _ in range(restarts):
        world.restart()
        world.run(60)
    world.start("b")
    world.run(600)
    assert world.runs["b", "j1"] == 1


# -- what cannot be delivered -----------------------------------------------------------------------------------------


def test_a_job_whose_target_cannot_be_narrowed_is_dead_with_the_reason():
    world = World()
    world.stop("b")
    world.publish("j1")
    world.loads["j1"].update(tgt="os: x", tgt_type="grain")
    world.run(30)
    entry = world.machine.entry("b", "j1")
    assert entry.state is State.DEAD
    assert "has a blank, which a compound target cannot have" in entry.reason


def test_an_enqueue_while_the_minion_is_asked_makes_one_entry():
    world = World()
    world.stop("b")
    world.publish("j1")
    world.run_until(lambda: world.effects(facts.Inquire))
    world.enqueue("j1", ["b"])
    world.run(0.5)
    world.run(30)
    assert world.machine.total == 1
    assert world.machine.entry("b", "j1").history[0][2] == "by an operator"


def test_a_further_publish_that_could_not_be_read_before_its_deadline_is_not_lost():
    world = World(minions=("a", "b"), duration=1e6)
    world.minions["a"].seen.add("j1")  # it is there, and has not got the job
    world.stop("b")
    world.publish("j1", targets=("a",))
    world.run_until(lambda: world.effects(facts.Inquire))
    world.cache_up = False
    world.run(5)
    world.publish("j1", targets=("b",))
    world.run(PATIENCE + 30)
    world.cache_up = True
    world.run(60)
    assert world.state("b", "j1") is State.PENDING


@pytest.mark.parametrize(("lag", "after"), [(0.0, 0.05), (0.0, 0.3), (20.0, 5.0), (60.0, 30.0)])
def test_a_kill_of_everything_kills_nothing_that_is_published_after_it(lag, after):
    world = World(minions=("a", "b"), duration=2.0)
    world.run(LATEST + 10)
    world.stop("b")
    world.lag = lag
    world.kill("", fun="saltutil.kill_all_jobs")
    world.lag = 0.0
    world.run(after)
    world.publish("j1")
    world.run(120)
    assert world.state("b", "j1") is State.PENDING
    world.start("b")
    world.run(120)
    assert world.runs["b", "j1"] == 1


def test_a_kill_of_everything_that_is_read_again_kills_nothing_that_has_begun_after_it():
    world = World(minions=("a", "b"), duration=300.0)
    world.run(LATEST + 10)
    world.shell.maintenance = math.inf  # no checkpoint has the kill
    world.run(15)
    world.kill("", fun="saltutil.kill_all_jobs")
    world.run(1)
    world.publish("j1")
    world.run(1)
    world.freeze("b")
    world.run_until(lambda: world.state("b", "j1") is State.RUNNING)
    world.run(5)
    world.restart()
    world.run(30)
    assert world.state("b", "j1") is State.RUNNING


def test_a_kill_that_is_carried_out_again_at_the_start_passes_over_what_is_removed_meanwhile():
    world = World(minions=("a", "b"), keep=60.0)
    world.part = 1
    world.run(LATEST + 10)
    world.stop("b")
    for jid in ("j1", "j2"):
        world.publish(jid, targets=("b",))
    world.run(40)
    world.kill("", fun="saltutil.kill_all_jobs", targets=("b",))
    world.run(15)
    world.request("cancel", minion="b", jid="j2")
    world.run(15)
    world.crash()
    world.run(100)
    world.boot()
    world.run(60)
    assert (world.state("b", "j1"), world.state("b", "j2")) == (State.PENDING, None)


def test_a_replay_that_begins_after_a_kill_of_everything_goes_on():
    world = World(minions=("a", "b"), duration=200.0)
    world.run(LATEST + 10)
    world.stop("b")
    world.publish("j1")
    world.run(60)
    world.lag = 20.0
    world.kill("", fun="saltutil.kill_all_jobs", targets=("b",))
    world.run(1)
    world.start("b")
    world.run(60)
    assert world.state("b", "j1") is State.RUNNING
    world.run(300)
    assert world.machine.total == 0
    assert world.runs["b", "j1"] == 1


def test_rights_that_cannot_be_checked_keep_no_further_publish_of_the_job_from_being_looked_at():
    world = World(minions=("a", "b", "c"), duration=1.0, triggers=("any",))
    world.run(LATEST + 10)
    world.stop("b")
    world.stop("c")
    world.publish("j1", targets=("a", "b"))
    world.run(60)

    def fail(load, minions):
        raise OSError("the directory of users is down")

    world.of_publisher = fail
    world.start("b")
    world.run(20)
    world.publish("j1", targets=("c",))
    world.run(600)
    assert world.state("c", "j1") is State.PENDING


def test_a_note_lasts_as_long_as_its_job_is_owed_whatever_caused_it():
    world = World(minions=("a", "b", "c"), duration=1.0, ttl=3600.0, keep=60.0)
    world.run(LATEST + 10)
    world.stop("b")
    world.publish("j1", targets=("a", "b"), limits=Limits(given=True, ttl=7 * 86400.0))
    world.run(30)
    world.kill("j1", targets=("c",))
    world.run(20)
    world.tell(facts.Requested("cancel", {"minion": "b", "jid": "j1"}))
    world.tell(facts.Requested("purge", {"states": ("cancelled",)}))
    world.run(5000)
    world.publish("j1", targets=("a",))
    world.run(60)
    assert world.state("b", "j1") is None
