"""
Salt's commands and daemons, begun warm: each is its own process, with its own arguments, environment and output, but forked
from one that has already imported Salt (``warm_server.py``). Importing is two thirds of the cost of a command, and most of
the cost of starting a daemon. The tests run a thousand commands and start hundreds of daemons.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing.connection
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

from pytestshellutils.exceptions import FactoryTimeout
from pytestshellutils.shell import DaemonImpl
from pytestshellutils.utils import ports
from pytestshellutils.utils.processes import ProcessResult
from saltfactories.daemons.api import SaltApi
from saltfactories.daemons.master import SaltMaster
from saltfactories.daemons.minion import SaltMinion


def run(cli, *args, **options):
    """
    Run a command of pytest-salt-factories, as its ``run`` does.

    :param cli: what ``master.salt_run_cli(timeout=…)`` or one of its like returns.
    :raises FactoryTimeout: when it takes longer than its time-out; it is killed then.
    """
    command = cli.cmdline(*args, **options)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        returncode = _status(Process(command, out, err), cli.impl._terminal_timeout)
        printed = []
        for stream in (out, err):
            stream.seek(0)
            printed.append(stream.read().decode())
    if returncode is None:
        ended = ProcessResult(returncode=-9, stdout=printed[0], stderr=printed[1], cmdline=command)
        raise FactoryTimeout(f"{command} took longer than {cli.impl._terminal_timeout} s", process_result=ended)
    stdout, stderr, data = cli.process_output(*printed, cmdline=command)
    return ProcessResult(returncode=returncode, stdout=stdout, stderr=stderr, data=data, cmdline=command)


def typed(words, environment, timeout):
    """
    Run a command as typed at a prompt.

    :param words: its path and its arguments.
    :returns: its exit status, None when it was killed for taking longer than ``timeout`` seconds; and what it has printed.
    """
    with tempfile.TemporaryFile() as printed:
        status = _status(Process([sys.executable, *words], printed, printed, env=environment), timeout)
        printed.seek(0)
        return status, printed.read().decode(errors="replace")


def _status(process, timeout):
    """The exit status of a command, None when it had to be killed after ``timeout`` seconds."""
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


class Process:
    """
    A program of Python, begun warm in a session of its own; to be used as a ``subprocess.Popen``.

    :param args: the interpreter, which is this one whatever it is called; the path of the program; and its arguments.
    :param stdout: a file for what it prints; likewise ``stderr``. Without a file, that output is lost.
    """

    def __init__(self, args, stdout=None, stderr=None, cwd=None, env=None):
        self.args, self.returncode = args, None
        begun = {
            "argv": args[1:],
            "cwd": str(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
        }
        with open(os.devnull, "wb") as nowhere:
            self._connection = _server().ask(begun, stdout or nowhere, stderr or nowhere)
        self.pid = int(self._connection.recv(_ANSWER))

    def poll(self):
        """Its exit status, or None while it runs."""
        if self.returncode is None and multiprocessing.connection.wait([self._connection], 0):
            self.wait()
        return self.returncode

    def wait(self, timeout=None):
        """Its exit status. Raises ``TimeoutExpired`` if it runs for more than ``timeout`` seconds."""
        if self.returncode is None:
            if not multiprocessing.connection.wait([self._connection], timeout):
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._connection.recv(_ANSWER))
            self._connection.close()
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


_SERVER = pathlib.Path(__file__).with_name("warm_server.py")
#: The most bytes of an answer.
_ANSWER = 64


class _Server:
    """The process that all are forked from."""

    def __init__(self):
        self._path = str(pathlib.Path(tempfile.mkdtemp(prefix="warm-"), "socket"))
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER), self._path, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for pytest, which ends its daemons with the help of this process
        )
        assert self._process.stdout.readline(), "it did not start"

    def close(self):
        """Have it end, with all that is left, and wait for it."""
        self.ask("end").close()
        self._process.wait()
        self._process.stdout.close()

    def ask(self, what, *streams):
        """Send a request; return the connection on which it is answered."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self._path)
        socket.send_fds(connection, [json.dumps(what).encode()], [stream.fileno() for stream in streams])
        return connection


_running = {}


def _server():
    """The one of this process: a worker of pytest that was forked has its own."""
    if os.getpid() not in _running:
        _running[os.getpid()] = _Server()
    return _running[os.getpid()]


def close():
    """End what was begun in this process and still runs."""
    if os.getpid() in _running:
        _running.pop(os.getpid()).close()


# -- daemons of pytest-salt-factories ----------------------------------------------------------------------------------

#: Seconds between two looks for the event by which a daemon says that it runs.
_LOOK = 0.1


class _Impl(DaemonImpl):
    """How these daemons are begun."""

    def init_terminal(self, cmdline, shell=False, env=None, cwd=None):
        # The daemon's end closes them.
        self._terminal_stdout = tempfile.TemporaryFile()  # noqa: SIM115
        self._terminal_stderr = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {**self.factory.environ, **(env or {})}
        self._terminal = _Terminal(
            cmdline, self._terminal_stdout, self._terminal_stderr, cwd or self.factory.cwd, environment
        )
        self._terminal_result = None
        atexit.register(self.terminate)
        return self._terminal


class _Terminal(Process):
    """What the factories want of a process besides."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()

    def communicate(self):
        self.wait()

    def _translate_newlines(self, data, encoding, errors):
        return data.decode(encoding, errors)


class _Begun:
    """Daemons that are begun warm. The methods are those of the factories."""

    def _get_impl_class(self):
        return _Impl

    def _check_start_events(self, timeout_at):
        # The factories look every one and a half seconds only.
        expected, come = set(self.get_check_events()), set()
        while come < expected and self.is_running() and time.time() <= timeout_at:
            time.sleep(_LOOK)
            found = self.event_listener.get_events(expected, after_time=self._started_at)
            come = {(event.daemon_id, event.tag) for event in found}
        return super()._check_start_events(timeout_at)

    def _terminate_processes_matching_listen_ports(self):
        # The factories read the connections of all processes of the machine, which takes a second or two of CPU.
        if ports.get_connectable_ports(self.listen_ports):
            super()._terminate_processes_matching_listen_ports()


class Minion(_Begun, SaltMinion):
    """
    The factories' engine would hand on the events of its own bus, which no test reads. That it has started, the master's one
    tells. The engine is a process more, and is told of each job.
    """

    @classmethod
    def write_config(cls, config):
        config["engines"].remove("pytest")
        return super().write_config(config)


class Master(_Begun, SaltMaster):
    pass


class Api(_Begun, SaltApi):
    pass
