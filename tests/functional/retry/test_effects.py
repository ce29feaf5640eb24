"""What the queue is told about minions that were asked about a job. The minions are simulated."""

from __future__ import annotations

import asyncio
import types

import pytest

from saltext.jobs.core.delivery.known import Evidence, Said
from saltext.jobs.core.engine.returns import Returns
from saltext.jobs.core.master import once
from saltext.jobs.core.master.questions import Found
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.effects import Effects
from saltext.jobs.core.retry.reader import JobReader, job_of
from saltext.jobs.core.site import site_of
from tests.functional.retry.records import JID, load_of


class Minions:
    """Minions that answer a question about a job. ``doubted``: those that had to be asked for their records alone."""

    def __init__(self, found):
        self.found, self.doubted = found, None

    async def find_job(self, jid, minions, timeout, target, told, doubted):
        self.doubted = doubted
        return self.found


def asked(opts, job_cache, found, doubted=(), **load):
    """Ask about a job: what the queue is told, and the minions."""
    minions = Minions(found)
    return perform(opts, job_cache, facts.Ask(JID, ("a", "b"), tuple(doubted)), load, questions=minions), minions


def perform(opts, job_cache, effect, load, **others):
    """Have an effect performed, and return what the queue is told."""
    load, told, calls = load_of(**load), [], []
    job, returns = job_of(JID, load, published_at=1000.0), Returns(site_of(opts).tables, job_cache)
    ports = types.SimpleNamespace(
        cache=job_cache,
        returns=returns,
        reader=JobReader(opts, returns),
        clock=types.SimpleNamespace(now=lambda: 1060.0),
        cache_worker=types.SimpleNamespace(call=_called),
        owner="m",
        **others,
    )
    machine = types.SimpleNamespace(jobs={JID: job})
    loop = types.SimpleNamespace(spawn_callback=lambda call, *args: calls.append(call(*args)))

    async def learn(fact):
        told.append(fact)

    effects = Effects(loop, ports, machine, None, {"id": "m"}, learn)
    effects.perform(effect)
    asyncio.run(calls.pop())
    (fact,) = told
    return fact


async def _called(call, *args):
    return call(*args)


def silent(*minions):
    return Found(frozenset(), {}, frozenset(), frozenset(minions))


@pytest.mark.parametrize(("fun", "doubted"), [("state.apply", ("a",)), (["state.apply", "test.ping"], ())])
def test_a_proxy_is_asked_for_its_records_alone_only_where_they_would_have_the_job(opts, job_cache, fun, doubted):
    _, minions = asked(opts, job_cache, silent("a", "b"), doubted=("a",), fun=fun)
    assert minions.doubted == doubted


@pytest.mark.parametrize(("executors", "said"), [(["job_once", "direct_call"], Said.NEVER), (["job_once"], None)])
def test_records_of_a_job_with_its_own_executors_count_only_if_it_used_job_once(opts, job_cache, executors, said):
    records = {"a": once.Record("never", 1e6)}
    found = Found(frozenset(), {}, frozenset("a"), records=records)
    fact, _ = asked(opts, job_cache, found, kwargs={"module_executors": executors})
    assert fact.said.get("a") is said


def returned(fun, **more):
    """The answer of a minion that has run a function under the jid."""
    answer = {"jid": JID, "return": "done", "retcode": 0, "job_once": {"state": "ended"}, **more}
    return Found(frozenset(), {"a": answer if fun is None else {**answer, "fun": fun}}, frozenset())


@pytest.mark.parametrize(
    ("fun", "told"),
    [
        ("state.apply", "state.apply"),
        ("state.apply", None),
        (["state.apply", "test.ping"], ["state.apply", "test.ping"]),
        (["state.apply", "test.ping"], "state.apply,test.ping"),
    ],
)
def test_a_return_that_a_minion_has_kept_of_this_job_is_fetched(opts, job_cache, fun, told):
    job_cache.keep_load(JID, load_of(fun=fun), ["a"])
    fact, _ = asked(opts, job_cache, returned(told), fun=fun)
    assert (fact.told[Evidence.FETCHED], fact.told[Evidence.UNASKED]) == ({"a"}, frozenset())
    assert job_cache.returned(JID, ["a"]) == {"a": 0}


@pytest.mark.parametrize("told", ["cmd.run", ["state.apply", "cmd.run"], 5])
def test_a_return_to_another_master_under_the_same_jid_is_no_return_of_the_job(opts, job_cache, told, caplog):
    job_cache.keep_load(JID, load_of(), ["a"])
    fact, _ = asked(opts, job_cache, returned(told))
    assert {evidence: minions for evidence, minions in fact.told.items() if minions} == {Evidence.IDLE: {"a"}}
    assert fact.said == {"a": Said.INTERRUPTED}, "it would not run under that jid"
    assert job_cache.returned(JID, ["a"]) == {}
    assert "has run another function" in caplog.text
