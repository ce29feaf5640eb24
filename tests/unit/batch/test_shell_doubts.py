"""What is not known stays a question: the shell against minions, a master and a retry queue that misbehave."""

from __future__ import annotations

import pytest

from saltext.jobs.core.batch.summary import minions as minions_of
from saltext.jobs.core.errors import EngineAbsent, NotNow
from tests.unit.batch.shell_bench import JID, FakeMinion, ShellBench

pytestmark = pytest.mark.usefixtures("both_ways")


def bench_of(tmp_path, *minions, **settings):
    return ShellBench(tmp_path, minions, **settings)


def questions(bench, fun):
    """The minions of each publish of a function."""
    return ["".join(minions) for name, minions in bench.master.published if name == fun]


# -- keys, and minions that are away -----------------------------------------------------------------------------------


def test_the_key_of_a_minion_in_flight_is_deleted_and_its_slot_is_freed(tmp_path):
    with bench_of(tmp_path, FakeMinion("a", seconds=10_000), "b") as bench:
        bench.begin("ab", "1", timeout=5.0, gather_job_timeout=2.0)
        bench.run(0.5)
        bench.master.keys.discard("a")
        bench.end()
        assert bench.states() == {"a": "lost", "b": "completed"}


def test_a_minion_that_comes_back_while_the_batch_runs_is_sent_to(tmp_path):
    with bench_of(tmp_path, FakeMinion("a", seconds=30), FakeMinion("b", there=False)) as bench:
        bench.begin("ab", "2", presence="ping", gather_job_timeout=10.0)
        bench.run(15)
        bench.master.restart_minion("b")
        bench.end()
        assert bench.states() == {"a": "completed", "b": "completed"}


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_after_a_restart_of_the_master_no_minion_is_sent_to_before_it_has_connected_again(tmp_path):
    with bench_of(tmp_path, *"abcd") as bench:
        bench.begin("abcd", "1")
        bench.run(0.5)
        bench.shell.close()
        for minion in bench.master.minions.values():
            minion.there = False
        bench.run(3)
        bench.master_age = 1.0
        bench.start()
        bench.run(20)
        assert bench.master.jobs() == ["a"]
        for minion in bench.master.minions.values():
            minion.there = True
        bench.end()
        assert set(bench.states().values()) == {"completed"}
        assert all(len(minion.begun) == 1 for minion in bench.master.minions.values())


def test_an_engine_that_starts_looks_for_failures_before_it_sends_on(tmp_path):
    minions = [FakeMinion(name, seconds=10.0, retcode=1) for name in "ab"]
    with bench_of(tmp_path, *minions, *"cdef") as bench:
        bench.begin("abcdef", "3", failures_allowed=0.0, batch_wait=4.0)
        bench.run(2)  # c has ended, and its slot is to be taken again
        bench.shell.close()
        bench.run(20)
        jobs, bench.master.cache.failing = bench.master.jobs(), True
        bench.start()
        bench.run(20)
        bench.master.cache.failing = False
        assert bench.end().halted == "max_failures"
        assert bench.master.jobs() == jobs


def test_an_engine_that_lives_for_two_seconds_at_a_time_makes_progress(tmp_path):
    with bench_of(tmp_path, *(FakeMinion(name, seconds=3.0) for name in "abcdefgh")) as bench:
        bench.begin("abcdefgh", "2", timeout=60.0)
        for lives in range(40):  # noqa: B007
            if bench.run(2.0, bench.has_ended):
                break
            bench.restart()
        assert bench.run(1.0, bench.has_ended)
        assert lives <= 12, "the ideal is 12 seconds"
        assert all(len(minion.begun) == 1 for minion in bench.master.minions.values())


def test_a_bus_that_lost_events_makes_silence_no_evidence(tmp_path):
    silent = FakeMinion("a", seconds=10_000)
    silent.acknowledges = False
    with bench_of(tmp_path, silent) as bench:
        bench.begin("a", "1", timeout=5.0, gather_job_timeout=2.0)
        bench.run(1)
        bench.bus.lose()
        silent.runs.clear()
        bench.end()
        assert bench.states() == {"a": "lost"}
        assert bench.master.jobs() == ["a"]


# -- what minions have on record ----------------------------------------------------------------------------------------


RECORDS = "saltutil.find_cached_job"


def doubtful(bench, *minions):
    """A batch whose engine has lost events, so that silence is no evidence any more."""
    bench.begin("".join(minion.name for minion in minions), str(len(minions)), timeout=5.0, gather_job_timeout=2.0)
    bench.run(1)
    bench.bus.lose()


@pytest.mark.parametrize(
    ("seconds", "sent"),
    [(1e6, 2), (3.0, 1)],
    ids=["records that reach back", "records that began after the batch"],
)
def test_a_minion_that_says_it_never_began_is_sent_to_again_whatever_was_lost(tmp_path, seconds, sent):
    minion = FakeMinion("a", there=False)
    with bench_of(tmp_path, minion) as bench:
        minion.answers[RECORDS] = ({"jid": JID, "job_once": {"state": "never", "recorded_for": seconds}}, 0)
        doubtful(bench, minion)
        minion.there = True
        bench.end()
        assert bench.states() == {"a": "completed" if sent == 2 else "lost"}
        assert bench.master.jobs() == ["a"] * sent


def test_a_return_that_was_lost_and_that_the_minion_has_kept_is_fetched(tmp_path):
    minion = FakeMinion("a", seconds=10_000)
    with bench_of(tmp_path, minion) as bench:
        doubtful(bench, minion)
        minion.runs.clear()
        minion.answers[RECORDS] = ({"jid": JID, "return": "done", "retcode": 0, "job_once": {"state": "ended"}}, 0)
        bench.end()
        assert bench.states() == {"a": "completed"}
        assert bench.master.jobs() == ["a"]


def test_a_return_to_another_master_under_the_same_jid_is_no_return_of_the_batch(tmp_path):
    minion = FakeMinion("a", seconds=10_000)
    with bench_of(tmp_path, minion) as bench:
        doubtful(bench, minion)
        minion.runs.clear()
        other = {"jid": JID, "fun": "of.another", "return": "done", "retcode": 0, "job_once": {"state": "ended"}}
        minion.answers[RECORDS] = (other, 0)
        bench.end()
        assert bench.states() == {"a": "lost"}


def test_a_minion_that_had_ended_the_job_before_it_was_killed_counts_as_what_it_has_returned(tmp_path):
    minion = FakeMinion("a", seconds=10_000)
    with bench_of(tmp_path, minion) as bench:
        bench.begin("a", "1", timeout=5.0, gather_job_timeout=2.0)
        bench.run(1)
        minion.runs.clear()  # it has ended, and its return was lost with the master
        minion.answers[RECORDS] = ({"jid": JID, "return": "done", "retcode": 0, "job_once": {"state": "ended"}}, 0)
        bench.ask("stop", jid=JID, user="ann", kill=True)
        bench.end()
        assert bench.states() == {"a": "completed"}


def test_a_minion_that_began_the_job_and_cannot_return_it_is_said_to_have_begun(tmp_path):
    minion = FakeMinion("a", seconds=10_000)
    with bench_of(tmp_path, minion, "b") as bench:
        bench.begin("ab", "2", timeout=5.0, gather_job_timeout=2.0)
        bench.run(3)
        minion.runs.clear()
        found = minions_of(bench.end())
        assert (found["a"]["state"], found["a"].get("begun")) == ("lost", True)
        assert "begun" not in found["b"]
        bench.master.cache.store_return({"jid": JID, "id": "a", "fun": "state.apply", "retcode": 0})
        assert "begun" not in minions_of(bench.batch())["a"]


@pytest.mark.parametrize("begins", [True, False], ids=["it begins", "it is dropped"])
def test_a_minion_that_keeps_the_job_in_its_own_queue_of_states_is_not_given_up(tmp_path, begins):
    minion = FakeMinion("a", seconds=10_000)
    with bench_of(tmp_path, minion, "b") as bench:
        bench.begin("ab", "1", kwargs={"queue": True}, timeout=5.0, gather_job_timeout=2.0)
        bench.run(1)
        minion.runs.clear()
        minion.answers["saltutil.running"] = ([{"fun": "state.highstate", "jid": "1"}], 0)
        bench.run(2000)
        assert (bench.states(), bench.master.jobs()) == ({}, ["a"]), "it keeps its slot"
        del minion.answers["saltutil.running"]
        if begins:
            minion.runs[JID] = bench.virtual.loop.call_later(30, bench.master.finish, minion, "state.apply", JID)
        bench.end()
        assert bench.states() == {"a": "completed" if begins else "lost", "b": "completed"}


# -- the retry queue ---------------------------------------------------------------------------------------------------


def away(tmp_path):
    return bench_of(tmp_path, "a", FakeMinion("b", there=False), FakeMinion("c", there=False))


def test_the_load_is_in_the_job_cache_before_minions_are_handed_over(tmp_path):
    with bench_of(tmp_path, *(FakeMinion(name, there=False) for name in "ab")) as bench:
        bench.master.cache.keeps_first_load = False
        bench.begin("ab", "2", presence="ping", offline="queue")
        bench.end()
        assert bench.queued == ["a", "b"]


def test_a_minion_that_the_retry_queue_refuses_keeps_no_other_one_out(tmp_path):
    with away(tmp_path) as bench:
        bench.queue_refuses = {"b"}
        bench.begin("abc", "2", presence="ping", offline="queue")
        batch = bench.end()
        assert bench.queued == ["c"]
        assert bench.states() == {"a": "completed", "b": "failed", "c": "offline"}
        assert "accepted key" in batch.queue_refused


def test_a_batch_that_needs_the_retry_queue_is_refused_where_there_is_none(tmp_path):
    with away(tmp_path) as bench:
        bench.queue_runs = False
        assert "job_retry" in bench.begin("abc", "2", presence="ping", offline="queue")
        assert bench.shell.live == {}


def test_a_minion_whose_key_only_another_master_has_accepted_is_refused_by_name_at_the_start(tmp_path):
    with away(tmp_path) as bench:
        bench.permission.unknown = {"b"}
        assert "keys of 1 of the minions, such as b: accept them there too" in bench.begin("abc", "2")
        assert bench.shell.live == {}


def test_a_retry_queue_that_is_gone_is_waited_for_and_then_the_minions_have_failed(tmp_path):
    with away(tmp_path) as bench:
        bench.begin("abc", "2", presence="ping", offline="queue")
        bench.queue_runs = False
        bench.end()
        assert bench.states() == {"a": "completed", "b": "failed", "c": "failed"}


@pytest.mark.parametrize(
    "error", [NotNow("the job cache cannot be read"), EngineAbsent("the engine did not answer in time: it is busy")]
)
def test_minions_are_handed_over_once_a_retry_queue_that_runs_can_take_them(tmp_path, error):
    with away(tmp_path) as bench:
        fails = [error]

        def queue(request):
            if fails:
                raise fails[0]
            bench.queue(request)

        bench.shell.close()
        bench.start(queue=queue)
        bench.begin("abc", "2", presence="ping", offline="queue")
        assert bench.run(120.0, lambda: bench.batch().asked_queue)
        bench.run(300.0)
        assert bench.states()["b"] == "offline"
        fails.clear()
        assert not bench.end().queue_refused
        assert bench.queued == ["b", "c"]


def waiting_for_the_queue(bench):
    bench.begin("abc", "2", presence="ping", offline="queue")
    bench.queue_runs = False
    assert bench.run(120.0, lambda: bench.batch().asked_queue)
    bench.run(1.0)


def test_a_batch_that_is_stopped_while_the_retry_queue_is_gone_hands_nobody_over_when_it_is_back(tmp_path):
    with away(tmp_path) as bench:
        waiting_for_the_queue(bench)
        bench.ask("stop", jid=JID)
        bench.queue_runs = True
        bench.end()
        bench.run(300.0)
        assert bench.queued == []
        assert bench.states() == {"a": "completed", "b": "offline", "c": "offline"}


def leaving_in(box):
    """A retry queue whose engine is gone: requests are left for it."""

    def leave(request):
        box.append(request)
        raise EngineAbsent("The job_retry engine is not running; it has taken the request and may carry it out later.")

    return leave


def handing_over(bench, box):
    bench.shell.close()
    bench.start(queue=leaving_in(box))
    bench.begin("abc", "2", presence="ping", offline="queue")
    assert bench.run(120.0, lambda: box)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_batch_that_is_stopped_takes_back_the_request_that_waits_for_the_retry_queue(tmp_path, restarts):
    """The retry queue carries requests out in their order: what was asked for before the stop comes first."""
    box = []

    with away(tmp_path) as bench:
        handing_over(bench, box)
        if restarts:
            bench.shell.close()
            bench.start(queue=leaving_in(box))
        bench.ask("stop", jid=JID)
        bench.end()
        bench.run(300.0)
        assert {request["do"] for request in box[:-1]} == {"enqueue"}
        assert box[-1] == {"do": "cancel", "jid": JID, "minions": ["b", "c"]}


@pytest.mark.parametrize("is_back", [True, False])
def test_a_batch_that_is_paused_while_the_retry_queue_is_gone_hands_over_when_it_is_resumed(tmp_path, is_back):
    with away(tmp_path) as bench:
        waiting_for_the_queue(bench)
        bench.ask("pause", jid=JID)
        bench.queue_runs = is_back
        bench.run(300.0)
        assert (bench.batch().state, bench.queued) == ("paused", [])
        bench.queue_runs = True
        bench.ask("resume", jid=JID)
        bench.end()
        assert bench.queued == ["b", "c"]
        assert bench.states() == {"a": "completed", "b": "offline", "c": "offline"}


# -- effects that fail in a way that nobody foresaw --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state.apply", "test.ping", "saltutil.find_job"])
def test_an_exception_while_an_effect_is_performed_becomes_a_fact(tmp_path, name):
    with bench_of(tmp_path, FakeMinion("a", seconds=20), "b") as bench:
        publish, failures = bench.master.publish, [RuntimeError("odd")]

        async def odd(fun, *args, **kwargs):
            if failures and fun == name:
                raise failures.pop()
            return await publish(fun, *args, **kwargs)

        bench.master.publish = odd
        bench.begin("ab", "1", presence="ping", timeout=5.0, gather_job_timeout=2.0)
        bench.end()
        assert not failures
        assert bench.states() == {"a": "completed", "b": "completed"}


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begins", [True, False])
def test_a_minion_that_goes_away_between_its_ping_and_its_turn_is_away_unless_it_may_have_begun(tmp_path, begins):
    away = FakeMinion("b", seconds=10_000)
    with bench_of(tmp_path, "a", away) as bench:
        options = {"timeout": 5.0, "gather_job_timeout": 2.0, "failures_allowed": 1.0}
        bench.begin("ab", "1", presence="ping", offline="queue", **options)
        assert bench.run(5.0, lambda: bench.master.jobs() == ["a"])
        if begins:
            assert bench.run(5.0, lambda: away.runs)
        away.there = False
        bench.end()
        assert bench.states() == {"a": "completed", "b": "lost" if begins else "offline"}
        assert bench.queued == ([] if begins else ["b"])
