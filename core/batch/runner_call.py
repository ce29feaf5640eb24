"""
Calls a runner function of this master from an engine, in a process of its own.

A runner blocks, may hang, and has a loop of its own, so it never runs in the engine. The process must never outlive its
time.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core import compat

#: The process runs Salt's own runner client. Output of the runner goes to standard error, away from the answer. The request
#: comes on standard input, since any user of the machine can read a command line.
_CHILD = """
import json, os, signal, sys
signal.alarm(int(sys.argv[1]))
asked = json.loads(sys.stdin.buffer.read())
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
answer = os.dup(1)
os.dup2(2, 1)
import salt.config, salt.runner, salt.utils.args
opts = salt.config.master_config(asked["conf_file"])
if asked["limits"]:
    from saltext.jobs.core.master import caller
    caller.act_for(asked["limits"])
arg, kwarg = salt.utils.args.parse_input(asked["words"], condition=False)
client = salt.runner.RunnerClient(opts)
if asked["fun"] not in client.functions:
    os.write(answer, json.dumps({"missing": client.functions.missing_fun_string(asked["fun"])}).encode())
    os._exit(0)
found = client.cmd(asked["fun"], arg, kwarg=kwarg, print_event=False, full_return=True)
told = {"return": found.get("return"), "success": found.get("success")} if isinstance(found, dict) else {"return": found}
os.write(answer, json.dumps(told, default=repr).encode())
os._exit(0)
"""


class RunnerCalls:
    """
    :param opts: the master's options.
    :param loop: the engine's tornado loop.
    :param python: the interpreter, which must have Salt.
    """

    def __init__(self, opts: Mapping[str, Any], loop: Any, python: str = sys.executable) -> None:
        self._conf_file, self._loop, self._python = str(opts.get("conf_file") or "/etc/salt/master"), loop, python

    async def __call__(
        self, fun: str, words: Sequence[str], timeout: float, on_behalf: Mapping[str, Any] | None = None
    ) -> tuple[Any, bool | str]:
        """
        Call a runner function. Returns its value, and True or the reason why it did not succeed.

        :param words: its arguments, as on a command line.
        :param timeout: seconds after which the process is killed.
        :param on_behalf: the limits on our own runners there, as ``Caller.limits``; empty for no limits.
        """
        answer: Any = compat.Future()

        def call() -> None:
            asked = {"conf_file": self._conf_file, "limits": dict(on_behalf or {}), "fun": fun, "words": list(words)}
            told = _run([self._python, "-c", _CHILD], asked, timeout)
            self._loop.add_callback(answer.set_result, told)

        threading.Thread(target=call, daemon=True).start()
        told: tuple[Any, bool | str] = await answer
        return told


def _run(child: Sequence[str], asked: Mapping[str, Any], timeout: float) -> tuple[Any, bool | str]:
    # If the engine dies, the process ends by itself, a little later than the engine would have killed it.
    command = [*child, str(math.ceil(timeout) + 5)]
    try:
        given = json.dumps(asked).encode()
        done = subprocess.run(command, input=given, capture_output=True, timeout=timeout, check=False)
        if not done.stdout:
            lines = done.stderr.decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
            return None, f"it cannot be called: exit status {done.returncode}, {last}"
        told = json.loads(done.stdout)
        if "missing" in told:
            return None, f"this master has no such runner function: {told['missing']}"
        return told["return"], True if told.get("success") is not False else "it failed"
    except subprocess.TimeoutExpired:
        return None, f"no answer within {timeout:g} s"
    except (OSError, ValueError, KeyError, TypeError) as exc:
        return None, f"it cannot be called: {exc}"
