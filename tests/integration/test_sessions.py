"""What the README and the pages show of a console: typed at a real master with three minions, and compared."""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import pathlib

import pytest

from docs import kept
from tests import sessions
from tests.integration.api import fronts, salt_api
from tests.integration.conftest import make_master, make_minion
from tests.integration.prompt import at_prompt
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

log = logging.getLogger(__name__)

#: Functions that only look: what they print may come to be what the page shows.
LOOKING = {
    *("batch.list", "batch.minions", "batch.status", "job_cache.search", "job_recorder.stats", "job_once.seen"),
    *("job_retry.list", "job_retry.show", "job_retry.coverage", "jobs.exit_success", "jobs.lookup_jid"),
}
STATES = {"top.sls": "base: {'*': [web]}\n", "web.sls": "nothing: test.nop\n", "nginx.sls": "nothing: test.nop\n"}
SURVEY = "def healthy(jid): return True\n"
RACKS = {"web1": ("r1", "eu"), "web2": ("r1", "eu"), "web3": ("r2", "us")}
PAGES = [path for path in sessions.PAGES if sessions.to_run(path.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def master(salt_factories, tmp_path_factory):
    folder = tmp_path_factory.mktemp("states")
    for file, text in STATES.items():
        (folder / file).write_text(text)
    runners = tmp_path_factory.mktemp("runners")
    (runners / "survey.py").write_text(SURVEY)
    daemon = make_master(
        salt_factories,
        cache="sqlite",  # as the quickstart has it
        file_roots={"base": [str(folder)]},
        engines=[{"job_retry": {}}, {"batch_manager": {}}, {"job_recorder": {}}],
        runner_dirs=[str(runners)],
        job_recorder={"returners": ["rawfile_json"]},
        nodegroups={"canary": "web1", "eu": "web2", "us": "web3"},
        sharedsecret="secret",
        external_auth={"sharedsecret": {"boss": ["state.apply", "@runner"]}},
        log_level="error",
        timeout=2,
        gather_job_timeout=2,
        **{"rawfile_json.filename": str(folder / "returns.json")},
        **fronts("rest_cherrypy"),
    )
    with daemon.started():
        yield daemon


def minion(master, name):
    """A minion, not started; ``web1`` has the executor."""
    rack, region = RACKS[name]
    executors = {"module_executors": ["job_once", "direct_call"]} if name == "web1" else {}
    return make_minion(master, name, grains={"rack": rack, "region": region}, disable_modules=[], **executors)


class Fleet:
    """The minions; the last one may be away."""

    def __init__(self, master):
        self._master, self._minions = master, [minion(master, name) for name in RACKS]
        self._others, self._third = contextlib.ExitStack(), contextlib.ExitStack()

    def __enter__(self):
        for each in self._minions[:-1]:
            self._others.enter_context(each.started())
        self.have("web3 starts again")
        return self

    def __exit__(self, *_):
        self._third.close()
        self._others.close()

    def have(self, setting):
        """Do what a page asks for before a block."""
        if setting == "web3 is stopped":
            self._third.close()
        elif setting == "test.version has run twice":
            for _ in range(2):
                at_prompt("salt '*' test.version", self._master.config_dir)
        elif not self._minions[-1].is_running():
            self._third.enter_context(self._minions[-1].started())


@pytest.fixture(scope="module")
def fleet(master):
    with Fleet(master) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def prompt(master, fleet):
    """Types a command, and returns its exit status and what it has printed."""
    with salt_api(master):
        yield lambda line: at_prompt(line, master.config_dir)


@pytest.fixture(scope="module")
def here(master):
    """What a page says -> what it is here."""
    return {
        "https://master:8000": f"http://127.0.0.1:{master.config['rest_cherrypy']['port']}",
        "eauth=pam": "eauth=sharedsecret",
        "by root": f"by {getpass.getuser()}",
    }


@pytest.fixture(scope="module")
def done():
    """What was typed and need not be typed again, since the page does not show what it prints."""
    return set()


def said(text, here):
    for shown, real in here.items():
        text = text.replace(shown, real)
    return text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(sessions.CHECKOUT)))
def test_a_command_of_a_page_does_what_the_page_shows(path, prompt, fleet, here, done):
    known = {}
    page = sessions.to_run(path.read_text(encoding="utf-8"), path.name)
    fleet.have("web3 starts again")  # where another page has failed meanwhile
    if any("state.apply" in line for block in page for line in block.lines):
        stop_batches(prompt)
    for block in page:
        if "first" in block.notes:
            fleet.have(block.notes["first"])
        for command in sessions.commands(block):
            words = said(sessions.known_jids(command.typed, known), here)
            if words not in done:
                known = typed(words, command, block, known, prompt, here)
            if not command.printed:
                done.add(words)


def test_the_engines_have_left_no_file_that_the_reference_does_not_name(master, fleet):
    cachedir = pathlib.Path(master.config["cachedir"])
    left = [str(path.relative_to(cachedir)) for path in cachedir.glob("saltext_jobs/**/*") if path.is_file()]
    assert {path.split("/")[1] for path in left if "jobs.sqlite" not in path} == {
        "batch_manager",
        "job_retry",
        "job_recorder",
    }
    left += [str(path.relative_to(cachedir)) for path in cachedir.glob("salt_cache*/**/*") if path.is_file()]
    assert kept.strangers(left, kept.tables(kept.PAGE.read_text(encoding="utf-8"))["On the master"]) == []


def stop_batches(prompt):
    """End what other pages have begun: a minion applies one state at a time, and refuses another meanwhile."""

    def active():
        return json.loads(prompt("salt-run --out=json batch.list_active")[1])

    for batch in active():
        prompt(f"salt-run batch.stop {batch['jid']}")
    wait_for(lambda: not active(), what="no batch is under way")


def typed(words, command, block, known, prompt, here):
    """Type a command, and compare what it prints with what the page shows; the jids that are known then."""
    shown = tuple(said(line, here) for line in command.printed) or ("…",)
    wanted = int(block.notes.get("status", 0))
    told = []

    def agrees():
        status, printed = prompt(words)
        told[:] = [f"{block}: {words}\nended with {status}, and printed\n{printed}\ninstead of\n" + "\n".join(shown)]
        return sessions.compared(shown, printed, known) if status == wanted else None

    def as_shown():
        return (found := agrees()) is not None and [found]

    if LOOKING & set(words.split()):
        (found,) = wait_for(as_shown, what=lambda: told[0])
    else:
        found = agrees()
        assert found is not None, told[0]
    log.info(told[0])
    return found
