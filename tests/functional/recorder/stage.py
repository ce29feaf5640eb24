"""A recorder beside a real job cache and its log; lists stand in for the returner."""

from __future__ import annotations

import contextlib
import time

import salt.loader

from saltext.jobs.core import compat, loader
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.options import read_settings
from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.recorder.consumer import Consumer, outbox_of
from saltext.jobs.core.recorder.pipeline import TRIES, Pipeline
from saltext.jobs.core.recorder.recipients import ToReturner
from saltext.jobs.core.recorder.shell import RecorderShell
from saltext.jobs.core.site import site_of
from saltext.jobs.core.store.store import store_of
from tests.database import database_of
from tests.functional.options import options_in
from tests.waiting import comes_true


class JobCache:
    """What a master's workers do: each publish and each return goes into the job cache, and into the log."""

    def __init__(self, opts):
        self.opts = opts
        loaded = salt.loader.returners(opts, {}, loaded_base_name=loader.base_of(self))  # of this master alone
        self._save_load, self._returner = loaded["salt_cache.save_load"], loaded["salt_cache.returner"]

    def publish(self, jid, fun="cmd.run", minions=("m1",), **more):
        load = {"jid": jid, "fun": fun, "arg": [], "tgt": "*", "tgt_type": "glob", "user": "anna", "cmd": "publish"}
        self._save_load(jid, {**load, **more}, minions=list(minions))

    def ask(self, jid, fun, minions=("m1",)):
        """What an engine asks minions."""
        store_of(self.opts).publishes_for(jid, "job_retry")
        self.publish(jid, fun, minions, kwargs={"executor_opts": {"job_once": {"question": True}}})

    def report(self, jid, fun, minion, **more):
        """A job that nobody has published, such as one that a minion runs by its own schedule."""
        self._save_load(jid, {"jid": jid, "fun": fun, "id": minion, "fun_args": [], **more})

    def give_back(self, jid, minion, value="x", fun="cmd.run", **more):
        data = {"jid": jid, "id": minion, "fun": fun, "fun_args": [], "return": value, "retcode": 0, "success": True}
        self._returner({**data, **more})

    def remove(self, jid):
        """What the master's maintenance does to an old job."""
        store_of(self.opts).driver.remove([jid], time.time() + 60)

    def damage(self, jid, minion):
        query = "UPDATE saltext_jobs_values SET value = X'C1' WHERE bank = ? AND key = ?"
        with database_of(self.opts) as sql:
            assert sql.execute(query, (f"jobs/returns/{jid}", minion)).rowcount

    @contextlib.contextmanager
    def without_log(self):
        """The log cannot be written, as if its disk were full; the job cache can."""
        with database_of(self.opts) as sql:
            sql.execute("ALTER TABLE saltext_jobs_log RENAME TO elsewhere")
        yield
        with database_of(self.opts) as sql:
            sql.execute("ALTER TABLE elsewhere RENAME TO saltext_jobs_log")


class Returner:
    """Takes records, refuses some, or is down."""

    takes_loads = True

    def __init__(self, can_be_asked=True):
        self.loads, self.taken = [], []
        self.is_down, self._can_be_asked = False, can_be_asked
        self.refuses = lambda ret: False

    def _check(self):
        if self.is_down:
            raise ConnectionError("down")

    def store_load(self, jid, load):
        self._check()
        self.loads.append((jid, load))

    def store_return(self, ret):
        self._check()
        if self.refuses(ret):
            raise ValueError("not such a thing")
        self.taken.append(ret)

    def has(self, function):
        return function == "get_jid" and self._can_be_asked

    def returns(self, jid):
        self._check()
        return {ret["id"]: ret for ret in self.taken if ret["jid"] == jid}


class Bus:
    """Brings no event."""

    gaps, lag = 0, 0.0

    def listen(self, listener=None, on_ready=None):
        pass

    def close(self):
        pass


class Stage:
    """
    :param folder: where the master keeps its files.
    :param returner: what outlives the recorder.
    :param opts: more options of the master.
    """

    def __init__(self, folder, returner=None, tries=TRIES, opts=None, **options):
        self.opts = options_in(folder, master_job_cache="salt_cache", **{"cache": "sqlite", **(opts or {})})
        self.job_cache, self.returner = JobCache(self.opts), returner or Returner()
        self.settings = read_settings(RecorderSettings, JOB_RECORDER, {"returners": ["one"], **options})
        self.loop = compat.new_loop()
        self.tables = site_of(self.opts)
        self.recipient = ToReturner(self.returner, self.opts, self.settings)
        self.consumer = Consumer(self.loop, "one", self.recipient, outbox_of(self.tables, "one"), Pipeline(tries))
        bus = Bus()
        self.shell = RecorderShell(self.loop, bus, Service(self.opts, JOB_RECORDER, self.loop), [self.consumer])
        self.shell.start()
        self._is_closed = False
        assert self.until(lambda: self.consumer.looks or self.figures["trouble"])

    def until(self, condition, seconds=30):
        """Run the loop until a condition holds; tells whether it did."""
        return comes_true(self.loop, condition, seconds)

    @property
    def figures(self):
        return self.consumer.stats()

    def settle(self):
        """Run the loop until the recorder has looked at all that there is, and the returner has it unless it is down."""
        looks = self.consumer.looks
        assert self.until(lambda: self.consumer.looks > looks + 1)
        assert self.returner.is_down or self.until(lambda: not self.figures["queued"])

    def run(self, seconds):
        """Run the loop for so long."""
        self.loop.run_sync(lambda: compat.sleep(seconds))

    def close(self):
        if not self._is_closed:
            self._is_closed = True
            self.shell.close()
            self.loop.close(all_fds=True)

    @property
    def returns(self):
        """(jid, minion, what it returned) of all that the returner has, in order."""
        return [(ret["jid"], ret["id"], ret["return"]) for ret in self.returner.taken]
