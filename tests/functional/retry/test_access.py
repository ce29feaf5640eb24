"""Whether the user of a job may still publish it."""

from __future__ import annotations

import pathlib

import pytest
import salt.cache
from salt.exceptions import SaltCacheError, SaltDeserializationError

from saltext.jobs.core import compat
from saltext.jobs.core.master.access import Access, Standing
from saltext.jobs.core.users import ABOVE, KEY, MASTER, PASSWORD, PEER, SUDO, TOKEN, WHO, Identity
from tests.functional.batch.test_permission import RESTISH
from tests.functional.retry.records import accept, load_of

ACL = {"publisher_acl": {"bob": ["test.*", {"web*": ["state.apply"]}]}, "sudo_acl": True}
#: A grant of state.apply with this argument as a test only.
TEST = {"args": ["ugly"], "kwargs": {"test": "True"}}


def by(kind, name, *backends, **load):
    """The load of a job that a user has published."""
    return {**load_of(user=name, **load), WHO: Identity(kind, name, backends, 1.0).as_record()}


@pytest.mark.parametrize(
    "kind, user, fun, minions, denied",
    [
        (KEY, "bob", "state.apply", ["web1", "web2"], []),
        (KEY, "bob", "state.apply", ["web1", "db1"], ["db1"]),
        (KEY, "bob", "cmd.run", ["web1"], ["web1"]),
        (KEY, "eve", "test.ping", ["web1"], ["web1"]),
        (SUDO, "bob", "cmd.run", ["web1"], ["web1"]),
        (SUDO, "bob", "test.arg", ["web1"], []),
        (MASTER, "root", "cmd.run", ["web1"], []),
    ],
)
def test_the_access_of_a_publisher_is_checked_as_it_is_now(opts, kind, user, fun, minions, denied):
    accept(opts, *minions)
    assert sorted(Access({**opts, **ACL}).of_publisher(by(kind, user, fun=fun, arg=[]), minions).denied) == denied


def test_no_right_counts_as_lost_because_the_data_of_minions_cannot_be_read_now(opts):
    accept(opts, "web1")
    opts = {**opts, "minion_data_cache": True, "publisher_acl": {"bob": [{"G@role:web": ["state.apply"]}]}}
    place = ("grains", "web1") if compat.HAS_NATIVE_BATCHES else ("minions/web1", "data")
    kept = {"role": "web"} if compat.HAS_NATIVE_BATCHES else {"grains": {"role": "web"}}
    salt.cache.factory(opts).store(*place, kept)
    access, load = Access(opts), by(KEY, "bob", fun="state.apply", arg=[])
    assert access.of_publisher(load, ["web1"]) == Standing()
    pathlib.Path(opts["cachedir"], *place).with_suffix(".p").write_bytes(b"\xc1")
    with pytest.raises((SaltCacheError, SaltDeserializationError)):
        access.of_publisher(load, ["web1"])


# Salt itself asks for the right to one of them only (CkMinions.auth_check returns at the first that is permitted).
@pytest.mark.parametrize(
    "fun, arg, denied",
    [
        (["test.ping", "test.arg"], [[], ["x"]], []),
        (["test.ping", "cmd.run"], [[], ["id"]], ["web1"]),
        (["saltutil.find_job", "cmd.run"], [["20260516101112131415"], ["id"]], ["web1"]),
        (["test.ping", "state.apply"], [[], ["good"]], []),
        (["test.ping", "state.apply"], [[], ["bad"]], ["web1"]),
        (["test.ping", "state.apply"], [["good"], []], ["web1"]),
        (["test.ping", "state.apply"], [["good"]], ["web1"]),
        (["test.ping", "state.apply"], "good", ["web1"]),
        (["test.ping", ["test.ping"]], [[], []], ["web1"]),
        ([], [], ["web1"]),
        ("state.apply", ["good"], []),
        ("state.apply", ["bad"], ["web1"]),
        ("state.apply", ["ugly", {"__kwarg__": True, "test": False}], ["web1"]),
        ("state.apply", ["ugly", {"__kwarg__": True, "test": True}], []),
        (["state.apply", "test.ping"], [["ugly", {"__kwarg__": True, "test": True}], []], []),
    ],
)
def test_each_of_several_functions_needs_the_right_with_its_own_arguments(opts, fun, arg, denied):
    accept(opts, "web1")
    grants = {"bob": ["test.*", {"web*": [{"state.apply": [{"args": ["good"]}, TEST]}]}]}
    access = Access({**opts, "publisher_acl": grants})
    assert sorted(access.of_publisher(by(KEY, "bob", fun=fun, arg=arg), ["web1"]).denied) == denied


def test_a_reason_names_several_functions_in_a_few_words(opts):
    accept(opts, "web1")

    def reason(fun):
        return Access({**opts, **ACL}).of_publisher(by(KEY, "bob", fun=fun, arg=[]), ["web1"]).denied["web1"]

    assert reason(["a.b", "c.d"]) == "bob may not publish each of a.b, c.d to it any more"
    assert reason(["a.b"]) == "bob may not publish a.b to it any more"
    assert len(reason(["x" * 10000] * 10000)) < 700


@pytest.mark.parametrize("user", ["", "root", "master_user"])
def test_those_who_may_do_everything_are_not_checked(opts, user):
    assert Access({**opts, "user": "master_user"}).of_publisher(load_of(user=user), ["a"]) == Standing()


def test_a_user_whom_salt_has_not_authenticated_is_neither_allowed_nor_denied(opts):
    standing = Access(opts).of_publisher(load_of(user="Reactor", batch=True), ["a"])
    assert (standing.denied, set(standing.unsure)) == ({}, {"a"})


# -- what is known with a password only, and who asked by hand -----------------------------------------------------------

LDAPISH = """
def auth(username, password, **kwargs):
    return True

def groups(username, **kwargs):
    if __opts__.get("auth.ldap.binddn"):
        if __opts__.get("server_is_down"):
            raise OSError("cannot connect")
        return __opts__["known_groups"]
    return ["admins"] if kwargs.get("password") else []
"""
BOUND = {"auth.ldap.binddn": "cn=salt", "auth.ldap.bindpw": "x"}


@pytest.fixture
def backends(opts, tmp_path):
    folder = tmp_path / "ext" / "auth"
    folder.mkdir(parents=True)
    (folder / "ldap.py").write_text(LDAPISH)
    (folder / "restish.py").write_text(RESTISH)
    accept(opts, "a", "b")
    return {**opts, "external_auth": {"ldap": {"admins%": ["state.*"], "eve": ["test.*"]}, "restish": {"^url": "x"}}}


def of(load, **options):
    return Access(options).of_publisher(load, ["a"])


@pytest.mark.parametrize("eauth", ["ldap", "restish"])
def test_rights_that_only_the_password_tells_are_not_known_and_not_denied(backends, eauth):
    assert of(by(PASSWORD, "ann", eauth), **backends) == Standing(
        unsure={
            "a": f"whether ann may still publish state.apply is not known: eauth {eauth} tells it with the password only"
        }
    )


def test_groups_are_known_where_the_master_may_ask_for_them(backends):
    load = by(PASSWORD, "ann", "ldap")
    assert of(load, **{**backends, **BOUND, "known_groups": ["admins"]}) == Standing()
    assert set(of(load, **{**backends, **BOUND, "known_groups": ["staff"]}).denied) == {"a"}


def test_a_server_that_is_down_denies_nothing_and_is_asked_again(backends):
    load = by(PASSWORD, "ann", "ldap")
    with pytest.raises(OSError):
        of(load, **{**backends, **BOUND, "server_is_down": True})


# -- by whom Salt had authenticated ------------------------------------------------------------------------------------

BOTH = {"external_auth": {"file": {"ann": ["state.*"], "root": ["test.*"]}, "pam": {"ann": ["test.*"], "boss": [".*"]}}}


def standing_of(opts, kind, name, *backends, options=None, **more):
    load = by(kind, name, *backends, arg=[], kwargs=options or {})
    return Access({**opts, **BOTH, **more}).of_publisher(load, ["a"])


@pytest.mark.parametrize(
    ("kind", "name", "backends", "denied"),
    [
        (TOKEN, "ann", ["file"], []),
        (PASSWORD, "ann", ["file"], []),
        (TOKEN, "ann", ["pam"], ["a"]),
        (TOKEN, "ann", ["file", "pam"], ["a"]),
        (TOKEN, "ann", ["gone"], ["a"]),
        (TOKEN, "root", ["file"], ["a"]),
        (TOKEN, "sudo_ann", ["file"], ["a"]),
        (TOKEN, "Reactor", ["file"], ["a"]),
        (TOKEN, "", ["file"], ["a"]),
        (MASTER, "root", [], []),
        (KEY, "ann", [], ["a"]),
        (KEY, "bob", [], []),
        (SUDO, "ann", [], []),
        (PEER, "a1", [], []),
        (PEER, "b1", [], ["a"]),
    ],
)
def test_the_access_lists_of_the_authenticated_user_count_and_no_name(opts, kind, name, backends, denied):
    accept(opts, "a")
    peer = {"a.*": ["state.*"], ".*": ["test.*"]}
    standing = standing_of(opts, kind, name, *backends, publisher_acl={"bob": ["state.*"]}, peer=peer)
    assert (sorted(standing.denied), standing.unsure) == (denied, {})


def test_a_backend_that_a_load_names_beside_a_token_counts_for_nothing(opts):
    accept(opts, "a")
    assert set(standing_of(opts, TOKEN, "root", "file", options={"eauth": "pam", "username": "boss"}).denied) == {"a"}


@pytest.mark.parametrize(("kind", "backends"), [(ABOVE, []), (TOKEN, [])])
def test_a_user_whose_list_is_not_known_here_is_neither_allowed_nor_denied(opts, kind, backends):
    accept(opts, "a")
    standing = standing_of(opts, kind, "root", *backends)
    assert (standing.denied, set(standing.unsure)) == ({}, {"a"})


def test_a_record_that_names_no_user_is_an_error_and_not_a_user_without_limits(opts):
    for record in ({"kind": "boss"}, {"kind": "boss", "name": "a", "backends": [], "at": 1.0}, "root", [1]):
        with pytest.raises(ValueError, match="is no identity"):
            Access(opts).of_publisher({**load_of(user="ann"), WHO: record}, ["a"])
