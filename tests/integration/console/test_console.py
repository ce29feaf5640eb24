"""The console in a browser, with a real salt-api, master and minions, for three users."""

from __future__ import annotations

import pathlib

import pytest

from tests.integration.api import SECRET, fronts, salt_api
from tests.integration.conftest import make_master, make_minion, minions, salt_cli
from tests.integration.console.browser import Page
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

CONSOLE = pathlib.Path(__file__).resolve().parents[3] / "console"
HOSTILE = "<img src=x onerror=window.pwned=1>"
USERS = {
    "admin": [".*", "@runner"],
    "reader": [{"@runner": ["batch.list", "batch.status", "batch.minions", "job_retry.list", "job_retry.stats"]}],
    "batcher": ["test.*", {"@runner": ["batch.*"]}],
}


@pytest.fixture(scope="module")
def master(salt_factories):
    options = fronts("rest_cherrypy")
    options["rest_cherrypy"] |= {"static": str(CONSOLE), "static_path": "/console"}
    options["rest_cherrypy"] |= {"app": str(CONSOLE / "open.html"), "app_path": "/console"}
    # A kill asks the minion again and again, and waits so long each time.
    options |= {"external_auth": {"sharedsecret": USERS}, "sharedsecret": SECRET, "gather_job_timeout": 2}
    daemon = make_master(salt_factories, **options)
    with daemon.started(), minions(daemon, "a1", "a2"), salt_api(daemon):
        yield daemon


@pytest.fixture(scope="module")
def absent(master):
    """The third minion, whose key is accepted; it is stopped."""
    minion = make_minion(master, "b1")
    with minion.started():
        assert salt_cli(master, "b1", "test.ping").data is True
    return minion


@pytest.fixture
def page(chrome, master):
    page = Page(chrome, f"http://127.0.0.1:{master.config['rest_cherrypy']['port']}/console/index.html")
    page.complaints()
    yield page
    assert page.complaints() == []
    assert page.chrome.execute_script("return window.pwned") is None


def start(page, fun, *lines, size="1", tgt="a*", matches=2):
    """Start a batch in the form; its jid."""
    page.go("start")
    wait_for(lambda: page.exists("#tgt"), what="the form is there")
    page.fill("#tgt", tgt)
    page.fill("#fun", fun)
    page.fill("#batch", size)
    page.fill("#arg", "\n".join(lines))
    page.click("Show which minions match")
    page.wait_text(f"{matches} minion{'s match' if matches > 1 else ' matches'}")
    page.click("Start the batch")
    page.wait_text(f"{fun} ", "h1")
    return page.text("section.batch .jid")


@pytest.mark.parametrize("path", ["/console/#/queue", "/console", "/", "/x/console", "//127.0.0.2/console"])
def test_the_console_is_found_without_the_name_of_its_file(page, path):
    page.chrome.get(page.address.replace("/console/index.html", path))
    wait_for(lambda: page.exists("#user"), what=lambda: f"the login is there: {page.chrome.current_url}")
    found = page.address.replace("/console", "//127.0.0.2/console") if path.startswith("//") else page.address
    assert page.chrome.current_url == found + "#/queue" * path.endswith("#/queue")


def state(page, word):
    page.wait_text(word, ".head .badge")


def test_a_batch_is_started_and_watched_to_its_end(page, run):
    page.be("admin")
    jid = start(page, "test.sleep", "2")
    page.wait_text("active", ".filter")
    page.wait_text("2 of 2", ".head")
    state(page, "succeeded")
    page.wait_text("2 completed", ".filter")
    assert (run("batch.status", jid)["user"], run("batch.status", jid)["completed"]) == ("admin", 2)
    page.go("batches")
    page.wait_text(jid, "tbody")


def test_a_batch_is_paused_resumed_and_killed(page, run):
    page.be("admin")
    jid = start(page, "test.sleep", "300")
    page.wait_text("1 active", ".filter")
    page.click("Pause")
    state(page, "paused")
    page.click("Resume")
    state(page, "running")
    page.click("Stop and kill…")
    page.click("Stop and kill", "dialog")
    page.wait_text("1 killed", ".filter")
    state(page, "halted")
    assert run("batch.status", jid)["killed"] == 1


def test_the_queue_is_seen_to_drain_when_a_minion_starts(page, master, absent, run):
    page.be("admin")
    page.go("queue")
    page.wait_text("0 entries")
    done = master.salt_cli().run("--async", "test.arg", HOSTILE, minion_tgt="b1")
    jid = next(word for word in done.stdout.split() if word.isdigit() and len(word) == 20)
    assert run("job_retry.enqueue", jid) == 1
    page.wait_text(jid, "tbody")
    page.wait_text("at a sign of life", "tbody")
    with absent.started():
        page.wait_text("nothing is owed")
        page.go(f"jobs/{jid}")
        page.wait_text("1 of 1 returned")
        page.wait_text(HOSTILE, "pre")


def test_a_user_who_may_only_look_sees_everything_and_may_do_nothing(page, run):
    jid = run("batch.start", "a*", "test.sleep", "300", "batch=1")["jid"]
    page.be("reader")
    page.wait_text(jid, "tbody")
    page.go(f"batches/{jid}")
    page.wait_text("1 active", ".filter")
    page.wait_text("Stop… (not permitted)")
    page.click("Pause")
    page.wait_text("You are not permitted to call batch.pause", ".messages")
    page.go("health")
    page.wait_text("You are not permitted to call jobs_doctor.run")
    page.go("queue")
    page.wait_text("0 entries")
    assert run("batch.status", jid)["state"] == "running"
    run("batch.stop", jid, "kill=True")
