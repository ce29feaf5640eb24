"""How long the console takes for 4,000 jobs, and for a job of 2,001 minions: browser, API, runner and job cache together."""

from __future__ import annotations

import datetime
import pathlib
import sys
import time

import psutil
import pytest
import salt.loader

from tests.integration.api import SECRET, fronts, salt_api
from tests.integration.conftest import make_master
from tests.integration.console.browser import Page
from tests.waiting import load, wait_for

pytestmark = pytest.mark.slow

CONSOLE = pathlib.Path(__file__).resolve().parents[3] / "console"
JOBS, MINIONS = 4000, 2001
WIDTHS = (1440, 320)
#: Seconds in which a page is there, on a machine that has nothing else to do.
LIST, ONE = 1.0, 2.0


@pytest.fixture(scope="module")
def master(salt_factories):
    options = fronts("rest_cherrypy")
    options["rest_cherrypy"] |= {"static": str(CONSOLE), "static_path": "/console"}
    options |= {"external_auth": {"sharedsecret": {"admin": [".*", "@runner"]}}, "sharedsecret": SECRET}
    daemon = make_master(salt_factories, cache="sqlite", engines=[], **options)
    with daemon.started(), salt_api(daemon):
        daemon.big = filled(dict(daemon.config))
        yield daemon


def filled(opts):
    """Store jobs through the returner, most of them reads of a console. Returns the jid of the job for 2,001 minions."""
    cache, big = salt.loader.returners(opts, {}), ""
    began = datetime.datetime.now() - datetime.timedelta(hours=10)
    for number in range(JOBS):
        jid = (began + datetime.timedelta(seconds=8 * number)).strftime("%Y%m%d%H%M%S%f")
        read, large = number % 10 not in (0, 5), number == JOBS - 5
        fun = "runner.batch.list" if read else "state.apply"
        minions = [] if read else [f"web{one}" for one in range(MINIONS if large else 3)]
        cache["salt_cache.prep_jid"](nocache=False, passed_jid=jid)
        load = {"jid": jid, "fun": fun, "arg": [], "tgt": "*", "tgt_type": "glob", "user": "anna", "cmd": "publish"}
        cache["salt_cache.save_load"](jid, load, minions or None)
        for place, minion in enumerate(minions or ["m"]):
            cache["salt_cache.returner"](returned(jid, minion, fun, failed=large and place % 3 == 0))
        big = jid if large else big
    return big


def returned(jid, minion, fun, failed):
    def state(name, well):
        comment = "The package is in place" if well else f"No package for {minion}"
        return {"result": well, "comment": comment, "name": name, "changes": {}, "duration": 3.25, "__id__": name}

    states = {f"pkg_|-{name}_|-{name}_|-installed": state(name, not failed) for name in ("a", "b", "c", "d", "e")}
    return {"jid": jid, "id": minion, "fun": fun, "return": states, "success": not failed, "retcode": 2 * failed}


@pytest.fixture
def page(chrome, master):
    page = Page(chrome, f"http://127.0.0.1:{master.config['rest_cherrypy']['port']}/console/index.html")
    page.complaints()
    yield page
    assert page.complaints() == []


def timed(what, width, seconds, act):
    """Assert that a step keeps its time, which is longer on a busy machine."""
    began, processor = time.monotonic(), used()
    act()
    took, cost = time.monotonic() - began, used() - processor
    print(f"{what} at {width} px: {took:.2f} s, {cost:.2f} s of CPU, {load():.1f} processes a core", file=sys.stderr)
    # The browser and the server have a core each.
    assert cost <= 2 * seconds or took <= seconds * load()


def used():
    """CPU seconds of all processes of this machine that belong to this test."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def test_the_jobs_and_one_of_many_minions_are_shown_at_once_at_any_width(page, master):
    for width in (WIDTHS[0], *WIDTHS):  # the first time, the runner's modules are imported too
        page.chrome.set_window_size(width, 900)
        page.open("admin")

        def jobs():
            page.go("jobs")
            wait_for(lambda: len(page.all("tbody tr")) == 50, what="the jobs are shown")

        page.go("batches")
        timed("Jobs", width, LIST, jobs)

        def one():
            page.go(f"jobs/{master.big}")
            page.wait_text("2,001 of 2,001 returned, 667 failed")
            wait_for(lambda: len(page.all("tbody tr")) == 50, what="the returns are shown")

        timed("A job", width, ONE, one)
        page.wait_text("No package for web", ".failures")
        assert page.chrome.execute_script("return document.documentElement.scrollWidth <= innerWidth")
