"""
Salt's commands, begun warm: each is a process of its own, with its own arguments, environment and output, but forked from
one that has imported Salt already. Importing is two thirds of what a command costs, and the tests run a thousand of them.

As a program: ``python warm.py SOCKET`` is the process that they are forked from. It ends with the one that started it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
import runpy
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import time

from pytestshellutils.exceptions import FactoryTimeout
from pytestshellutils.utils.processes import ProcessResult


def run(cli, *args, **options):
    """
    Run a command of pytest-salt-factories, as its ``run`` does.

    :param cli: what ``master.salt_run_cli(timeout=…)`` or one of its like returns.
    :raises FactoryTimeout: when it takes longer than its time-out; it is killed then.
    """
    command = cli.cmdline(*args, **options)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        returncode = _server().call(command[1:], out.fileno(), err.fileno(), cli.impl._terminal_timeout)
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
        status = _server().call(words, printed.fileno(), printed.fileno(), timeout, environment)
        printed.seek(0)
        return status, printed.read().decode(errors="replace")


class _Server:
    """The process that commands are forked from."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")
        self._path = str(pathlib.Path(self._folder.name, "socket"))
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert self._process.stdout.readline(), "it did not start"

    def call(self, argv, out, err, timeout, environment=os.environ):
        """Return the exit status of the command, or None when it had to be killed after ``timeout`` seconds."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            asked = {"argv": argv, "cwd": os.getcwd(), "environment": dict(environment)}
            socket.send_fds(connection, [b"."], [out, err])
            connection.sendall(json.dumps(asked).encode() + b"\n")
            answers = connection.makefile()
            pid = int(answers.readline())
            connection.settimeout(timeout)
            try:
                return int(answers.readline())
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                return None


_running = {}


def _server():
    """The one of this process: a worker of pytest that was forked has its own."""
    if os.getpid() not in _running:
        _running[os.getpid()] = _Server()
    return _running[os.getpid()]


# -- the program -------------------------------------------------------------------------------------------------------


#: What a command imports itself, and what the runners import that Salt's loader brings in: its own and ours.
_NEEDED = (
    *("salt.cli.run", "salt.cli.salt", "salt.minion", "salt.runner", "salt.scripts"),
    *("salt.daemons.masterapi", "salt.grains.core", "salt.netapi", "salt.utils.gitfs"),
    *(f"saltext.jobs.runners.{name}" for name in ("batch", "job_cache", "job_console", "job_recorder", "job_retry")),
)


class _Command(socketserver.BaseRequestHandler):
    """One command. This is a process of its own already, which waits for the command's."""

    def handle(self):
        _, streams, _, _ = socket.recv_fds(self.request, 1, 2)
        asked = json.loads(self.request.makefile().readline())
        pid = os.fork()
        if not pid:
            self.request.close()
            _become(asked, streams)
        self.request.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        self.request.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(asked, streams):
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv = asked["argv"]
    status = 1
    try:
        # The scripts of pytest-salt-factories end this process themselves, those that pip has made raise SystemExit.
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


class _Commands(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    max_children = 100

    def service_actions(self):
        super().service_actions()
        if os.getppid() != self.parent:
            sys.exit()


def _serve(path):
    for name in _NEEDED:
        importlib.import_module(name)
    with _Commands(path, _Command) as server:
        server.parent = os.getppid()
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    _serve(sys.argv[1])
