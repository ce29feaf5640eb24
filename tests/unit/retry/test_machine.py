"""The retry machine: what a minion that was away gets, when, and how often."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from saltext.jobs.core.errors import PublishFailed
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.capture import LATEST
from saltext.jobs.core.retry.entry import ENDED, TRANSITIONS, Entry, Key, Kind, Limits, State
from saltext.jobs.core.retry.machine import Retry
from saltext.jobs.core.retry.notes import Note
from saltext.jobs.core.settings import RetrySettings
from tests.worlds.world import PATIENCE, START, World, forty_with_a_job_each


def away(name="b", by_id=True, **options):
    """A world in which one minion has missed a job that the queue holds for it."""
    world = World(**options)
    world.by_id = by_id
    world.stop(name)
    world.publish("j1")
    world.run(PATIENCE + 10)
    return world


def test_the_machine_imports_nothing_of_salt():
    code = "import sys, saltext.jobs.core.retry.machine; print(sorted(n for n in sys.modules if n.split('.')[0] == 'salt'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# -- capture ----------------------------------------------------------------------------------------------------------


def test_nothing_is_queued_before_the_deadline():
    world = World()
    world.stop("b")
    world.publish("j1")
    world.run(PATIENCE - 1)
    assert world.machine.total == 0


def test_no_minion_is_asked_about_a_job_that_all_have_returned():
    world = World()
    world.run(LATEST + 10)  # and what it looks for at its start is over
    world.publish("j1")
    world.run(60)
    assert world.effects(facts.Ask) == []
    assert world.machine.capture.open == {}


def test_a_minion_that_runs_the_job_is_not_owed_it():
    world = World(duration=120.0)
    world.publish("j1")
    world.run(60)
    assert world.machine.total == 0
    assert len(world.effects(facts.Inquire)) == 1


def test_a_return_on_its_way_is_waited_for():
    world = World(minions=("a",))
    world.minions["a"].seen.add("j1")
    world.publish("j1")
    world.run(PATIENCE + 1)
    world.returned.add(("a", "j1"))
    world.run(30)
    assert world.machine.total == 0


def test_a_minion_that_is_there_but_has_not_got_the_job_is_owed_it():
    world = World(minions=("a",))
    world.stop("a")
    world.publish("j1")
    world.minions["a"].up = True  # it reconnects without a start
    world.run(60)
    assert world.runs["a", "j1"] == 1
    assert world.machine.total == 0


@pytest.mark.parametrize("fun", ["test.ping", "saltutil.sync_all", "system.reboot", "mine.update", "sys.doc"])
def test_functions_that_are_excluded_by_default_are_not_kept(fun):
    world = World()
    world.stop("b")
    world.publish("j1", fun=fun)
    world.run(60)
    assert world.machine.total == 0


def test_a_question_about_another_job_is_never_kept_nor_looked_at():
    world = World(exclude=())
    world.run(LATEST + 10)  # and what it looks for at its start is over
    world.stop("b")
    world.publish("j1", fun="saltutil.find_job", limits=Limits(given=True))
    world.run(60)
    assert world.effects(facts.Read) == []


def test_a_job_may_keep_itself_out():
    world = World()
    world.stop("b")
    world.publish("j1", limits=Limits(off=True))
    world.run(60)
    assert world.machine.total == 0


def test_a_job_may_ask_to_be_kept_although_its_function_is_excluded():
    world = World()
    world.stop("b")
    world.publish("j1", fun="test.ping", limits=Limits(given=True, ttl=7200))
    world.run(60)
    assert world.machine.entry("b", "j1").expires_at == pytest.approx(START + 7200, abs=1.0)


def test_only_included_functions_are_kept():
    world = World(include=("state.*",), exclude=())
    world.stop("b")
    world.publish("j1", fun="cmd.run")
    world.publish("j2", fun="state.apply")
    world.run(60)
    assert [entry.jid for entry in world.machine.entries()] == ["j2"]


def test_a_syndic_is_owed_nothing_though_its_key_is_accepted():
    world = World(syndics=("b",))
    for name in ("a", "b"):
        world.stop(name)
    world.publish("j1")
    world.run(60)
    assert [entry.minion for entry in world.machine.entries()] == ["a"]


def test_a_job_that_this_master_did_not_publish_is_never_queued():
    world = World()
    world.tell(facts.Published("forged", world.now))
    world.run(60)
    assert world.machine.total == 0
    assert world.effects(facts.Ask) == []


def test_a_job_cache_that_is_down_delays_the_queueing_and_loses_nothing():
    world = World()
    world.stop("b")
    world.cache_up = False
    world.publish("j1")
    world.run(120)
    assert world.machine.total == 0
    world.cache_up = True
    world.run(30)
    assert world.state("b", "j1") is State.PENDING


def test_a_full_queue_refuses_and_says_so():
    world = World(max_queue_per_minion=1)
    world.stop("b")
    world.publish("j1")
    world.publish("j2")
    world.run(60)
    assert world.machine.total == 1
    refused = [effect for effect in world.effects(facts.Announce) if effect.kind == "dead"]
    assert [(effect.minion, effect.reason) for effect in refused] == [("b", "the queue is full: max_queue_per_minion")]
    assert len(world.effects(facts.Warn)) == 1


# -- replay -----------------------------------------------------------------------------------------------------------


def test_a_minion_that_starts_gets_its_job_once():
    world = away()
    world.start("b")
    world.run(30)
    assert world.runs["b", "j1"] == 1
    assert world.machine.total == 0
    assert world.stored == {}
    assert world.told("j1") == [("b", "queued"), ("b", "sent"), ("b", "done")]


def test_jobs_are_replayed_oldest_first_one_at_a_time():
    world = World(duration=5.0)
    world.stop("b")
    for jid in ("j1", "j2", "j3"):
        world.publish(jid)
        world.run(2)
    world.run(60)
    world.start("b")
    world.run(120)
    assert [effect.jid for effect in world.effects(facts.Publish)] == ["j1", "j2", "j3"]
    assert all(world.runs["b", jid] == 1 for jid in ("j1", "j2", "j3"))


def test_minions_owed_the_same_job_are_one_publish():
    names = tuple(f"m{n}" for n in range(50))
    world = World(minions=names)
    for name in names:
        world.stop(name)
    world.publish("j1")
    world.run(60)
    for name in names:
        world.start(name)
    world.run(60)
    assert all(world.runs[name, "j1"] == 1 for name in names)
    assert len(world.effects(facts.Publish)) <= 3


def test_publishes_keep_to_the_rate():
    world, names = forty_with_a_job_each()
    before, begun = world.publishes, world.now
    for name in names:
        world.start(name)
    world.run(15)
    assert world.publishes - before <= 2.0 * (world.now - begun) + 3


def test_a_job_that_ran_but_whose_return_was_lost_is_not_run_again():
    world = away()
    world.minions["b"].cache_jobs = True
    world.minions["b"].ran.add("j1")
    world.start("b")
    world.run(30)
    assert world.runs["b", "j1"] == 0
    assert world.effects(facts.Publish) == []
    assert world.machine.total == 0


def test_a_job_that_runs_there_already_is_not_sent():
    world = away(duration=60.0)
    world.start("b")
    world.minions["b"].running["j1"] = True
    world.run(20)
    assert world.effects(facts.Publish) == []
    assert world.state("b", "j1") is State.RUNNING


@pytest.mark.parametrize("keeps", [False, True])
def test_a_publish_that_is_lost_is_tried_again_with_growing_pauses(keeps):
    world = away(backoff=10.0, ttl=3000.0)
    world.minions["b"].keeps = keeps
    world.start("b")
    world.deliver = lambda jid, names: None
    world.run(600 if keeps else 20)
    tries = world.machine.entry("b", "j1").tries
    assert 4 <= tries <= 8 if keeps else tries == 1
    del world.deliver
    world.run(1200)
    assert world.runs["b", "j1"] == 1


def test_a_job_that_was_begun_and_interrupted_is_held():
    world = away(duration=30.0)
    world.start("b")
    world.run(15)
    assert world.state("b", "j1") is State.RUNNING
    world.start("b")
    world.run(30)
    assert world.state("b", "j1") is State.HELD
    world.start("b")
    world.run(600)
    assert world.runs["b", "j1"] == 1


@pytest.mark.parametrize("acks", [True, False])
def test_a_replay_whose_return_was_heard_and_could_not_be_stored_is_held_and_not_run_again(acks):
    world = away(acks=acks, duration=0.2)
    world.acks = False  # the word that it begins is lost, or no minion says so
    world.keeps_returns = False  # the master's disk is full
    world.start("b")
    world.run_until(lambda: world.runs["b", "j1"])
    world.run(1)
    world.start("b")
    world.keeps_returns = True
    world.run(3600)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.HELD, 1)


def test_a_start_reported_when_the_job_counts_as_not_received_keeps_it_from_being_sent_again():
    world = away(acks=False, backoff=10.0)
    world.publish("j2", targets=("b",))
    world.run(30)
    world.start("b")
    world.run_until(lambda: world.effects(facts.Publish))
    world.stop("b")
    world.run(30)
    entry = world.machine.entry("b", "j1")
    assert (entry.state, entry.attempts) == (State.PENDING, 0)
    world.tell(facts.Acknowledged("b", "j1"))
    world.run(30)
    world.start("b")
    world.run(600)
    assert world.state("b", "j1") is State.HELD
    assert [effect.jid for effect in world.effects(facts.Publish)] == ["j1", "j2"]
    assert world.runs["b", "j2"] == 1


def test_a_job_that_has_not_begun_when_it_is_asked_about_so_soon_is_asked_about_again():
    world = away(acks=False, duration=30.0)
    world.start("b")
    deliver = world.deliver
    world.deliver = lambda jid, names: world.later(2.5, lambda: deliver(jid, names), engine=False)
    world.run_until(lambda: world.effects(facts.Publish))
    world.run(2.5)
    assert world.state("b", "j1") is State.SENT
    world.run(3.5)
    assert world.state("b", "j1") is State.RUNNING
    world.run(60)
    assert world.machine.total == 0
    assert len(world.effects(facts.Publish)) == 1


def test_a_beginning_of_a_job_that_was_never_sent_is_not_believed():
    world = away()
    world.tell(facts.Acknowledged("b", "j1"))
    world.start("b")
    world.run(60)
    assert world.runs["b", "j1"] == 1


def test_a_late_beginning_that_still_runs_is_waited_for():
    world = away(acks=False, backoff=10.0, duration=100.0)
    world.start("b")
    world.deliver = lambda jid, names: None  # the publish is late
    world.run_until(lambda: world.machine.entry("b", "j1").tries)
    del world.deliver
    assert world.state("b", "j1") is State.PENDING
    world.deliver("j1", ("b",))
    world.tell(facts.Acknowledged("b", "j1"))
    world.run(60)
    assert world.state("b", "j1") is State.RUNNING
    world.run(60)
    assert world.machine.total == 0
    assert world.runs["b", "j1"] == 1
    assert len(world.effects(facts.Publish)) == 1


def test_an_interrupted_job_is_run_again_where_that_is_wanted_until_it_is_dead():
    world = away(duration=500.0, retry_interrupted=True, max_attempts=3, backoff=1.0, ttl=9000.0)
    for _ in range(6):
        world.start("b")
        world.run(60)
    assert world.runs["b", "j1"] == 3
    assert world.state("b", "j1") is State.DEAD
    assert world.machine.entry("b", "j1").reason == "it was begun 3 times and never returned"


def test_a_forged_start_of_a_minion_that_runs_its_job_changes_nothing():
    world = away(duration=40.0)
    world.start("b")
    world.run(15)
    for _ in range(5):
        world.tell(facts.SignOfLife(("b",), facts.Sign.START))
        world.run(2)
    assert world.state("b", "j1") is State.RUNNING
    world.run(60)
    assert world.runs["b", "j1"] == 1
    assert world.machine.total == 0


def test_a_minion_whose_key_is_not_accepted_gets_nothing_and_keeps_its_entry():
    world = away()
    world.barred = {"b"}
    world.start("b")
    world.run(300)
    assert world.state("b", "j1") is State.PENDING
    assert world.effects(facts.Publish) == []


def test_a_publish_that_the_master_refuses_is_tried_again():
    world = away(backoff=5.0)
    world.refuse(2)
    world.start("b")
    world.run(120)
    assert world.runs["b", "j1"] == 1


def test_a_publish_without_confirmation_is_looked_into_and_not_repeated_blindly():
    world = away(duration=20.0)

    world.refuse(1, PublishFailed("time-out"))
    world.start("b")
    world.run(120)
    assert world.runs["b", "j1"] == 1
    assert world.machine.total == 0


def test_a_sweep_finds_a_minion_whose_start_was_not_heard():
    world = away()
    world.minions["b"].up = True
    world.run(700)
    assert world.runs["b", "j1"] == 1


def test_returns_that_were_lost_with_events_are_found_after_the_gap():
    world = away(acks=False, duration=10.0)
    world.start("b")
    world.run(15)
    with world.deaf():
        world.run(15)
    world.tell(facts.Gap())
    world.run(5)
    assert world.machine.total == 0


# -- durability -------------------------------------------------------------------------------------------------------


def test_nothing_is_published_before_its_claim_is_stored_nor_after_that_if_it_was_returned_meanwhile():
    world = away()
    world.store_up = False
    world.start("b")
    world.run(60)
    assert world.runs["b", "j1"] == 0
    world.returned.add(("b", "j1"))  # no event tells of it
    world.store_up = True
    world.run(120)
    assert world.runs["b", "j1"] == 0


def test_a_queue_that_could_not_be_cleared_does_not_run_a_job_again():
    world = away()
    world.start("b")
    while not world.claims:
        world.run(0.05)
    kept = {bank: dict(found) for bank, found in world.banks.items()}
    world.run(30)
    assert world.runs["b", "j1"] == 1
    world.banks.update(kept)  # the removal did not reach the store
    world.restart()
    world.start("b")
    world.run(120)
    assert world.runs["b", "j1"] == 1
    assert world.machine.total == 0


@pytest.mark.parametrize("tenth", range(160))
def test_a_crash_at_any_moment_of_capture_and_replay_runs_the_job_once(tenth):
    world = World()
    world.stop("b")
    world.publish("j1")
    world.run(5.0)
    world.later(PATIENCE + 6, lambda: world.start("b"), engine=False)
    world.run(4.9 + tenth / 10)
    world.crash()
    world.run(0.5)
    world.boot()
    world.run(200)
    assert world.runs["b", "j1"] == 1
    assert world.machine.total == 0


# -- ends -------------------------------------------------------------------------------------------------------------


def test_an_entry_expires_and_is_kept_for_a_while_with_the_reason():
    world = away(ttl=300.0, keep=100.0)
    world.run(300)
    assert world.state("b", "j1") is State.EXPIRED
    assert world.told("j1")[-1] == ("b", "expired")
    world.start("b")
    world.run(50)
    assert world.runs["b", "j1"] == 0
    world.run(100)
    assert world.machine.total == 0
    assert world.machine.jobs == {}


def test_an_interrupted_job_that_expired_is_not_run_again_because_its_record_is_newer():
    world = World(minions=("a", "b"), duration=1e6, ttl=300.0, keep=0.0, max_queue=1)  # b is only noted
    world.run(200)
    world.lag = 40.0
    world.publish("j1")
    world.run(1)
    world.start("a")
    world.start("b")
    world.run(200)
    assert world.state("a", "j1") is State.HELD
    world.run(200)
    assert ("a", "expired") in world.told("j1")
    world.start("a")
    world.run(60)
    assert world.runs["a", "j1"] == 1
    world.run(600)
    assert world.machine.total == 0
    assert world.machine.notes == {}


def test_the_key_of_a_minion_being_deleted_purges_its_queue_only():
    world = World()
    world.stop("b")
    world.stop("c")
    world.publish("j1")
    world.run(60)
    world.tell(facts.KeysRead(frozenset({"b"})))
    assert world.machine.total == 2, "once is no evidence"
    world.tell(facts.KeysRead(frozenset({"b"})))
    assert [entry.minion for entry in world.machine.entries()] == ["c"]
    assert ("b", "cancelled") in world.told("j1")


def test_a_minion_with_a_new_key_gets_none_of_the_jobs_owed_to_the_old_one():
    world = World(minions=("b", "c"))
    for name in world.minions:
        world.stop(name)
    world.publish("j1")
    world.run(60)
    checks = len(world.effects(facts.CheckKeys))
    world.tell(facts.KeysRead(frozenset({"b"})))
    world.renewed = {"b": world.wall()}
    world.start("b")
    world.start("c")
    world.run(20)
    assert len(world.effects(facts.CheckKeys)) == checks + 1
    assert dict(world.runs) == {("c", "j1"): 1}
    assert ("b", "cancelled") in world.told("j1")


def test_a_minion_with_a_new_key_gets_what_was_published_or_asked_for_since():
    world = World(minions=("b", "c"))
    for name in world.minions:
        world.stop(name)
    for jid in ("j1", "j2"):
        world.publish(jid)
    world.run(60)
    world.tell(facts.KeysRead(frozenset({"b"})))
    world.renewed = {"b": world.wall()}
    world.publish("j3")
    world.enqueue("j2", ["b"])
    world.request("cancel", minion="b", jid="j2")
    world.enqueue("j2", ["b"])
    world.run(60)
    assert ("b", "cancelled") in world.told("j1")
    world.start("b")
    world.run(30)
    assert {jid: world.runs["b", jid] for jid in ("j1", "j2", "j3")} == {"j1": 0, "j2": 1, "j3": 1}


def test_a_minion_with_a_new_key_gets_jobs_that_were_published_to_it_since_and_to_others_before():
    world = World(minions=("b", "c"))
    world.stop("b")
    world.publish("j1")
    world.publish("j2")
    world.publish("j3", targets=("c",))
    world.run(60)
    world.tell(facts.KeysRead(frozenset({"b"})))
    world.renewed = {"b": world.wall()}
    world.publish("j2", targets=("b",))
    world.publish("j3", targets=("b",))
    world.run(60)
    assert [jid for jid in ("j1", "j2", "j3") if ("b", "cancelled") in world.told(jid)] == ["j1"]
    world.start("b")
    world.run(30)
    assert {jid: world.runs["b", jid] for jid in ("j1", "j2", "j3")} == {"j1": 0, "j2": 1, "j3": 1}


def test_many_events_about_keys_make_one_look_at_them_and_none_if_nothing_is_owed():
    for world, looks in ((away(), 1), (World(), 0)):
        world.run(60)
        checks = len(world.effects(facts.CheckKeys))
        for _ in range(5):
            world.fire("salt/key", {"id": "b", "act": "accept", "result": True})
        world.run(0.9)
        assert len(world.effects(facts.CheckKeys)) == checks
        world.run(5)
        assert len(world.effects(facts.CheckKeys)) == checks + looks


def test_an_unchanged_key_that_is_there_again_is_the_key_of_the_same_minion():
    world = away()
    world.tell(facts.KeysRead(frozenset({"b"})))
    world.start("b")
    world.run(20)
    assert world.runs["b", "j1"] == 1


# -- operators --------------------------------------------------------------------------------------------------------


def test_a_replay_now_ends_the_waiting():
    world = away(backoff=3600.0, ttl=9000.0)
    world.start("b")
    world.deliver = lambda jid, names: None
    world.run(60)
    del world.deliver
    world.tell(facts.Requested("replay", {"minion": "b"}))
    world.run(15)
    assert world.answers == [1]
    assert world.runs["b", "j1"] == 1


def test_a_replay_now_counts_although_the_minion_is_being_asked_in_vain():
    world = away(ttl=9000.0)
    world.tell(facts.Requested("replay", {"minion": "b"}))
    world.run(4)
    world.minions["b"].up = True
    world.tell(facts.Requested("replay", {"minion": "b"}))
    world.run(20)
    assert world.answers == [1, 1]
    assert world.runs["b", "j1"] == 1


def test_purging_removes_what_has_ended_and_nothing_else():
    world = World()
    world.stop("b")
    world.publish("j1")
    world.publish("j2")
    world.run(60)
    world.tell(facts.Requested("cancel", {"jid": "j1"}))
    world.tell(facts.Requested("purge", {"states": ("cancelled", "dead")}))
    world.run(1)
    assert world.answers == [1, 1]
    assert [entry.jid for entry in world.machine.entries()] == ["j2"]


def test_an_entry_purged_while_its_job_is_looked_at_again_after_a_restart_stays_away():
    world = World()
    world.stop("b")
    world.publish("j1")
    world.run(60)
    world.tell(facts.Requested("cancel", {"jid": "j1"}))
    world.run(5)
    world.checkpoint = None
    world.lose_log()
    world.restart()
    world.tell(facts.Requested("purge", {"states": ("cancelled",)}))
    world.run(60)
    assert world.machine.total == 0


def test_a_kill_that_is_noted_is_not_noted_again_at_each_start():
    kill, note = facts.Kill("j1", frozenset("ab"), "ann", 5.0), Note(1e6, killed={"a": "ann", "b": "ann"})
    machine = Retry(RetrySettings(), PATIENCE)
    effects = machine.step(facts.Restored(notes={"j1": note}, kills=[kill]), 10.0)
    assert not [effect for effect in effects if isinstance(effect, facts.Save)]
    effects = machine.step(facts.Restored(kills=[dataclasses.replace(kill, minions=frozenset("abc"))]), 10.0)
    assert [effect.keys for effect in effects if isinstance(effect, facts.Save)] == [(Key(Kind.NOTE, "j1"),)]


@pytest.mark.parametrize("ahead", [0.0, 3600.0])
def test_a_kill_ends_an_entry_that_an_operator_asked_for_again_before_the_clock_went_back_in_a_reboot(ahead):
    world = World()
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run(60)
    for set_to in (ahead, 0.0):
        world.crash()
        world.clock_ahead = set_to
        world.reboot(len(world.doings))
        world.boot()
        world.run(60)
        if set_to:
            world.enqueue("j1", ["b"])
            world.run(60)
    assert world.state("b", "j1") is State.PENDING
    world.kill("j1", targets=("b",))
    world.run(60)
    assert world.state("b", "j1") is State.CANCELLED


# -- a publish that was only claimed ----------------------------------------------------------------------------------


def claimed_and_dead(sent):
    """A world whose engine has died after it claimed a job, before or after the master took the publish."""
    world = away()
    world.start("b")
    if sent:
        world.run_until(lambda: world.published_at)
        world.run(0.06)
    else:
        world.run_until(lambda: world.claims)
    world.crash()
    assert world.stored["b", "j1"]["state"] != "sent"
    assert world.runs["b", "j1"] == sent
    return world


def looked_at(world):
    """Start the minion, whose job has died, and the engine. Returns why the job waits then."""
    world.start("b")
    world.boot()
    world.run_until(lambda: world.state("b", "j1") is State.PENDING)
    return world.machine.entry("b", "j1").reason


UNPUBLISHED = "the engine ended before it was published"


def test_a_job_that_was_claimed_and_not_published_is_known_to_be_unpublished():
    assert looked_at(claimed_and_dead(sent=False)) == UNPUBLISHED


@pytest.mark.parametrize("ahead", [0.0, 7200.0, -7200.0])
def test_a_job_that_was_published_never_counts_as_unpublished_whatever_the_clock_is_set_to(ahead):
    world = claimed_and_dead(sent=True)
    world.clock_ahead = ahead
    assert looked_at(world) != UNPUBLISHED
    assert world.machine.entry("b", "j1").lost == 1


@pytest.mark.parametrize("ahead", [0.0, 7200.0, -7200.0])
def test_a_job_that_was_published_never_counts_as_unpublished_where_its_first_record_was_removed(ahead):
    world = away()
    del world.recorded["j1"]
    world.run(300)
    world.start("b")
    world.run_until(lambda: world.published_at)
    world.run(0.06)
    world.crash()
    assert "j1" in world.recorded
    world.clock_ahead = ahead
    assert looked_at(world) != UNPUBLISHED


# -- entries ----------------------------------------------------------------------------------------------------------


def test_every_state_has_a_row_in_the_table_and_only_done_is_final():
    assert set(TRANSITIONS) == set(State)
    assert [state for state, ways in TRANSITIONS.items() if not ways] == [State.DONE]
    assert set(State) > ENDED


def test_a_way_that_the_table_does_not_know_is_refused():
    entry = Entry("b", "j1", 1.0, 2.0, "x")
    with pytest.raises(ValueError, match="from pending to sent"):
        entry.move(State.SENT, 3.0, "")


def test_a_history_keeps_its_first_step_and_the_newest():
    entry = Entry("b", "j1", 1.0, 2.0, "was away")
    for n in range(40):
        entry.move(State.HELD, float(n), str(n))
        entry.move(State.PENDING, float(n), str(n))
    assert len(entry.history) == 20
    assert entry.history[0][2] == "was away"
    assert entry.history[-1][2] == "39"


# -- kills and requests -----------------------------------------------------------------------------------------------


def kill_it(world):
    world.kill("j1")


def want_it(world):
    world.request("retry", minion="b", jid="j1", asker=None)


def enqueue_it(world):
    world.enqueue("j1", ["b"])


def given_up(**options):
    """A world in which the job of a minion that is away was given up."""
    world = away(**options)
    world.denied = {"publisher"}
    world.start("b")
    world.run(60)
    assert world.state("b", "j1") is State.DEAD
    world.denied = set()
    world.stop("b")
    return world


@pytest.mark.parametrize("want", [want_it, enqueue_it])
@pytest.mark.parametrize(("steps", "runs"), [("want kill", 0), ("kill want", 1)])
def test_a_kill_counts_for_a_request_made_before_it_and_carried_out_later(want, steps, runs):
    world = given_up()
    world.crash()
    for step in steps.split():
        {"want": want, "kill": kill_it}[step](world)
        world.run(30)
    world.boot()
    world.run(60)
    world.start("b")
    world.run(600)
    assert world.runs["b", "j1"] == runs
    assert world.state("b", "j1") is (None if runs else State.CANCELLED)


def test_a_kill_counts_for_a_request_made_before_it_even_if_the_engine_restarts():
    world = given_up()
    world.crash()
    want_it(world)
    world.run(30)
    kill_it(world)
    world.boot()
    world.run(0.2)
    world.store_up = False
    world.run(20)
    world.restart()
    world.store_up = True
    world.run(60)
    world.start("b")
    world.run(600)
    assert (world.runs["b", "j1"], world.state("b", "j1")) == (0, State.CANCELLED)


def test_a_request_made_on_a_clock_that_is_ahead_counts_as_made_now():
    world = given_up()
    kill_it(world)
    world.run(30)
    world.clock_ahead = 3600.0
    want_it(world)
    world.clock_ahead = 0.0
    world.run(60)
    world.start("b")
    world.run(600)
    assert world.runs["b", "j1"] == 1


def test_a_newer_job_that_was_killed_replaces_none():
    world = World(minions=("b",), supersede=("state.*",))
    world.stop("b")
    world.publish("j1", digest="same")
    world.run(60)
    world.publish("j2", digest="same")
    world.run(3)
    world.kill("j2")
    world.run(60)
    assert (world.state("b", "j1"), world.state("b", "j2")) == (State.PENDING, State.CANCELLED)


def is_not_owed(world):
    """Whether a minion that comes back gets nothing of a job."""
    world.start("b")
    world.run(60)
    return (world.runs["b", "j1"], world.state("b", "j1")) == (0, None)


def test_what_operators_removed_is_not_taken_up_again_from_a_store_that_still_has_it():
    world = World()
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run(60)
    world.request("cancel", minion="b", jid="j1")
    world.request("purge", states=["cancelled"])
    world.request("take_up")
    world.run(10)
    assert is_not_owed(world)


def test_a_request_and_a_kill_do_not_count_for_what_was_published_after_both():
    world = World()
    world.stop("a")
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run(60)
    world.crash()
    world.enqueue("j1", (), named=False)
    world.run(10)
    world.kill("j1", targets=("a", "b"))
    world.run(10)
    world.publish("j1", targets=("a",))
    world.run(10)
    world.boot()
    world.run(60)
    assert (world.state("a", "j1"), world.state("b", "j1")) == (State.PENDING, State.CANCELLED)


def test_a_job_in_the_queue_that_is_wanted_after_its_kill_outlives_the_kill_though_that_is_read_later():
    world = World()
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run(60)
    with world.deaf():
        world.kill("j1", targets=("b",))
    world.run(0.05)
    world.enqueue("j1", ("b",))
    world.run(60)
    assert world.state("b", "j1") is State.PENDING
    world.restart()
    world.run(60)
    assert world.state("b", "j1") is State.PENDING


def test_what_operators_queued_and_removed_while_minions_were_asked_is_not_owed_again():
    world = World()
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run(12)
    world.enqueue("j1", ("b",))
    world.request("cancel", minion="b", jid="j1")
    world.request("purge", states=["cancelled"])
    world.run(60)
    assert is_not_owed(world)


def test_an_old_job_that_operators_queued_and_removed_is_not_taken_up_again():
    world = World(ttl=300.0)
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run(400)
    world.enqueue("j1", ["b"])
    world.run(10)
    world.request("purge", states=["pending"])
    world.request("take_up")
    world.run(10)
    assert is_not_owed(world)


def test_what_was_returned_while_the_store_was_away_is_not_taken_up_again():
    world = World(duration=100.0)
    world.stop("b")
    world.publish("j1", targets=("b",))
    world.run(60)
    world.start("b")
    world.run(60)
    world.store_up = False
    world.run(100)
    assert world.told("j1").count(("b", "done")) == 1
    world.request("take_up")
    world.run(1)
    world.store_up = True
    world.run(120)
    assert world.told("j1").count(("b", "done")) == 1


def test_that_a_job_has_begun_is_not_forgotten_when_there_is_no_room_for_its_entry():
    world = World(max_queue=1, duration=1000.0, sweep=100.0)
    world.stop("c")
    world.publish("j1", targets=("c",))
    world.publish("j2", targets=("b",))
    world.run(60)
    world.minions["b"].running.clear()
    world.run(300)
    assert ("b", "dead") in world.told("j2")
    world.request("cancel", jid="j1")
    world.request("purge", states=["cancelled"])
    world.run(300)
    assert world.runs["b", "j2"] == 1
    assert world.state("b", "j2") is State.HELD
