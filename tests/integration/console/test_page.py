"""The console in a browser, with a simulated salt-api: what it shows, what it asks for, and when."""

from __future__ import annotations

import re
import threading
import time

import pytest

from tests.integration.console.browser import Page
from tests.integration.console.stand_in import DOCTORS, No, StandIn, serving
from tests.waiting import SOON, load, stretched, wait_for

pytestmark = pytest.mark.slow

JID = "20260516101112131415"
STATES = ("completed", "active", "pending", "failed", "timed_out", "lost", "offline", "killed")
#: Script, in all forms in which a page may take text for markup.
HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>"\'><svg onload=window.pwned=1>'
#: The same as the id of a minion or a job, which has no slash and no blank.
HOSTILE_ID = '"onerror="window.pwned=1"><script>window.pwned=1;<b>'


@pytest.fixture(scope="module")
def served():
    api = StandIn()
    with serving(api) as address:
        yield api, address


@pytest.fixture
def api(served):
    served[0].clear()
    return served[0]


@pytest.fixture
def page(chrome, served, api):
    page = Page(chrome, served[1])
    page.complaints()  # those of the test before
    yield page
    assert page.complaints() == []


def summary(jid=JID, /, **more):
    counts = dict.fromkeys(STATES, 0)
    counts |= {name: value for name, value in more.items() if name in STATES}
    given = {
        "jid": jid,
        "fun": "state.apply",
        "tgt": "web*",
        "tgt_type": "glob",
        "user": "anna",
        "driver": "engine",
        "state": "running",
        "total": sum(counts.values()),
        "batch_size": 10,
        "stage": 1,
        "stages": 1,
        "created": time.time() - 60,
        "last_progress": time.time(),
        "halted_reason": None,
        "paused_by": None,
        "paused_reason": None,
        "opens_at": None,
        "approve": None,
        "check": False,
        "engine": True,
        "success": False,
        "survivors": [],
        "parent": None,
    }
    return given | counts | more


def told(batch, what="progress", **more):
    """The event of a batch."""
    data = {name: batch[name] for name in ("jid", "fun", "user", "total", *STATES)}
    return f"salt/batch/{batch['jid']}/{what}", {**data, "status": batch["state"], **more}


def returned(minion, jid=JID, retcode=0):
    data = {"id": minion, "jid": jid, "fun": "state.apply", "return": {}, "retcode": retcode, "success": not retcode}
    return f"salt/job/{jid}/ret/{minion}", data


def minions_of(states):
    return {name: {"state": state, "since": time.time() - 5, "retcode": None} for name, state in states.items()}


def entry(minion="web1", jid=JID, **more):
    given = {"minion": minion, "jid": jid, "fun": "state.apply", "state": "pending", "reason": "it did not answer"}
    more = {"attempts": 0, "queued_at": 1778926287.0, "expires_at": None, "owner": "m", **more}
    return {**given, "waits_for": None, "opens_at": None, "not_before": None, **more}


def has_batch(api, batch, minions):
    api.runners |= {
        "batch.list": lambda limit: [dict(batch)],
        "batch.status": lambda jid: dict(batch),
        "batch.minions": lambda jid: minions,
    }


# -- login ------------------------------------------------------------------------------------------------------------


def test_a_wrong_password_is_reported_and_a_right_one_opens_the_page(page, api):
    page.leave()
    page.log_in("anna", "wrong")
    page.wait_text("does not accept this user and password")
    page.log_in("anna")
    page.wait_text("anna (sharedsecret)")
    page.wait_text("There is no batch")


def test_a_login_outlives_a_reload_of_its_tab_and_ends_with_the_logout(page, api):
    page.open("anna")
    page.chrome.refresh()
    page.wait_text("anna (sharedsecret)")
    assert page.chrome.get_cookies() == []
    page.click("Log out")
    wait_for(lambda: page.exists("#user"), what="the login is there")
    page.chrome.refresh()
    wait_for(lambda: page.exists("#user"), what="the login is there still")


def test_a_login_that_has_ended_at_the_api_asks_for_another(page, api):
    page.open()
    page.wait_text("Live", ".status")
    api.tokens.clear()
    api.drop()
    page.wait_text("Your login has ended")


# -- reading and following ----------------------------------------------------------------------------------------------


def test_each_view_is_read_once_and_then_follows_the_events(page, api):
    batch = summary(completed=2, active=3, pending=5)
    has_batch(api, batch, {})
    page.enter(api.login())
    page.wait_text("2 of 10", "tbody")
    api.calls.clear()
    api.fire(*told(summary(completed=6, active=3, pending=0, failed=1)))
    page.wait_text("7 of 10, 1 failed", "tbody")
    assert api.calls == []


#: The page's clock and timers, a thousand times as fast.
FAST = """
    const [timeout, interval, now, begun] = [setTimeout, setInterval, Date.now, Date.now()];
    window.setTimeout = (call, wait, ...more) => timeout(call, wait / 1000, ...more);
    window.setInterval = (call, wait, ...more) => interval(call, wait / 1000, ...more);
    Date.now = () => begun + 1000 * (now() - begun);
"""


@pytest.fixture
def fast(page):
    """Whatever page is opened, time goes by there a thousand times as fast."""
    script = page.chrome.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": FAST})
    yield
    page.chrome.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_which_master_leads_is_shown_with_a_batch_and_on_the_health_page(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5, engine_master="west<1>"), {})
    master = {"state": "stands by"}
    engine = {"leader": "west<1>", "takeovers": 2, "masters": {"west<1>": {"state": "leads"}, "east": master}}
    api.runners["batch.masters"] = lambda: {"engines": {"batch_manager": engine}}
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text("the master west<1>")
    page.go("health")
    page.wait_text("batch_manager: west<1> leads; east: stands by; taken over 2 times")
    api.runners["batch.masters"] = lambda: {"engines": None}
    page.click("Examine again")
    page.wait_text("The answer names no engines")


def test_the_api_is_not_asked_while_nothing_happens(page, api, fast):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    # How many calls it takes to read each view.
    for view, calls in {"batches": 1, f"batches/{JID}": 2, "queue": 2, "jobs": 1, "health": 9}.items():
        api.calls.clear()
        page.enter(api.login(), view)
        wait_for(lambda calls=calls: len(api.calls) == calls, what=lambda view=view: f"{view} is read: {api.calls}")
        api.fire("salt/auth", {"id": "web1", "result": True})
        api.calls.clear()
        twenty_minutes_pass(page)
        assert api.calls == [], view


def twenty_minutes_pass(page):
    """Wait until the page says that nothing has come for so long."""
    told = re.compile(r"last event ([2-5]\d min|\d+ h) ago")
    wait_for(lambda: told.search(page.text(".status")), what=lambda: f"20 minutes have passed: {page.text('.status')}")


def test_a_connection_that_is_dead_and_says_nothing_is_made_anew_once(page, api, fast):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    page.enter(api.login())
    page.wait_text("2 of 10", "tbody")
    before = list(api.streams)
    api.calls.clear()
    api.fire("saltext/jobs/batch_manager/beat/77", {"n": 1})
    wait_for(lambda: any(one not in before for one in api.streams), what="there is another connection")
    wait_for(lambda: api.calls, what="it is read again")
    twenty_minutes_pass(page)
    assert api.calls == [("batch.list", {"limit": 50})]


def test_an_engine_that_hangs_is_known_by_its_beat_and_the_counts_are_those_of_the_minions(page, api, fast):
    has_batch(api, summary(active=3), minions_of(dict.fromkeys(("web1", "web2", "web3"), "active")))
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text("3 active", ".filter")
    api.fire("saltext/jobs/batch_manager/beat/77", {"n": 1})
    # An event is lost while the page opens its next connection. A minion that is reported twice counts once.
    wait_for(lambda: "1 of 3" in page.text(".head") or api.fire(*returned("web1")), what="the return counts")
    wait_for(lambda: "not answered" in page.text(".status") or api.fire(*returned("web2")), what="the beat is missed")
    page.wait_text("the batch_manager engine has not answered for", ".status")
    page.wait_text("the engine has not answered for", ".remark")


def test_many_events_cause_one_read(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    page.enter(api.login())
    page.wait_text("2 of 10", "tbody")
    api.calls.clear()
    api.fire_all([told(summary(f"2026051610111213{n:04}", pending=1), "new") for n in range(500)])
    wait_for(lambda: api.count("batch.list") == 1, what="it has read again")
    page.wait_text("2 of 10", "tbody")
    api.fire(*told(summary(completed=4, active=3, pending=3)))  # after all of these
    page.wait_text("4 of 10", "tbody")
    assert len(api.calls) == 1


def test_while_many_events_come_the_page_stops_listening_and_reads_every_few_seconds(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    page.enter(api.login())
    page.wait_text("2 of 10", "tbody")
    api.calls.clear()

    def some():
        api.fire_all([returned(f"web{n}", "20260101000000000000") for n in range(20)])
        time.sleep(0.5)

    wait_for(lambda: some() or not api.streams, what="it listens no more")
    has_batch(api, summary(completed=9, active=1), {})
    page.wait_text("Much happens", ".status")
    assert api.calls == []
    wait_for(lambda: some() or api.count("batch.list") >= 2, what="it is read now and then")
    page.wait_text("9 of 10", "tbody")
    begun, heard = time.monotonic(), 0
    while time.monotonic() < begun + 20:
        some()
        heard += bool(api.streams)
    assert heard <= 20, "of 40 times"
    assert api.count("batch.list") <= 6
    wait_for(
        lambda: api.fire("saltext/jobs/batch_manager/beat/77", {"n": 1}) or "Live" in page.text(".status"),
        what="it is quiet",
    )


def test_a_batch_that_only_an_event_reports_is_gone_when_the_api_does_not_know_it(page, api):
    page.enter(api.login())
    page.wait_text("There is no batch")
    api.fire(*told(summary(pending=3), "new", tgt="*", tgt_type="glob"))
    page.wait_text(JID, "tbody")
    page.wait_text("There is no batch")


def test_an_outage_is_reported_with_the_age_of_what_is_shown_and_ends_in_one_read(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    page.enter(api.login())
    page.wait_text("2 of 10", "tbody")
    page.wait_text("Live", ".status")
    api.down = True
    api.drop()
    page.wait_text("No connection", ".status")
    page.wait_text("This page shows the state of", ".status")
    page.wait_text("ago", ".status")
    assert "2 of 10" in page.text("tbody")
    has_batch(api, summary(completed=9, pending=1), {})
    api.calls.clear()
    api.down = False
    page.wait_text("Live", ".status")
    page.wait_text("9 of 10", "tbody")
    assert api.calls == [("batch.list", {"limit": 50})]


def test_events_during_a_read_are_not_lost(page, api):
    asked, answer = threading.Event(), threading.Event()

    def slow(limit):
        asked.set()
        answer.wait(stretched(SOON))
        return [summary(completed=1, pending=9, user="who is read")]

    api.runners["batch.list"] = slow
    page.enter(api.login())
    wait_for(asked.is_set, what="it reads")
    # The event is newer than the result of this read, and comes before it.
    api.fire(*told(summary(pending=10), "new"))
    api.fire(*told(summary(completed=8, pending=2)))
    page.wait_text("8 of 10", "tbody")
    answer.set()
    page.wait_text("by who is read", "tbody")
    assert "8 of 10" in page.text("tbody")


def test_a_clock_that_is_an_hour_off_changes_no_age_and_no_time_left(page, api):
    batch = summary(completed=50, pending=50, created=time.time() - 60, eta_seconds=66)
    has_batch(api, batch, minions_of({"web1": "completed"}))
    script = {"source": "const now = Date.now; Date.now = () => now() - 3600000;"}
    added = page.chrome.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
    try:
        page.enter(api.login(), f"batches/{JID}")
        page.wait_text("(1 min ago)", ".facts")
        assert "Left\n1 min" in page.text(".facts")
        api.calls.clear()
        api.fire(*told(batch, "paused", reason="paused by anna"))
        wait_for(lambda: api.count("batch.status"), what="it is read again")
    finally:
        page.chrome.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def test_a_clock_that_is_set_back_does_not_keep_it_from_reading(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    page.enter(api.login())
    page.wait_text("2 of 10", "tbody")
    page.chrome.execute_script("const now = Date.now; Date.now = () => now() - 3600000")
    api.calls.clear()
    api.fire(*told(summary(completed=2, active=3, pending=5), "resumed"))
    wait_for(lambda: api.count("batch.list"), what="it is read again")


def test_it_is_found_below_a_path_of_a_proxy_beside_an_application_with_a_login_of_its_own(page, api, served):
    api.prefix = "/ops/salt"
    below = Page(page.chrome, served[1].replace("/console/", "/ops/salt/console/"))
    below.open("anna")
    below.wait_text("There is no batch")
    below.wait_text("Live", ".status")


def test_two_tabs_have_a_user_each(page, api):
    page.open("anna")
    first = page.chrome.current_window_handle
    page.chrome.switch_to.new_window("tab")
    try:
        page.open("bert")
        page.wait_text("bert (sharedsecret)")
        page.chrome.switch_to.window(first)
        page.chrome.refresh()
        page.wait_text("anna (sharedsecret)")
        page.click("Log out")
    finally:
        page.chrome.switch_to.window(next(one for one in page.chrome.window_handles if one != first))
        page.chrome.refresh()
        page.wait_text("bert (sharedsecret)")
        page.wait_text("There is no batch")
        page.chrome.close()
        page.chrome.switch_to.window(first)


# -- permissions ------------------------------------------------------------------------------------------------------


def test_functions_that_the_api_denies_are_shown_as_not_permitted(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    api.denied = {"batch.pause", "batch.minions"}
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.wait_text("You are not permitted to call batch.minions")
    assert "not permitted" not in page.find("Pause").text
    page.click("Pause")
    page.wait_text("You are not permitted to call batch.pause", ".messages")
    page.wait_text("Pause (not permitted)")
    assert "not permitted" not in page.find("Stop…").text
    assert page.exists("header"), "nobody is logged out for that"


def test_calls_that_the_access_list_lacks_look_disabled_at_once_but_the_api_decides(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    api.perms = [{"@runner": ["batch.status", "batch.list", "job_retry.*"]}]
    api.runners["batch.pause"] = lambda jid: True
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.wait_text("Pause (not permitted)")
    page.click("Pause")
    page.wait_text("is paused", ".messages")


def test_a_refusal_of_a_runner_is_said_in_its_own_words(page, api):
    def refuse(**_):
        raise No("The target 'x*' of type 'glob' matches no accepted minion")

    api.runners["batch.preview"] = refuse
    page.enter(api.login())
    page.go("start")
    page.fill("#tgt", "x*")
    page.fill("#fun", "test.ping")
    page.click("Show which minions match")
    page.wait_text("The target 'x*' of type 'glob' matches no accepted minion")
    assert page.find("Start the batch") is None


# -- actions ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_started_only_as_it_was_shown(page, api):
    started = []
    names = ["web1", "web2"]
    shown = {"fun": "cmd.run", "total": 2, "minions": names, "sizes": [1, 2], "groups": None, "unsure": ["web2"]}
    shown |= {"check": "approve", "check_after": [1]}
    api.runners |= {
        "batch.preview": lambda **wanted: shown,
        "batch.start": lambda **wanted: started.append(wanted) or summary(pending=2),
    }
    has_batch(api, summary(pending=2), minions_of(dict.fromkeys(names, "pending")))
    page.enter(api.login())
    page.click("Start a batch")
    page.fill("#tgt", "web1,web2")
    page.choose("#tgt_type", "list")
    page.fill("#fun", "cmd.run")
    page.fill("#batch", "1,100%")
    page.fill("#arg", "uptime\n20260516101112131415\n[1, true]")
    page.fill("#kwarg", "timeout=5\nshell=/bin/sh")
    assert page.find("Start the batch") is None
    page.click("Show which minions match")
    page.wait_text("2 minions match")
    page.wait_text("1, then 2 at a time")
    page.wait_text("A user has to approve after minion 1.")
    page.fill("#batch", "1")
    assert page.find("Start the batch") is None
    assert "2 minions match" not in page.text()
    page.click("Show which minions match")
    page.click("Start the batch")
    page.wait_text(f"Batch {JID} is started on 2 minions", ".messages")
    wait_for(lambda: page.text("h1") == f"Batch {JID}", what="the batch is shown")
    arg, kwarg = ["uptime", JID, [1, True]], {"timeout": 5, "shell": "/bin/sh"}
    job = {"tgt": ["web1", "web2"], "tgt_type": "list", "fun": "cmd.run", "arg": arg, "kwarg": kwarg, "batch": "1"}
    assert started == [job]


def test_a_kill_is_asked_about_once_and_says_what_it_will_do(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    stops = []
    api.runners["batch.stop"] = lambda **how: stops.append(how) or True
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.click("Stop and kill…")
    page.wait_text("The job is sent to no more minions: 5 of 10 are still pending", "dialog")
    page.wait_text("on the 3 minions that run it now", "dialog")
    page.click("Cancel", "dialog")
    assert stops == []
    page.click("Stop and kill…")
    page.click("Stop and kill", "dialog")
    page.wait_text("is stopped, and its job is being killed", ".messages")
    assert stops == [{"jid": JID, "kill": True}]


def test_an_approval_is_for_the_stage_that_is_shown(page, api):
    approved = []
    batch = summary(
        completed=1,
        pending=9,
        state="paused",
        approve=0,
        stage=2,
        stages=3,
        paused_by="approval",
        paused_reason="waits for approval",
    )
    has_batch(api, batch, {})
    api.runners["batch.approve"] = lambda **what: approved.append(what) or True
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.wait_text("waits for approval")
    assert page.find("Resume") is None
    page.click("Approve")
    page.wait_text("Stage 1 is approved", ".messages")
    assert approved == [{"jid": JID, "stage": 0}]
    assert page.text(".stages [aria-current]") == "Stage 2: now"


def test_only_a_batch_that_waits_for_an_operator_can_be_resumed(page, api):
    batch = summary(completed=1, pending=9, state="paused", paused_by="publish", paused_reason="6 publishes failed")
    has_batch(api, batch, {})
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.wait_text("6 publishes failed")
    assert page.find("Resume")
    assert page.find("Pause") is None
    opens = {"paused_by": "window", "paused_reason": "outside its window", "opens_at": time.time() + 7200}
    has_batch(api, {**batch, **opens}, {})
    page.go("batches")
    page.go(f"batches/{JID}")
    page.wait_text("It opens in")
    assert page.find("Resume") is None
    assert page.find("Pause")


def test_the_queue_shows_why_each_entry_waits_and_follows_its_events(page, api):
    entries = [
        entry("web1"),
        entry("web1", "20260516101112131416", state="held", reason="it may have been begun"),
        entry("web2", waits_for="Sat 02:00-05:00", opens_at=2094516000.0),
    ]
    api.runners |= {
        "job_retry.list": lambda **_: entries,
        "job_retry.stats": lambda: {"entries": 3, "states": {"pending": 2, "held": 1}, "engine": True, "paused": False},
    }
    page.enter(api.login())
    page.go("queue")
    page.wait_text("it may have been begun")
    page.wait_text("when its window opens")
    assert "1 held, 1 pending" in page.text("tbody")
    page.click("2 jobs", "tbody")
    page.wait_text("at a sign of life")
    page.choose("#by", "jid")
    page.wait_text(f"state.apply {JID}")
    data = {"minion": "web2", "jid": JID, "fun": "state.apply", "attempts": 1, "reason": "it has returned"}
    api.fire(f"salt/job_retry/web2/{JID}/done", data)
    page.wait_text("2 entries", ".large")


def test_a_queue_that_is_still_being_read_is_not_shown_as_empty(page, api):
    asked, read = threading.Event(), threading.Event()

    def listed(**_):
        asked.set()
        read.wait(stretched(SOON))
        return [entry("web1")]

    api.runners |= {
        "job_retry.list": listed,
        "job_retry.stats": lambda: {"entries": 1, "states": {"pending": 1}, "engine": True, "paused": False},
    }
    page.enter(api.login(), "queue")
    wait_for(asked.is_set, what="the entries are asked for")
    page.choose("#by", "jid")  # it is drawn anew
    page.wait_text("1 entry", "main")
    page.wait_text("Reading…", "main")
    read.set()
    page.wait_text("web1", "tbody")
    assert "Reading…" not in page.text("main")


def test_an_action_on_the_queue_is_confirmed_and_done_to_the_entries_that_are_shown(page, api):
    asked = []
    api.runners |= {
        "job_retry.list": lambda **_: [entry("web1", state="held", reason="it may have been begun"), entry("web2")],
        "job_retry.retry": lambda **of: asked.append(("retry", of)) or 1,
        "job_retry.cancel": lambda **of: asked.append(("cancel", of)) or 1,
        "job_retry.replay": lambda **of: asked.append(("replay", of)) or 1,
        "job_retry.purge": lambda **of: asked.append(("purge", of)) or 1,
        "job_retry.pause": lambda: asked.append(("pause", {})) or True,
    }

    def comes(count):
        wait_for(lambda: len(asked) == count, what=lambda: f"it is done: {asked}")

    page.enter(api.login())
    page.go("queue")
    page.click("Retry…")
    page.wait_text("it is not known how far it got", "dialog")
    page.click("Try again", "dialog")
    comes(1)
    page.click("Cancel…")
    page.wait_text("1 entry will not be delivered", "dialog")
    page.click("Do not deliver", "dialog")
    comes(2)
    page.click("Replay now")
    page.wait_text("1 entry waits for it", ".messages")
    page.click("Purge…")
    page.click("Forget them", "dialog")
    comes(4)
    page.click("Pause the queue")
    page.click("Pause the queue", "dialog")
    comes(5)
    assert asked == [
        ("retry", {"minion": "web1", "jid": JID}),
        ("cancel", {"minion": "web1", "jid": JID}),
        ("replay", {"minion": "web1"}),
        ("purge", {"state": ["expired", "cancelled", "dead"]}),
        ("pause", {}),
    ]


def test_an_action_on_a_group_is_done_to_all_of_it(page, api):
    asked = []
    api.runners |= {
        "job_retry.list": lambda **_: [entry(name) for name in ("web1", "web2")],
        "job_retry.cancel": lambda **of: asked.append(of) or 2,
    }
    page.enter(api.login())
    page.go("queue")
    page.wait_text("2 entries", ".large")
    page.choose("#by", "jid")
    wait_for(lambda: len(page.all("tbody tr")) == 1, what="one group is shown")
    page.click("Cancel all…")
    page.wait_text("2 entries will not be delivered", "dialog")
    page.click("Do not deliver", "dialog")
    wait_for(lambda: asked, what="it is cancelled")
    assert asked == [{"jid": JID}]


def test_chosen_entries_are_dealt_with_together(page, api):
    asked = []
    api.runners |= {
        "job_retry.list": lambda **_: [
            entry(f"web{n}", state="held", reason="it may have been begun") for n in range(4)
        ],
        "job_retry.retry": lambda **of: asked.append(of) or 1,
    }
    page.enter(api.login())
    page.go("queue")
    page.wait_text("4 entries", ".large")
    assert page.find("Retry the chosen…") is None
    for number in range(3):
        page.tick("tbody input", number)
    page.wait_text("3 entries chosen")
    page.tick("tbody input", 0)
    page.wait_text("2 entries chosen")
    page.click("Retry the chosen…")
    page.wait_text("2 entries may be delivered again", "dialog")
    page.click("Try again", "dialog")
    page.wait_text("2 of 2 entries are tried again", ".messages")
    assert asked == [{"minion": name, "jid": JID} for name in ("web1", "web2")]
    wait_for(lambda: page.find("Retry the chosen…") is None, what="nothing is chosen any more")


def test_a_replay_outside_the_window_is_confirmed(page, api):
    asked = []
    api.runners |= {
        "job_retry.list": lambda **_: [entry("web1", waits_for="Sat 02:00-05:00", opens_at=2094516000.0)],
        "job_retry.replay": lambda **of: asked.append(of) or 1,
    }
    page.enter(api.login())
    page.go("queue")
    page.click("Replay now")
    page.wait_text("even if its window is shut", "dialog")
    page.click("Cancel", "dialog")
    page.click("Replay now")
    page.click("Replay now", "dialog")
    wait_for(lambda: asked, what="it is replayed")
    assert asked == [{"minion": "web1"}]


def test_a_double_click_counts_once_and_a_key_held_down_confirms_nothing(page, api):
    started, answer = [], threading.Event()
    shown = {"fun": "test.ping", "total": 2, "minions": ["web1", "web2"], "sizes": [2], "groups": None, "unsure": []}

    def start(**wanted):
        started.append(wanted)
        answer.wait(stretched(SOON))
        return summary(pending=3)

    api.runners |= {"batch.preview": lambda **_: shown, "batch.start": start}
    has_batch(api, summary(pending=3), minions_of({"web1": "pending"}))
    page.enter(api.login())
    page.go("start")
    page.fill("#tgt", "web*")
    page.fill("#fun", "test.ping")
    page.click("Show which minions match")
    page.wait_text("2 minions match")
    button = wait_for(lambda: page.find("Start the batch"), what="the button is there")
    page.chrome.execute_script("arguments[0].click(); arguments[0].click()", button)
    answer.set()
    page.wait_text("2 minions matched when they were shown, and 3 when the batch was started", ".messages")
    wait_for(lambda: page.text("h1") == f"Batch {JID}", what="the batch is shown")
    assert len(started) == 1
    page.click("Stop and kill…")
    assert page.chrome.switch_to.active_element.text == "Cancel"
    page.click("Cancel", "dialog")


def test_the_focus_stays_in_its_row_when_an_earlier_row_goes(page, api):
    api.runners["job_retry.list"] = lambda **_: [entry(name) for name in ("web1", "web2", "web3")]
    page.enter(api.login())
    page.go("queue")
    page.wait_text("3 entries", ".large")
    page.chrome.execute_script("[...document.querySelectorAll('tbody .danger')].at(-1).focus()")
    data = {"minion": "web1", "jid": JID, "fun": "state.apply", "attempts": 1, "reason": "it has returned"}
    api.fire(f"salt/job_retry/web1/{JID}/done", data)
    page.wait_text("2 entries", ".large")
    wait_for(lambda: "web1" not in page.text("tbody"), what="its row is gone")
    assert page.chrome.switch_to.active_element.text.startswith("Cancel")


def test_a_batch_page_says_what_it_runs_why_it_failed_and_when_it_ended(page, api):
    options = {"batch": "1,100%", "max_failures": "25%", "window": None}
    batch = summary(completed=2, failed=2, state="halted", halted_reason="more than 25% failures", stage=2, stages=2)
    batch |= {"options": options, "arguments": ["nginx", "test=True"], "finished": time.time() - 30}
    has_batch(api, batch, minions_of({"a": "completed", "b": "failed", "c": "completed", "d": "failed"}))
    groups = [{"count": 2, "state": "failed", "retcode": 1, "text": "no space left on /var", "minions": ["b", "d"]}]
    api.runners["batch.failures"] = lambda jid: {"groups": groups}
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text("no space left on /var", ".failures")
    assert "2 minions, failed, exit code 1" in page.text(".failures")
    facts = page.text(".facts")
    assert "state.apply nginx test=True" in facts and "2 of 25%" in facts and "Took\n30 s" in facts
    assert page.text(".stages") == "Stage 1 (1): done\nStage 2 (100%): ended here"
    assert page.text("tbody tr td").startswith(("b", "d"))


def test_a_batch_that_waits_says_for_what_and_who_may_approve(page, api):
    options = {"check": "approve", "approve_by": ["bert", "%ops"], "check_timeout": 300, "presence": "ping"}
    batch = summary(completed=1, pending=2, state="paused", paused_by="approval", approve=0, options=options)
    has_batch(api, batch | {"paused_reason": "waits for approval"}, minions_of({"a": "completed"}))
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text(
        "waits for approval. It may be given by bert, %ops, but not by the user who started the batch.", ".remark"
    )
    assert "Options\ncheck: approve; approve by: bert, %ops\n" in page.text(".facts")
    why = "waits for room: 4 of 4 minions are in flight over all batches, 0 of them of this"
    has_batch(api, summary(pending=3, blocked_reason=why), minions_of(dict.fromkeys("abc", "pending")))
    page.chrome.refresh()
    page.wait_text(why, ".remark")
    assert page.text(".head").startswith("waiting")
    page.go("batches")
    page.wait_text(why, "tbody")


def test_batches_are_found_by_state_and_by_what_they_run(page, api):
    bad = summary(completed=1, failed=1, state="complete", fun="pkg.upgrade")
    good = summary("20260516091112131415", completed=2, state="complete", success=True)
    api.runners["batch.list"] = lambda limit: [bad, good]
    page.enter(api.login())
    page.click("1 unsuccessful", ".filter")
    wait_for(lambda: "state.apply" not in page.text("tbody"), what="only those without success are shown")
    page.wait_text("pkg.upgrade", "tbody")
    page.click("1 unsuccessful", ".filter")
    page.fill("#batch-search", "apply")
    wait_for(lambda: "pkg.upgrade" not in page.text("tbody"), what="only what was searched for is shown")
    page.wait_text("state.apply", "tbody")
    page.fill("#batch-search", "nothing")
    page.wait_text("No batch matches.")
    page.go("batches?find=apply&state=succeeded&state=nonsense")
    page.chrome.refresh()
    page.wait_text("state.apply", "tbody")
    assert "pkg.upgrade" not in page.text("tbody")
    page.click("1 succeeded", ".filter")
    wait_for(
        lambda: page.chrome.current_url.endswith("#/batches?find=apply"), what="the address says what is looked for"
    )


def test_from_a_batch_lead_links_to_batches_like_it_and_to_what_a_minion_has_run(page, api):
    batch = summary(completed=1, failed=1, state="complete", arguments=["a b&c"])
    other = summary("20260516091112131415", completed=2, state="complete", success=True)
    has_batch(api, batch, minions_of({"a&b=c d": "failed", "b": "completed"}))
    api.runners["batch.list"] = lambda limit: [batch, other]
    asked = []
    api.runners["job_cache.search"] = lambda **how: asked.append(how) or {"jobs": [], "next": None}
    page.enter(api.login(), f"batches/{JID}")
    page.click("a&b=c d", "tbody")
    wait_for(lambda: asked, what="the jobs of the minion are searched for")
    assert asked[0]["minion"] == "a&b=c d"
    page.chrome.back()
    page.click("Batches like this")
    page.wait_text("state.apply a b&c", "tbody")
    assert len(page.all("tbody tr")) == 1


def test_what_is_done_with_a_batch_is_offered_once_it_is_read(page, api):
    asked, read = threading.Event(), threading.Event()

    def status(jid):
        asked.set()
        read.wait(stretched(SOON))
        return summary(completed=1, state="complete")

    has_batch(api, summary(completed=1, state="complete"), minions_of({"a": "completed"}))
    api.runners["batch.status"] = status
    page.enter(api.login(), f"batches/{JID}")
    wait_for(asked.is_set, what="the batch is asked for")
    page.wait_text("Reading…", "main")
    assert [text for text in ("Batches like this", "Copy to a new batch") if text in page.text("main")] == []
    read.set()
    page.wait_text("Copy to a new batch", "main")
    page.click("Batches like this")
    wait_for(lambda: page.text("h1") == "Batches", what="they are shown")


def test_a_click_counts_although_something_happens_before_the_button_is_released(page, api):
    from selenium.webdriver import ActionChains

    first = "20260516091112131415"
    has_batch(api, summary(completed=1, active=3, parent=first), {})
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text("A retry of")
    (link,) = page.all(f"main a[href$='{first}']")
    ActionChains(page.chrome).click_and_hold(link).perform()
    api.fire(*told(summary(completed=2, active=2, parent=first)))
    page.wait_text("2 of 4", ".head")
    ActionChains(page.chrome).release().perform()
    wait_for(lambda: page.text("h1") == f"Batch {first}", what="the earlier batch is shown")


def test_a_text_that_is_selected_stays_selected_while_others_change(page, api):
    has_batch(api, summary(completed=1, active=3), {})
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text("state.apply", ".facts")
    page.chrome.execute_script("getSelection().selectAllChildren(document.querySelector('.facts dd'))")
    api.fire(*told(summary(completed=2, active=2)))
    page.wait_text("In flight\n2", ".facts")
    assert page.chrome.execute_script("return getSelection().toString()") == "state.apply"


def test_minions_that_a_stopped_batch_has_not_reached_can_be_retried(page, api):
    batch = summary(completed=1, pending=3, state="halted", halted_reason="stop", publishes=1)
    has_batch(api, batch, minions_of({"a": "completed"}))
    asked = []
    api.runners["batch.retry"] = lambda **how: asked.append(how) or summary(total=3)
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text("Started", ".facts")
    page.click("Retry…")
    page.wait_text("and those it has not reached (3)", "dialog")
    page.click("Start the new batch", "dialog")
    wait_for(lambda: asked, what="it is retried")
    assert asked == [{"jid": JID, "which": "all"}]
    options = {"start_at": 2094516000.5}
    batch |= summary(pending=4, state="halted", halted_reason="stop", publishes=0, options=options)
    page.go(f"batches/{JID}")
    page.chrome.refresh()
    page.wait_text("Asked for", ".facts")
    assert "Started" not in page.text(".facts") and "Took" not in page.text(".facts")
    assert "start at: 2036-05-1" in page.text(".facts") and "Pace\n–" in page.text(".facts")


def test_a_job_is_shown_with_its_arguments_as_runners_mask_them(page, api):
    words = ["nginx", "password=********"]
    given = ["nginx", {"__kwarg__": True, "password": "********"}]
    job = {"Function": "state.apply", "Target": "web*", "User": "anna", "StartTime": "x", "Arguments": ["swordfish"]}
    api.runners |= {
        "job_cache.search": lambda **_: {
            "jobs": [{**job, "Arguments": given, "JID": JID, "Minions": 1, "Returned": 1}],
            "next": None,
        },
        "jobs.list_job": lambda jid: {**job, "Minions": ["a"], "Result": {}},
        "job_cache.outcome": lambda jid: {"jid": jid, "fun": "state.apply", "arguments": words},
    }
    page.enter(api.login(), "jobs")
    page.wait_text("state.apply nginx password=********", "tbody")
    page.go(f"jobs/{JID}")
    page.wait_text("state.apply nginx password=********", ".facts")
    assert "swordfish" not in page.text()


def test_a_batch_is_copied_into_the_form_which_survives_a_reload(page, api):
    options = {"batch": "1,100%", "max_failures": "25%"}
    batch = summary(completed=2, state="complete", success=True, options=options, arguments=["nginx", "test=True"])
    has_batch(api, batch, minions_of({"a": "completed", "b": "completed"}))
    page.enter(api.login(), f"batches/{JID}")
    page.click("Copy to a new batch")
    wait_for(lambda: page.text("h1") == "Start a batch", what="the form is shown")
    page.fill("#batch", "50%")
    page.chrome.refresh()
    wait_for(lambda: page.exists("#fun"), what="the form is there again")
    script = (
        "return ['fun', 'tgt', 'arg', 'kwarg', 'batch', 'max_failures'].map(id => document.getElementById(id).value)"
    )
    assert page.chrome.execute_script(script) == ["state.apply", "web*", "nginx", "test=True", "50%", "25%"]
    page.click("Clear the form")
    assert page.chrome.execute_script(script) == [""] * 6


def test_the_retry_dialog_hides_nothing_and_retries_what_is_chosen(page, api):
    batch = summary(completed=2, failed=2, lost=1, state="complete")
    has_batch(api, batch, minions_of({"a": "failed"}))
    asked = []
    api.runners["batch.retry"] = lambda **how: asked.append(how) or summary(total=1)
    page.enter(api.login(), f"batches/{JID}")
    page.click("Retry…")
    page.wait_text("failed (2)", "dialog")
    page.tick("#which-lost")
    page.click("Start the new batch", "dialog")
    wait_for(lambda: asked, what="it is retried")
    assert asked == [{"jid": JID, "which": "lost"}]


def test_a_search_for_jobs_is_in_the_address_and_noise_is_shown_on_demand(page, api):
    page.enter(api.login(), "jobs?search_function=state.*&user=anna")
    page.wait_text("No job matches")
    assert api.calls[-1] == ("job_cache.search", {"limit": 50, "search_function": "state.*", "user": "anna"})
    page.tick("#noise")
    wait_for(lambda: api.calls[-1][1].get("kind") == "all", what="all kinds are searched")
    assert page.chrome.execute_script("return location.hash") == "#/jobs?search_function=state.*&user=anna&kind=all"
    page.chrome.refresh()
    wait_for(lambda: page.exists("#noise"), what="the page is there again")
    assert page.chrome.execute_script("return document.getElementById('noise').checked")


def test_running_jobs_are_listed_on_demand_and_a_job_is_copied_into_the_form(page, api):
    jobs = [
        {"jid": JID, "kind": "batch", "fun": "state.apply", "arguments": ["nginx"], "user": "anna", "state": "running"}
    ]
    jobs[0] |= {"since": time.time() - 90, "minions": ["a", "b"], "kill": f"salt-run batch.stop {JID} kill=True"}
    job = {"Function": "state.apply", "Target": "web*", "Target-type": "glob", "Result": {}}
    api.runners |= {
        "job_cache.running": lambda: {"jobs": jobs, "asked": 3, "silent": ["c"]},
        "jobs.list_job": lambda jid: {**job, "User": "anna", "StartTime": "x", "Minions": ["a"]},
        "job_cache.outcome": lambda jid: {**jobs[0], "jid": jid, "arguments": ["nginx", "test=True"]},
    }
    page.enter(api.login(), "jobs")
    page.wait_text("No job matches")
    assert api.count("job_cache.running") == 0
    page.click("What runs now")
    page.wait_text("state.apply nginx batch, running on 2 minions, since 1 min ago, by anna")
    page.wait_text("1 job runs on the minions that answered. 1 minion did not answer: c.")
    page.wait_text(f"salt-run batch.stop {JID} kill=True")
    page.go(f"jobs/{JID}")
    page.click("Copy to a new batch")
    wait_for(lambda: page.text("h1") == "Start a batch", what="the form is shown")
    script = "return ['fun', 'tgt', 'arg', 'kwarg'].map(id => document.getElementById(id).value)"
    assert page.chrome.execute_script(script) == ["state.apply", "web*", "nginx", "test=True"]


# -- hostile ----------------------------------------------------------------------------------------------------------


def test_script_in_ids_and_returns_is_text(page, api):
    batch = summary(HOSTILE_ID, active=1, fun=HOSTILE, tgt=HOSTILE, user=HOSTILE, state="paused", paused_reason=HOSTILE)
    job = {
        "jid": JID,
        "Function": HOSTILE,
        "User": HOSTILE,
        "Target": HOSTILE,
        "StartTime": HOSTILE,
        "Arguments": [HOSTILE],
    }
    job |= {"Minions": [HOSTILE_ID], "Result": {HOSTILE_ID: {"return": HOSTILE, "retcode": 1}}}
    row = {"JID": HOSTILE_ID, "Function": HOSTILE, "Target": [HOSTILE], "User": HOSTILE, "StartTime": HOSTILE}
    has_batch(api, batch, {HOSTILE_ID: {"state": HOSTILE, "since": HOSTILE, "retcode": HOSTILE, "group": HOSTILE}})
    api.runners |= {
        "job_retry.list": lambda **_: [entry(HOSTILE_ID, HOSTILE_ID, reason=HOSTILE, fun=HOSTILE, state=HOSTILE)],
        "job_cache.search": lambda **_: {
            "jobs": [{**row, "Returned": 1, "Minions": 2, "Failed": 1, "Missing": 0}],
            "next": HOSTILE,
        },
        "jobs.list_job": lambda jid: job,
        **{f"{name}.doctor": lambda: {"findings": [HOSTILE]} for name in DOCTORS},
        "batch.history": lambda: [[time.time() - 60, {HOSTILE: {HOSTILE: 1}}], [time.time(), {HOSTILE: 2}]],
        "batch.pause": lambda jid: True,
    }
    one_more = [
        f"salt/job/{HOSTILE_ID}/ret/{HOSTILE_ID}",
        {"id": HOSTILE_ID, "jid": HOSTILE_ID, "fun": HOSTILE, "return": HOSTILE, "retcode": 1},
    ]
    published = [f"salt/job/{HOSTILE_ID}/new", {"jid": HOSTILE_ID, "minions": [HOSTILE_ID], "fun": HOSTILE}]
    # Each view, with the text that shows that it has taken all events.
    views = {
        "batches": lambda: "by " + HOSTILE[:9] in page.text("tbody") and api.count("batch.list") > 1,
        f"batches/{HOSTILE_ID}": lambda: api.count("batch.status") > 1,
        "queue": lambda: api.count("job_retry.list") > 1,
        "jobs": lambda: page.find("1 published since"),
        f"jobs/{HOSTILE_ID}": lambda: api.count("jobs.list_job") > 1,
        "health": lambda: "shows signs of life" in page.text("main"),
        f"x{HOSTILE}": lambda: api.count("batch.list") > 1,
    }
    page.enter(api.login(HOSTILE))
    for view, has_heard in views.items():
        api.calls.clear()
        page.go(view)
        page.wait_text("onerror=", "main")
        data = {"minion": HOSTILE_ID, "jid": HOSTILE_ID, "fun": HOSTILE, "attempts": HOSTILE, "reason": HOSTILE}
        api.fire(f"salt/job_retry/{HOSTILE_ID}/{HOSTILE_ID}/queued", data)
        api.fire(*told({**batch, "jid": "1"}, "new", tgt=HOSTILE))
        api.fire(*told(batch, "paused", reason=HOSTILE))
        api.fire(*one_more)
        api.fire(*published)
        api.fire("saltext/jobs/batch_manager/beat/1", {"n": HOSTILE})
        wait_for(has_heard, what=lambda view=view: f"{view} has heard all: {page.text()}")
    assert page.chrome.execute_script("return window.pwned") is None
    assert not page.exists("img") and not page.exists("script:not([src])") and not page.exists("[onerror], [onload]")


def test_nothing_in_the_page_can_be_made_markup_or_run_inline(page, api):
    page.enter(api.login())
    tried = page.tell("""
        const tried = [];
        try { document.body.innerHTML = "<b>x</b>"; tried.push("innerHTML"); } catch {}
        try { new Function("return 1")(); tried.push("Function"); } catch {}
        const script = document.createElement("script");
        try { script.text = "window.pwned = 1"; document.body.append(script); } catch {}
        if (window.pwned) tried.push("inline");
        try { await fetch("http://127.0.0.1:9/"); tried.push("elsewhere"); } catch {}
        return tried;
    """)
    assert tried in ([], ["Function"])  # what the test's own script may do is not what the page may
    page.complaints()


def test_malformed_events_change_nothing(page, api):
    other = summary("20260516101112131416", completed=1, active=4)
    api.runners["batch.list"] = lambda limit: [summary(completed=2, active=3, pending=5), other]
    page.enter(api.login())
    page.wait_text("2 of 10", "tbody")
    batch = summary(completed=7, active=3)
    api.fire(f"salt/batch/{JID}/progress", {**told(batch)[1], "jid": "2"})
    api.fire(f"salt/batch/{JID}/progress", {**told(batch)[1], "total": "many"})
    api.fire(f"salt/batch/{JID}/progress/more", told(batch)[1])
    api.fire(f"salt/batch/{JID}/nonsense", told(batch)[1])
    api.fire("salt/batch/", {})
    api.fire(f"salt/job/{JID}/ret/web1", {"id": "web2", "jid": JID})
    api.fire(f"salt/job/{JID}/new", {"jid": JID, "minions": {"a": 1}})
    api.fire(f"salt/batch/{JID}/progress", {**told(batch)[1], "completed": -5, "failed": 1e300, "total": 10})
    other |= {"completed": 3, "active": 2}
    api.fire(*told(other))  # after all of these
    page.wait_text("3 of 5", "tbody")
    assert "2 of 10" in page.text("tbody")


# -- many -------------------------------------------------------------------------------------------------------------


def test_a_forged_end_of_a_batch_does_not_stay(page, api):
    batch = summary(completed=2, active=3)
    has_batch(
        api, batch, minions_of({**{f"a{n}": "completed" for n in range(2)}, **{f"b{n}": "active" for n in range(3)}})
    )
    forged = told({**batch, "state": "complete"})
    page.enter(api.login())
    page.wait_text("2 of 5", "tbody")
    api.calls.clear()
    api.fire(*forged)
    wait_for(lambda: api.count("batch.list"), what="the list is read again")
    page.wait_text("running", "tbody")
    page.go(f"batches/{JID}")
    page.wait_text("Stop and kill…")
    api.calls.clear()
    api.fire(*forged)
    wait_for(lambda: api.count("batch.status"), what="the batch is read again")
    page.wait_text("Stop and kill…")


def test_a_batch_of_salt_s_own_is_read_again_when_an_event_of_it_comes(page, api):
    batch = summary(active=3, driver="cli")
    has_batch(api, batch, {})
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.wait_text("0 of 3")
    batch |= {"completed": 3, "active": 0, "state": "complete"}
    api.fire(f"salt/batch/{JID}/complete", {"jid": JID})
    page.wait_text("3 of 3")


def test_ten_thousand_minions_stay_fluent(page, api):
    names = [f"minion-{number:05}.example.com" for number in range(10_000)]
    records = minions_of(dict.fromkeys(names, "pending"))
    batch = summary(pending=10_000)
    has_batch(api, batch, records)
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.wait_text("10,000 pending", ".filter")
    page.chrome.execute_script("""
        let last = performance.now();
        window.pauses = [];
        window.watching = setInterval(() => {
            const now = performance.now();
            window.pauses.push(now - last - 10);
            last = now;
        }, 10);
    """)
    begun = time.monotonic()
    api.fire(f"salt/job/{JID}/new", {"jid": JID, "minions": names, "fun": "state.apply"})
    for start in range(0, 10_000, 250):
        codes = {name: 0 if number % 100 else 2 for number, name in enumerate(names[start : start + 250], start)}
        for name, code in codes.items():
            records[name] |= {"state": "failed" if code else "completed", "retcode": code}
        failed = (start + 349) // 100
        batch |= {"completed": start + 250 - failed, "failed": failed, "active": 9750 - start, "pending": 0}
        api.fire_all([*(returned(name, retcode=code) for name, code in codes.items()), told(batch)])
    page.wait_text("9,900 completed", ".filter")
    page.wait_text("100 failed", ".filter")
    took = time.monotonic() - begun
    longest = page.chrome.execute_script("clearInterval(window.watching); return Math.max(...window.pauses)")
    print(f"10,000 returns shown in {took:.1f} s, longest pause of the page {longest:.0f} ms")
    assert longest < 1000 * load()
    assert api.count("batch.minions") <= 2 + took / 3
    page.fill("#minion-search", "minion-00100")
    page.wait_text("failed", "tbody")
    assert len(page.all("tbody tr")) == 1


def test_a_batch_without_minions_and_names_that_javascript_knows_are_shown(page, api):
    has_batch(api, summary(state="complete", success=True), {})
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text("0 of 0", ".head")
    page.wait_text("The batch has no minion")
    names = {"__proto__": "failed", "constructor": "completed", "toString": "active"}
    has_batch(api, summary(failed=1, completed=1, active=1), minions_of(names))
    api.fire(*told(summary(failed=1, completed=1, active=1), "resumed"))
    page.wait_text("1 failed", ".filter")
    api.fire(*returned("toString"))
    page.wait_text("2 completed", ".filter")
    assert all(name in page.text("tbody") for name in names)


def test_returns_of_megabytes_and_of_any_depth_are_shown_as_far_as_wanted(page, api):
    deep = "x"
    for _ in range(400):
        deep = [deep]
    big = {"return": ["y" * 70] * 60_000, "retcode": 1}
    exact = {"return": {"inode": 2**64 - 1, "load": float("nan")}, "retcode": 0}
    result = {"web1": big, "web2": {"return": deep, "retcode": 0}, "web3": exact}
    job = {"Function": "cmd.run", "Target": "web*", "Minions": list(result), "Result": result}
    api.runners["jobs.list_job"] = lambda jid: {"jid": jid, **job}
    page.enter(api.login(), f"jobs/{JID}")
    page.wait_text("exit code 1", "tbody pre")
    assert len(page.text("tbody pre")) < 2200
    page.wait_text("18446744073709551615", "tbody")
    page.wait_text("NaN", "tbody")
    page.click("Show more of it")
    page.wait_text(f"The rest: salt-run jobs.list_job {JID}", "tbody pre")
    has_batch(api, summary(active=2), minions_of({"web1": "active", "web4": "active"}))
    page.go(f"batches/{JID}")
    page.wait_text("2 active", ".filter")
    tag, data = returned("web1")
    api.fire(tag, {**data, **big})
    page.wait_text("1 failed", ".filter")


def test_the_grid_shows_each_state_and_is_described_in_words(page, api):
    states = {f"m{number}": state for number, state in enumerate(STATES)}
    has_batch(api, summary(**dict.fromkeys(STATES, 1)), minions_of(states))
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.wait_text("1 timed out", ".filter")
    label = page.chrome.execute_script("return document.querySelector('canvas').getAttribute('aria-label')")
    assert label.startswith("8 minions: 1 completed, 1 active")
    colours = page.chrome.execute_script("""
        const canvas = document.querySelector("canvas"), context = canvas.getContext("2d");
        const edge = 24 * Math.min(2, devicePixelRatio);
        return [...Array(8).keys()].map(n => context.getImageData(n * edge + 1, Math.floor(edge / 2) , 1, 1).data.join());
    """)
    assert len(set(colours)) == 8


def test_the_grid_is_walked_by_keys(page, api):
    from selenium.webdriver.common.keys import Keys

    has_batch(
        api, summary(completed=1, failed=1, pending=1), minions_of({"a": "completed", "b": "failed", "c": "pending"})
    )
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.wait_text("1 failed", ".filter")
    (canvas,) = page.all("canvas")
    canvas.send_keys(Keys.ARROW_RIGHT)
    page.wait_text("b: failed", ".grid-told")
    canvas.send_keys(Keys.ENTER)
    wait_for(lambda: len(page.all("tbody tr")) == 1, what="the table shows it alone")
    assert "b" in page.text("tbody")


def test_a_long_queue_is_not_read_whole(page, api):
    api.runners["job_retry.stats"] = lambda: {
        "entries": 150_000,
        "states": {"pending": 149_000, "held": 1000},
        "engine": True,
        "paused": False,
    }
    api.runners["job_retry.list"] = lambda **of: [entry(of["minion"])] if of else pytest.fail("the whole queue is read")
    page.enter(api.login())
    page.go("queue")
    page.wait_text("There are 150,000 entries: name a minion or a job")
    page.wait_text("149,000 pending")
    page.fill("#of-minion", "web7\n")
    page.wait_text("it did not answer", "tbody")


# -- for everybody ----------------------------------------------------------------------------------------------------


def furnish(api):
    """Something to see in every view."""
    now = time.time()
    names = {f"web{number}": STATES[min(number % 23, 7)] if number % 23 < 8 else "completed" for number in range(240)}
    counts = {state: sum(one == state for one in names.values()) for state in STATES}
    options = {"batch": "1,10%,100%", "max_failures": "10%", "window": "Mon-Fri 08:00-18:00"}
    of_job = {"arguments": ["nginx", "test=True"], "options": options}
    running = summary(JID, **counts, **of_job, stage=2, stages=3, batch_size=24, created=now - 300)
    done = summary(
        "20260516091112131415", completed=40, state="complete", success=True, fun="test.version", created=now - 4000
    )
    halted = summary(
        "20260515091112131415",
        completed=8,
        failed=3,
        pending=29,
        state="halted",
        halted_reason="more than 2 failures",
        created=now - 90_000,
        finished=now - 89_000,
    )
    why = "nginx (pkg.installed): The following packages failed to install/update: nginx"
    groups = [
        {"count": 9, "state": "failed", "retcode": 2, "text": why, "minions": [f"web{n}" for n in range(9)]},
        {"count": 2, "state": "timed_out", "retcode": None, "text": "", "minions": ["web31", "web54"]},
    ]
    history = [
        [
            now - 60 * minute,
            {
                "saltext_jobs_batch_in_flight_minions": 20 + minute % 7,
                "saltext_jobs_batch_pending_minions": 3 * minute,
                "saltext_jobs_batch_minions_total": {"completed": 4000 - 60 * minute - minute % 5},
                "saltext_jobs_publishes_total": {"batch_manager": 900 - 9 * minute},
                "saltext_jobs_loop_lag_seconds": {"batch_manager": 0.002 + minute % 9 / 1000},
            },
        ]
        for minute in range(59, -1, -1)
    ]
    has_batch(api, running, minions_of(names))
    job = {
        "Function": "state.apply",
        "User": "anna",
        "Target": "web*",
        "StartTime": "2026, May 16 10:11:12.131415",
        "Arguments": ["nginx"],
    }
    row = {**job, "JID": JID, "Minions": 240, "Returned": 210, "Failed": 11, "Missing": 30}
    result = {
        f"web{n}": {"return": {"result": n % 9 != 0, "comment": "Service nginx is running"}, "retcode": int(n % 9 == 0)}
        for n in range(20)
    }
    api.runners |= {
        "batch.list": lambda limit: [running, done, halted],
        "job_retry.list": lambda **_: [
            entry("db1", expires_at=2094631872.0),
            entry(
                "db1",
                "20260516101112131416",
                fun="pkg.upgrade",
                state="held",
                reason="it may have been begun, and did not return",
                attempts=1,
            ),
            entry("web9", waits_for="Sat,Sun 02:00-05:00", opens_at=2094516000.0),
        ],
        "job_cache.search": lambda **_: {"jobs": [row], "next": None},
        "jobs.list_job": lambda jid: {**job, "jid": JID, "Minions": list(names)[:21], "Result": result},
        "batch.history": lambda: history,
        "batch.failures": lambda jid: {"groups": groups},
        "job_cache.outcome": lambda jid: {"jid": jid, "arguments": ["nginx"], "groups": groups},
        "job_retry.doctor": lambda: {
            "findings": ["the disk of /var/cache/salt/master has 3 % left: make room, or entries cannot be stored"]
        },
    }
    shown = {
        "fun": "state.apply",
        "total": 240,
        "minions": list(names),
        "sizes": [1, 24, 120],
        "groups": [["canary", 12], ["eu", 228]],
        "unsure": ["web3"],
    }
    api.runners["batch.preview"] = lambda **_: shown


VIEWS = {
    "batches": "more than 2 failures",
    f"batches/{JID}": "completed",
    "start": "Show which minions match",
    "queue": "it may have been begun",
    "jobs": "state.apply",
    f"jobs/{JID}": "Service nginx is running",
    "health": "make room",
}


@pytest.fixture
def looks(page):
    """Check that the page can be read in light and dark, on a laptop and on a phone; returns a list of what is wrong."""

    def look(name):
        wrong = []
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            page.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            for width in (1440, 390, 320):
                metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
                page.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
                wide = page.chrome.execute_script("return document.documentElement.scrollWidth - innerWidth")
                found = [*page.faults(), *page.axe(), *([f"{wide} pixels too wide"] if wide > 0 else [])]
                wrong += [f"{name}, {scheme}, {width}: {one}" for one in found]
                if scheme == "light" and width != 320:
                    page.shot(name if width > 500 else f"{name}-phone")
        return wrong

    yield look
    page.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    page.chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_every_view_can_be_read_in_any_light_and_width(page, api, looks):
    furnish(api)
    page.leave()
    wrong = looks("login")
    page.log_in("anna")
    for view, text in VIEWS.items():
        page.go(view)
        page.wait_text(text)
        if view == "start":
            page.fill("#tgt", "web*")
            page.fill("#fun", "state.apply")
            page.click("Show which minions match")
            page.wait_text("240 minions match")
        wrong += looks(view.split("/")[0] + ("-one" if "/" in view else ""))
    page.go(f"batches/{JID}")
    page.click("Stop…")
    wrong += looks("question")
    page.click("Cancel", "dialog")
    assert wrong == []


def test_names_of_250_characters_make_no_view_wider_than_the_screen(page, api):
    long, jid = "w" * 250, "2" * 250
    furnish(api)
    batch = summary(
        jid, active=1, failed=1, state="paused", fun=long, tgt=long, user=long, paused_reason=long, parent=jid
    )
    entries = [entry(long, jid, fun=long, reason=long), entry(long, fun=long, state="held", reason=long)]
    job = {"Function": long, "User": long, "Target": [long], "StartTime": long, "Arguments": [long], "Minions": [long]}
    has_batch(
        api, batch, {long: {"state": "failed", "since": 1, "retcode": 1, "group": long}, "b": {"state": "active"}}
    )
    api.runners |= {
        "batch.list": lambda limit: [batch],
        "job_retry.list": lambda **_: entries,
        "job_retry.show": lambda **_: {
            **entries[0],
            "arg": [long],
            "history": [{"at": 1, "state": long, "reason": long}],
        },
        "job_cache.search": lambda **_: {"jobs": [{**job, "JID": jid, "Minions": 1, "Returned": 1}], "next": None},
        "jobs.list_job": lambda jid: {**job, "jid": jid, "Result": {long: {"return": long, "retcode": 1}}},
        "batch.doctor": lambda: {"findings": [long]},
        "batch.preview": lambda **_: {
            "fun": long,
            "total": 1,
            "minions": [long],
            "sizes": [1],
            "groups": [[long, 1]],
            "unsure": [long],
        },
    }
    too_wide = []
    page.enter(api.login(long))
    for view in ("batches", f"batches/{jid}", "start", "queue", "jobs", f"jobs/{jid}", "health"):
        page.go(view)
        if view == "start":
            page.fill("#tgt", long)
            page.fill("#fun", "state.apply")
            page.click("Show which minions match")
        page.wait_text(long[:15], "main")
        if view == "queue":
            page.click("2 jobs", "tbody")
            page.click("w", "tbody")
            page.wait_text(long, "dialog")
        for width in (1280, 320):
            metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
            page.chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            wide = page.chrome.execute_script("return document.documentElement.scrollWidth - innerWidth")
            too_wide += [(view, width, wide)] * (wide > 0)
        page.chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        if view == "queue":
            page.click("Close", "dialog")
    assert too_wide == []


def test_the_page_does_not_work_within_another(page, api, served):
    page.chrome.get(served[1].replace("index.html", "nothing"))
    page.chrome.execute_script(
        "document.body.append(Object.assign(document.createElement('iframe'), {src: arguments[0]}))", served[1]
    )
    page.chrome.switch_to.frame(0)
    page.wait_text("does not work within a frame")
    page.chrome.switch_to.default_content()
    page.complaints()


# -- modules ----------------------------------------------------------------------------------------------------------


def test_the_event_stream_is_taken_apart_wherever_it_is_cut(page):
    page.close()
    heard = page.tell("""
        const { Parser } = await import("/console/stream.js");
        const event = (tag, data, end) => `tag: ${tag}${end}data: ${data}${end}${end}`;
        const text = "retry: 400\\n" + event("a", '{"tag": "a", "data": {"n": 1}}', "\\n")
            + event("b", '{"tag": "b", "data": {"n": 2}}', "\\r\\n") + event("a", "no json", "\\n")
            + event("a", '{"tag": "a", "data": {"n": 3}}', "\\n");
        const found = new Set();
        for (let size = 1; size < text.length; size += 1) {
            const heard = [];
            const parser = new Parser((tag) => tag === "a", (tag, data) => heard.push(data.n));
            for (let at = 0; at < text.length; at += size) parser.feed(text.slice(at, at + size));
            found.add(heard.join());
        }
        return [...found];
    """)
    assert heard == ["1,3"]


def test_an_event_moves_a_minion_only_to_where_it_may_go(page):
    page.close()
    states = page.tell("""
        const { Members } = await import("/console/model/members.js");
        const members = new Members();
        members.take({ a: { state: "pending" }, b: { state: "failed" }, c: { state: "lost" }, d: { state: "active" } });
        const back = (minion, failed) => members.hear({ kind: "returned", jid: "1", minion, failed });
        members.hear({ kind: "published", jid: "1", minions: ["a", "b", "x"] });
        back("b", false); back("c", false); back("d", true); back("x", false);
        return [...members.names.keys()].map((place) => members.stateAt(place));
    """)
    assert states == ["active", "failed", "completed", "failed"]


def test_a_typed_value_gets_the_type_that_it_looks_like(page):
    meant = {
        "5": 5,
        "5.5": 5.5,
        "true": True,
        "False": False,
        "null": None,
        '["a", 1]': ["a", 1],
        "uptime -p": "uptime -p",
        JID: JID,
        "1234e5678": "1234e5678",
        "12e4": "12e4",
        "1.10": "1.10",
        '"5"': "5",
    }
    page.close()
    script = 'const { typed } = await import("/console/format.js"); return arguments[0].map(typed)'
    assert dict(zip(meant, page.tell(script, list(meant)), strict=True)) == meant


def test_numbers_that_javascript_would_round_stay_as_they_are(page):
    page.close()
    small = f"[-{JID}, 9007199254740991, 0.12345678901234567]"
    text = f'{{"jid": {JID}, "small": {small}, "text": "a: {JID} \\" NaN", "nan": NaN}}'
    read = page.tell('return (await import("/console/json.js")).parse(arguments[0])', text)
    small = [f"-{JID}", 9007199254740991, 0.12345678901234566]
    assert read == {"jid": JID, "small": small, "text": f'a: {JID} " NaN', "nan": "NaN"}


def test_values_read_as_json_however_deep_or_large_they_are(page):
    page.close()
    found = page.tell("""
        const { block, line } = await import("/console/format.js");
        const value = { a: [1, { b: "x\\ny" }, [], {}], c: null };
        let deep = "x";
        for (let level = 0; level < 100000; level += 1) deep = [deep];
        const wide = Array.from({ length: 1000000 }, (_, number) => number);
        const same = block(value, 1000) === JSON.stringify(value, null, 2);
        return [same, line(value), block(deep, 500).length > 500, block(wide, 500).length];
    """)
    assert found[:3] == [True, '{ "a": [ 1, { "b": "x\\ny" }, [], {} ], "c": null }', True]
    assert 500 < found[3] < 600


def test_invisible_characters_are_shown_as_their_escapes(page):
    page.close()
    text = "web\u202e1\r\nx\ty\x07 \u00e9 \U0001f600"
    shown = page.tell('return (await import("/console/dom.js")).plain(arguments[0])', text)
    assert shown == "web\\u202e1\r\nx\ty\\x07 \u00e9 \U0001f600"


def test_a_figure_that_grows_is_shown_as_its_pace_and_a_restart_is_no_fall(page):
    page.close()
    rates = page.tell("""
        const { Series } = await import("/console/model/series.js");
        const series = new Series();
        [[0, 10], [60, 70], [120, 5], [180, 35]].forEach(([at, value]) => series.add(at, value));
        return series.rates();
    """)
    assert rates == [[60, 60], [180, 30]]
