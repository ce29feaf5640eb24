"""The reactor files, hung where their headers say, on Salt's real reactor, with honest and with hostile events."""

from __future__ import annotations

import contextlib
import pathlib

import pytest
import salt.utils.event

import saltext.jobs.reactor
from tests.integration.conftest import finished, log_of, make_master, minions, salt_run
from tests.waiting import SOON, Deadline, wait_for

FOLDER = pathlib.Path(saltext.jobs.reactor.__path__[0])
JID = "20260516101112131415"
#: Other limits in copies of the files, so that a test does not use up what another one needs.
LIMITS = {"start_batch.sls": ("(10, 3600)", "(8, 3600)")}

HOSTILE = [
    *("{{ 7 * 7 }}", "{% raw %}", "x\n- fun: cmd.run", "x: {a: b}", "'; rm -rf /", "*\n", "&a *a", "a b", "../../etc"),
    *("!!python/object/apply:os.system [id]", "", None, 7, ["*"], {"a": "b"}, "x" * 5000, "\u0000"),
]


@pytest.fixture(scope="module")
def master(salt_factories, tmp_path_factory):
    files = tmp_path_factory.mktemp("reactor")
    for name, (before, after) in LIMITS.items():
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert text.count(before) == 1
        (files / name).write_text(text.replace(before, after), encoding="utf-8")
    daemon = make_master(
        salt_factories,
        reactor=[
            {"operations/batch": [str(files / "start_batch.sls")]},
            {"operations/resume/*": [str(FOLDER / "resume_batch.sls")]},
        ],
        saltext_jobs_start_batch={"test.sleep": {"length": 1}, "test.version": {}},
    )
    with daemon.started(), minions(daemon, "r1"):
        yield daemon


class Bus:
    """Fires events as an operator or a minion does, and hears which runners the reactor calls."""

    def __init__(self, master):
        opts = dict(master.config)
        self.event = salt.utils.event.get_master_event(opts, opts["sock_dir"], listen=True)
        self.event.connect_pub()

    def close(self):
        self.event.destroy()

    def fire(self, tag, data):
        self.event.fire_event(data, tag)

    def called_next(self):
        """The next call that the reactor makes of a runner."""
        deadline = Deadline(SOON)
        while not deadline.is_over():
            event = self.event.get_event(wait=1, full=True)
            is_call = event and event["tag"].startswith("salt/run/") and event["tag"].endswith("/new")
            if is_call and event["data"]["user"] == "Reactor":
                return event["data"]
        raise AssertionError("the reactor calls no runner")

    def called(self, fun, count=1):
        """The arguments of the next ``count`` calls that the reactor makes of a runner."""
        calls = [self.called_next() for _ in range(count)]
        assert [call["fun"] for call in calls] == [f"runner.{fun}"] * count, calls
        return calls


@pytest.fixture
def bus(master):
    with contextlib.closing(Bus(master)) as bus:
        yield bus


def kwargs_of(call):
    """The keyword arguments in the event of a runner's call."""
    return {
        name: value
        for item in call["fun_args"]
        if isinstance(item, dict)
        for name, value in item.items()
        if not name.startswith("__")
    }


# -- start_batch ------------------------------------------------------------------------------------------------------


def test_an_operators_event_starts_the_batch_it_asks_for(bus, master, look):
    asked = {"tgt": "r*", "fun": "test.sleep", "batch": "50%"}
    assert salt_run(master, "event.send", "operations/batch", str(asked).replace("'", '"')).returncode == 0
    batch, *_ = wait_for(
        lambda: [batch for batch in look("batch.list", state="complete") if batch["fun"] == "test.sleep"],
        what="the batch is complete",
    )
    assert (batch["tgt"], batch["completed"], batch["user"]) == ("r*", 1, "Reactor")


@pytest.mark.parametrize("field", ["tgt", "fun", "batch"])
def test_a_hostile_or_missing_field_starts_no_batch(bus, field):
    good = {"tgt": "r*", "fun": "test.version", "batch": "1"}
    bad = [value for value in HOSTILE if (field, value) != ("batch", 7)]
    for value in bad:
        bus.fire("operations/batch", {**good, field: value})
    bus.fire("operations/batch", {name: value for name, value in good.items() if name != field})
    bus.fire("operations/batch", {**good, "kwarg": {"x": 1}})
    bus.fire("operations/batch", {"id": "m", "cmd": "_minion_event", "data": good, **good})
    bus.fire("operations/batch", {**good, "fun": "cmd.run"})  # which is not listed
    bus.fire("operations/batch", {**good, "batch": "99"})
    (call,) = bus.called("batch.start")
    assert kwargs_of(call) == {"tgt": "r*", "fun": "test.version", "batch": "99", "kwarg": {}}


@pytest.mark.story
def test_two_hundred_events_at_once_start_no_more_batches_than_the_limit_says(bus, master, look):
    for _ in range(200):
        bus.fire("operations/batch", {"tgt": "r*", "fun": "test.version", "batch": "1"})
    bus.fire(f"operations/resume/{JID}", {})  # when this is done, all before it are
    while bus.called_next()["fun"] != "runner.batch.resume":
        pass
    batches = look("batch.list", limit=1000)
    assert 1 <= len(batches) <= 8, batches
    assert log_of(master).count("events ask for start_batch more often") == 1


# -- resume_batch -----------------------------------------------------------------------------------------------------


def test_an_operators_event_resumes_a_paused_batch(bus, run, look):
    jid = run("batch.start", "r*", "test.sleep", "2", "batch=1", "presence=none")["jid"]
    run("batch.pause", jid)
    bus.fire(f"operations/resume/{jid}", {})
    assert kwargs_of(bus.called("batch.resume")[0]) == {"jid": jid}
    assert finished(look, jid)["state"] == "complete"


def test_a_resume_that_names_no_jid_resumes_nothing(bus):
    for value in HOSTILE:
        bus.fire(f"operations/resume/{value}", {"jid": JID})
    bus.fire(f"operations/resume/{JID}", {})
    (call,) = bus.called("batch.resume")
    assert kwargs_of(call) == {"jid": JID}
