"""Whether the owner of a batch still may publish its job, by the access lists as they are now."""

from __future__ import annotations

import pathlib

import pytest
import salt.config

from saltext.jobs.core.batch.permission import Permission
from saltext.jobs.core.options.engines import BatchSettings
from saltext.jobs.core.users import KEY, MASTER, PASSWORD, PEER_RUN, SUDO, TOKEN, Identity
from tests.unit.batch.bench import spec

NOW = 1_000_000.0
#: A backend whose lists are known with the password only.
RESTISH = """
def auth(username, password, **kwargs):
    return True

def acl(username, **kwargs):
    return ["state.*"] if kwargs["password"] else None
"""


@pytest.fixture
def opts(tmp_path):
    folder = tmp_path / "ext" / "auth"
    folder.mkdir(parents=True)
    (folder / "restish.py").write_text(RESTISH)
    (tmp_path / "pki" / "minions").mkdir(parents=True)
    for minion in "abcd":
        pathlib.Path(tmp_path, "pki", "minions", minion).write_text("key")
    opts = salt.config.master_config(None)
    opts.update(
        cachedir=str(tmp_path / "cache"),
        pki_dir=str(tmp_path / "pki"),
        extension_modules=str(tmp_path / "ext"),
        external_auth={
            "sharedsecret": {
                "ann": ["test.*", {"@runner": ["survey.*"]}],
                "of_a": [{"a": ["test.*"]}],
                "nobody": ["state.*"],
            },
            "restish": {"^url": "x"},
        },
        publisher_acl={"anna": ["test.*"]},
    )
    return opts


def lacking(opts, kind, name, *backends, at=NOW, minions="abcd", limits=(), settings=None, **more):
    permission = Permission(opts, settings or BatchSettings(), lambda: NOW)
    owner = Identity(kind, name, backends, at).as_record()
    return permission.lacking(spec(minions, owner=owner, on_behalf=dict(limits), **more), tuple(minions))


def test_minions_without_an_accepted_key_are_strangers(opts):
    assert Permission(opts, BatchSettings()).strangers(["a", "nobody"]) == ["nobody"]


def test_a_user_who_still_has_the_rights_lacks_nothing(opts):
    assert lacking(opts, TOKEN, "ann", "sharedsecret") == ""
    assert lacking(opts, TOKEN, "of_a", "sharedsecret", minions="a") == ""
    assert lacking(opts, KEY, "anna") == ""
    assert lacking(opts, MASTER, "root", fun="cmd.run") == ""


@pytest.mark.parametrize(("name", "count"), [("nobody", 4), ("of_a", 3), ("root", 4), ("gone", 4)])
def test_a_lost_right_is_reported_with_the_number_of_minions_and_no_names(opts, name, count):
    reason = lacking(opts, TOKEN, name, "sharedsecret")
    assert reason == f"{name} may not publish test.ping to {count} of its minions any more"


def test_the_function_of_a_check_is_a_job_as_well(opts):
    check = {"kind": "function", "fun": "cmd.run", "arg": ["id"], "kwargs": {}}
    assert "may not publish cmd.run" in lacking(opts, TOKEN, "ann", "sharedsecret", check=check)


@pytest.mark.parametrize("fun, reason", [("survey.x", ""), ("salt.execute", "ann may not call the runner function")])
def test_the_runner_function_of_a_check_gets_the_access_list_as_it_is_now(opts, fun, reason):
    check = {"kind": "runner", "fun": fun, "arg": [], "kwargs": {}}
    limits = {"name": "ann", "grants": ["test.*", "@runner"]}
    assert lacking(opts, TOKEN, "ann", "sharedsecret", check=check, limits=limits).startswith(reason)
    owner = Identity(TOKEN, "ann", ("sharedsecret",), NOW).as_record()
    told = Permission(opts, BatchSettings()).limits(spec(owner=owner, on_behalf=limits))
    assert told == {**limits, "grants": opts["external_auth"]["sharedsecret"]["ann"], "who": owner}


def test_a_list_that_only_the_password_gives_counts_as_long_as_a_token(opts):
    more = {"fun": "state.apply"}
    assert lacking(opts, PASSWORD, "ann", "restish", at=NOW - opts["token_expire"] + 1, **more) == ""
    reason = lacking(opts, PASSWORD, "ann", "restish", at=NOW - opts["token_expire"] - 1, **more)
    assert reason == (
        "whether ann may still publish state.apply is not known: eauth restish tells it with the password only"
    )
    limits = {"name": "ann", "grants": ["state.*"]}
    owner = Identity(PASSWORD, "ann", ("restish",), NOW).as_record()
    assert Permission(opts, BatchSettings()).limits(spec(owner=owner, on_behalf=limits)) == limits


def test_a_minion_must_still_be_among_allow_peers(opts):
    assert lacking(opts, PEER_RUN, "a", settings=BatchSettings(allow_peers=("a",))) == ""
    assert "is not among allow_peers any more" in lacking(opts, PEER_RUN, "a")


def test_a_sudo_user_is_limited_once_sudo_acl_is_set_and_so_are_the_runners_of_checks(opts):
    assert lacking(opts, SUDO, "bert") == ""
    opts["sudo_acl"] = True
    assert "bert may not publish test.ping" in lacking(opts, SUDO, "bert")
    owner = Identity(SUDO, "anna", (), NOW).as_record()
    assert Permission(opts, BatchSettings()).limits(spec(owner=owner))["grants"] == ["test.*"]
