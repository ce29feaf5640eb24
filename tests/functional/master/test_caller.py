"""Who the caller of a runner is, for each way in which Salt calls one. Requests to a master are in the integration tests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import salt.config
import salt.master
from salt.client.mixins import AsyncClientMixin

from saltext.jobs.core.errors import Refused
from saltext.jobs.core.master.caller import Caller, caller, require_right
from saltext.jobs.core.users import PASSWORD, Identity

pytestmark = pytest.mark.story


class Client:
    """Salt's runner client, with a function that asks who has called it."""

    def low(self, fun, low, full_return=False):
        return caller({}, low["__user__"])


class ParallelClient(Client):
    """One whose function calls another one in a thread, as ``salt.parallel_runners`` does."""

    def low(self, fun, low, full_return=False):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(super().low, fun, low).result()


def called_in_a_process_of_its_own(user, client=Client):
    """Calls as the master calls a runner for a user, and as ``salt-run --async`` does."""
    return AsyncClientMixin._proc_function(
        instance=client(), opts={}, fun="batch.start", low={}, user=user, tag="t", jid="1", daemonize=False
    )


@pytest.fixture
def in_the_master(monkeypatch):
    monkeypatch.setattr(salt.master.SMaster, "secrets", {"aes": "a key that only the master has"})


def test_outside_the_master_the_caller_is_the_user_who_runs_the_command():
    assert called_in_a_process_of_its_own("root") == Caller("root")
    assert called_in_a_process_of_its_own("sudo_anna") == Caller("sudo_anna")


@pytest.mark.parametrize("user", ["root", "sudo_anna", "UNKNOWN", "Reactor", "anna"])
def test_in_the_master_a_call_of_unknown_origin_is_refused(in_the_master, user):
    with pytest.raises(Refused, match="not known who asks"):
        called_in_a_process_of_its_own(user)


def test_a_call_of_unknown_origin_is_refused_in_a_thread_too(in_the_master):
    with pytest.raises(Refused, match="not known who asks"):
        called_in_a_process_of_its_own("root", ParallelClient)


def test_a_call_by_the_master_itself_is_not_limited(in_the_master):
    assert caller({}, "Reactor") == Caller("Reactor")


def test_sudo_acl_limits_sudo_users():
    opts = {"sudo_acl": True, "publisher_acl": {"anna": ["test.*"]}}
    assert caller(opts, "sudo_anna") == Caller("sudo_anna", ("test.*",))
    assert caller(opts, "sudo_bert") == Caller("sudo_bert", ())
    assert caller(opts, "root") == Caller("root")


def test_a_user_in_publisher_acl_blacklist_may_start_nothing(tmp_path):
    opts = {
        **salt.config.master_config(None),
        "pki_dir": str(tmp_path),
        "publisher_acl_blacklist": {"users": ["ben.*"]},
    }
    load = {"fun": "test.ping", "arg": []}
    require_right(opts, Caller("anna", ("test.*",)), load, ["a1"])
    require_right(opts, Caller("benno", ("test.*",), who=Identity(PASSWORD, "benno", ("pam",))), load, ["a1"])
    with pytest.raises(Refused, match="benno may not publish anything: publisher_acl_blacklist"):
        require_right(opts, Caller("benno", ("test.*",)), load, ["a1"])
