"""How a job is delivered: without loops, in order, only where its target still matches, and not after a pause."""

from __future__ import annotations

import time

import pytest

from saltext.jobs.core.errors import NoMinionMatched
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import State
from saltext.jobs.core.retry.knowledge import Evidence
from saltext.jobs.core.retry.steps import Step
from tests.unit.retry.test_machine import away
from tests.worlds.world import ANSWERS, PATIENCE, World, forty_with_a_job_each


@pytest.mark.parametrize("acks", [True, False])
@pytest.mark.parametrize("delay", [0.05, 0.3, 0.9, 1.05, 1.2, 1.5, 2.5, 5.0])
def test_a_job_that_takes_its_own_minion_down_does_not_loop(acks, delay):
    world = away(acks=acks, backoff=1.0, duration=60.0)
    deliver = world.deliver

    def go_down(jid, names):
        for name in names:
            runs = world.runs[name, jid]
            deliver(jid, [name])
            if world.runs[name, jid] > runs:
                world.later(delay, lambda name=name: world.stop(name), engine=False)
                world.later(delay + 8.0, lambda name=name: world.start(name), engine=False)

    world.deliver = go_down
    world.start("b")
    world.run(4 * 3600)
    assert 1 <= world.runs["b", "j1"] <= 2
    assert world.state("b", "j1") is State.HELD


def test_a_claim_without_a_publish_counts_for_nothing_however_often_the_engine_dies():
    world = away(backoff=1.0)
    take_publish = world.take_publish

    async def never(life, *_):
        await life.wait(3600.0)  # the engine dies before it publishes

    world.take_publish = never
    world.start("b")
    for _ in range(5):
        claims = len(world.effects(facts.Claim))
        world.run_until(lambda claims=claims: len(world.effects(facts.Claim)) > claims)
        world.run(1)
        assert world.claims["j1"], "the claim is durable"
        world.restart()
    world.take_publish = take_publish
    world.run_until(lambda: ("b", "j1") not in world.stored)
    assert world.runs["b", "j1"] == 1


def test_two_publishes_that_the_engine_did_not_live_to_hear_of_may_have_begun_the_job():
    world = away(backoff=1.0)
    world.deliver = lambda jid, names: None  # it is not known whether they reached the minion
    world.start("b")
    for _ in range(2):
        world.run_until(lambda: world.stored["b", "j1"]["state"] == "sent")
        world.restart()
        world.run_until(lambda: world.stored["b", "j1"]["state"] in ("pending", "held"))
    assert world.state("b", "j1") is State.HELD
    assert world.runs["b", "j1"] == 0


def test_a_state_run_waits_until_the_minion_s_own_one_is_over_since_salt_would_refuse_it():
    world = away(backoff=5.0)
    world.minions["b"].applies = True
    world.start("b")
    world.run(60)
    assert (world.state("b", "j1"), world.runs["b", "j1"]) == (State.PENDING, 0)
    assert len(world.effects(facts.Ask)) < 14
    world.minions["b"].applies = False
    world.run_until(lambda: ("b", "j1") not in world.stored)
    assert world.runs["b", "j1"] == 1


def test_any_other_job_goes_to_a_minion_that_runs_states():
    world = World()
    world.stop("b")
    world.publish("j1", fun="cmd.run")
    world.run(30)
    world.minions["b"].applies = True
    world.start("b")
    world.run_until(lambda: ("b", "j1") not in world.stored)
    assert world.runs["b", "j1"] == 1


def test_a_minion_that_an_operator_names_gets_the_job_whatever_its_target():
    world = World(exclude=("state.*",))
    world.by_id = False
    world.stop("b")
    world.publish("j1")
    world.run(30)
    world.unmatched.add(("b", "j1"))
    world.enqueue("j1", ["b"])
    world.start("b")
    world.run(60)
    assert [effect.named for effect in world.effects(facts.Publish)] == [frozenset({"b"})]
    assert world.runs["b", "j1"] == 1


def claimed(times, **options):
    """A world in which a job is being claimed for minion b, for the first time or again."""
    world = World(minions=("b",), backoff=2.0, **options)
    world.stop("b")
    world.publish("j1")
    world.run_until(lambda: world.state("b", "j1") is State.PENDING)
    for _ in range(times):
        world.start("b")
        world.run_until(lambda: world.machine.queue.replay("b", "j1", Step.CLAIMING))
        if not world.effects(facts.Publish) and times > 1:
            world.stop("b")  # and the job is lost on its way
            world.run_until(lambda: world.state("b", "j1") is State.PENDING)
    return world


def test_a_start_that_is_heard_while_the_job_is_claimed_again_is_believed():
    world = claimed(times=2)
    world.tell(facts.Acknowledged("b", "j1"))
    world.run(300)
    assert len(world.effects(facts.Publish)) == 1
    assert world.state("b", "j1") is State.HELD


def test_a_start_that_is_heard_while_the_job_is_claimed_for_the_first_time_is_not_believed():
    world = claimed(times=1)
    world.tell(facts.Acknowledged("b", "j1"))
    world.run(300)
    assert world.runs["b", "j1"] == 1
    assert world.machine.total == 0


@pytest.mark.parametrize("when", ["at once", "while it is claimed again"])
def test_a_minion_that_is_said_to_have_begun_a_job_whose_publish_was_refused_gets_it(when):
    world = World(minions=("b",), backoff=2.0)
    world.stop("b")
    world.publish("j1")
    world.run_until(lambda: world.state("b", "j1") is State.PENDING)
    world.refuse(1)
    world.start("b")
    world.run_until(lambda: world.effects(facts.Publish))
    if when == "while it is claimed again":
        world.run_until(lambda: world.machine.queue.replay("b", "j1", Step.CLAIMING))
    assert world.runs == {}
    world.tell(facts.Acknowledged("b", "j1"))
    world.run(300)
    assert world.runs["b", "j1"] == 1
    assert world.machine.total == 0


def test_a_start_that_is_heard_while_the_job_waits_to_be_sent_again_is_believed():
    world = World(minions=("b",), acks=True, duration=1e6, backoff=2.0, rate=0.2)
    world.stop("b")
    world.publish("j1")
    world.run_until(lambda: world.state("b", "j1") is State.PENDING)
    world.start("b")
    world.run_until(lambda: world.effects(facts.Publish))
    world.stop("b")  # and the job is lost on its way
    world.run_until(lambda: world.state("b", "j1") is State.PENDING)
    world.start("b")
    world.run_until(lambda: world.machine.queue.replay("b", "j1", Step.TO_SEND))
    world.minions["b"].running["j1"] = True  # the publish has reached it after all
    world.acknowledge("b", "j1")
    world.run(60)
    assert len(world.effects(facts.Publish)) == 1
    assert world.state("b", "j1") is State.RUNNING


def test_the_time_for_a_return_on_its_way_is_not_cut_short_by_a_look_for_another_minion():
    world = World(minions=("a", "b"), acks=True, duration=1e6)
    for name in ("a", "b"):
        world.stop(name)
    world.publish("j1")
    world.run(60)
    for name in ("a", "b"):
        world.start(name)
    world.run(60)
    del world.minions["a"].running["j1"]  # it has ended, and its return is on its way
    world.notice()
    world.run_until(lambda: world.machine.queue.replay("a", "j1", Step.ANSWERED))
    world.notice()  # the other one is looked at again soon
    looks = len(world.effects(facts.LookUp))
    world.run(2.5)
    assert "b" in world.effects(facts.LookUp)[looks].minions
    assert world.state("a", "j1") is State.RUNNING
    world.take_return("a", "j1")
    world.run(5)
    assert (world.state("a", "j1"), world.state("b", "j1")) == (None, State.RUNNING)
    assert ("a", "held") not in world.told("j1")


@pytest.mark.parametrize("again", [False, True])
def test_a_minion_that_begins_a_job_after_it_said_that_it_does_not_run_it_is_left_alone(again):
    world = World(minions=("b",), duration=120.0, backoff=2.0, retry_interrupted=again)
    world.stop("b")
    world.publish("j1")
    world.run(60)
    world.publish("j2")
    world.run(60)
    deliver, waiting = world.deliver, []

    def wait(jid, names):
        waiting.append((jid, names)) if jid == "j1" and not waiting else deliver(jid, names)

    world.deliver = wait  # as under process_count_max
    world.start("b")
    world.run_until(lambda: waiting and world.machine.queue.replay("b", "j1", Step.ANSWERED))
    deliver(*waiting[0])
    for _ in range(30):
        world.run(20)
        assert len(world.minions["b"].running) <= 1
    assert dict(world.runs) == {("b", "j1"): 1, ("b", "j2"): 1}
    assert world.machine.total == 0


def test_a_minion_that_answers_while_the_job_is_claimed_that_it_runs_it_is_not_sent_it():
    world = claimed(times=1, duration=20.0)
    world.minions["b"].running["j1"] = True  # an earlier publish has reached it late
    world.tell(facts.Surveyed(number=99, running={"b": frozenset({"j1"})}))
    world.run(5)
    assert world.effects(facts.Publish) == []
    assert world.state("b", "j1") is State.RUNNING


def test_no_newer_job_overtakes_one_that_waits_to_be_tried_again():
    world = World(duration=1.0, backoff=100.0)
    world.stop("b")
    world.publish("j1")
    world.publish("j2")
    world.run(60)
    deliver, world.deliver = world.deliver, lambda jid, names: None  # the first publish is lost
    world.start("b")
    world.run_until(lambda: world.machine.entry("b", "j1").tries)
    world.deliver = deliver
    world.run(300)
    assert [effect.jid for effect in world.effects(facts.Publish)] == ["j1", "j1", "j2"]


def cut_off(keeps=False, jids=("j1", "j2", "j3"), **options):
    """
    A world in which minion b got ``j1`` before its link was cut, runs nothing any more, and has missed the others. The link
    is back, no start tells of that, and the return of ``j1`` is lost: while it lives, b ignores that jid.
    """
    world = World(minions=("b",), **options)
    minion = world.minions["b"]
    minion.up, minion.keeps = False, keeps
    minion.seen.add("j1")
    for jid in jids:
        world.publish(jid)
    world.run(60)
    minion.up = True
    world.tell(facts.SignOfLife(("b",), facts.Sign.ANSWER))
    return world


@pytest.mark.parametrize("keeps", [False, True])
def test_a_job_that_a_living_minion_does_not_take_is_held_after_some_tries_and_the_next_goes_on(keeps):
    world = cut_off(keeps)
    world.run(600)
    entry = world.machine.entry("b", "j1")
    assert (entry.state, entry.attempts) == (State.HELD, 0)
    assert ("in vain" if keeps else "it ran without a return") in entry.reason
    assert [effect.jid for effect in world.effects(facts.Publish)] == [*["j1"] * (3 if keeps else 2), "j2", "j3"]
    assert dict(world.runs) == {("b", "j2"): 1, ("b", "j3"): 1}


def test_a_job_with_none_behind_it_is_tried_again_and_is_held_as_soon_as_another_waits():
    world = cut_off(keeps=True, jids=("j1",), ttl=1e6)
    world.run(3 * 3600)
    assert world.state("b", "j1") is State.PENDING
    assert 5 <= len(world.effects(facts.Publish)) <= 9
    world.minions["b"].up = False
    world.publish("j2")
    world.run(60)
    world.minions["b"].up = True
    world.tell(facts.SignOfLife(("b",), facts.Sign.ANSWER))
    world.run(60)
    assert (world.state("b", "j1"), world.runs["b", "j2"]) == (State.HELD, 1)


def test_publishes_that_a_minion_did_not_take_are_counted_through_restarts_of_the_engine():
    world = cut_off(keeps=True)
    for _ in range(2):
        sent = len(world.effects(facts.Publish))
        world.run_until(lambda sent=sent: len(world.effects(facts.Publish)) > sent)
        world.run(30)
        world.restart()
        world.tell(facts.SignOfLife(("b",), facts.Sign.ANSWER))
    world.run(600)
    assert world.state("b", "j1") is State.HELD
    assert len([effect for effect in world.effects(facts.Publish) if effect.jid == "j1"]) == 3


def test_a_job_that_the_master_does_not_match_to_its_minion_steps_aside_too():
    world = away(backoff=1.0, triggers=("any",))
    world.publish("j2", targets=("b",))
    world.run(60)
    take_publish = world.take_publish

    async def miss(life, jid, names, once):
        if jid == "j1":
            raise NoMinionMatched("nobody")
        return await take_publish(life, jid, names, once)

    world.take_publish = miss
    world.start("b")
    for _ in range(20):
        world.run(20)
        world.tell(facts.SignOfLife(("b",), facts.Sign.ACTIVITY))
    assert (world.state("b", "j1"), world.runs["b", "j2"]) == (State.HELD, 1)


def test_a_retry_by_an_operator_is_not_used_up_by_a_publish_that_matches_no_minion():
    world = World(minions=("b",), duration=100.0)
    world.minions["b"].keeps = True
    world.publish("j1")
    world.run(5)
    world.stop("b")
    world.run(60)
    world.start("b")
    world.run_until(lambda: world.state("b", "j1") is State.HELD)
    world.miss(1)
    world.request("retry", minion="b", jid="j1", asker=["root", "", False])
    world.run(7200)
    assert [effect.rerun for effect in world.effects(facts.Publish)] == [True, True]
    assert world.runs["b", "j1"] == 2
    assert world.machine.total == 0


def test_a_job_whose_function_the_master_forbids_is_held_and_the_next_goes_on():
    world = away()
    world.publish("j2", targets=("b",))
    world.run(60)
    world.forbidden.add("j1")
    world.start("b")
    world.run(60)
    entry = world.machine.entry("b", "j1")
    assert (entry.state, entry.attempts, entry.sent_at) == (State.HELD, 0, None)
    assert entry.reason == "the master does not let it be published: no"
    assert len([effect for effect in world.effects(facts.Publish) if effect.jid == "j1"]) == 1
    assert world.runs["b", "j2"] == 1


def test_a_job_whose_function_is_allowed_again_is_delivered_when_an_operator_wants_it():
    world = away()
    world.forbidden.add("j1")
    world.start("b")
    world.run(60)
    world.forbidden.clear()
    world.tell(facts.Requested("retry", {"minion": "b", "jid": "j1"}))
    world.run(60)
    assert (world.machine.total, world.runs["b", "j1"]) == (0, 1)


def test_a_pause_stops_whatever_has_not_been_published():
    world, names = forty_with_a_job_each()
    for name in names:
        world.start(name)
    world.run(8)
    world.tell(facts.Requested("pause"))
    world.run(1)  # what was being published
    sent = len(world.effects(facts.Publish))
    assert 0 < sent < 20
    world.run(3600)
    assert len(world.effects(facts.Publish)) == sent
    world.tell(facts.Requested("resume"))
    world.run(600)
    assert all(world.runs[name, f"j-{name}"] == 1 for name in names)


def test_a_claim_that_becomes_durable_after_a_pause_is_not_published():
    world = away()
    world.store_up = False
    world.start("b")
    world.run(20)
    world.tell(facts.Requested("pause"))
    world.store_up = True
    world.run(600)
    assert world.effects(facts.Publish) == []
    world.tell(facts.Requested("resume"))
    world.run(120)
    assert world.runs["b", "j1"] == 1


def test_forged_starts_delay_a_minion_by_a_minute_at_most():
    world = away()
    world.minions["b"].up = True
    begun = world.now
    while not world.runs["b", "j1"]:
        world.tell(facts.SignOfLife(("b",), facts.Sign.START))
        world.run(0.9)
        assert world.now < begun + 90


def test_ended_entries_do_not_fill_the_queue_of_a_minion():
    world = World(max_queue_per_minion=3)
    world.stop("b")
    for n in range(3):
        world.publish(f"old{n}")
    world.run(60)
    world.tell(facts.Requested("cancel", {"minion": "b"}))
    for n in range(3):
        world.publish(f"new{n}")
    world.run(60)
    assert [world.state("b", f"new{n}") for n in range(3)] == [State.PENDING] * 3


def test_a_return_that_came_while_the_engine_was_down_ends_its_entry_at_the_start():
    world = away()
    world.crash()
    world.returned.add(("b", "j1"))
    world.run(10)
    world.boot()
    world.run(5)
    assert world.machine.total == 0


@pytest.mark.parametrize("found", [True, False])
def test_before_an_entry_expires_its_return_is_looked_for(found):
    world = away(ttl=300.0)
    if found:
        world.returned.add(("b", "j1"))
    world.run(300)
    assert world.state("b", "j1") is (None if found else State.EXPIRED)


def test_nothing_expires_as_long_as_the_job_cache_cannot_be_read():
    world = away(ttl=300.0)
    world.cache_up = False
    world.run(600)
    assert world.state("b", "j1") is State.PENDING
    world.cache_up = True
    world.run(30)
    assert world.state("b", "j1") is State.EXPIRED


def test_the_loss_of_all_keys_at_once_is_not_believed():
    world = World()
    world.stop("b")
    world.stop("c")
    world.publish("j1")
    world.run(60)
    for _ in range(3):
        world.tell(facts.KeysRead(frozenset({"b", "c"}), none=True))
    assert world.machine.total == 2
    assert any("not believed" in effect.message for effect in world.effects(facts.Warn))


def test_all_minions_with_a_queue_may_lose_their_keys_where_others_have_theirs():
    world = World()
    world.stop("b")
    world.stop("c")
    world.publish("j1")
    world.run(60)
    for _ in range(2):
        world.tell(facts.KeysRead(frozenset({"b", "c"})))
    assert world.machine.total == 0


def test_a_later_claim_of_the_same_job_does_not_make_an_earlier_one_be_forgotten():
    world = World(minions=("a", "b"), duration=60.0)
    world.stop("a")
    world.stop("b")
    world.publish("j1")
    world.run(40)
    world.start("a")
    world.run_until(lambda: world.runs["a", "j1"])
    world.start("a")  # interrupted: held, which may not be stored yet when the next claim is
    world.run_until(lambda: world.state("a", "j1") is State.HELD)
    world.start("b")
    world.run_until(lambda: world.runs["b", "j1"])
    assert world.claims["j1"].keys() == {"a", "b"}


def test_a_job_that_the_store_refuses_is_dead_with_the_reason_and_never_published():
    world = away()
    world.tell(facts.Refused("j1", "the store refuses it: too long"))
    world.start("b")
    world.run(60)
    entry = world.machine.entry("b", "j1")
    assert (entry.state, entry.reason) == (State.DEAD, "the store refuses it: too long")
    assert world.effects(facts.Publish) == []


@pytest.mark.parametrize("every", [45.0, 7.0, 2.0])
def test_forged_signs_of_life_of_a_minion_that_is_away_cost_less_each_time(every):
    world = away(ttl=1e6, triggers=("any",))
    before, end = len(world.effects(facts.Ask)), world.now + 3600
    while world.now < end:
        world.tell(facts.SignOfLife(("b",), facts.Sign.ACTIVITY))
        world.run(every)
    assert 8 <= len(world.effects(facts.Ask)) - before <= 16  # in an hour
    world.start("b")
    world.run(400)
    assert world.runs["b", "j1"] == 1


def test_a_storm_of_starts_costs_the_same_for_each():
    world, spent = World(minions=("a",)), []
    for part in range(20):
        begun = time.thread_time()
        for number in range(3000):
            world.machine.step(facts.SignOfLife((f"m{part}.{number}",), facts.Sign.START), world.now)
        spent.append(time.thread_time() - begun)
    # If each cost as much as there were before it, the last parts would cost ten times as much as the first ones.
    assert min(spent[-4:]) < 3 * max(spent[:4])


def test_a_job_whose_process_dies_is_held_soon():
    world = away(duration=4000.0)
    world.start("b")
    world.run(20)
    world.minions["b"].running.clear()
    world.killed.add(("b", "j1"))
    world.run(60)
    assert world.state("b", "j1") is State.HELD


def test_a_long_job_is_asked_about_the_less_often_the_longer_it_runs():
    world = away(duration=4000.0, sweep=1e6)
    world.start("b")
    world.run(20)
    before = len(world.effects(facts.Ask))
    world.run(3600)
    assert len(world.effects(facts.Ask)) - before <= 7
    world.run(600)
    assert (world.machine.total, world.runs["b", "j1"]) == (0, 1)


def asked_while_away():
    """A world with a minion that went down while it ran a job, and is being asked about it; and the number of questions."""
    world = away(duration=4000.0, sweep=1e6)
    world.start("b")
    world.run(600)
    assert world.state("b", "j1") is State.RUNNING
    before = len(world.effects(facts.Ask))
    world.stop("b")
    world.run_until(lambda: len(world.effects(facts.Ask)) > before)
    return world, before + 1


def test_a_minion_that_starts_while_it_is_asked_about_a_running_job_is_asked_again_at_once():
    """Its silence tells nothing. Otherwise the next question would be asked after a minute, or after hours."""
    world, _ = asked_while_away()
    world.run(1)
    world.start("b")
    world.run(PATIENCE + ANSWERS + 30)
    assert world.state("b", "j1") is State.HELD, "it was interrupted"


def test_a_minion_that_starts_again_and_again_and_never_answers_is_owed_nothing_for_ever():
    world = away(duration=4000.0, sweep=1e6, ttl=7200.0)
    world.start("b")
    world.run(600)

    def start():
        world.fire("salt/minion/b/start", {"id": "b"})
        world.later(5.0, start, engine=False)

    world.stop("b")
    start()
    world.run(2 * 7200)
    assert world.state("b", "j1") is State.EXPIRED


def test_a_minion_that_stays_silent_about_a_running_job_is_not_asked_again_at_once():
    world, questions = asked_while_away()
    world.run(PATIENCE + ANSWERS + 30)
    assert len(world.effects(facts.Ask)) == questions


# -- an engine that lives for moments ------------------------------------------------------------------------------------


def sent_and_asked():
    """A world in which ``b`` was sent ``j1``, has not said that it begins, and is being asked about it."""
    world = away(acks=False, duration=1e6)
    world.minions["b"].seen.add("j1")
    world.minions["b"].up = True
    world.tell(facts.Requested("replay", {"minion": "b"}))
    world.run_until(lambda: world.effects(facts.Publish))
    asked = len(world.effects(facts.Ask))
    world.minions["b"].up = False
    world.run_until(lambda: len(world.effects(facts.Ask)) > asked)
    return world


def test_an_answer_that_is_not_proven_concludes_nothing_about_a_job_that_may_have_begun():
    world = sent_and_asked()
    world.tell(facts.Asked("j1", {Evidence.UNPROVEN: frozenset("b")}))
    assert world.state("b", "j1") is State.SENT
    assert world.machine.entry("b", "j1").lost == 0


def test_a_job_that_begins_after_the_minion_has_answered_that_it_runs_nothing_is_not_held():
    world = sent_and_asked()
    world.run(0.1)
    world.tell(facts.Acknowledged("b", "j1"))
    world.tell(facts.Asked("j1", {Evidence.IDLE: frozenset("b")}))
    world.run(30)
    assert world.state("b", "j1") is State.RUNNING


def test_a_minion_whose_answer_came_a_moment_too_late_is_asked_again_though_it_shows_no_other_sign_of_life():
    world = away()
    world.tell(facts.Requested("replay", {"minion": "b"}))
    world.run_until(lambda: world.effects(facts.Ask))
    world.tell(facts.Asked("j1", {Evidence.UNPROVEN: frozenset("b")}))
    world.minions["b"].up = True
    world.run(50.0)
    assert world.runs["b", "j1"] == 1


def test_forged_answers_of_a_minion_that_is_away_have_it_asked_less_and_less_often():
    world = away()
    world.tell(facts.Requested("replay", {"minion": "b"}))
    ask = world.ask

    def forge(fun, arg, question, names, kept):
        ask(fun, arg, question, names, kept)
        data = {"id": "b", "jid": question, "fun": fun, "return": {}, "retcode": 0}
        world.later(0.2, lambda: world.fire(f"salt/job/{question}/ret/b", data))

    world.ask = forge
    world.run(3600.0)
    assert 5 <= len(world.effects(facts.Ask)) <= 20


def served_slowly(pause, lost=(), names="abcdef"):
    """A world whose minions get a job in one publish, and a master that hands their receipts on at intervals."""
    world = World(minions=tuple(names), duration=600.0)
    for name in names:
        world.stop(name)
    world.publish("j1")
    world.run(PATIENCE + 10)

    def deliver(jid, minions):
        for number, name in enumerate(sorted(minions), start=1):
            world.minions[name].seen.add(jid)
            world.minions[name].running[jid] = True
            world.runs[name, jid] += 1
            if name not in lost:
                told = facts.Acknowledged(name, jid)
                world.later(pause * number, lambda told=told: world.tell(told), engine=False)

    world.deliver = deliver
    for name in names:
        world.start(name)
    world.run_until(lambda: world.effects(facts.Publish))
    return world, len(world.effects(facts.Ask))


def test_while_receipts_of_others_still_come_no_minion_is_asked_for_its_own():
    world, asked = served_slowly(1.5)
    world.run(30)
    assert len(world.effects(facts.Ask)) == asked
    assert {world.state(name, "j1") for name in "abcdef"} == {State.RUNNING}


def test_a_minion_without_a_receipt_is_asked_once_those_of_others_have_stopped():
    world, _ = served_slowly(1.5, lost="c")
    world.run(21)
    (question,) = [effect for effect in world.effects(facts.Ask) if effect.minions == ("c",)]
    assert (question.jid, question.doubted) == ("j1", ("c",))
    assert {effect.doubted for effect in world.effects(facts.Ask)} == {(), ("c",)}, (
        "before it is sent there is no doubt"
    )


def test_receipts_of_others_put_a_question_off_for_two_minutes_or_so_at_most():
    world, asked = served_slowly(1.5, lost="c", names=[*"abcdef", *(f"m{n:02}" for n in range(90))])
    world.run(115)
    assert [effect for effect in world.effects(facts.Ask)[asked:] if "c" in effect.minions] == []
    world.run(10)
    assert [effect for effect in world.effects(facts.Ask)[asked:] if "c" in effect.minions]


def test_repeated_claims_in_the_name_of_one_minion_delay_no_question_to_another():
    world, asked = served_slowly(1.5, lost="c")
    for tenth in range(1200):
        world.later(tenth / 10, lambda: world.tell(facts.Acknowledged("a", "j1")), engine=False)
    world.run(21)
    assert any("c" in effect.minions for effect in world.effects(facts.Ask)[asked:])


def test_as_long_as_stored_returns_come_the_master_counts_as_still_forwarding():
    names = "abcdef"
    world, asked = served_slowly(1e6, names=names)
    for number, name in enumerate(names, start=1):
        world.later(1.5 * number, lambda name=name: world.finish(name, "j1", world.minions[name].life), engine=False)
    world.run(30)
    assert len(world.effects(facts.Ask)) == asked
    assert world.machine.total == 0


def test_a_return_that_is_heard_again_before_the_job_cache_has_it_is_the_receipt_of_nothing():
    world, _ = served_slowly(1e6)
    assert world.machine.receipt_awaited_since("a", "j1") is None, "the publish is under way"
    world.run_until(lambda: {world.state(minion, "j1") for minion in "ab"} == {State.SENT})
    assert world.machine.receipt_awaited_since("a", "j1") == world.machine.entry("a", "j1").sent_at
    world.hear_return("a", "j1")
    assert world.machine.receipt_awaited_since("a", "j1") is None
    assert world.machine.receipt_awaited_since("b", "j1") is not None


@pytest.mark.parametrize("triggers", [("any",), ("start",), ("presence",)])
def test_a_start_counts_for_what_the_minion_may_have_begun_whatever_sign_of_life_triggers_a_replay(triggers):
    world = away(duration=60.0, triggers=triggers)
    deliver = world.deliver
    world.acknowledge = lambda name, jid: None

    def be_back():
        world.start("b")
        world.later(0.2, lambda: world.tell(facts.SignOfLife(("b",), facts.Sign.PRESENCE)), engine=False)

    def go_down(jid, names):
        before = world.runs["b", jid]
        deliver(jid, names)
        if world.runs["b", jid] > before:
            world.later(0.05, lambda: world.stop("b"), engine=False)
            world.later(2.0, be_back, engine=False)

    world.deliver = go_down
    be_back()
    world.run(6 * 3600)
    assert (world.runs["b", "j1"], world.state("b", "j1")) == (2, State.HELD)


@pytest.mark.parametrize("then", ["goes on", "restarts", "is killed"])
def test_a_minion_that_says_it_runs_a_job_while_replays_are_paused_does_not_get_the_job_again(then):
    world = World(minions=("a", "b"), duration=40.0, settle=0.0, retry_interrupted=then == "is killed")
    world.freeze("b")
    world.publish("j1")
    world.run(PATIENCE + 12)
    assert world.state("b", "j1") is State.PENDING
    world.wake("b")  # it begins the job
    world.fire("salt/minion/b/start", {"id": "b"})
    world.run_until(lambda: world.effects(facts.Ask))
    world.tell(facts.Requested("pause"))
    world.run(2)
    if then == "is killed":
        world.kill("")
        world.run(2)
        assert world.state("b", "j1") is State.CANCELLED
    if then != "goes on":
        world.start("b")
    world.tell(facts.Requested("resume"))
    world.run(600)
    assert world.runs["b", "j1"] == 1


def test_a_minion_that_presence_sees_before_it_can_answer_gets_its_job_once_it_answers():
    world = away(triggers=("presence",), sweep=1e6)
    ask, waiting = world.ask, []
    world.ask = lambda *question: waiting.append(
        question
    )  # it has connected, and reads what was sent once it has begun
    world.tell(facts.SignOfLife(("b",), facts.Sign.PRESENCE))
    world.run_until(lambda: len(waiting) > 1)
    assert [question[0] for question in waiting[1:]] == ["test.ping"]
    world.run(3 * ANSWERS)
    world.ask = ask
    world.start("b")
    for question in waiting:
        ask(*question)
    world.run(60)
    assert (world.runs["b", "j1"], world.state("b", "j1")) == (1, None)


@pytest.mark.parametrize("acks", [True, False])
@pytest.mark.parametrize("deliveries", [1, 2])
def test_a_job_that_ran_and_could_not_say_so_is_held_and_does_not_run_when_its_minion_restarts(acks, deliveries):
    world = World(minions=("b",), acks=acks)
    world.take_return = lambda name, jid: None  # the minion cannot serialise it, say
    with world.deaf():  # no release says that it begins what the ``salt`` command publishes
        world.publish("j1")
        world.run(5)
    world.run_until(lambda: len(world.published_at) == deliveries)
    world.run(30)
    world.start("b")
    world.run(4 * 3600)
    assert world.runs["b", "j1"] == 1
    assert world.state("b", "j1") is State.HELD
    assert "ran without a return" in world.machine.entry("b", "j1").reason


def test_a_minion_that_was_long_away_gets_its_own_jobs_one_right_after_the_other():
    world = World(minions=("b",), duration=0.05)
    world.stop("b")
    for number in range(20):
        world.publish(f"j{number}")
        world.run(1)
    world.run(60)
    world.start("b")
    since = world.now
    world.run_until(lambda: world.machine.total == 0)
    assert world.now - since < 30
    assert [effect.jid for effect in world.effects(facts.Publish)] == [f"j{number}" for number in range(20)]
