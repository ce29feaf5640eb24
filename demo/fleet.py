"""
A Salt master with this extension and four minions, all in one directory and on loopback ports that are free.

It must never touch anything outside that directory, and leaves neither a process nor a file behind.
"""

from __future__ import annotations

import contextlib
import getpass
import http.client
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import salt.config
import salt.runner

from demo import screen
from demo.processes import Daemon, free_port, wait_for

MINIONS = ("alder", "birch", "cedar", "douglas")

#: The master's configuration as the README has it.
CONFIGURATION = {
    "cache": "sqlite",
    "master_job_cache": "salt_cache",
    "job_retry": True,
    "engines": [{"job_retry": {}}, {"batch_manager": {}}],
}

#: The files of the console.
_CONSOLE = pathlib.Path(__file__).resolve().parents[1] / "console"

#: Seconds for a daemon to be there, for a command to come back, and for the master to answer it; Salt asks it three times.
_START = 180.0
_COMMAND = 300.0
_ANSWER = 60
#: A unix socket's path may have 107 bytes, and the longest name below the directory has about 50.
_LONGEST_ROOT = 50


class StepFailed(Exception):
    """
    An expected effect did not happen.

    :param message: what was expected and what was seen.
    :param logs: the daemons whose logs explain it.
    """

    def __init__(self, message: str, *logs: str) -> None:
        super().__init__(message)
        self.logs = logs or ("master",)


class Fleet:
    """Use it as a context manager: leaving it stops every process and removes the directory."""

    def __init__(self) -> None:
        place = tempfile.gettempdir()
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="sj-", dir=place if len(place) < _LONGEST_ROOT else "/tmp"))
        self._ports = free_port(), free_port()
        self._daemons: dict[str, Daemon] = {}
        self._runner: Any = None

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in self._daemons.values():
            daemon.ask_to_stop()
        for daemon in self._daemons.values():
            daemon.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def start_master(self, name: str = "master", leads: bool = True, **options: Any) -> None:
        """
        Start a master and wait until both engines run.

        :param name: of its folder, where there are several.
        :param leads: whether to wait until its engines run: those of several masters wait for their turn.
        :param options: further options of the master's.
        :raises StepFailed: if they don't.
        """
        publish, ret = self._ports
        self._start(
            name,
            "master",
            {
                "interface": "127.0.0.1",
                "publish_port": publish,
                "ret_port": ret,
                "auto_accept": True,
                "worker_threads": 3,
                "timeout": 5,
                "gather_job_timeout": 5,
                "publish_timeout": _ANSWER,
                **CONFIGURATION,
                **options,
            },
        )
        for engine in ("batch_manager", "job_retry") if leads else ():
            self._wait_for_line(name, f"The {engine} engine runs")
        self._runner = salt.runner.RunnerClient(salt.config.client_config(str(self.config(name) / "master")))

    def start_with_api(self, **options: Any) -> str:
        """
        Start the master with a salt-api in its configuration that serves the console, and return the console's address.

        :param options: further options of the master's.
        :raises StepFailed: if it does not run.
        """
        port = free_port()
        api = {
            "host": "127.0.0.1",
            "port": port,
            "disable_ssl": True,
            "static": str(_CONSOLE),
            "static_path": "/console",
            "app": str(_CONSOLE / "open.html"),
            "app_path": "/console",
        }
        self._api_port = port
        self.start_master(rest_cherrypy=api, api_logfile=str(self.config("salt-api") / "log"), **options)
        return f"http://127.0.0.1:{port}/console/"

    def start_api(self, user: str, password: str) -> None:
        """
        Start the master's salt-api and wait until a user can log in.

        :param user: of the backend ``sharedsecret``.
        :raises StepFailed: if no user can, because it does not run or another program has taken its port.
        """
        home = self.config("salt-api")
        home.mkdir()
        command = [_program("salt-api"), "-c", str(self.config("master")), "-l", "quiet"]
        self._daemons["salt-api"] = daemon = Daemon(command, home / "output")
        daemon.start()

        def ended_or_taken() -> bool:
            return not daemon.is_alive() or _takes(self._api_port, user, password)

        if not wait_for(ended_or_taken, _START) or not daemon.is_alive():
            raise StepFailed(f"salt-api does not take a login on port {self._api_port}", "salt-api", "master")

    def start_minion(self, name: str) -> None:
        """Start a minion, without waiting for it."""
        self._start(
            name,
            "minion",
            {
                "id": name,
                "master": "127.0.0.1",
                "master_port": self._ports[1],
                "acceptance_wait_time": 1,
                "enable_fqdns_grains": False,
                "mine_enabled": False,
            },
        )

    def wait_for_minions(self, *names: str) -> None:
        """Wait until the minions answer the master. :raises StepFailed: naming the one that does not."""
        for name in names:
            self._wait_for_line(name, "Minion is ready to receive requests!")
        answers = self.salt("*", "test.ping", quiet=True)
        for name in names:
            if answers.get(name) is not True:
                raise StepFailed(f"the minion {name} does not answer: {answers}", name, "master")

    def stop_minion(self, name: str) -> None:
        """Stop a minion as a shutdown does: processes that do not end in time are killed."""
        self._daemons.pop(name).stop()

    def salt(self, target: str, *words: str, quiet: bool = False) -> dict[str, Any]:
        """Run ``salt`` and return ``{minion: return}``. :raises StepFailed: if it fails."""
        output = self._command(["salt", target, *words], ["--out=json", "--static", f"--timeout={_ANSWER}"], quiet)
        try:
            return dict(json.loads(output))
        except ValueError:
            raise StepFailed(f"salt {target} {' '.join(words)} printed {output!r}") from None

    def publish(self, target: str, *words: str) -> str:
        """Run ``salt --async`` and return the jid. :raises StepFailed: if it fails."""
        output = self._command(["salt", "--async", target, *words], [f"--timeout={_ANSWER}"], False)
        screen.say(output)
        found = re.search(r"\b\d{20}\b", output)
        if not found:
            raise StepFailed(f"salt --async printed no jid: {output!r}")
        return found[0]

    def run(self, *words: str) -> str:
        """Run ``salt-run``, show what it prints, and return that. :raises StepFailed: if it fails."""
        output = self._command(["salt-run", *words], [], False)
        screen.say(output)
        return output

    def start_batch(self, *words: str) -> str:
        """Run ``salt-run batch.start`` and return the jid, which it prints first. :raises StepFailed: if it fails."""
        output = self.run("batch.start", *words)
        if not re.match(r"\d{20}\b", output):
            raise StepFailed(f"batch.start printed no jid: {output!r}")
        return output[:20]

    @contextlib.contextmanager
    def shown(self, *words: str) -> Iterator[None]:
        """
        Run ``salt-run`` beside the block, on the demo's own screen; leaving the block waits for its end.

        :raises StepFailed: if it fails, or does not end.
        """
        screen.command(["salt-run", *words])
        with subprocess.Popen(self._words("salt-run", [], words), stdin=subprocess.DEVNULL, cwd="/") as process:
            try:
                yield
                if process.wait(_COMMAND):
                    raise StepFailed(f"salt-run {' '.join(words)} ended with {process.returncode}")
            except subprocess.TimeoutExpired:
                raise StepFailed(f"salt-run {' '.join(words)} did not end") from None
            finally:
                process.kill()

    def ask(self, function: str, *args: Any) -> Any:
        """Call a runner function from this process. It is cheap enough to be repeated often."""
        return self._runner.cmd(function, list(args), print_event=False)

    def config(self, name: str) -> pathlib.Path:
        """Return the configuration directory of a daemon."""
        return self.root / name

    def log_tail(self, name: str, lines: int = 25) -> list[str]:
        """Return the last lines that a daemon has logged and printed."""
        text = "".join(
            path.read_text(errors="replace")
            for path in (self.config(name) / "log", self.config(name) / "output")
            if path.exists()
        )
        return text.splitlines()[-lines:]

    def _command(self, words: list[str], options: list[str], quiet: bool) -> str:
        if not quiet:
            screen.command([f"'{word}'" if " " in word or "*" in word else word for word in words])
        program, *rest = words
        done = subprocess.run(
            self._words(program, options, rest),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND,
            cwd="/",
        )
        if done.returncode:
            raise StepFailed(f"{program} ended with {done.returncode}: {done.stdout}{done.stderr}".strip())
        return done.stdout

    def _words(self, program: str, options: Sequence[str], rest: Sequence[str]) -> list[str]:
        config = str(self.config("master"))
        return [_program(program), "-c", config, "--no-color", "-l", "error", *options, *rest]

    def _start(self, name: str, kind: str, options: dict[str, Any]) -> None:
        home = self.config(name)
        home.mkdir(exist_ok=True)
        config = {
            "user": getpass.getuser(),
            "root_dir": str(home),
            "sock_dir": str(home / "s"),
            "log_file": str(home / "log"),
            "log_level_logfile": "info",
            "conf_file": str(home / kind),
            **options,
        }
        (home / kind).write_text(json.dumps(config, indent=1))  # JSON is YAML as well
        daemon = Daemon([_program(f"salt-{kind}"), "-c", str(home), "-l", "quiet"], home / "output")
        self._daemons[name] = daemon
        daemon.start()

    def _wait_for_line(self, name: str, line: str) -> None:
        log = self.config(name) / "log"
        daemon = self._daemons[name]

        def there() -> bool:
            return not daemon.is_alive() or (log.exists() and line in log.read_text(errors="replace"))

        if not wait_for(there, _START) or not daemon.is_alive():
            raise StepFailed(f"{name} did not get as far as {line!r}", name)


def quiet_salt() -> None:
    """Keep Salt's log of this process off the screen: the daemons' logs have what matters."""
    logging.getLogger().addHandler(logging.NullHandler())
    logging.disable(logging.CRITICAL)


def _program(name: str) -> str:
    return os.path.join(os.path.dirname(sys.executable), name)


def _takes(port: int, user: str, password: str) -> bool:
    """Tell whether a salt-api that listens on a port lets a user in."""
    login = json.dumps({"username": user, "password": password, "eauth": "sharedsecret"}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/login", login, headers)
    try:
        with urllib.request.urlopen(request, timeout=_COMMAND) as answer:
            return "token" in json.load(answer)["return"][0]
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return False
