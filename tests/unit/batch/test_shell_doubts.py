"""What is not known stays a question: the shell against minions, a master and a retry queue that misbehave."""

from __future__ import annotations

import pytest

from saltext.jobs.core import compat
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.batch.summary import minions as minions_of
from saltext.jobs.core.display.text import local
from saltext.jobs.core.errors import PublishFailed
from tests.unit.batch.shell_bench import JID, QUESTION, FakeMinion, ShellBench

pytestmark = pytest.mark.usefixtures("both_ways")

QUICK = {"timeout": 5.0, "gather_job_timeout": 2.0}


def bench_of(tmp_path, *minions, **settings):
    return ShellBench(tmp_path, minions, **settings)


# -- keys, and minions that are away -----------------------------------------------------------------------------------


def test_the_key_of_a_minion_in_flight_is_deleted_and_its_slot_is_freed(tmp_path):
    with bench_of(tmp_path, FakeMinion("a", seconds=10_000), "b") as bench:
        bench.begin("ab", "1", **QUICK)
        bench.run(0.5)
        bench.master.keys.discard("a")
        bench.end()
        assert bench.states() == {"a": "lost", "b": "completed"}


def test_a_minion_is_not_lost_because_the_log_could_not_take_its_answers(tmp_path):
    with bench_of(tmp_path, FakeMinion("a", seconds=100), logged=True) as bench:
        bench.begin("a", "1", **QUICK)
        bench.run(4)
        cache = bench.master.cache
        taken, cache.append = cache.append, lambda record: cache.log.missed(OSError("the disk is full"))
        bench.run(60)
        cache.append = taken
        assert not bench.states()
        bench.end()
        assert bench.states() == {"a": "completed"}


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


@pytest.mark.parametrize("age", [60.0, 86400.0])
def test_a_batch_that_waits_for_silent_minions_says_until_when_at_most(tmp_path, age):
    with bench_of(tmp_path, "a", FakeMinion("b", there=False)) as bench:
        bench.begin("ab", "1", presence="ping", offline="fail")
        assert bench.run(60, lambda: bench.states() == {"a": "completed"})
        bench.master_age = age
        bench.restart()
        bench.run(5)
        told = BatchStore(bench.opts).read(JID).blocked()  # as a runner sees it
        begins, _, latest = told.partition(", until ")
        assert begins == "waits for a sign of life of minions that do not answer"
        assert local(bench.end().finished, None)[:16] <= latest.removesuffix(" at the latest")
        assert bench.states() == {"a": "completed", "b": "failed"}


@pytest.mark.parametrize("restart", ["heard", "unheard", ""])
def test_a_minion_that_restarts_before_it_is_sent_the_job_again_is_lost_and_no_gate_is_passed(tmp_path, restart):
    minion = FakeMinion("a", seconds=10_000, acknowledges=False)
    with bench_of(tmp_path, minion, FakeMinion("b")) as bench:
        publish = bench.master.publish

        async def slowly(fun, *args, **kwargs):
            await publish(fun, *args, **kwargs)
            await compat.sleep(1.0)
            minion.runs.clear()
            bench.master.publish = publish
            raise PublishFailed("the master did not answer in time", certain=False)

        bench.master.publish = slowly
        bench.begin("ab", "1,1", check={"kind": "approve", "fun": "", "arg": [], "kwargs": {}}, **QUICK)
        bench.run(0.5)
        bench.reply("pause")
        bench.run(60)
        if restart:
            bench.master.restart_minion("a", restart == "heard")
        if restart == "unheard":
            bench.restart()
        bench.run(60)
        bench.reply("resume")
        assert bench.run(300, lambda: bench.batch().pace.to_approve == 1)
        first, *more = bench.master.jobs()
        assert (bench.states(), first, set(more)) == ({"a": "lost"}, "a", set() if restart else {"a"})


# -- what minions have on record ----------------------------------------------------------------------------------------


RECORDS = "saltutil.find_cached_job"


def doubtful(bench, *minions):
    """A batch whose engine has lost events, so that silence is no evidence any more."""
    bench.begin("".join(minion.name for minion in minions), str(len(minions)), **QUICK)
    bench.run(1)
    bench.bus.lose()


@pytest.mark.parametrize(
    ("seconds", "sent"), [(1e6, 2), (3.0, 1)], ids=["records that reach back", "records that began after the batch"]
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


def test_a_return_to_another_master_under_the_same_jid_is_no_return_of_the_batch(tmp_path):
    minion = FakeMinion("a", seconds=10_000)
    with bench_of(tmp_path, minion) as bench:
        doubtful(bench, minion)
        minion.runs.clear()
        other = {"jid": JID, "fun": "of.another", "return": "done", "retcode": 0, "job_once": {"state": "ended"}}
        minion.answers[RECORDS] = (other, 0)
        bench.end()
        assert bench.states() == {"a": "lost"}


def test_a_minion_that_began_the_job_and_cannot_return_it_is_said_to_have_begun(tmp_path):
    minion = FakeMinion("a", seconds=10_000)
    with bench_of(tmp_path, minion, "b") as bench:
        bench.begin("ab", "2", **QUICK)
        bench.run(3)
        minion.runs.clear()
        found = minions_of(bench.end())
        assert (found["a"]["state"], found["a"].get("begun")) == ("lost", True)
        assert (
            found["a"]["why"] == "began it, and it has ended there: its return was lost, unless its process was killed"
        )
        assert "begun" not in found["b"]
        bench.master.cache.store_return({"jid": JID, "id": "a", "fun": "state.apply", "retcode": 0})
        assert "begun" not in minions_of(bench.batch())["a"]


def test_a_lost_minion_that_connects_anew_is_not_said_to_have_ended_the_job(tmp_path):
    minion = FakeMinion("a", seconds=10_000)
    with bench_of(tmp_path, minion) as bench:
        bench.begin("a", "1", **QUICK)
        bench.run(3)
        minion.runs.clear()
        bench.master.restart_minion("a")
        found = minions_of(bench.end())["a"]
        assert found["why"].endswith("interrupted if it was restarted, else its return was lost")


@pytest.mark.parametrize("begins", [True, False], ids=["it begins", "it is dropped"])
def test_a_minion_that_keeps_the_job_in_its_own_queue_of_states_is_not_given_up(tmp_path, begins):
    minion = FakeMinion("a", seconds=10_000)
    with bench_of(tmp_path, minion, "b") as bench:
        bench.begin("ab", "1", kwargs={"queue": True}, **QUICK)
        bench.run(1)
        minion.runs.clear()
        minion.answers["saltutil.running"] = ([{"fun": "state.highstate", "jid": "1"}], 0)
        bench.run(600)
        assert (bench.states(), bench.master.jobs()) == ({}, ["a"]), "it keeps its slot"
        del minion.answers["saltutil.running"]
        if begins:
            minion.runs[JID] = bench.virtual.loop.call_later(30, bench.master.finish, minion, "state.apply", JID)
        bench.end()
        assert bench.states() == {"a": "completed" if begins else "lost", "b": "completed"}


# -- the retry queue ---------------------------------------------------------------------------------------------------


def away(tmp_path):
    return bench_of(tmp_path, "a", FakeMinion("b", there=False), FakeMinion("c", there=False))


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


def test_a_batch_that_is_to_hand_minions_over_is_refused_while_the_job_cache_does_not_take_its_load(tmp_path):
    with away(tmp_path) as bench:
        bench.master.cache.failing = True
        assert "the job cache is down" in bench.begin("abc", "2", presence="ping", offline="queue")
        assert not bench.batch()


# -- effects that fail in a way that nobody foresaw --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state.apply", "test.ping", QUESTION])
def test_an_exception_while_an_effect_is_performed_becomes_a_fact(tmp_path, name):
    with bench_of(tmp_path, FakeMinion("a", seconds=20), "b") as bench:
        publish, failures = bench.master.publish, [RuntimeError("odd")]

        async def odd(fun, *args, **kwargs):
            if failures and fun == name:
                raise failures.pop()
            return await publish(fun, *args, **kwargs)

        bench.master.publish = odd
        bench.begin("ab", "1", presence="ping", **QUICK)
        bench.end()
        assert not failures
        assert bench.states() == {"a": "completed", "b": "completed"}


# -- forged events, which any accepted minion can have its master fire in another's name ----------------------------------


def forge_without_end(bench, tag, data, seconds=1.0):
    """Have an event fired again and again."""

    def fire():
        bench.bus.deliver(tag, data)
        bench.virtual.loop.call_later(seconds, fire)

    fire()


@pytest.mark.parametrize("presence", ["ping", "none"])
def test_forged_starts_without_end_keep_no_slot(tmp_path, presence):
    with ShellBench(tmp_path, [FakeMinion("a", seconds=10_000), "b"]) as bench:
        bench.begin("ab", "1", presence=presence, **QUICK)
        bench.run(1)
        bench.master.minions["a"].there = False
        forge_without_end(bench, f"salt/job/{JID}/start/a", {"id": "a", "jid": JID})
        bench.end(300)
        assert bench.states() == {"a": "lost", "b": "completed"}


def test_forged_signs_of_life_without_end_make_no_minion_present_and_delay_no_batch(tmp_path):
    with ShellBench(tmp_path, [FakeMinion("a", there=False), "b"]) as bench:
        forge_without_end(bench, "salt/minion/a/start", {"id": "a"})
        other = "20260101000000000000"
        forge_without_end(bench, f"salt/job/{other}/ret/a", {"id": "a", "jid": other, "fun": "x", "return": 1})
        bench.begin("ab", "2", presence="ping", **QUICK)
        bench.end(60)
        assert bench.states() == {"a": "offline", "b": "completed"}
        assert [fun for fun, _ in bench.master.published].count("test.ping") == 3, "as many as without the events"


class Counting(BatchStore):
    """Counts the rows that are written."""

    rows = 0

    def write(self, changes, durable=True, answers=()):
        self.rows += sum(1 + len(change.parts) for change in changes)
        super().write(changes, durable, dict(answers))


def test_a_flood_of_forged_signs_writes_next_to_nothing_down(tmp_path):
    minions = [FakeMinion("a", seconds=600), FakeMinion("b", there=False)]
    with ShellBench(tmp_path, minions, store=Counting) as bench:
        bench.begin("ab", "2", presence="ping", timeout=600.0, gather_job_timeout=2.0)
        bench.run(3)
        before = bench.store.rows
        for _ in range(5000):
            bench.bus.deliver(f"salt/job/{JID}/start/a", {"id": "a", "jid": JID})
            for minion in "ab":
                bench.bus.deliver(f"salt/minion/{minion}/start", {"id": minion})
        bench.run(5)
        assert bench.store.rows - before < 10


def test_the_answers_of_many_are_proven_by_few_looks_and_leave_nothing_behind(tmp_path):
    names = [f"m{number:03d}" for number in range(150)]
    with ShellBench(tmp_path, [FakeMinion(name, seconds=20) for name in names]) as bench:
        bench.begin(names, "150", presence="ping", **QUICK)
        bench.end()
        assert sum(map(len, bench.master.cache.looked)) <= 6 * 150, "a ping, two questions whether they run it, the end"
        assert len(bench.master.cache.looked) <= 12
        bench.run(60)
        assert bench.master.cache.answered == {}
