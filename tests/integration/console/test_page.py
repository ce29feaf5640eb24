"""The console in a browser, with a simulated salt-api: what it shows, what it asks for, and when."""

from __future__ import annotations

import re
import threading
import time

import pytest

from saltext.jobs.core.findings import fault
from tests.integration.console.browser import Page
from tests.integration.console.stand_in import StandIn, serving
from tests.waiting import SOON, load, stretched, wait_for

pytestmark = pytest.mark.slow

JID = "20260516101112131415"
STATES = ("completed", "active", "pending", "failed", "timed_out", "lost", "offline", "queued", "killed")
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
        "check": False,
        "engine": True,
        "success": False,
        "survivors": [],
    }
    nothing = dict.fromkeys(("halted_reason", "paused_by", "paused_reason", "opens_at", "approve", "parent"))
    return given | nothing | counts | more


def told(batch, what="progress", **more):
    """The event of a batch."""
    data = {name: batch[name] for name in ("jid", "fun", "user", "total", *STATES)}
    return f"salt/batch/{batch['jid']}/{what}", {**data, "status": batch["state"], **more}


def returned(minion, jid=JID, retcode=0):
    data = {"id": minion, "jid": jid, "fun": "state.apply", "return": {}, "retcode": retcode, "success": not retcode}
    return f"salt/job/{jid}/ret/{minion}", data


def minions_of(states):
    now = time.time()
    return {
        name: {"state": state, "since": now - 5, "started": None if state == "pending" else now - 20, "retcode": None}
        for name, state in states.items()
    }


def rollout(now):
    """The minions of a rollout that began four minutes ago: to 60, one first, then 6 and 20 at a time."""
    found, free = {}, [now - 251]
    for number in range(60):
        if size := {0: 1, 1: 6, 7: 20}.get(number):
            free = [max(free) + 1] * size
        slot = free.index(min(free))
        seconds = 20 + (number * 7919 % 61) + (90 if number % 41 == 3 else 0)
        started, ends = free[slot], free[slot] + seconds
        odd = {**dict.fromkeys((5, 16, 28), "failed"), 12: "timed_out", 19: "lost"}
        state = "pending" if started > now else "active" if ends > now else odd.get(number, "completed")
        state = "offline" if number in (40, 41) and state != "pending" else state
        free[slot] = ends + 1
        since = started if state == "active" else now - 300 if state in ("pending", "offline") else ends
        found[f"web{number + 1:03}"] = {
            "state": state,
            "since": since,
            "started": None if state in ("pending", "offline") else started,
            "retcode": {"failed": 2, "completed": 0}.get(state),
        }
    return found


def applied(name, fun, number, result, comment, **more):
    """What a state run returns of one state."""
    about = {"result": result, "comment": comment, "changes": {}, "duration": 12.4, "__run_num__": number}
    kind, _, what = fun.partition(".")
    return {f"{kind}_|-{name}_|-{name}_|-{what}": {**about, "__id__": name, "__sls__": "web", **more}}


#: What a run of states returns that failed.
APPLIED = {
    **applied("nginx", "pkg.installed", 1, False, "E: Unable to locate package nginx", duration=8130.2),
    **applied("/etc/motd", "file.managed", 0, True, "updated", changes={"diff": "-hello\n+welcome"}),
    **applied("nginx", "service.running", 2, False, "One or more requisite failed: web.nginx", duration=0.0),
}


def entry(minion="web1", jid=JID, **more):
    given = {"minion": minion, "jid": jid, "fun": "state.apply", "state": "pending", "reason": "it did not answer"}
    more = {"attempts": 0, "queued_at": time.time() - 5000, "expires_at": None, "owner": "m", **more}
    return {**given, "waits_for": None, "opens_at": None, "not_before": None, **more}


def preview(*names, **more):
    """What ``batch.preview`` returns."""
    given = {"fun": "state.apply", "total": len(names), "minions": list(names), "sizes": [len(names)], "groups": None}
    return {**given, "unsure": [], "sentence": f"{len(names)} minions", **more}


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
    assert page.chrome.execute_script("return document.querySelector('#user').value") == "admin"


# -- reading and following ----------------------------------------------------------------------------------------------


def test_each_view_is_read_once_and_then_follows_the_events(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
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


def test_the_api_is_not_asked_while_nothing_happens(page, api, fast):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    # How many calls it takes to read each view.
    for view, calls in {"batches": 1, f"batches/{JID}": 2, "queue": 3, "jobs": 1, "health": 5}.items():
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


def test_while_many_events_come_the_page_stops_listening_and_reads_every_few_seconds(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    page.enter(api.login())
    page.wait_text("2 of 10", "tbody")

    def some():  # as many as are many even if this process gets a core only every few seconds
        api.fire_all([returned(f"web{n}", "20260101000000000000") for n in range(200)])

    wait_for(lambda: some() or not api.streams, what="it listens no more")
    has_batch(api, summary(completed=9, active=1), {})
    page.wait_text("Much happens", ".status")
    wait_for(lambda: some() or "9 of 10" in page.text("tbody"), what="it is read now and then")


def test_a_page_that_was_left_listens_no_more_until_the_user_comes_back(page, api):
    page.enter(api.login())
    page.wait_text("Live", ".status")
    page.close()
    wait_for(lambda: api.fire("salt/auth", {}) or not api.streams, what="it listens no more")
    page.chrome.back()
    page.wait_text("Live", ".status")


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


def test_it_is_found_below_a_path_of_a_proxy_beside_an_application_with_a_login_of_its_own(page, api, served):
    api.prefix = "/ops/salt"
    below = Page(page.chrome, served[1].replace("/console/", "/ops/salt/console/"))
    below.open("anna")
    below.wait_text("There is no batch")
    below.wait_text("Live", ".status")


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


# -- actions ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_started_only_as_it_was_shown(page, api):
    started = []
    names = ["web1", "web2"]
    shown = preview(*names, fun="cmd.run", sizes=[1, 2], unsure=["web2"], check="approve", check_after=[1])
    shown["sentence"] = "2 minions: 1 first, then 2 at a time; goes on whatever fails; absent ones are left out"
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
    page.click("More")
    page.fill("#kwarg", "timeout=5\nshell=/bin/sh")
    assert page.find("Start the batch") is None
    page.click("Show which minions match")
    page.wait_text("2 minions match")
    page.wait_text("cmd.run on 2 minions: 1 first, then 2 at a time; goes on whatever fails; absent ones are left out.")
    page.wait_text("A user has to approve after minion 1.")
    page.fill("#batch", "1")
    assert page.find("Start the batch") is None
    assert "2 minions match" not in page.text()
    page.enter(api.login(), page.all("form a")[0].get_attribute("href").partition("#/")[2])  # the form, kept as a link
    page.click("Show which minions match")
    page.click("Start the batch")
    page.wait_text(f"Batch {JID} is started on 2 minions", ".messages")
    page.wait_text("state.apply on web*", "h1")
    arg, kwarg = ["uptime", JID, [1, True]], {"timeout": 5, "shell": "/bin/sh"}
    job = {"tgt": ["web1", "web2"], "tgt_type": "list", "fun": "cmd.run", "arg": arg, "kwarg": kwarg, "batch": "1"}
    assert started == [job]


def test_the_form_completes_functions_nodegroups_and_states(page, api):
    api.runners["job_console.choices"] = lambda: {"nodegroups": ["canary"], "sls": ["common", "web", "web.tls"]}
    job = {"JID": JID, "Function": "nginx.reload", "Target": "web*", "Target-type": "glob", "Arguments": []}
    api.runners["job_cache.search"] = lambda **_: {"jobs": [job], "next": None}
    page.enter(api.login(), "start")
    offered = "return [...document.getElementById(arguments[0]).options].map((one) => one.value)"
    wait_for(lambda: "nginx.reload" in page.chrome.execute_script(offered, "functions"), what="functions are offered")
    assert page.chrome.execute_script(offered, "targets") == ["web*"]
    page.choose("#tgt_type", "nodegroup")
    assert page.chrome.execute_script(offered, "targets") == ["canary"]
    page.fill("#fun", "state.apply")
    page.fill("#arg", "common,we")
    page.click("web.tls")
    assert page.find("web.tls") is None
    assert page.all("#arg")[0].get_attribute("value") == "common,web.tls"


def test_a_kill_is_asked_about_once_and_says_what_it_will_do(page, api):
    has_batch(api, summary(completed=2, active=3, pending=5), {})
    stops = []
    api.runners["batch.stop"] = lambda **how: stops.append(how) or True
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.click("Stop and kill…")
    page.wait_text("The job is sent to no more minions: 5 of 10 minions are still pending", "dialog")
    page.wait_text("on 3 minions that run it now", "dialog")
    page.click("Cancel", "dialog")
    page.click("Stop and kill…")
    page.go("queue")
    wait_for(lambda: not page.all("dialog"), what="the dialog has ended with its page")
    assert stops == []
    page.go(f"batches/{JID}")
    page.click("Stop and kill…")
    page.click("Stop and kill", "dialog")
    page.wait_text("is stopped, and its job is being killed", ".messages")
    assert stops == [{"jid": JID, "kill": True}]


def test_a_retry_takes_the_kinds_of_minions_that_are_ticked_and_a_mended_batch_is_calm(page, api):
    asked = []
    batch = summary(completed=3, failed=2, lost=1, state="halted", halted_reason="max_failures", finished=time.time())
    together = minions_of({**dict.fromkeys("abc", "completed"), "d": "failed", "e": "failed", "f": "lost"})
    has_batch(api, batch, {name: {**record, "since": batch["finished"]} for name, record in together.items()})
    api.runners["batch.retry"] = lambda **how: asked.append(how) or summary("2", pending=3)
    page.enter(api.login(), f"batches/{JID}")
    wait_for(lambda: page.exists(".timeline polygon"), what="the progress is drawn")
    filled = "return document.querySelector('.timeline polygon').isPointInFill(new DOMPoint(297, 80))"
    assert page.chrome.execute_script(filled), "all ended together, at the end"
    page.click("Retry…")
    assert page.text("dialog fieldset").split("\n")[1:] == [
        "2 minions: failed",
        "1 minion: lost, which may have run it: see why below the timeline",
    ]
    for box in page.all("dialog input"):
        box.click()
    page.click("Start the new batch", "dialog")
    wait_for(lambda: asked == [{"jid": JID, "which": ["lost"]}], what=lambda: f"a retry of one kind: {asked}")
    for name in "de":
        together[name] |= {"retcode": 1, "retry": "2", "retry_state": "completed"}
    groups = [{"count": 3, "state": "failed", "retcode": 1, "text": "no space", "minions": ["d", "e", "f"]}]
    api.runners["batch.failures"] = lambda jid: {"groups": groups}
    has_batch(api, {**batch, "retries": ["2"], "unmended": {"lost": 1}}, together)
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text("1 minion, failed, exit code 1", ".failures")
    assert page.text(".failures .id") == "f"
    assert "given up after 15 s" in page.text("tbody tr") and "f" not in page.text(".slowest").split("\n")
    assert page.text("tbody tr:nth-child(5)").split("\t")[:3] == ["d", "failed completed in the retry 2", "1"]
    page.click("Retry…")
    page.wait_text("1 minion: lost", "dialog")
    assert not page.exists("dialog input:checked") and page.find("Start the new batch", "dialog") is None
    page.click("Cancel", "dialog")
    has_batch(api, {**batch, "retries": ["2"], "unmended": {}}, together)
    page.go("batches")
    page.wait_text("mended by 2", "tbody")
    page.go(f"batches/{JID}")
    page.wait_text("Mended by 2")
    assert page.all(".badge[data-state=mended]") and page.find("Retry…") is None


def test_an_approval_is_for_the_stage_that_is_shown(page, api):
    approved = []
    waits = {"state": "paused", "approve": 1, "paused_by": "approval", "paused_reason": "waits for approval"}
    has_batch(api, summary(completed=1, pending=9, stage=2, stages=3, **waits), {})
    api.runners["batch.approve"] = lambda **what: approved.append(what) or True
    page.enter(api.login())
    page.go(f"batches/{JID}")
    page.wait_text("waits for approval")
    assert page.find("Resume") is None
    page.click("Approve")
    page.click("Approve", "dialog")
    page.wait_text("Stage 1 is approved", ".messages")
    assert approved == [{"jid": JID, "stage": 1}]
    assert page.text(".stages [aria-current]") == "Stage 2: now"


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
        ("replay", {"minion": "web2"}),
        ("purge", {"state": ["expired", "cancelled", "dead"]}),
        ("pause", {}),
    ]


def test_a_double_click_counts_once_and_a_key_held_down_confirms_nothing(page, api):
    started, answer = [], threading.Event()
    shown = preview("web1", "web2", fun="test.ping")

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
    page.wait_text("state.apply on web*", "h1")
    assert len(started) == 1
    page.click("Stop and kill…")
    assert page.chrome.switch_to.active_element.text == "Cancel"
    page.click("Cancel", "dialog")


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
    page.click("Details")
    facts = page.text(".facts")
    assert "state.apply nginx test=True" in facts and "2 of 25%" in facts and "Took\n30 s" in facts
    assert page.text(".stages") == "Stage 1 (1): done\nStage 2 (100%): ended here"
    assert page.text("tbody tr td").startswith(("b", "d"))


def test_a_minion_of_the_timeline_or_the_list_opens_its_output_and_nothing_lags_behind_an_event(page, api):
    records = minions_of({"a": "completed", "b": "active", "c": "pending"})
    batch = summary(completed=1, active=1, pending=1, stage=2, stages=2, sizes=[1, 1], batch_size=1)
    has_batch(api, batch, records)
    said = {"a": "hello\nworld", "b": APPLIED}
    api.runners["batch.output"] = lambda jid, minion: {**records[minion], "return": said[minion]}
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text("Stage 2: 1 minion, 1 at a time", ".timeline")
    page.click("a", ".slowest")
    page.wait_text("hello\nworld", ".output pre")
    assert "ran 15 s" in page.text(".output")
    api.calls.clear()
    page.click("b", "tbody")
    page.wait_text("active", ".output")
    api.fire(*returned("b", retcode=2))
    page.wait_text("failed\t2", "tbody tr")
    page.wait_text("Exit code 2", ".output")
    rows = [row.text for row in page.all(".results tbody tr")]
    assert [row.split()[:2] for row in rows] == [
        ["nginx", "pkg.installed"],
        ["nginx", "service.running"],
        ["/etc/motd", "file.managed"],
    ]
    assert "Unable to locate package nginx" in rows[0] and "+welcome" in rows[2]
    assert {name for name, _ in api.calls} == {"batch.output"}, "the event told the rest"
    bars = "return [...document.querySelectorAll('.lanes rect')].map(bar => bar.dataset.state)"
    wait_for(
        lambda: page.chrome.execute_script(bars) == ["completed", "failed"],
        what=lambda: page.chrome.execute_script(bars),
    )
    page.click("Close", ".output")
    assert page.chrome.execute_script("return document.querySelector('.output').hidden")


def test_the_timeline_of_a_batch_that_has_ended_takes_the_times_of_the_last_read(page, api):
    records = minions_of({"a": "completed"})
    ended = summary(completed=1, state="complete", success=True)
    has_batch(api, ended, records)
    page.enter(api.login(), f"batches/{JID}")
    page.wait_text("15 s", ".slowest")
    records["a"]["started"] -= 60
    api.fire(*told(ended, "complete", success=True))
    page.wait_text("1 min 15 s", ".slowest")


def test_a_job_is_shown_with_its_arguments_as_runners_mask_them(page, api):
    words = ["nginx", "password=********"]
    given = ["nginx", {"__kwarg__": True, "password": "********"}]
    job = {"Function": "state.apply", "Target": "web*", "User": "anna", "StartTime": "x", "Arguments": ["swordfish"]}
    groups = [{"count": 1, "state": state, "text": "x", "minions": [state]} for state in ("lost", "pending")]
    api.runners |= {
        "job_cache.search": lambda **_: {
            "jobs": [{**job, "Arguments": given, "JID": JID, "Minions": 1, "Returned": 1}],
            "next": None,
        },
        "jobs.list_job": lambda jid: {**job, "Minions": ["lost", "pending"], "Result": {}},
        "job_cache.outcome": lambda jid: {"jid": jid, "fun": "state.apply", "arguments": words, "groups": groups},
    }
    page.enter(api.login(), "jobs")
    page.wait_text("state.apply nginx password=********", "tbody")
    page.go(f"jobs/{JID}")
    page.wait_text("state.apply nginx password=********", ".facts")
    page.wait_text("1 minion, lost", ".failures")
    assert "swordfish" not in page.text() and "1 minion, pending" not in page.text()


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
        "jobs_doctor.run": lambda: {
            "parts": {HOSTILE: HOSTILE},
            "findings": [dict.fromkeys(("code", "severity", "text", "do", "part"), HOSTILE)],
            "faults": 1,
        },
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
        api.fire(f"salt/job/{JID}/new", {"jid": JID, "minions": [], "fun": ["saltutil.find_job", "saltutil.running"]})
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


# -- many -------------------------------------------------------------------------------------------------------------


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
    page.wait_text("When minions ended, by how long they ran", ".timeline")
    took = time.monotonic() - begun
    longest = page.chrome.execute_script("clearInterval(window.watching); return Math.max(...window.pauses)")
    print(f"10,000 returns shown in {took:.1f} s, longest pause of the page {longest:.0f} ms")
    assert longest < 1000 * load()
    assert api.count("batch.minions") <= 2 + took / 3
    page.fill("#minion-search", "minion-00100")
    page.wait_text("failed", "tbody")
    assert len(page.all("tbody tr")) == 1


# -- for everybody ----------------------------------------------------------------------------------------------------


def furnish(api):
    """Something to see in every view."""
    now = time.time()
    names = rollout(now)
    counts = {state: sum(one["state"] == state for one in names.values()) for state in STATES}
    options = {"batch": "1,10%,20", "max_failures": "10%", "window": "Mon-Fri 08:00-18:00"}
    of_job = {"arguments": ["nginx", "test=True"], "options": options}
    running = summary(JID, **counts, **of_job, stage=3, stages=3, sizes=[1, 6, 20], batch_size=20, created=now - 252)
    running |= {"tgt": "G@role:web", "tgt_type": "compound", "eta_seconds": 70.0, "publishes": 31}
    ended = {"completed": 40, "state": "complete", "success": True}
    done = summary("20260516091112131415", **ended, fun="test.version", created=now - 4000)
    counts = {"completed": 8, "failed": 3, "pending": 29, "created": now - 90_000, "finished": now - 89_000}
    halted = summary("20260515091112131415", **counts, state="halted", halted_reason="more than 2 failures")
    why = "nginx (pkg.installed): The following packages failed to install/update: nginx"
    groups = [
        {"count": 3, "state": "failed", "retcode": 2, "text": why, "minions": ["web006", "web017", "web029"]},
        {"count": 1, "state": "timed_out", "retcode": None, "text": "ran longer than it may", "minions": ["web013"]},
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
    has_batch(api, running, names)
    api.runners["job_retry.history"] = lambda: [
        [
            now - 60 * minute,
            {
                "saltext_jobs_retry_entries": {"pending": 3 + max(0, 40 - abs(minute - 25) * 3)},
                "saltext_jobs_retry_transitions_total": {
                    "queued": max(0, 43 - minute),
                    "done": max(0, 2 * (20 - minute)),
                    "expired": 1,
                },
            },
        ]
        for minute in range(59, -1, -1)
    ]
    api.runners["batch.output"] = lambda jid, minion: {**names[minion], "return": APPLIED}
    job = {
        "Function": "state.apply",
        "User": "anna",
        "Target": "web*",
        "StartTime": "2026, May 16 10:11:12.131415",
        "Arguments": ["nginx"],
    }
    row = {**job, "JID": JID, "Minions": 60, "Returned": 40, "Failed": 3, "Missing": 20}
    result = {
        f"web{n + 1:03}": {
            "return": {"result": True, "comment": "Service nginx is running"} if n % 9 else APPLIED,
            "retcode": 0 if n % 9 else 2,
        }
        for n in range(20)
    }
    api.runners |= {
        "batch.list": lambda limit: [running, done, halted],
        "job_retry.list": lambda **_: [
            entry("db1", expires_at=now + 80_000),
            entry(
                "db1",
                "20260516101112131416",
                fun="pkg.upgrade",
                state="held",
                reason="it may have been begun, and did not return",
                attempts=1,
            ),
            entry("web9", waits_for="its window Sat,Sun 02:00-05:00", opens_at=now + 140_000),
        ],
        "job_cache.search": lambda **_: {"jobs": [row], "next": None},
        "jobs.list_job": lambda jid: {**job, "jid": JID, "Minions": list(names)[:21], "Result": result},
        "batch.history": lambda: history,
        "batch.masters": lambda: {"engines": {"batch_manager": {"leader": "salt1"}, "job_retry": {"leader": "salt1"}}},
        "batch.failures": lambda jid: {"groups": groups},
        "job_cache.outcome": lambda jid: {"jid": jid, "arguments": ["nginx"], "groups": groups},
        "jobs_doctor.run": lambda: {
            "parts": {"batch_manager": "works", "job_retry": "runs", "job_recorder": "not configured"},
            "faults": 1,
            "findings": [
                fault("disk-space", "the disk of /var/cache/salt/master has 100 MB left", "make room")._asdict()
            ],
        },
    }
    told = "60 minions: 1 first, then 6, then 20 at a time; stops at failure 7; absent ones are left out"
    shown = preview(*names, sizes=[1, 6, 20], sentence=told, unsure=["web3"])
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
                found = [*page.faults(), *([f"{wide} pixels too wide"] if wide > 0 else [])]
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
            page.wait_text("60 minions match")
        wrong += looks(view.split("/")[0] + ("-one" if "/" in view else ""))
        if view == "health":  # of an engine that is not configured, nothing is missed
            assert "Job recorder" not in page.text() and "not configured" in page.text()
    page.go(f"jobs/{JID}")
    page.wait_text("Unable to locate package nginx", ".results")
    page.go(f"batches/{JID}")
    page.click("web006", "tbody")
    page.wait_text("Unable to locate package nginx", ".output")
    wrong += looks("batches-output")
    page.click("Stop…")
    wrong += looks("question")
    page.click("Cancel", "dialog")
    assert wrong == []


def test_the_page_does_not_work_within_another(page, api, served):
    page.chrome.get(served[1].replace("index.html", "nothing"))
    page.chrome.execute_script(
        "document.body.append(Object.assign(document.createElement('iframe'), {src: arguments[0]}))", served[1]
    )
    page.chrome.switch_to.frame(0)
    page.wait_text("does not work within a frame")
    page.chrome.switch_to.default_content()
    page.complaints()
