"""Answers to the engine's questions count by what the log has of them: events can be forged."""

from __future__ import annotations

import pathlib
import types

import pytest

from saltext.jobs.core import compat
from saltext.jobs.core.delivery.asking import About, ask
from saltext.jobs.core.delivery.known import Evidence, Said
from saltext.jobs.core.engine.loop import Clock
from saltext.jobs.core.errors import PublishFailed
from saltext.jobs.core.ledger.records import return_of
from saltext.jobs.core.master.passes import pass_for
from saltext.jobs.core.master.questions import LONGEST, Questions
from saltext.jobs.core.retry.entry import State
from tests.functional.retry.records import JID, accept, changes, load_of, queue_of, record_of, returners, snapshot_of
from tests.functional.retry.test_shell import Publisher, Stage
from tests.virtual_loop import VirtualLoop

#: The jid of the first question.
FIRST = "20260516102000000000"
EITHER = ["saltutil.find_job", "saltutil.find_cached_job", "saltutil.running"]
IDLE = {EITHER[0]: {}, EITHER[1]: {}}
RUNNING = {EITHER[0]: {"jid": JID}, EITHER[1]: {}}
RAN = {EITHER[0]: {}, EITHER[1]: {"jid": JID, "return": "forged", "retcode": 0}}


class Questioned(Stage):
    """A shell whose minion a is owed a job; questions are seen, and answered by the test."""

    def __init__(self, opts, job_cache):
        super().__init__(opts, job_cache)
        accept(opts, "a")
        job_cache.keep_load(JID, load_of(), ["a"])
        pathlib.Path(opts["cachedir"], f".{opts['user']}_key").write_text("the key for local clients")
        self.master = returners(opts)
        queue_of(opts).write(changes({JID: snapshot_of()}, {("a", JID): record_of("a")}))
        self.asked, self.sent = [], []
        publish = self.publisher.publish

        async def seen(fun, arg, tgt, tgt_type="list", *, jid, kept=False, **more):
            if fun == EITHER:
                self.asked.append((jid, kept))
                self.master["salt_cache.prep_jid"](passed_jid=pass_for(opts, jid, "job_retry"))
                asks = {"executor_opts": {"job_once": {"question": True}}}
                self.master["salt_cache.save_load"](jid, load_of(jid=jid, fun=fun, arg=arg, kwargs=asks), minions=tgt)
            elif fun == "state.apply":
                self.sent.append(jid)
            return await publish(fun, arg, tgt, tgt_type, jid=jid, **more)

        self.publisher.publish = seen

    def ask(self):
        """Have the minion start, and return the jid under which it is asked about its job."""
        self.start()
        self.bus.tell("salt/minion/a/start", {"id": "a"})
        self.until(lambda: self.asked)
        jid, kept = self.asked[0]
        assert kept
        return jid

    def store(self, jid, value):
        """Store a return as the master does when a minion sends it."""
        self.master["salt_cache.returner"]({"jid": jid, "id": "a", "return": value, "fun": EITHER})

    def event(self, jid, value):
        """What an accepted minion can put on the bus."""
        self.bus.tell(f"salt/job/{jid}/ret/a", {"jid": jid, "id": "a", "fun": EITHER, "return": value, "retcode": 0})

    def is_over(self):
        backlog = self.shell.machine.backlogs.get("a")
        return backlog is None or backlog.replay is None or self.state("a") is not State.PENDING or self.sent


@pytest.fixture
def stage(opts, job_cache):
    made = Questioned(opts, job_cache)
    yield made
    made.close()


def test_an_answer_known_only_from_an_event_does_not_count(stage, job_cache):
    jid = stage.ask()
    for value in (IDLE, RUNNING, RAN):
        stage.event(jid, value)
    stage.until(stage.is_over)
    assert stage.state("a") is State.PENDING
    assert stage.sent == []
    assert job_cache.returned(JID, ["a"]) == {}
    assert stage.shell.machine.backlogs["a"].false_signs == 1


def test_the_answer_that_the_log_has_counts_whatever_the_events_say(stage, job_cache):
    jid = stage.ask()
    stage.event(jid, RAN)
    stage.store(jid, IDLE)
    stage.until(lambda: stage.sent)
    assert stage.sent == [JID]
    assert job_cache.returned(JID, ["a"]) == {}


def test_a_question_is_not_among_the_jobs(stage, job_cache):
    jid = stage.ask()
    stage.store(jid, IDLE)
    stage.event(jid, IDLE)
    stage.until(lambda: stage.sent)
    assert job_cache.load(jid) == {} and job_cache.returned(jid, ["a"]) == {}


def answered(questions, jid, minion, value):
    """The log has an answer."""
    questions.logged(return_of(jid, minion, {"return": value, "fun": EITHER, "retcode": 0}, asked=True))


@pytest.fixture
def virtual():
    """A loop whose time passes only while it is idle. Minions answer when the test says so."""
    made = VirtualLoop()
    yield made
    made.close()


def asked(virtual, questions, minions, timeout, doubted=()):
    """Ask minions about the job. Return what is told of those that answer, and what of the others."""
    told, ports = [], types.SimpleNamespace(questions=questions, clock=Clock(0.0, virtual.steady))

    async def take(answers):
        told.append(await answers)

    def tell(answers):
        virtual.loop.spawn_callback(take, answers)

    about = About(JID, "state.apply", None, 0.0)
    rest = virtual.loop.run_sync(lambda: ask(ports, about, minions, timeout, tell, doubted=doubted))
    virtual.run(0.1)
    return told, rest


def found_in(virtual, answer):
    """What is found once minion a has given an answer."""
    questions = Questions(virtual.loop, Publisher(), steady=virtual.steady)
    virtual.loop.call_later(0.1, answered, questions, FIRST, "a", answer)
    return asked(virtual, questions, "a", 0.5)[0][0]


@pytest.mark.parametrize(
    ("told", "state", "runs"),
    [
        ({"state": "never", "recorded_for": 1e6}, Said.NEVER, False),
        ({"state": "interrupted"}, Said.INTERRUPTED, False),
        ({"state": "begun"}, Said.NOT_SURE, True),
        ({"state": "nonsense"}, None, False),
        ("text", None, False),
        (None, None, False),
    ],
)
def test_the_records_of_a_minion_come_with_its_answer(told, state, runs, virtual):
    found = found_in(virtual, {EITHER[0]: {}, EITHER[1]: {"jid": JID, "job_once": told}})
    assert found.said == ({"a": state} if state else {})
    assert [found.told[said] for said in (Evidence.RUNS, Evidence.IDLE)] == [set("a" * runs), set("a" * (not runs))]


@pytest.mark.parametrize(
    "runs, cached, free",
    [
        ([], "Local jobs cache directory not found; you may need to enable cache_jobs on this minion", True),
        ([], "Local jobs cache directory /var/cache/salt/minion/minion_jobs/1 not found", False),  # it keeps returns
        ([], {"job_once": {"state": "never"}}, False),
        ([], None, False),
        ([{"jid": "20260516101112000000"}], "you may need to enable cache_jobs", False),
        (["nonsense"], "you may need to enable cache_jobs", False),
        ("'saltutil.running' is not available.", "you may need to enable cache_jobs", False),
        (None, "you may need to enable cache_jobs", False),
        (0, "you may need to enable cache_jobs", False),
    ],
)
@pytest.mark.parametrize("ordered", [False, True])
def test_an_answer_holds_for_all_jobs_only_of_a_minion_that_runs_nothing_and_keeps_nothing(
    runs, cached, free, ordered, virtual
):
    parts = [{}, cached, runs]
    found = found_in(virtual, parts if ordered else dict(zip(EITHER, parts, strict=True)))  # ``multifunc_ordered``
    assert found.told[Evidence.IDLE] == frozenset("a")
    assert found.free == (frozenset("a") if free else frozenset())


@pytest.mark.parametrize(
    "runs, applies",
    [
        ([{"jid": "req", "fun": "state.highstate"}], True),
        ([{"jid": "1", "fun": "cmd.run"}, {"jid": "2", "fun": "state.sls"}], True),
        ([{"jid": "1", "fun": "cmd.run"}], False),
        ([{"jid": "1", "fun": ["state.sls", "test.ping"]}], False),  # Salt itself does not take it for a state run
        (["nonsense", {}], False),
        ("'saltutil.running' is not available.", False),
        (None, False),
    ],
)
def test_a_minion_that_runs_states_says_so(runs, applies, virtual):
    found = found_in(virtual, dict(zip(EITHER, [{}, None, runs], strict=True)))
    assert (found.told[Evidence.IDLE], found.applying) == (frozenset("a"), frozenset("a") if applies else frozenset())


def test_a_minion_is_not_silent_while_the_answers_of_others_still_come(virtual):
    questions = Questions(virtual.loop, Publisher(), virtual.steady)
    for after, minion in ((0.3, "a"), (1.5, "b")):
        virtual.loop.call_later(after, answered, questions, FIRST, minion, IDLE)
    told, rest = asked(virtual, questions, "abc", 0.5)
    assert [part.told[Evidence.IDLE] for part in told] == [frozenset("a"), frozenset("b")]
    assert rest.told[Evidence.SILENT] == frozenset("c")


def test_replies_to_something_earlier_prolong_a_question_but_not_for_ever(virtual):
    loop = virtual.loop
    questions, begun = Questions(loop, Publisher(), virtual.steady), virtual.steady()
    for second in range(100):
        loop.call_later(second, questions.handed_on, second + 5.0)  # what was published 5 s before
    _, rest = asked(virtual, questions, "a", 4.0)
    assert rest.told[Evidence.SILENT] == frozenset("a")
    assert virtual.steady() - begun == pytest.approx(4.0 * LONGEST, abs=3.0)


class Hung(Publisher):
    """A master that never answers."""

    async def publish(self, *_, timeout, **__):
        await compat.sleep(timeout)
        raise PublishFailed("SaltReqTimeoutError: Message timed out")


def test_what_minions_say_is_soon_known_to_be_unknown_if_the_master_does_not_take_the_question(virtual):
    questions, begun = Questions(virtual.loop, Hung(), virtual.steady), virtual.steady()
    with pytest.raises(PublishFailed):
        asked(virtual, questions, "a", 5.0)
    assert virtual.steady() - begun < 70.0


class Proxies(Publisher):
    """Publishes to proxies with the executor ``job_once``, which run jobs of several functions without it."""

    def __init__(self, loop, records):
        super().__init__()
        self.loop, self.records, self.asked = loop, records, []

    async def publish(self, fun, arg, tgt, tgt_type="list", *, jid, question=False, **more):
        self.asked.append((fun, sorted(tgt)))
        for minion in tgt:
            told = {"jid": JID, "job_once": {"state": self.records.get(minion), "recorded_for": 1e6}}
            if isinstance(fun, list) or minion in self.records:
                answer = IDLE if isinstance(fun, list) else told
                self.loop.call_later(0.05, answered, self.questions_of, jid, minion, answer)
        return await super().publish(fun, arg, tgt, tgt_type, jid=jid, question=question, **more)


def test_a_proxy_that_may_have_begun_a_job_is_asked_for_its_records_alone(virtual):
    publisher = Proxies(virtual.loop, {"a": "interrupted", "b": "never", "c": "begun"})
    publisher.questions_of = questions = Questions(virtual.loop, publisher, steady=virtual.steady)
    told, rest = asked(virtual, questions, "abcd", 0.5, doubted="abc")
    assert publisher.asked == [(EITHER, list("abcd")), (EITHER[1], list("abc"))]
    assert rest.said == {"a": Said.INTERRUPTED, "b": Said.NEVER, "c": Said.NOT_SURE}
    assert (rest.told[Evidence.RUNS], rest.told[Evidence.IDLE]) == (frozenset("c"), frozenset("ab"))
    assert [part.told[Evidence.IDLE] for part in told] == [frozenset("d")], "of the doubted nothing is told too early"
