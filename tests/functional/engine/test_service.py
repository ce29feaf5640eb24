"""How an engine handles requests of runners: each is answered, or refused with the reason."""

from __future__ import annotations

import time

import pytest
from salt.exceptions import CommandExecutionError

from saltext.jobs.core import compat
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.errors import JobCacheError, NotYet, StateError
from tests.database import replies_in
from tests.waiting import Deadline, run_until


@pytest.fixture
def opts(tmp_path):
    return {"cachedir": str(tmp_path / "cache"), "sock_dir": str(tmp_path)}


def serving(loop, opts, verbs, pause=3600.0):
    service = Service(opts, JOB_RECORDER, loop, pause=pause)
    service.serve(verbs)
    return service


@pytest.fixture
def replies(opts, loop):
    """Leaves requests, has a service with some verbs take them, and returns their replies in order."""

    def serve(verbs, *made):
        for request in made:
            requests.leave(opts, JOB_RECORDER, request)
        serving(loop, opts, verbs)
        run_until(loop, lambda: len(replies_in(opts, JOB_RECORDER)) >= len(made), what="each has its reply")
        return replies_in(opts, JOB_RECORDER)

    return serve


def test_a_verb_may_take_its_time_and_holds_up_no_other(replies):
    order = []

    async def slow(request):
        await compat.sleep(0.1)
        order.append("slow")
        return "done"

    def quick(request):
        order.append("quick")
        return "at once"

    assert replies({"slow": slow, "quick": quick}, {"do": "slow"}, {"do": "quick"}) == [
        {"value": "done"},
        {"value": "at once"},
    ]
    assert order == ["quick", "slow"]


@pytest.mark.parametrize("request_", [{"do": "fly"}, {"do": None}, {}, {"do": ["stats"]}, {"action": "stats"}])
def test_an_unknown_verb_is_refused_by_name_with_those_that_there_are(replies, request_):
    (reply,) = replies({"stats": lambda request: {}, "redeliver": lambda request: 0}, request_)
    for words in (JOB_RECORDER, repr(request_.get("do")), "redeliver, stats"):
        assert words in reply["error"]


@pytest.mark.parametrize(
    ("error", "reason", "for_now"),
    [
        (ValueError("no such job"), "no such job", False),
        (StateError("/x cannot be read"), "/x cannot be read", True),
        (JobCacheError("redis is away"), "redis is away", True),
        (CommandExecutionError("not that"), "not that", False),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device", True),
        (KeyError("limit"), "KeyError: 'limit'", False),
        (ZeroDivisionError(), "ZeroDivisionError: ", False),
        (ValueError(), "ValueError", False),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_a_request_that_fails_is_refused_with_the_reason_and_only_for_now_if_that_may_pass(
    replies, error, reason, for_now, later
):
    async def fail_later(request):
        raise error

    def fail(request):
        raise error

    verbs = {"fail": fail_later if later else fail, "work": lambda request: True}
    found = replies(verbs, {"do": "fail"}, {"do": "work"})
    assert sorted(found, key=len) == [{"value": True}, {"error": reason, "for_now": for_now}]


@pytest.mark.parametrize("awaited", [False, True], ids=["at once", "after a wait"])
def test_a_request_that_cannot_be_answered_yet_is_kept_until_it_can_be_and_is_no_failure(opts, loop, caplog, awaited):
    asked = []

    def verb(request):
        asked.append(request["do"])
        if len(asked) < 3:
            raise NotYet("it cannot be read now")
        return "done"

    async def verb_that_waits(request):
        await compat.sleep(0)
        return verb(request)

    requests.leave(opts, JOB_RECORDER, {"do": "note"})
    service = serving(loop, opts, {"note": verb_that_waits if awaited else verb}, pause=0.01)
    run_until(loop, lambda: replies_in(opts, JOB_RECORDER), what="it has its reply")
    service.close()
    assert (asked, replies_in(opts, JOB_RECORDER), caplog.records) == (["note"] * 3, [{"value": "done"}], [])


def test_a_database_that_cannot_be_used_is_named_once_a_minute_however_often_it_is_read(opts, loop, tmp_path, caplog):
    (tmp_path / "cache").write_text("no directory")
    serving(loop, opts, {}).take()
    (record,) = caplog.records
    assert record.getMessage().startswith("The requests cannot be taken now; trying again later: ")


def test_a_timer_of_a_loop_rings_in_time_although_the_clock_is_set_back(monkeypatch):
    rung, real, put_back = [], time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() - put_back[0])  # before the loop takes its clock
    loop = compat.new_loop()

    def look(deadline):
        if rung or deadline.is_over():
            loop.stop()
        else:
            loop.add_callback(look, deadline)

    loop.call_later(0.1, rung.append, True)
    put_back[0] = 3600.0
    loop.add_callback(look, Deadline(5))
    loop.start()
    loop.close(all_fds=True)
    assert rung
