"""A minion without a daemon: Salt's own loaders and the method with which it runs a function of a job."""

from __future__ import annotations

import itertools
import multiprocessing
import pathlib
import types

import pytest
import salt.config
import salt.loader
import salt.minion

from tests.salt_modules import all_but
from tests.waiting import SOON, stretched

#: An execution module that counts its calls and ends in every way a function can end.
PROBE = """
import os, resource, subprocess, time, salt.exceptions

def _count(path):
    with open(path, "a") as file:
        file.write("x")

def give(path, value=None, retcode=0, size=0):
    _count(path)
    __context__["retcode"] = retcode
    return os.urandom(size) if size else value

def fail(path, text, kind="CommandExecutionError"):
    _count(path)
    raise {**vars(salt.exceptions), **__builtins__}[kind](text)

def steps(path, fails=False):
    _count(path)
    def each():
        yield {"a": 1}
        if fails:
            raise ValueError("half way")
        yield {"b": 2}
    return each()

def fill(path, value):
    "After it no file of this process can grow."
    _count(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return value

def die(path, command=None, gate=None):
    _count(path)
    if command:
        subprocess.Popen(command, shell=True)
    if gate and not os.fork():
        while not os.path.exists(gate):
            time.sleep(0.02)
        os._exit(0)
    os.kill(os.getpid(), 9)

def wait(path, gate):
    _count(path)
    while not os.path.exists(gate):
        time.sleep(0.02)
    return "gate open"

def told(path, **kwargs):
    _count(path)
    return sorted(kwargs.items())


def queued(path, gate=None):
    _count(path)
    return "its turn" if gate and os.path.exists(gate) else {"queued": True, "__no_return__": True}
"""

_numbers = itertools.count(1)


class Minion:
    """:param folder: where it keeps everything. :param options: more of its configuration."""

    def __init__(self, folder: pathlib.Path, **options):
        modules = folder / "extmods" / "modules"
        modules.mkdir(parents=True, exist_ok=True)
        (modules / "probe.py").write_text(PROBE)
        self.opts = salt.config.DEFAULT_MINION_OPTS.copy()
        self.opts.update(
            id="m1",
            cachedir=str(folder / "cache"),
            sock_dir=str(folder / "sock"),
            extension_modules=str(folder / "extmods"),
            grains={"id": "m1"},
            pillar={},
            module_executors=["job_once", "direct_call"],
            disable_modules=all_but("cmdmod", "saltutil", "state", "sysmod", "test"),
        )
        self.opts.update(options)
        self.trace, self.gate = folder / "trace", folder / "gate"
        self.start()

    def start(self):
        """Begin as after a restart: only what is on the disk is known."""
        context = {}
        proxy = salt.loader.proxy(self.opts, context=context) if "proxy" in self.opts else None
        functions = salt.loader.minion_mods(self.opts, context=context, proxy=proxy)
        executors = salt.loader.executors(self.opts, functions, context=context, proxy=proxy)
        if proxy is not None:
            pathlib.Path(self.opts["cachedir"]).mkdir(exist_ok=True)
            proxy[f"{self.opts['proxy']['proxytype']}.init"](self.opts)
        self.it = types.SimpleNamespace(opts=self.opts, functions=functions, executors=executors, connected=False)

    def call(self, data, fun, args):
        """Run one function of a job as Salt does: its return and retcode. Raises the errors that Salt turns into returns."""
        executors = data.get("module_executors") or self.opts["module_executors"]
        run = salt.minion.Minion._execute_job_function
        value = run(self.it, fun, list(args), executors, self.opts, data)
        return value, self.it.functions.pack["__context__"]["retcode"]

    def deliver(self, jid, fun, *args, **data):
        """Have a job arrive: what it returns, and its retcode."""
        return self.call({"jid": jid, "fun": fun, "arg": list(args), **data}, fun, args)

    def deliver_in_process(self, jid, fun, *args, **data):
        """Have a job arrive as most do: a process of its own, not waited for."""
        process = multiprocessing.get_context("fork").Process(target=self.deliver, args=(jid, fun, *args), kwargs=data)
        process.start()
        return process

    def in_process(self, call):
        """Call a function in a process of its own, and return its exit code."""
        process = multiprocessing.get_context("fork").Process(target=call)
        process.start()
        process.join(stretched(SOON))
        return process.exitcode

    def interrupt(self, jid, **data):
        """Have a job arrive whose process is killed with -9 in the middle."""
        assert self.in_process(lambda: self.deliver(jid, "probe.die", str(self.trace), **data)) == -9

    def seen(self, *jids):
        return self.deliver(new_jid(), "job_once.seen", *jids)[0]

    def runs(self):
        """How often the function has run."""
        return len(self.trace.read_text()) if self.trace.exists() else 0

    def records(self):
        """The files of the records."""
        return sorted(pathlib.Path(self.opts["cachedir"], "job_once", self.opts["id"]).glob("[!.]*"))


def new_jid():
    return f"20260101000000{next(_numbers):06d}"


@pytest.fixture
def minion(tmp_path):
    return Minion(tmp_path)


@pytest.fixture
def jid():
    return new_jid()
