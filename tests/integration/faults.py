"""What the fault tests share: an engine that can be killed, frozen and trapped, and a job that counts its own runs."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import sys

import psutil
import salt.channel.client

from saltext.jobs.core.engine import requests
from tests.faults import freeze, thaw
from tests.integration import warm
from tests.waiting import SOON, stretched, wait_for

_SCRIPT = pathlib.Path(__file__).with_name("run_engine.py")


class EngineProcess:
    """
    An engine of a master whose own configuration does not start it.

    :param master: the master's daemon.
    :param log: where the engine's output goes.
    """

    def __init__(self, master, log: pathlib.Path, name="batch_manager"):
        self._master, self._log, self._name = master, log, name
        self._process: warm.Process | None = None

    def start(self, trap="", drop=""):
        """Start it, and wait until it runs or has died on the way, as intended."""
        environment = {**os.environ, "TRAP": trap, "DROP": str(drop)}
        with self._log.open("ab") as log:
            command = [sys.executable, str(_SCRIPT), self._master.config_file, self._name]
            folder = _SCRIPT.parent.parent.parent
            self._process = warm.Process(command, stdout=log, stderr=log, cwd=folder, env=environment)
        wait_for(
            lambda: self.is_running() or (trap and self._process.poll() is not None),
            what=lambda: f"the engine runs: {self.output()}",
        )
        return self

    @property
    def pid(self):
        return self._process.pid

    def is_running(self):
        return requests.is_running(self._master.config, self._name)

    def wait_for_death(self):
        """Wait until the trap has sprung."""
        wait_for(lambda: self._process.poll() is not None, what=lambda: f"the engine dies: {self.output()}")
        assert self._process.returncode == -signal.SIGKILL, self.output()

    def freeze(self):
        freeze(self._process.pid)

    def thaw(self):
        thaw(self._process.pid)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def output(self):
        return self._log.read_text(errors="replace")


def outlived(asked):
    """
    Return what a command returned that ran while its engine died and started again. None if it had given up waiting, which
    it may on a busy machine, and had said that the engine has its request.
    """
    try:
        return asked.result()
    except AssertionError as exc:
        assert re.search("it has taken the request|the request stays", str(exc)), exc
        return None


def send_as(minion, command, **load):
    """Send the master anything, as an accepted minion can."""
    config = {**minion.config, "master_uri": f"tcp://127.0.0.1:{minion.config['master_port']}"}
    with salt.channel.client.ReqChannel.factory(config) as channel:
        token = channel.auth.gen_token(b"salt")
        channel.send({"cmd": command, "id": minion.id, "tok": token, **load}, timeout=stretched(20))


def kill_the_master(master):
    """Kill all processes of a master daemon, and start it anew."""
    processes = [psutil.Process(master.pid), *psutil.Process(master.pid).children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, stretched(SOON))
    master.terminate()
    master.start()


class CountedJob:
    """
    A shell job that writes a line when it begins and one when it ends, whichever minion runs it.

    With ``gated`` it goes on until ``open_gate`` is called, however long a command takes on a busy machine.
    """

    def __init__(self, folder: pathlib.Path, name: str, seconds: float = 0.0, retcode: int = 0, gated: bool = False):
        self._trace, self._gate = folder / name, folder / f"{name}.gate"
        wait = f"until test -e {self._gate}; do sleep 0.1; done" if gated else f"sleep {seconds}"
        self.command = f"echo begin >> {self._trace}; {wait}; echo end >> {self._trace}; exit {retcode}"

    def open_gate(self):
        """Let what runs, and what begins from now on, come to its end."""
        self._gate.touch()

    def lines(self):
        return self._trace.read_text().split() if self._trace.exists() else []

    def begun(self):
        return self.lines().count("begin")

    def most_at_once(self):
        busy = most = 0
        for line in self.lines():
            busy += 1 if line == "begin" else -1
            most = max(most, busy)
        return most
