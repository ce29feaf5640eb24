"""
Users by every kind of login and every form of an access list that Salt has: what our runners let them do, what becomes of a
job that they published once their rights are taken away, and what of their secrets is kept.

One master for all. Users of ``LOST`` lose their rights while a minion is away that is owed their jobs.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil

import pytest
import salt.client
import salt.config
import yaml
from _pytest.outcomes import Skipped

from tests.integration import backends
from tests.integration.api import Denied, Python
from tests.integration.backends import SECRET
from tests.integration.conftest import log_of, make_master, make_minion, minions, salt_cli
from tests.integration.job_retry.desk import OPTIONS, TIMES, Desk
from tests.missing import missing
from tests.waiting import wait_for

pytestmark = pytest.mark.story

#: An accepted minion that is away.
AWAY = "a9"
#: One that is there, and that `peer` lets publish to it.
PEER = "a1"
#: By minion, by function, by argument and by keyword; and our runners.
GRANTS = [
    {"a*": ["test.ping", {"test.echo": {"args": ["fine.*"]}}, {"test.arg": {"kwargs": {"colour": "blue"}}}]},
    {"@runner": ["batch.*", "job_retry.*", "job_cache.*"]},
]
#: Backend -> who keeps the rights, and who loses them. Of `pam`, games is a user of this machine with a group of that name.
KEEPS = {"pam": "paula", "file": "fred", "ldap": "lena", "listed": "alice", "publisher_acl": "anna"}
LOSES = {"pam": "games", "file": "frida", "ldap": "luis", "listed": "arno", "publisher_acl": "ben"}
WAYS = list(KEEPS)
#: Which backend asks for the password where the lists are told by a module.
LOGIN = {"listed": "file"}
#: Users with the short forms of grants for runners.
SHORT = {
    "of_jobs": ["@jobs"],
    "of_wheel": ["@wheel"],
    "of_batch": ["@batch"],
    "of_all_runners": ["@runner", "@runners"],
    "of_two": ["test.ping", "@batch", "@jobs"],
}


def lists(of):
    """The entries of external_auth, for these users of each backend."""
    names = [user for users in of for way, user in users.items() if way in ("pam", "file")]
    by_name = {name: GRANTS for name in names if name != LOSES["pam"]}
    by_group = {f"{name}%": GRANTS for name in names if name == LOSES["pam"]}
    return {"pam": {**by_name, **by_group, "nobody%": []}, "file": by_name, "ldap": {"ops%": GRANTS}}


def acl_of(of):
    """The lists of publisher_acl; one of a group is that of a user with this odd name."""
    return {**{users["publisher_acl"]: GRANTS for users in of}, "games%": [".*"]}


class Site:
    """A master, its logins and its users."""

    def __init__(self, factories, folder, stack):
        self.lacking, options = {}, {}
        self.file = backends.passwords(folder / "passwords", *KEEPS.values(), *LOSES.values(), *SHORT)
        self.listed = backends.Listed(folder, dict.fromkeys((KEEPS["listed"], LOSES["listed"]), GRANTS))
        self.ldap = None
        with self.found("pam"):
            options.update(backends.pam(folder / "pam", KEEPS["pam"], LOSES["pam"]))
        with self.found("ldap"):
            self.ldap = stack.enter_context(backends.Ldap(folder / "ldap", KEEPS["ldap"], LOSES["ldap"]))
            options.update(self.ldap.options)
        self.daemon = make_master(
            factories,
            external_auth=self.external_auth(KEEPS, LOSES),
            publisher_acl=acl_of((KEEPS, LOSES)),
            client_acl_verify=False,  # this machine need not have such a user
            peer={PEER: ["test.echo", "test.arg"]},
            job_retry=OPTIONS,
            **TIMES,
            **self.listed.options,
            **options,
        )
        self.daemon.slow_stop = False
        self.python = Python(salt.config.client_config(self.daemon.config_file), SECRET)
        self.desk = stack.enter_context(contextlib.closing(Desk(self.daemon)))

    @contextlib.contextmanager
    def found(self, way):
        """Continue without a kind of login that this machine lacks."""
        try:
            yield
        except Skipped as reason:
            self.lacking[way] = str(reason)

    def external_auth(self, *of):
        found = lists(of)
        return {**found, "file": {**self.file, **found["file"], **SHORT}}

    def take_rights_away(self):
        """Take the rights of LOSES away: in LDAP, in the module's file, and in the configuration, with a restart."""
        if self.ldap:
            self.ldap.expel(LOSES["ldap"])
        self.listed.write({KEEPS["listed"]: GRANTS})
        path = pathlib.Path(self.daemon.config_file)
        config = {**yaml.safe_load(path.read_text()), "external_auth": self.external_auth(KEEPS)}
        self.daemon.terminate()
        config = {**config, "publisher_acl": acl_of((KEEPS,)), "peer": {PEER: ["test.echo"]}}
        path.write_text(yaml.safe_dump(config))
        self.daemon.start()

    def require(self, way):
        if way in self.lacking:
            missing(self.lacking[way])

    def call(self, way, user, fun, *arg, **kwarg):
        """Call a runner as a user."""
        self.require(way)
        return self.python.call(fun, *arg, **kwarg, **self.login(way, user))

    def publish(self, way, user, tgt, fun, arg):
        """Publish a job as a user, and return its jid."""
        self.require(way)
        client, login = salt.client.LocalClient(mopts=dict(self.daemon.config)), self.login(way, user)
        try:
            if "key" in login:
                client.salt_user, client.key = user, login["key"]
            else:
                login = {"username": user, "password": SECRET, "eauth": login["eauth"]}
            return client.run_job(tgt, fun, arg, listen=False, **({} if "key" in login else login))["jid"]
        finally:
            client.destroy()

    def publish_by_peer(self, fun, words):
        """Have a minion publish to the one that is away, and return the jid."""
        before = self.run("jobs.list_jobs")
        assert salt_cli(self.daemon, PEER, "publish.publish", AWAY, fun, words, "timeout=0").returncode == 0
        (jid,) = {jid for jid, job in self.run("jobs.list_jobs").items() if job["Target"] == AWAY} - before.keys()
        return jid

    def login(self, way, user):
        if way != "publisher_acl":
            return {"eauth": LOGIN.get(way, way), "user": user}
        return {"user": user, "key": pathlib.Path(self.daemon.config["cachedir"], f".{user}_key").read_text()}

    def run(self, fun, *args, **kwargs):
        """Call a runner as root, in this process."""
        return self.desk.run(fun, *args, **kwargs)


@pytest.fixture(scope="module")
def site(salt_factories, tmp_path_factory):
    with contextlib.ExitStack() as stack:
        made = Site(salt_factories, tmp_path_factory.mktemp("logins"), stack)
        stack.enter_context(made.daemon.started())
        stack.enter_context(minions(made.daemon, "a1"))
        keys = pathlib.Path(made.daemon.config["pki_dir"], "minions")
        shutil.copyfile(keys / "a1", keys / AWAY)
        yield made


def refused(answer):
    assert (answer["success"], answer["retcode"]) == (False, 1), answer
    return answer["return"]


# -- while the rights are there ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_user_starts_what_the_access_list_names_with_its_arguments_and_nothing_else(site, way):
    user = LOSES[way]

    def preview(*words, **options):
        return site.call(way, user, "batch.preview", *words, **options)

    assert preview("a1", "test.echo", "fine, thanks")["return"]["minions"] == ["a1"]
    assert preview("a1", "test.arg", kwarg={"colour": "blue"})["success"] is True
    # The source of a list does not change how it is applied: all of this is tried with one.
    for words, options in [
        (["a1", "cmd.run", "id"], {}),
        (["a1", "test.echo", "bad"], {}),
        (["a1", "test.echo"], {}),
        (["a1", "test.arg"], {"kwarg": {"colour": "red"}}),
        (["a1", "test.ping"], {"check": "cmd.run id"}),
        (["a1", "test.ping"], {"check": "runner:salt.cmd cmd.run id"}),
    ][: None if way == WAYS[-1] else 2]:
        assert f"{user} may not" in refused(preview(*words, **options))
    assert site.call(way, user, "batch.start", "a1", "test.ping")["return"]["user"] == user


def test_the_short_forms_of_grants_for_runners_are_none_for_jobs(site):
    def call(user, fun, *arg, **kwarg):
        return site.call("file", user, fun, *arg, **kwarg)

    assert call("of_jobs", "jobs.active")["success"] is True
    for user, fun in [("of_jobs", "batch.list"), ("of_wheel", "batch.list"), ("of_batch", "job_retry.list")]:
        with pytest.raises(Denied):
            call(user, fun)
    for user in ("of_batch", "of_all_runners"):
        assert call(user, "batch.list")["success"] is True
        assert "may not publish test.ping" in refused(call(user, "batch.start", "a1", "test.ping"))
    checked = ["batch.preview", "a1", "test.ping"]
    assert call("of_two", *checked, batch="1,1", check="runner:jobs.active")["success"] is True
    assert "may not call the runner function salt.cmd" in refused(call("of_two", *checked, check="runner:salt.cmd x"))


def test_a_group_in_publisher_acl_matches_no_user_of_that_group(site):
    key = pathlib.Path(site.daemon.config["cachedir"], f".{LOSES['pam']}_key")
    assert not key.exists()
    with pytest.raises(Exception, match=r"Authentication|Authorization"):
        site.python.call("batch.list", user=LOSES["pam"], key="x")


# -- after they were taken away ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcome(site, tmp_path_factory):
    """
    Each user publishes to the minion that is away. Then some lose their rights, and the minion comes back. The outcome of
    each job, by user: ``(state, reason, whether it has returned)``, also of jobs in which one function carries another.
    """
    jids, carried, ran = {}, {}, tmp_path_factory.mktemp("ran")
    for user_of in (KEEPS, LOSES):
        for way, user in user_of.items():
            if way not in site.lacking:
                jids[user] = site.publish(way, user, AWAY, "test.echo", ["fine"])
    for way, user in KEEPS.items():
        if way not in site.lacking:
            funs, args = ["test.echo", "cmd.run"], [["fine"], [f"echo $PPID >> {ran}/{user}"]]
            carried[user] = site.publish(way, user, "a*", funs, args)
    jids[PEER], jids["a1 later"] = site.publish_by_peer("test.echo", "fine"), site.publish_by_peer("test.arg", "x")
    owed = {*jids.values(), *carried.values()}
    wait_for(lambda: owed <= {entry["jid"] for entry in site.run("job_retry.list")}, what="all are queued")
    kept = everything_in(pathlib.Path(site.daemon.config["cachedir"]))
    site.take_rights_away()
    log = log_of(site.daemon)
    with make_minion(site.daemon, AWAY).started():
        final = ("dead", "held", "expired")

        def entries():
            return {entry["jid"]: entry for entry in site.run("job_retry.list")}

        wait_for(
            lambda: all(entry["state"] in final for entry in entries().values()),
            what=lambda: f"it is settled: {entries()}",
        )
        left = entries()

        def end(jid):
            reason = site.run("job_retry.show", AWAY, jid)["reason"] if jid in left else ""
            return left.get(jid, {}).get("state"), reason, AWAY in (site.desk.returned(jid) or {})

        yield {
            "jobs": {user: end(jid) for user, jid in jids.items()},
            "carried": {user: end(jid) for user, jid in carried.items()},
            "ran": {path.name: path.read_text().split() for path in ran.iterdir()},
            "kept": kept,
            "log": log,
        }


def everything_in(folder):
    """``{path: content}`` of all files, but for those that Salt keeps of keys and of logins."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "tokens" and not path.name.endswith("_key")
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_job_is_delivered_while_its_user_has_the_right(site, outcome, way):
    site.require(way)
    assert outcome["jobs"][KEEPS[way]] == (None, "", True)


@pytest.mark.parametrize("way", WAYS)
def test_a_job_is_refused_with_the_reason_after_the_right_was_taken_away(site, outcome, way):
    site.require(way)
    state, reason, returned = outcome["jobs"][LOSES[way]]
    assert (state, returned) == ("dead", False)
    assert f"{LOSES[way]} may not publish test.echo to it any more" in reason


@pytest.mark.parametrize("way", WAYS)
def test_a_function_carried_by_a_permitted_one_is_run_by_salt_and_never_by_this_extension(site, outcome, way):
    site.require(way)
    user = KEEPS[way]
    assert len(outcome["ran"][user]) == 1, "Salt has let it through, to the minion that was there"
    state, reason, returned = outcome["carried"][user]
    assert (state, returned) == ("dead", False)
    assert f"{user} may not publish each of test.echo, cmd.run to it any more" in reason
    assert f"{user} may not publish each of test.echo, cmd.run to it\n" in outcome["log"]


def test_a_job_published_for_a_minion_is_delivered_as_far_as_peer_lets_that_minion_publish(outcome):
    assert outcome["jobs"][PEER] == (None, "", True)
    state, reason, returned = outcome["jobs"]["a1 later"]
    assert (state, returned) == ("dead", False)
    assert f"minion {PEER} may not publish test.arg to it any more" in reason


def test_no_password_is_kept_or_logged(site, outcome):
    assert len(outcome["kept"]) > 50
    assert [path for path, content in outcome["kept"].items() if SECRET.encode() in content] == []
    assert SECRET not in outcome["log"]
