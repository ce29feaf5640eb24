"""However many events there are, the reactor's files do no more than the limits say."""

from __future__ import annotations

import collections
import pathlib

import pytest

import saltext.jobs.reactor
from saltext.jobs.core.master.reactions import may_act

FOLDER = pathlib.Path(saltext.jobs.reactor.__path__[0])


def test_in_no_period_is_more_done_than_the_limit_allows(steady):
    counted, done = collections.OrderedDict(), []
    for _ in range(2000):
        steady.seconds += 0.7
        if may_act("x", (3, 10), done=counted, steady=steady):
            done.append(steady.seconds)
    assert max(sum(start <= at < start + 10 for at in done) for start in done) == 3
    assert len(done) > 2000 * 0.7 / 10 * 2.5


def test_a_minion_has_its_own_limit_and_all_have_one_together(steady):
    counted = collections.OrderedDict()

    def may_replay(minion):
        return may_act("replay", (2, 600), minion, in_all=(5, 600), done=counted, steady=steady)

    done = [(minion, may_replay(minion)) for minion in ("a", "a", "a", "b", "b", "c", "d")]
    assert [minion for minion, acted in done if acted] == ["a", "a", "b", "b", "c"]
    steady.seconds += 600
    assert may_replay("a")


def test_invented_names_take_a_bounded_amount_of_memory(steady):
    counted = collections.OrderedDict()
    for number in range(20_000):
        assert may_act("x", (1, 10), str(number), done=counted, steady=steady)
    assert len(counted) <= 10_000


class Large(dict):
    """A large payload of an event, which counts how often it is read as a whole."""

    read = 0

    def _look(self, *_):
        type(self).read += 1
        return "large"

    __str__ = __repr__ = __iter__ = items = keys = values = _look


def react(name, tag, data, **opts):
    """What a file of ``reactor/`` has done for an event, as Salt's renderer runs it."""
    source = (FOLDER / name).read_text(encoding="utf-8")
    module = {"__opts__": opts, "tag": tag, "data": data}
    exec(compile(source, name, "exec"), module)
    return module["run"]()


@pytest.fixture
def large():
    Large.read = 0
    return Large((str(number), number) for number in range(1000))


@pytest.mark.parametrize("name", ["start_batch.sls", "resume_batch.sls"])
def test_an_event_with_too_many_fields_is_not_searched_and_the_log_says_so(large, name, caplog):
    for tag in ("operations/batch", "operations/resume/x"):
        assert react(name, tag, large, saltext_jobs_start_batch={"test.ping": {}}) == {}
        fields = {"tgt": large, "fun": "test.ping", "batch": "1"}
        assert react(name, tag, fields, saltext_jobs_start_batch={"test.ping": {}}) == {}
    assert Large.read == 0
    assert caplog.messages.count(
        "Starting no batch, because the event is not as start_batch.sls says: it has other fields too"
    ) == (name == "start_batch.sls")


@pytest.mark.parametrize("jid", ["20260516101112131415", "20260516101112131415_4711"])
def test_a_batch_is_resumed_whatever_form_its_jid_has(jid):
    assert react("resume_batch.sls", f"operations/resume/{jid}", {})["resume"]["runner.batch.resume"] == [
        {"args": [{"jid": jid}]}
    ]
