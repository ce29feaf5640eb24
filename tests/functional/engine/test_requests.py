"""Requests from runners to an engine, and the files behind them."""

from __future__ import annotations

import os
import re
import threading
import time

import pytest
import salt.payload
from salt.exceptions import CommandExecutionError

from saltext.jobs.core.disk import files
from saltext.jobs.core.disk.lease import Leader
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.requests import VERSION, Service, ask
from saltext.jobs.core.errors import EngineAbsent, NotNow, Refused, StateError
from saltext.jobs.core.ledger.requests import Requests
from saltext.jobs.core.site import site_of
from tests.database import database_of, replies_in
from tests.faults import full_disk
from tests.interrupted import interrupted
from tests.leading import leading, lock_of, single_holder

ENGINE = "batch_manager"


@pytest.fixture
def opts(tmp_path):
    return {"cachedir": str(tmp_path / "cache"), "sock_dir": str(tmp_path), "id": "m"}


@pytest.fixture
def service(opts):
    return Service(opts, ENGINE, None)


@pytest.fixture
def answering(service):
    """An engine that answers what it is asked, until the test ends."""
    done = threading.Event()

    def serve(answer):
        def loop():
            while not done.is_set():
                for request_id, request in service.taken():
                    answer(request_id, request)
                done.wait(0.01)

        thread = threading.Thread(target=loop)
        thread.start()
        threads.append(thread)

    threads: list[threading.Thread] = []
    yield serve
    done.set()
    for thread in threads:
        thread.join()


def left(opts):
    site_of(opts).name()  # there may be no database yet
    with database_of(opts) as sql:
        return [
            ("asked", "taken", "answered")[state] for (state,) in sql.execute("SELECT state FROM saltext_jobs_requests")
        ]


def test_a_request_gets_its_answer_and_leaves_nothing_behind(opts, service, answering):
    answering(lambda request_id, request: service.reply(request_id, {"value": request["number"] + 1}))
    assert ask(opts, ENGINE, {"number": 1}) == 2
    assert left(opts) == []


@pytest.mark.parametrize("for_now", [False, True])
def test_a_refusal_is_raised_with_its_reason_and_says_whether_the_request_may_be_made_again(
    opts, service, answering, for_now
):
    answering(lambda request_id, request: service.reply(request_id, {"error": "so not", "for_now": for_now}))
    with pytest.raises(CommandExecutionError, match="so not") as caught:
        ask(opts, ENGINE, {})
    assert isinstance(caught.value, NotNow) == for_now


@pytest.mark.parametrize(
    "value", [{("a", "b"): 1}, [{"x": [{(1,): 2}]}], object(), "\udcff"], ids=["key", "deep", "object", "text"]
)
def test_a_request_that_no_engine_could_read_is_refused_at_once(opts, service, value):
    with pytest.raises(Refused, match="An argument cannot be handed to the engine"):
        ask(opts, ENGINE, {"do": "start", "arg": [value]}, keep=True)
    assert list(service.taken()) == []


def test_without_an_engine_a_request_is_withdrawn(opts):
    with pytest.raises(EngineAbsent, match=r"is not running.*withdrawn"):
        ask(opts, ENGINE, {}, patience=0.1)
    assert left(opts) == []
    with pytest.raises(EngineAbsent, match=r"`engines:` does not name it$"):  # nobody knows that figures take a request
        ask(opts, ENGINE, {"do": "stats"}, patience=0.1)


def test_ctrl_c_withdraws_a_request_that_no_engine_has_taken(opts):
    told = interrupted(lambda: ask(opts, ENGINE, {"do": "start"}, patience=300), lambda: requests.waiting(opts, ENGINE))
    assert told == "CommandExecutionError: Interrupted; the request is withdrawn"
    assert left(opts) == []


def test_ctrl_c_says_that_a_request_is_carried_out_when_it_is_too_late(opts, service, answering):
    taken = threading.Event()
    answering(lambda request_id, request: taken.set())
    told = interrupted(lambda: ask(opts, ENGINE, {"do": "start"}, patience=300), taken.is_set)
    assert "engine carries out the request" in told


def test_a_running_engine_that_does_not_answer_is_distinguished_from_an_absent_one(opts):
    with single_holder(lock_of(opts, ENGINE)) as free:
        assert free
        with pytest.raises(EngineAbsent, match="did not answer in time: it is busy"):
            ask(opts, ENGINE, {}, patience=0.1)
        with pytest.raises(EngineAbsent, match="stays and will be carried out"):
            ask(opts, ENGINE, {}, patience=0.1, keep=True)
    assert left(opts) == ["asked"]


def test_a_request_taken_before_a_crash_is_taken_again_first(opts, service):
    requests.leave(opts, ENGINE, {"number": 1})
    assert [request["number"] for _, request in service.taken()] == [1]  # and no answer: the engine died
    requests.leave(opts, ENGINE, {"number": 2})
    assert [request for _, request in Service(opts, ENGINE, None).taken()] == [{"number": 1}, {"number": 2}]


def test_a_request_is_taken_a_second_time_only_if_its_answer_could_not_be_written(opts, service):
    requests.leave(opts, ENGINE, {"number": 1})
    ((request_id, _),) = service.taken()
    assert list(service.taken()) == [], "it waits for its answer"
    with full_disk():
        service.reply(request_id, {"value": True})
    assert [request for _, request in service.taken()] == [{"number": 1}]
    service.reply(request_id, {"value": True})
    assert list(service.taken()) == []


@pytest.mark.parametrize("content", [b"", b"\xc1garbage", b"\x01"])
def test_an_unreadable_request_is_refused_and_harms_no_other(opts, service, content):
    Requests(site_of(opts), ENGINE).add("00000", content)
    requests.leave(opts, ENGINE, {"number": 1})
    assert [request for _, request in service.taken()] == [{"number": 1}]
    assert replies_in(opts, ENGINE) == [{"error": "The request is damaged", "for_now": False}]


def test_answers_that_were_never_fetched_are_swept_away(opts, service):
    requests.leave(opts, ENGINE, {})
    for request_id, _ in service.taken():
        service.reply(request_id, {"value": None})
    asked = Requests(site_of(opts), ENGINE)
    asked.sweep(3600.0)
    assert left(opts) == ["answered"]
    asked.sweep(0.0)
    assert left(opts) == []


# -- files -------------------------------------------------------------------------------------------------------------


def test_files_and_folders_are_private(tmp_path):
    path = tmp_path / "one" / "two" / "file"
    files.write_atomic(path, salt.payload.dumps({"a": 1}))
    assert files.read_msgpack(path) == {"a": 1}
    for private in (path, path.parent, path.parent.parent):
        assert private.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for another user")
def test_files_that_root_writes_belong_to_the_user_that_the_master_runs_as(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    path = tmp_path / "one" / "file"
    files.write_atomic(path, salt.payload.dumps(1))
    with single_holder(tmp_path / "one" / "lock"):
        pass
    for owned in (path, path.parent, path.parent / "lock"):
        assert (owned.stat().st_uid, owned.stat().st_gid) == (12345, 12345)


def given_away(tmp_path):
    """Return a file of root's, and a folder of another user."""
    (tmp_path / "victim").write_text("root's own")
    (tmp_path / "folder").mkdir()
    os.chown(tmp_path / "folder", 12345, 12345)
    return tmp_path / "victim", tmp_path / "folder"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for another user")
@pytest.mark.parametrize("make_link", [os.symlink, os.link])
@pytest.mark.parametrize("call", [files.is_held, lambda path: single_holder(path).__enter__()])
def test_root_does_not_give_away_what_a_link_in_place_of_the_lock_leads_to(tmp_path, make_link, call):
    victim, folder = given_away(tmp_path)
    make_link(victim, folder / "lock")
    with pytest.raises(StateError, match="lock is"):
        call(folder / "lock")
    assert (victim.stat().st_uid, victim.read_text()) == (0, "root's own")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for another user")
def test_root_writes_no_file_through_a_link(tmp_path):
    victim, folder = given_away(tmp_path)
    (folder / "file").symlink_to(victim)
    files.write_atomic(folder / "file", salt.payload.dumps(1))
    assert (victim.stat().st_uid, victim.read_text()) == (0, "root's own")
    assert not (folder / "file").is_symlink()
    assert (folder / "file").stat().st_uid == 12345


# -- engines that do not answer, or are of another version --------------------------------------------------------------


@pytest.fixture
def held(opts):
    """An engine's lock, held as by an engine that runs."""
    with single_holder(lock_of(opts, ENGINE)):
        yield lock_of(opts, ENGINE)


def aged(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture
def lease(opts):
    """The lock of an engine that runs and says so."""
    with leading(opts, ENGINE) as lease:
        yield lease


def test_an_engine_without_a_sign_of_life_is_silent_until_it_shows_one_and_its_caller_learns_for_how_long(opts, lease):
    held = lock_of(opts, ENGINE)
    aged(held, 30)
    assert site_of(opts).lead(ENGINE).hangs == 0
    aged(held, 80)
    opts["sock_dir"] = str(held.parent)
    with pytest.raises(EngineAbsent, match=r"has not answered for 8\d s \(process \d+ of .* on .*\)") as caught:
        ask(opts, ENGINE, {"do": "metrics"}, patience=0.1)
    assert "engines:" not in str(caught.value)
    lease.beat()
    assert site_of(opts).lead(ENGINE).hangs == 0


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"version": "0.0.1"}, f"engine runs 0.0.1.* and this is {re.escape(VERSION)}: restart the master"),
        ({"place": "/before"}, "engine works in /before, and `cache:` says .*: restart the master"),
    ],
)
def test_an_engine_of_another_version_or_database_is_asked_for_nothing(opts, held, more, why):
    held.write_bytes(Leader(17, "root", "here", **more).as_line())
    with pytest.raises(EngineAbsent, match=why):
        ask(opts, ENGINE, {"do": "start"})
    assert left(opts) == []


@pytest.mark.parametrize("version, do", [("0.0.1", "stop"), ("", "start"), (VERSION, "start"), (None, "start")])
def test_an_engine_of_this_or_an_unknown_version_is_asked_and_any_to_stop_a_batch(
    opts, service, answering, held, version, do
):
    held.write_bytes(b"" if version is None else Leader(17, "root", "here", version).as_line())
    answering(lambda request_id, request: service.reply(request_id, {"value": request["do"]}))
    assert ask(opts, ENGINE, {"do": do}, keep=do == "stop") == do
