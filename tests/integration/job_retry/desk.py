"""What the job retry tests do to a master and its minions: publish, look at the queue, and kill things."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import threading

import psutil
import salt.client
import salt.loader
import salt.utils.event

from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import Refused
from tests.integration.conftest import make_master, make_minion
from tests.waiting import SOON, stretched, wait_for

#: Short times, so that a whole story takes seconds.
OPTIONS = {"gather": 0.3, "backoff": 2.0}
TIMES = {"timeout": 1, "gather_job_timeout": 1.5}


class Desk:
    """
    An operator of one master, in this process.

    :param alone: whether this is the only master here. Loaders of two share their modules, with the options of the newer
        one, so otherwise each call gets a loader of its own.
    """

    def __init__(self, master, alone=True):
        self.master, self._alone = master, alone
        self.opts = dict(master.config)
        self._runners = salt.loader.runner(self.opts)
        self._returners = salt.loader.returners(self.opts, {})
        self.client = salt.client.LocalClient(mopts=self.opts)
        self._bus = salt.utils.event.get_master_event(self.opts, self.opts["sock_dir"], listen=False)

    def close(self):
        self.client.destroy()
        self._bus.destroy()

    def run(self, function, *args, **kwargs):
        """Call a runner function."""
        return (self._runners if self._alone else salt.loader.runner(self.opts))[function](*args, **kwargs)

    def fire(self, tag, data):
        """Put an event on the master's bus, as a minion can."""
        self._bus.fire_event(data, tag)

    def publish(self, fun, *args, tgt="*", **options):
        """Publish a job as ``salt --async`` does, and return its jid."""
        return self.client.run_job(tgt, fun, list(args), listen=False, **options)["jid"]

    def ask(self, tgt, fun, *args):
        """Run a function on one minion and return what it returns."""
        return self.client.cmd(tgt, fun, list(args), timeout=stretched(15)).get(tgt)

    def queue(self, **selection):
        """The entries as ``{(minion, jid): state}``."""
        return {(row["minion"], row["jid"]): row["state"] for row in self.run("job_retry.list", **selection)}

    def state(self, minion, jid):
        return self.queue(minion=minion).get((minion, jid))

    def returned(self, jid):
        """What the minions have returned, read from the job cache itself: ``jobs.lookup_jid`` makes two minions."""
        caches = self._returners if self._alone else salt.loader.returners(self.opts, {})
        records = caches[f"{self.opts['master_job_cache']}.get_jid"](jid)
        return {minion: record["return"] for minion, record in records.items()}

    def await_state(self, minion, jid, state):
        wait_for(lambda: self.state(minion, jid) == state, what=lambda: f"{minion} {jid} {state}: {self.queue()}")

    def await_return(self, minion, jid):
        wait_for(lambda: minion in (self.returned(jid) or {}), what=lambda: f"{minion} returns {jid}: {self.queue()}")

    def await_engine(self):
        wait_for(lambda: requests.is_running(self.opts, JOB_RETRY), what="the engine runs")


class Ear:
    """All that is on a master's bus while the block runs: what every login reads."""

    def __init__(self, master):
        self._opts, self._heard, self._done = dict(master.config), [], threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._ready = threading.Event()

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(stretched(SOON))
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()

    @property
    def text(self):
        """Tags and payloads of all events so far."""
        return json.dumps(list(self._heard), default=repr)

    def count(self, tag):
        """How many events with this tag there were."""
        return sum(each == tag for each, _ in list(self._heard))

    def _listen(self):
        with salt.utils.event.get_master_event(self._opts, self._opts["sock_dir"], listen=True) as bus:
            self._ready.set()
            while not self._done.is_set():
                event = bus.get_event(wait=0.2, full=True, auto_reconnect=True)
                if event:
                    self._heard.append((event["tag"], event["data"]))


# -- daemons -----------------------------------------------------------------------------------------------------------


def make_retry_master(factories, name=None, **overrides):
    """A master with job retry and short times, not started."""
    options = {"job_retry": dict(OPTIONS), "engines": [{"job_retry": {}}], **TIMES, **overrides}
    return make_master(factories, name, **options)


@contextlib.contextmanager
def retry_master(factories, **overrides):
    """A master with job retry and short times."""
    with make_retry_master(factories, **overrides).started() as daemon:
        yield daemon


@contextlib.contextmanager
def retry_minion(master, name, **overrides):
    """A minion whose key is known; it is there at first."""
    daemon = make_minion(master, name, **overrides)
    daemon.start()
    try:
        yield daemon
    finally:
        kill(daemon)


@contextlib.contextmanager
def away(minion, desk):
    """Have a minion away, with nothing in the queue; nothing is left in it afterwards."""
    if minion.is_running():
        kill(minion)
    yield minion
    for name in {name for name, _ in desk.queue()}:
        with contextlib.suppress(Refused):  # if all of its entries have ended
            desk.run("job_retry.cancel", minion=name)
    if desk.queue():
        desk.run("job_retry.purge", state="held,expired,cancelled,dead")


def family(daemon):
    """The ids of a daemon's process and of all below it; none if it does not run."""
    if daemon.pid is None:  # which psutil takes for this process
        return []
    try:
        process = psutil.Process(daemon.pid)
        return [process.pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def kill(daemon):
    """kill -9 of a daemon and all its processes."""
    for pid in family(daemon):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    daemon.terminate()


def lines(path):
    """How many lines a file has: how often a job that appends one has run."""
    path = pathlib.Path(path)
    return len(path.read_text().splitlines()) if path.exists() else 0
