"""Whether the user of a job may still publish it."""

from __future__ import annotations

import pytest
import salt.utils.minions

from saltext.jobs.core.master.access import Access
from tests.functional.retry.records import accept, load_of

ACL = {"publisher_acl": {"bob": ["test.*", {"web*": ["state.apply"]}]}, "sudo_acl": True}


@pytest.mark.parametrize(
    "user, fun, minions, denied",
    [
        ("bob", "state.apply", ["web1", "web2"], []),
        ("bob", "state.apply", ["web1", "db1"], ["db1"]),
        ("bob", "cmd.run", ["web1"], ["web1"]),
        ("eve", "test.ping", ["web1"], ["web1"]),
        ("sudo_bob", "cmd.run", ["web1"], ["web1"]),
        ("sudo_bob", "test.arg", ["web1"], []),
        ("root", "cmd.run", ["web1"], []),
    ],
)
def test_the_access_of_a_publisher_is_checked_as_it_is_now(opts, user, fun, minions, denied):
    accept(opts, *minions)
    access = Access({**opts, **ACL})
    assert sorted(access.denials(load_of(user=user, fun=fun, arg=[]), minions)) == denied


def test_the_access_of_an_external_user_is_checked_as_it_is_now(opts):
    accept(opts, "web1")
    load = load_of(user="ann", fun="test.arg", arg=[], kwargs={"eauth": "pam", "username": "ann"})
    assert Access({**opts, "external_auth": {"pam": {"ann": ["test.*"]}}}).denials(load, ["web1"]) == {}
    assert "web1" in Access({**opts, "external_auth": {"pam": {"bob": ["test.*"]}}}).denials(load, ["web1"])
    assert "web1" in Access({**opts, "external_auth": {}}).denials(load, ["web1"])


@pytest.mark.parametrize("user", ["", "root", "master_user", "sudo_ann"])
def test_those_who_may_do_everything_are_not_checked(opts, user):
    assert Access({**opts, "user": "master_user"}).denials(load_of(user=user), ["a"]) == {}


def test_a_user_whom_no_access_list_governs_any_more_may_publish_nothing(opts):
    denied = Access(opts).denials(load_of(user="ann"), ["a"])
    assert denied == {"a": "ann may not publish state.apply to it any more"}


def test_an_entry_of_an_access_list_is_matched_once_however_many_minions_are_asked_for(opts, monkeypatch):
    minions = [f"web{number}" for number in range(60)] + ["db1"]
    accept(opts, *minions)
    matched = []
    check = salt.utils.minions.CkMinions.check_minions
    monkeypatch.setattr(
        salt.utils.minions.CkMinions,
        "check_minions",
        lambda self, *args, **more: matched.append(args) or check(self, *args),
    )
    access = Access({**opts, **ACL})
    assert sorted(access.denials(load_of(user="bob", fun="state.apply", arg=[]), minions)) == ["db1"]
    assert len(matched) <= 2
