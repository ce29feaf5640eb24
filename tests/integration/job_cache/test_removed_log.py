"""
A real master whose ``-wal`` is removed while it runs. What it has acknowledged is in the job cache afterwards: each jid that
was printed for a publish, and each return that it has put on its bus.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import psutil
import pytest
import salt.client
import salt.utils.event

from saltext.jobs.core.sqlite.banks import banks_of
from tests.integration.conftest import ask_runner, make_master, minions, salt_run
from tests.integration.faults import kill_the_master
from tests.waiting import SOON, stretched, wait_for

MINIONS = ("m1", "m2")
#: Reads the file without the code under test, in a process of its own: closing it here would release this process's locks.
READ = """
import json, sqlite3, sys
sql = sqlite3.connect(sys.argv[1], timeout=30)
records = "SELECT name, key FROM banks JOIN records ON bank = banks.id WHERE name GLOB 'jobs/*'"
check = sql.execute("PRAGMA integrity_check").fetchone()[0]
print(json.dumps({"check": check, "records": sql.execute(records).fetchall()}))
"""


class Office:
    """An operator who publishes jobs, and hears what the master has received."""

    def __init__(self, master):
        self.master, self.path = master, banks_of(master.config).path
        self.jids, self.heard = [], set()
        self._client = salt.client.LocalClient(mopts=dict(master.config))
        self._bus = salt.utils.event.get_master_event(dict(master.config), master.config["sock_dir"], listen=True)
        self._log = pathlib.Path(master.config["log_file"])
        self._said_before = self._log.stat().st_size

    def __enter__(self):
        # A minion misses the first publish of a master that was restarted.
        wait_for(lambda: self.is_answered(self.publish(*MINIONS)), what="all minions are there")
        self.jids.clear()
        return self

    def __exit__(self, *_):
        self._client.destroy()
        self._bus.destroy()

    def publish(self, *names):
        """Publish a job, and return its jid, which the master has acknowledged."""
        jid = self._client.run_job(list(names), "test.echo", ["x" * 700], tgt_type="list", listen=False)["jid"]
        self.jids.append(jid)
        return jid

    def await_returns(self, jid, *names):
        """Wait until the master has put the returns of a job on its bus."""
        wait_for(lambda: self._hear(jid, names), what=lambda: f"{names} have returned {jid}")

    def is_answered(self, jid):
        """Whether all minions return a job within a few seconds."""
        return any(self._hear(jid, MINIONS) for _ in range(20))

    def _hear(self, jid, names):
        """Take the next event, and say whether the returns of a job are on the bus."""
        event = self._bus.get_event(wait=0.2, full=True)
        if event and "/ret/" in event["tag"]:
            _, _, of, _, minion = event["tag"].split("/")
            self.heard.add((of, minion))
        return {(jid, name) for name in names} <= self.heard

    def work(self, count=3):
        for _ in range(count):
            self.await_returns(self.publish(*MINIONS), *MINIONS)

    def remove(self, *ends):
        for end in ends:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + end)

    def said(self, text):
        """How many lines that the master has logged since the office was opened have a text."""
        return sum(text.encode() in line for line in self._log.read_bytes()[self._said_before :].splitlines())

    def on_disk(self):
        read = subprocess.run(
            [sys.executable, "-c", READ, self.path], capture_output=True, check=True, timeout=stretched(SOON)
        )
        return json.loads(read.stdout)

    def require_everything(self):
        """Everything that was acknowledged is in the job cache: as SQLite itself reads the file, and as an operator does."""
        wanted = {("jobs/loads", jid) for jid in self.jids}
        wanted |= {(f"jobs/returns/{jid}", minion) for jid, minion in self.heard if jid in self.jids}

        def missing():
            return wanted - {(bank, key) for bank, key in self.on_disk()["records"]}

        # The master puts a return on the bus just before it stores it.
        wait_for(lambda: not missing(), what=lambda: f"nothing is missing: {missing()}")
        assert self.on_disk()["check"] == "ok"
        for jid in (self.jids[0], self.jids[-1]):
            assert set(ask_runner(self.master, "jobs.lookup_jid", jid)) == {
                name for of, name in self.heard if of == jid
            }


@contextlib.contextmanager
def started(factories, **options):
    master = make_master(factories, cache="sqlite", **options)
    with master.started(), minions(master, *MINIONS):
        yield master


@pytest.fixture(scope="module")
def master(salt_factories):
    """Each test restarts it."""
    with started(salt_factories) as daemon:
        yield daemon


SAVED = "-wal was removed while it was in use. What was in it has been saved, and nothing is lost"


def test_nothing_that_the_master_has_acknowledged_is_lost_with_a_removed_log(master):
    with Office(master) as own:
        own.work()
        for _ in range(3):
            jid = own.publish(*MINIONS)  # its returns come meanwhile
            own.remove("-wal")
            own.await_returns(jid, *MINIONS)
            own.work()
            assert os.path.exists(f"{own.path}-wal")
        assert own.said(SAVED) >= 3
        own.require_everything()
        kill_the_master(own.master)
        own.require_everything()
        assert not own.said("could not be saved") and not own.said("are lost")


@pytest.mark.parametrize("also", [(), ("-wal",)], ids=["alone", "with the log beside it"])
def test_workers_go_on_with_a_removed_shared_memory_and_nothing_is_lost_at_a_restart(master, also):
    """Other processes are refused until then: they would not see the locks of those that have the removed one."""
    with Office(master) as own:
        own.work()
        own.remove("-shm", *also)
        own.work()
        refused = salt_run(own.master, "jobs.lookup_jid", own.jids[-1])
        assert refused.returncode != 0
        assert "-shm was removed while others, such as process " in refused.stdout + refused.stderr
        assert "restart the master" in refused.stdout + refused.stderr
        own.work()
        own.master.terminate()
        own.master.start()
        own.require_everything()
        assert not own.said("are lost")


@pytest.mark.slow  # with a master of its own
def test_a_log_that_only_idle_workers_hold_is_saved_by_a_command_that_looks_at_a_job(salt_factories):
    """No engine is there to come upon it, the workers have nothing to do, and then all of them are killed at once."""
    with started(salt_factories, engines=[], loop_interval=600) as daemon, Office(daemon) as own:
        own.work()
        own.require_everything()
        frozen = [*psutil.Process(own.master.pid).children(recursive=True), psutil.Process(own.master.pid)]
        for process in frozen:
            process.suspend()
        own.remove("-wal")
        jid = own.jids[-1]
        try:
            assert set(ask_runner(own.master, "jobs.lookup_jid", jid)) == set(MINIONS)
        finally:
            for process in frozen:
                process.resume()
        kill_the_master(own.master)
        own.require_everything()
