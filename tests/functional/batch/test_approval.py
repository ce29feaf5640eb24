"""Who may approve a batch."""

from __future__ import annotations

import getpass
import grp
import os

import pytest

from saltext.jobs.core.batch.permission import CallerRights
from saltext.jobs.core.batch.starting import next_batch
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.errors import Refused
from saltext.jobs.core.master.caller import Caller
from saltext.jobs.core.users import MASTER, PASSWORD, PEER_RUN, SUDO, TOKEN, Identity
from tests.functional.batch.test_starting import asked_for, failed, opts  # noqa: F401 (a fixture)

NOBODY = [{"web*": ["test.nothing"]}]


def user(name, *backends, kind=PASSWORD, shown=None):
    """A user of the API, who may publish nothing that matters here."""
    return Caller(shown or name, tuple(NOBODY), who=Identity(kind, name, backends))


def at_terminal(name, kind=MASTER):
    return Caller(f"sudo_{name}" if kind == SUDO else name, who=Identity(kind, name))


ROOT, ANNA = at_terminal("root"), user("anna", "pam")


def batch(opts, approve_by, who=ROOT):  # noqa: F811
    return Batch(asked_for(opts, "*", who=who, batch="1,100%", check="approve", approve_by=approve_by), 1000.0)


@pytest.mark.parametrize(
    ("approve_by", "who"),
    [
        ("anna", ANNA),
        ("bert,anna", ANNA),
        (["pam:anna"], ANNA),
        ("anna", at_terminal("anna", SUDO)),
        ("anna", at_terminal("anna")),
        ("anna", user("anna", "pam", "ldap", kind=TOKEN)),
        ("pam:root", user("root", "pam", shown="pam:root")),
    ],
)
def test_a_user_who_is_named_may_approve(opts, approve_by, who):  # noqa: F811
    CallerRights(opts, who).permit_approval(batch(opts, approve_by, at_terminal("carl")))


@pytest.mark.parametrize(
    ("approve_by", "who"),
    [
        ("anna", user("bert", "pam")),
        ("anna", at_terminal("dora")),
        ("anna", user("Anna", "pam")),
        ("ldap:anna", ANNA),
        ("root", user("root", "pam", shown="pam:root")),
        ("%anna", user("anna", "file")),
        ("%nosuchgroup", at_terminal("nosuchuser")),
        ("anna", Caller("anna", (), who=Identity(PEER_RUN, "anna"))),
        ("anna", Caller("nobody")),
        ("%ops", user("%ops", "file")),
        ("%ops", at_terminal("%ops")),
        ("pam:anna", user("pam:anna", "file")),
        ("pam:anna", Caller("pam:anna")),
    ],
)
def test_a_user_who_is_not_named_may_not_approve(opts, approve_by, who):  # noqa: F811
    with pytest.raises(Refused, match=r"may not approve|change nothing"):
        CallerRights(opts, who).permit_approval(batch(opts, f"{approve_by},zoe", at_terminal("carl")))


def test_a_group_may_approve(opts):  # noqa: F811
    me = getpass.getuser()
    made = batch(opts, f"%{grp.getgrgid(os.getgid()).gr_name}", at_terminal("carl"))
    CallerRights(opts, at_terminal(me)).permit_approval(made)
    CallerRights(opts, user(me, "pam", shown=f"pam:{me}")).permit_approval(made)
    with pytest.raises(Refused, match="may not approve"):
        CallerRights(opts, user(me, "pam", "ldap", kind=TOKEN)).permit_approval(made)


@pytest.mark.parametrize("who", [ROOT, user("root", "pam", shown="pam:root"), at_terminal("root", SUDO)])
def test_the_user_who_started_a_batch_may_not_approve_it_even_if_named(opts, who):  # noqa: F811
    made = batch(opts, "root,pam:root,anna")
    made.pace.checking = 0
    assert made.waits_for().reason == "waits for approval by root, pam:root, anna"
    with pytest.raises(Refused, match="another user has to approve it"):
        CallerRights(opts, who).permit_approval(made)


@pytest.mark.parametrize("name", ["Anna", "ANNA", " anna", "anna "])
def test_the_user_who_started_a_batch_may_not_approve_it_under_another_spelling_of_their_name(opts, name):  # noqa: F811
    starter = Caller(name, ("test.*",), who=Identity(PASSWORD, name, ("ldap",)))
    with pytest.raises(Refused, match="another user has to approve it"):
        CallerRights(opts, ANNA).permit_approval(batch(opts, f"anna,bert,{name}", starter))
    with pytest.raises(Refused, match="names no user but"):
        batch(opts, "anna", starter)


def test_without_approve_by_every_user_who_may_run_the_job_may_approve(opts):  # noqa: F811
    made = Batch(asked_for(opts, "*", batch="1,100%", check="approve"), 1000.0)
    CallerRights(opts, ROOT).permit_approval(made)
    with pytest.raises(Refused, match="may not publish"):
        CallerRights(opts, ANNA).permit_approval(made)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"approve_by": "anna"}, "approve_by goes with check=approve"),
        ({"approve_by": "anna", "check": "test.ping"}, "approve_by goes with check=approve"),
        ({"approve_by": "root", "check": "approve"}, "names no user but root"),
        ({"approve_by": {}, "check": "approve"}, "approve_by is"),
        ({"approve_by": " ,", "check": "approve"}, "accepted is one or more names"),
    ],
)
def test_a_batch_that_no_user_could_approve_is_refused(opts, given, why):  # noqa: F811
    with pytest.raises(Refused, match=why):
        asked_for(opts, "*", who=ROOT, batch="1,100%", **given)


def test_a_retry_that_no_user_could_approve_is_refused(opts):  # noqa: F811
    check = {"kind": "approve", "fun": "", "arg": [], "kwargs": {}}
    made = failed(opts, 2, check=check, approve_by=("anna",))
    with pytest.raises(Refused, match="names no user but anna"):
        next_batch(opts, at_terminal("anna"), made, ["failed"])
    assert next_batch(opts, ROOT, made, ["failed"]).approve_by == ("anna",)
