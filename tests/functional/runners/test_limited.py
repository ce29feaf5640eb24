"""What a user with limited rights, and a minion by ``peer_run``, get from the runners that show or repeat what ran."""

from __future__ import annotations

import multiprocessing

import pytest
import salt.loader

from saltext.jobs.core.disk.lease import Leader
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.master.caller import act_for
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.users import MASTER, PASSWORD, PEER_RUN, TOKEN
from tests.functional.batch.test_native_states import GOOD, write
from tests.functional.options import options_in
from tests.functional.retry.records import changes, queue_of, record_of, snapshot_of
from tests.functional.runners.test_failures import JID, ended_batch, give, publish
from tests.leading import lock_of, single_holder

SECRET = "swordfish"
#: The value of what is named like a secret: nobody sees it.
HIDDEN = "hunter2"
EVERYTHING = [".*"]
OF_WEB1 = [{"web1": ["cmd.run", "saltutil.running"]}]
RUNNERS = [{"@runner": ["batch.*", "job_cache.*", "job_recorder.*"]}]


@pytest.fixture
def opts(tmp_path):
    (tmp_path / "cache").mkdir()
    keys = tmp_path / "pki" / "minions"
    keys.mkdir(parents=True)
    for name in ("web1", "web2"):
        (keys / name).write_text("a key")
    return {**options_in(tmp_path, master_job_cache="salt_cache"), "__role": "master"}


def _call(limits, opts, calls, answer):
    act_for(limits)
    runners = salt.loader.runner(opts)
    for function, args, kwargs in calls:
        try:
            answer.send((True, runners[function](*args, **kwargs)))
        except Refused as exc:
            answer.send((False, str(exc)))


def ask_each(opts, limits, calls):
    """
    Call runners as a user with these limits, in a process of their own. Returns of each whether it answered, and what.

    :param calls: (function, arguments, named arguments).
    """
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_call, args=(limits, opts, calls, theirs))
    process.start()
    theirs.close()
    try:
        return [mine.recv() for _ in calls]
    finally:
        process.join()


def ask(opts, limits, function, *args, **kwargs):
    """As ``ask_each``, for one call."""
    return ask_each(opts, limits, [(function, args, kwargs)])[0]


def user(grants):
    who = {"kind": PASSWORD, "name": "anna", "backends": ["pam"], "at": 1.0}
    return {"name": "anna", "who": who, "grants": [*grants, *RUNNERS]}


MINION = {"name": "web1", "who": {"kind": PEER_RUN, "name": "web1", "backends": [], "at": 1.0}, "grants": []}
#: Who may read any job by Salt's own runner, which shows its arguments and returns.
AUDITOR = user([{"@runner": ["jobs.list_job"]}])
NOT_ENOUGH = [[], [{"web*": ["test.*"]}], OF_WEB1]


def a_job(opts):
    arg = ["deploy", {"__kwarg__": True, "env": SECRET}]
    publish(opts, ["web1", "web2"], fun="cmd.run", arg=arg)
    give(opts, "web2", 1, f"{SECRET} is wrong", fun="cmd.run", fun_args=arg)


def a_batch(opts):
    a_job(opts)
    ended_batch(opts, ["web1", "web2"], fun="cmd.run", arg=("deploy",), kwargs={"env": SECRET})


@pytest.mark.parametrize("grants", NOT_ENOUGH)
@pytest.mark.parametrize(
    ("made", "call"),
    [(a_batch, ("batch.failures", JID)), (a_batch, ("batch.output", JID, "web2")), (a_job, ("job_cache.outcome", JID))],
)
def test_returns_are_shown_to_users_who_may_publish_the_job_to_all_its_minions_or_list_jobs(opts, made, call, grants):
    made(opts)
    for limits in (user(grants), MINION):
        answered, told = ask(opts, limits, *call)
        assert not answered and SECRET not in told and "web2" not in told, told
    for limits in (user(EVERYTHING), AUDITOR):
        answered, told = ask(opts, limits, *call)
        assert answered and f"{SECRET} is wrong" in str(told)


#: Who published a job, and whether ``anna`` of ``pam``, with a password or a token, sees its arguments.
PUBLISHERS = [
    ({"kind": PASSWORD, "name": "anna", "backends": ["pam"], "at": 1.0}, True),
    ({"kind": TOKEN, "name": "anna", "backends": ["pam"], "at": 1.0}, True),
    ({"kind": PASSWORD, "name": "anna", "backends": ["ldap"], "at": 1.0}, False),
    ({"kind": TOKEN, "name": "anna", "backends": [], "at": 1.0}, False),
    ({"kind": PASSWORD, "name": "bert", "backends": ["pam"], "at": 1.0}, False),
    ({"kind": MASTER, "name": "anna", "backends": [], "at": 1.0}, False),
    ("anna", False),
    (None, False),
]


@pytest.mark.parametrize(("publisher", "own"), PUBLISHERS)
def test_the_arguments_of_a_job_are_shown_to_its_own_user_and_to_those_who_may_list_jobs(opts, publisher, own):
    arg = [SECRET, {"__kwarg__": True, "env": SECRET, "opts": {"api_key": HIDDEN}}, f"--password={HIDDEN}"]
    load = {"jid": JID, "fun": "cmd.run", "arg": arg, "tgt": "*", "tgt_type": "glob", "user": "anna", "ret": ""}
    load.update(kwargs={"metadata": {"ticket": SECRET, "token": HIDDEN}}, saltext_jobs_who=publisher)
    JobCache(opts).keep_load(JID, load, ["web1"])
    give(opts, "web1", fun="cmd.run", fun_args=arg)
    snapshot = {**snapshot_of(), "load": load}
    queue_of(opts).write(changes({JID: snapshot}, {("web1", JID): record_of("web1", JID)}))
    calls = [
        ("job_cache.search", (), {"kind": "jobs"}),
        ("job_cache.search", (), {"metadata": {"ticket": SECRET}}),
        ("job_cache.minions", (), {"fun": "cmd.run"}),
        ("job_retry.show", ("web1", JID), {}),
    ]
    for limits, sees in ((user(EVERYTHING), own), (MINION, False), (AUDITOR, True)):
        answers = ask_each(opts, limits, calls)
        assert [answered for answered, _ in answers] == [True] * len(calls), answers
        assert [SECRET in str(told) for _, told in answers] == [sees] * len(calls), answers
        assert bool(answers[1][1]["jobs"]) is sees, "a guess at what is hidden finds nothing"
        assert HIDDEN not in str(answers)
    for function, args, kwargs in calls:
        told = str(salt.loader.runner(opts)[function](*args, **kwargs))
        assert SECRET in told and HIDDEN not in told


@pytest.mark.parametrize("native", [False, True], ids=["ours", "of Salt's own"])
@pytest.mark.parametrize(("publisher", "own"), PUBLISHERS)
def test_arguments_of_a_batch_are_shown_to_its_own_user_and_to_those_who_may_list_jobs(opts, publisher, own, native):
    owner = publisher if isinstance(publisher, dict) else {}
    if native:
        own = False
        write(opts, JID, {**GOOD, "fun": "cmd.run", "arg": [SECRET], "saltext_jobs_who": publisher})
    else:
        more = {
            "check": {"kind": "runner", "fun": "test.arg", "arg": [SECRET, f"password={HIDDEN}"]},
            "options": {"metadata": {"a": SECRET, "token": HIDDEN}},
        }
        kwargs = {"env": SECRET, "pass": HIDDEN}
        ended_batch(opts, ["web1"], fun="cmd.run", arg=(SECRET,), kwargs=kwargs, owner=owner, **more)
    calls = [("batch.status", (JID,), {}), ("batch.list", (), {})]
    for limits, sees in ((user(EVERYTHING), own), (MINION, False), (AUDITOR, True)):
        answers = ask_each(opts, limits, calls)
        assert all(answered and "cmd.run" in str(told) for answered, told in answers), answers
        assert {SECRET in str(told) for _, told in answers} == {sees}, answers
        assert HIDDEN not in str(answers)
    for function, args, kwargs in calls:
        told = str(salt.loader.runner(opts)[function](*args, **kwargs))
        assert SECRET in told and HIDDEN not in told


@pytest.mark.parametrize("grants", NOT_ENOUGH)
@pytest.mark.parametrize("made", [a_batch, a_job])
def test_a_batch_like_a_job_that_the_user_may_not_publish_is_refused_whatever_else_is_given(opts, made, grants):
    made(opts)
    given = ({}, {"tgt": "web1"}, {"tgt": "web1", "fun": "cmd.run", "check": "no.such thing"})
    calls = [(f"batch.{verb}", (), {"like": JID, **more}) for verb in ("start", "preview", "run") for more in given]
    for limits in (user(grants), MINION):
        for answered, told in ask_each(opts, limits, calls):
            assert not answered and SECRET not in str(told) and "web2" not in str(told), told
            assert "may not publish cmd.run to all minions of" in told or "may look at this" in told


@pytest.mark.parametrize("tgt", ["*", "web2", "nobody"])
def test_minions_are_asked_what_they_run_only_for_users_who_may_ask_all_of_them(opts, tgt):
    for limits in (user(OF_WEB1), user([]), MINION):
        answered, told = ask(opts, limits, "job_cache.running", tgt)
        assert not answered and ("may not publish saltutil.running" in told or "may look at this" in told), told


@pytest.mark.parametrize("made", [a_batch, a_job])
def test_a_user_who_may_publish_the_job_may_start_a_batch_like_it(opts, made):
    made(opts)
    given = {"like": JID, "tgt": "web1"}
    calls = [("batch.preview", (), given), ("batch.start", (), {**given, "preview": True})]
    for answered, told in ask_each(opts, user(EVERYTHING), calls):
        assert answered and (told["fun"], told["minions"]) == ("cmd.run", ["web1"]), told
        assert told["sentence"].startswith("1 minion: all at once; goes on whatever fails; absent ones are left out")


def test_a_preview_says_for_how_long_the_job_is_owed_and_reads_the_options_of_job_retry_only_for_that(opts):
    preview = salt.loader.runner({**opts, "job_retry": {"ttl": "soon"}})["batch.preview"]
    assert preview("web1", "test.ping")["total"] == 1
    owed = preview("web1", "test.ping", offline="queue", metadata={"job_retry": {"ttl": "7d"}})
    assert "absent ones are queued for 7 d" in owed["sentence"]
    with pytest.raises(Refused, match="ttl is 'soon'"):
        preview("web1", "test.ping", offline="queue")


def test_a_job_that_a_minion_has_brought_is_repeated_for_nobody(opts):
    load = {"jid": JID, "fun": "cmd.run", "arg": ["evil"], "tgt": "*", "tgt_type": "glob", "user": "root"}
    salt.loader.returners(opts, {})["salt_cache.save_load"](JID, load)
    with pytest.raises(Refused, match="neither a batch nor a job that this master has published"):
        salt.loader.runner(opts)["batch.preview"](like=JID)


def test_a_job_of_salts_own_batch_is_repeated_on_the_minions_of_all_its_parts(opts):
    for name in ("web1", "web2"):
        publish(opts, [name], tgt=[name], kind="list")
    assert salt.loader.runner(opts)["batch.preview"](like=JID)["minions"] == ["web1", "web2"]


def test_a_minion_sends_no_notice_and_a_user_of_the_runner_may(opts):
    answered, told = ask(opts, MINION, "job_recorder.test_notice")
    assert not answered and "may look at this, and change nothing" in told
    lock = lock_of(opts, JOB_RECORDER)
    with single_holder(lock):
        lock.write_bytes(Leader(17, "root", "here", "0.0.1").as_line())  # another version, which is not asked
        for limits, function in ((MINION, "job_recorder.stats"), (user([]), "job_recorder.test_notice")):
            answered, told = ask(opts, limits, function)
            assert not answered and "restart the master" in told, told
