"""
The process that commands and daemons are forked from: ``python warm_server.py SOCKET PARENT``. It has imported Salt, has one
thread, and waits for all that it has begun. When the process that started it says so, or ends in any way, it kills what is
left, removes the folder of its socket and ends too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import math
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import time
import traceback

import psutil
import salt.config
import salt.loader
import salt.utils.entrypoints
import setproctitle

#: The imports of commands and daemons, and those of the modules that Salt's loader brings in, its own and ours.
_NEEDED = (
    *("salt.cli.run", "salt.cli.salt", "salt.minion", "salt.runner", "salt.scripts"),
    *("salt.daemons.masterapi", "salt.grains.core", "salt.netapi", "salt.utils.gitfs"),
    *("salt.channel.server", "salt.cli.daemons", "salt.cloud", "salt.config", "salt.master", "salt.runners.state"),
    *(
        "salt.transport.tcp",
        "salt.transport.zeromq",
        "salt.utils.channel",
        "salt.utils.reactor",
        "salt.utils.win_system",
    ),
    *("cryptography.hazmat.backends.openssl.backend", "zmq.asyncio", "zmq.eventloop.zmqstream"),
    *(f"saltext.jobs.engines.{name}" for name in ("batch_manager", "job_recorder", "job_retry")),
    *(f"saltext.jobs.runners.{name}" for name in ("batch", "job_cache", "job_console", "job_recorder", "job_retry")),
    *("saltext.jobs.returners.salt_cache", "saltext.jobs.core.loader"),
    *(f"saltext.jobs.core.{wing}.doctor" for wing in ("batch", "recorder", "retry", "store")),
    *(f"saltext.jobs.core.batch.{name}" for name in ("catalog", "starting", "watch")),
    *("saltext.jobs.core.master.jobs", "saltext.jobs.core.sqlite.recovery", "saltext.jobs.core.store.search"),
)
#: What not all releases have.
_SOME_NEED = ("salt.cluster.consensus.rpc", "salt.cluster.healthchecks", "salt.cluster.ring", "xxhash")
#: The most bytes of a request.
_LONG = 1 << 20
_PR_SET_CHILD_SUBREAPER = 36


def _serve(path, parent):
    for name in _NEEDED:
        importlib.import_module(name)
    for name in _SOME_NEED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # Salt reads the entry points of all packages again every half second, so for each job. They do not change here.
    salt.utils.entrypoints.iter_entry_points("salt.loader")
    salt.utils.entrypoints.iter_entry_points.__wrapped__.expiration = math.inf
    # What Salt finds out once in a process takes half of the time of its grains.
    salt.loader.grains({**salt.config.minion_config(None), "enable_fqdns_grains": False})
    gc.freeze()  # the collector would write into memory that all processes share
    setproctitle.getproctitle()  # finds the memory of the title, which it cannot once the environment has changed
    # A process that loses its parent becomes a child of this one, so that it is found at the end.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ears, mouth = socket.socketpair()
    ears.setblocking(False)
    mouth.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
    running = {}  # pid: connection
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(path)
        server.listen(100)
        print("ready", flush=True)
        asked = None
        while asked != "end" and os.getppid() == parent:
            ready, _, _ = select.select([server, ears], [], [], 0.5)
            if ears in ready:
                ears.recv(_LONG)
            if server in ready:
                connection, _ = server.accept()
                wanted, streams, _, _ = socket.recv_fds(connection, _LONG, 2)
                asked = json.loads(wanted or b"null")
                if isinstance(asked, dict):
                    pid = os.fork()
                    if not pid:
                        _become(asked, streams, [server, ears, mouth, connection, *running.values()])
                    for stream in streams:
                        os.close(stream)
                    _answer(connection, b"%d" % pid)
                    running[pid] = connection
            for pid, status in _ended():
                if connection := running.pop(pid, None):
                    _answer(connection, b"%d" % os.waitstatus_to_exitcode(status))
                    connection.close()
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for _ in _ended():
            pass
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def _answer(connection, what):
    with contextlib.suppress(OSError):  # the requester may have gone
        connection.send(what)


def _ended():
    """The children that have ended since the last call, each with its wait status."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _become(asked, streams, others):
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for other in others:
        other.close()
    os.setsid()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    sys.argv = asked["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    setproctitle.setproctitle(" ".join([sys.executable, *sys.argv]))
    status = 1
    try:
        # The scripts of pytest-salt-factories end this process themselves, those made by pip raise SystemExit.
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
