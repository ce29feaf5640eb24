"""
The ports of the batch_manager engine's shell: Salt, the disk, the time, and threads for everything that blocks. Only
``call_runner`` is implemented here.

It must never decide anything. ``engines/batch_manager.py`` wires it, and tests wire it with stand-ins.
"""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from saltext.jobs.core import compat
from saltext.jobs.core.batch.permission import Permission
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.feeder import Follower
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.returns import Returns
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.site import Log


@dataclasses.dataclass(frozen=True)
class Ports:
    """
    * ``loop``: the engine's tornado loop. ``clock``: the time of deadlines. ``wall``: returns Unix time, as files have it.
    * ``log``: returns the log of the masters for its reader, from a place on.
    * ``cache`` and ``returns`` are used in ``cache_worker`` only; ``permission`` in ``rights_worker``.
    * ``runner``: calls a runner function, as ``call_runner``.
    * ``can_queue``: whether the retry queue's engine runs.
    * ``master_age``: for how many seconds the master has been running.
    * ``restarted``: returns the minions of ``{minion: Unix time}`` whose processes may have started since; it blocks.
    * ``acks``: whether minions say when they begin a job.
    * ``keep``: seconds for which ended batches are kept; 0 for ever.
    * ``is_takeover``: whether another master led the engine before, or may have led it; that one may have ended in the
      middle of anything.
    """

    loop: Any
    clock: Clock
    wall: Callable[[], float]
    bus: Bus
    publisher: Publisher
    questions: Questions
    cache: JobCache
    returns: Returns
    log: Callable[[Follower, Position | None], Log]
    store: BatchStore
    inbox: Inbox
    cache_worker: Worker
    disk_worker: Worker
    runner: Callable[[str, Sequence[str], float, Mapping[str, Any]], Awaitable[tuple[Any, bool | str]]]
    can_queue: Callable[[], bool]
    permission: Permission
    rights_worker: Worker
    master_age: Callable[[], float]
    restarted: Callable[[Mapping[str, float]], Collection[str]]
    acks: bool
    keep: float
    is_takeover: bool = True

    def close(self) -> None:
        """Release sockets and threads."""
        self.bus.close()
        self.publisher.close()
        self.cache_worker.close()
        self.disk_worker.close()
        self.rights_worker.close()


# -- a runner function --------------------------------------------------------------------------------------------------

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


async def call_runner(
    opts: Mapping[str, Any],
    loop: Any,
    fun: str,
    words: Sequence[str],
    timeout: float,
    on_behalf: Mapping[str, Any] | None = None,
    python: str = sys.executable,
) -> tuple[Any, bool | str]:
    """
    Call a runner function of this master. Returns its value, and True or the reason why it did not succeed.

    A runner blocks, may hang, and has a loop of its own. So it runs in a process of its own, which never outlives its time.

    :param opts: the master's options.
    :param loop: the engine's tornado loop.
    :param words: its arguments, as on a command line.
    :param timeout: seconds after which the process is killed.
    :param on_behalf: the limits on our own runners there, as ``Caller.limits``; empty for no limits.
    :param python: the interpreter, which must have Salt.
    """
    answer: Any = compat.Future()
    conf_file = str(opts.get("conf_file") or "/etc/salt/master")
    asked = {"conf_file": conf_file, "limits": dict(on_behalf or {}), "fun": fun, "words": list(words)}

    def call() -> None:
        loop.add_callback(answer.set_result, _run([python, "-c", _CHILD], asked, timeout))

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
