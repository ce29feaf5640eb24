"""A recorder without Salt: dictionaries and lists stand in for the job cache, the returners and the bus."""

from __future__ import annotations

import time

from saltext.jobs.core import compat
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.recorder.catch_up import CatchUp
from saltext.jobs.core.recorder.consumer import TRIES, Consumer
from saltext.jobs.core.recorder.files import Seen
from saltext.jobs.core.recorder.intake import Intake
from saltext.jobs.core.recorder.shell import AUDIT, Ports, RecorderShell
from saltext.jobs.core.recorder.spool import Spool
from saltext.jobs.core.settings import RecorderSettings, read_settings
from saltext.jobs.core.site import FileSite
from tests.waiting import comes_true


class JobCache:
    """The content of a job cache, and jobs that it fails to read."""

    def __init__(self):
        self.loads, self.stored, self.broken = {}, {}, set()
        self.is_down = False
        self.asked = self.searched = 0

    def _check(self, jid):
        self.asked += 1
        if self.is_down or jid in self.broken:
            raise ConnectionError("the job cache is down")

    def publish(self, jid, fun, **more):
        self.loads[jid] = {"jid": jid, "fun": fun, "arg": [], "tgt": "*", "tgt_type": "glob", "user": "anna", **more}

    def give_back(self, jid, minion, value, **more):
        self.stored.setdefault(jid, {})[minion] = {"return": value, "retcode": 0, "success": True, **more}

    def load(self, jid):
        self._check(jid)
        return dict(self.loads.get(jid, {}))

    def returns(self, jid):
        self._check(jid)
        return dict(self.stored.get(jid, {}))

    def jids_since(self, since):
        self._check(None)
        found = {jid: str(load["fun"]) for jid, load in self.loads.items()}
        self.searched += 1
        return found


class Returner:
    """Takes records, refuses some, or is down."""

    def __init__(self):
        self.loads, self.taken, self.events = [], [], []
        self.is_down = False
        self.refuses = lambda ret: False

    def store_load(self, jid, load):
        if self.is_down:
            raise ConnectionError("down")
        self.loads.append((jid, load))

    def store_return(self, ret):
        if self.is_down:
            raise ConnectionError("down")
        if self.refuses(ret):
            raise ValueError("not such a thing")
        self.taken.append(ret)

    def store_event(self, tag, data):
        if self.is_down:
            raise ConnectionError("down")
        self.events.append((tag, data))

    takes_many = False

    def has(self, function):
        return function == "get_jid"

    def returns(self, jid):
        return {ret["id"]: ret for ret in self.taken if ret["jid"] == jid}


class Bus:
    """Brings events to its listener, and nothing else."""

    gaps, lag = 0, 0.0

    def __init__(self):
        self.listener = None

    def listen(self, listener, on_ready=None):
        self.listener = listener
        if on_ready:
            on_ready()

    def close(self):
        pass

    def bring(self, tag, data):
        if self.listener.wants(tag):
            self.listener.handle(tag, data)


class Stage:
    """
    :param folder: where the recorder keeps its files.
    :param job_cache: what outlives the recorder; so does ``returner``.
    """

    def __init__(
        self, folder, job_cache=None, returner=None, is_exact=True, flush=0.05, audit=AUDIT, tries=TRIES, **options
    ):
        self.job_cache, self.returner = job_cache or JobCache(), returner or Returner()
        self.opts = {"cachedir": str(folder), "sock_dir": str(folder), "id": "m_master"}
        settings = {"returners": ["one"], **options}
        self.settings = read_settings(RecorderSettings, JOB_RECORDER, settings)
        self.folder = FileSite(self.opts).path(JOB_RECORDER)
        self.loop, self.bus, clock = compat.new_loop(), Bus(), Clock()
        self._disk = disk = Worker(self.loop)
        self.spool = Spool(self.folder / "spool", self.settings.spool_max_bytes)
        seen = Seen(self.folder / "seen", self.settings.catch_up)
        self.intake = Intake(self.settings, clock, self.spool, seen, self.job_cache, disk)
        look_back = self.settings.catch_up
        catch_up = CatchUp(self.loop, self.intake, seen, disk, self.job_cache, is_exact, look_back)
        folder = self.folder / "returners" / "one"
        max_bytes = self.settings.spool_max_bytes
        self.consumer = Consumer(self.loop, clock, "one", self.returner, self.spool, folder, max_bytes, tries)
        ports = Ports(
            self.loop,
            clock,
            self.bus,
            Inbox(self.opts, JOB_RECORDER),
            disk,
            self.spool,
            seen,
            self.intake,
            catch_up,
            [self.consumer],
        )
        self.shell = RecorderShell(ports, self.settings, flush, audit)
        self.shell.start()

    def event(self, jid, minion, value, **more):
        """Bring the event of a return."""
        data = {"cmd": "_return", "jid": jid, "id": minion, "fun": "cmd.run", "return": value, "retcode": 0, **more}
        self.bus.bring(f"salt/job/{jid}/ret/{minion}", {name: item for name, item in data.items() if item is not ...})

    def until(self, condition, seconds=30):
        """Run the loop until a condition holds; tells whether it did."""
        return comes_true(self.loop, condition, seconds)

    def await_search(self, after=0):
        """Run the loop until the job cache has been searched, more often than before. A new recorder searches it once."""
        assert self.until(lambda: self.job_cache.searched > after)

    def settle(self):
        """Run the loop until all that the bus has brought is with the returner, unless that is down."""
        assert self.until(lambda: not self.intake.waiting)
        self.loop.run_sync(lambda: self._disk.call(int))  # so what it had to write is in the spool
        assert self.returner.is_down or self.until(lambda: not self.consumer.stats(time.time())["queued"])

    def run(self, seconds):
        """Run the loop for so long."""
        self.loop.run_sync(lambda: compat.sleep(seconds))

    def close(self):
        self.shell.close()
        self.loop.close(all_fds=True)

    @property
    def returns(self):
        """(jid, minion, what it returned) of all that the returner has, in order."""
        return [(ret["jid"], ret["id"], ret["return"]) for ret in self.returner.taken]
