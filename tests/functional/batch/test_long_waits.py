"""A batch that waits for longer than jobs are kept: Salt's own cleanup keeps the batch's job until the batch has ended."""

from __future__ import annotations

import datetime
import os

import pytest
import salt.loader
import salt.minion
import salt.utils.jid
from salt.daemons import masterapi

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.store import BatchStore, path_of
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.master.job_cache import BATCH_MARK, JobCache
from tests.functional.options import options_in
from tests.unit.batch.bench import BEGIN, Bench
from tests.waiting import wait_for

#: A window that is open for a minute from when a bench begins, as a clock shows it.
OPEN, SHUT = (
    datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%H:%M") for at in (BEGIN, BEGIN + 60)
)
WAITS_FOR = {
    "approval": {"batch": "1,100%", "check": {"kind": "approve", "fun": "", "arg": [], "kwargs": {}}},
    "window": {"batch": "1", "window": f"{OPEN}-{SHUT}", "timezone": "UTC"},
}


class Master:
    """The job cache of a master whose jobs are soon too old, with Salt's cleanup and runners."""

    def __init__(self, opts):
        self.opts, self.cache, self.store, self.benches = opts, JobCache(opts), BatchStore(opts), {}
        self.minion = salt.minion.MasterMinion(opts, states=False, rend=False)
        self.run = salt.loader.runner(opts)

    def publish(self, jid, mark=None):
        """A job of two minions is published, and one of them returns."""
        if not self.cache.keeps_first_load:
            self.minion.returners["local_cache.prep_jid"](passed_jid=jid)
        load = {"jid": jid, "fun": "state.apply", "arg": ["nginx"], "tgt": "*", "tgt_type": "glob", "user": "root"}
        self.cache.keep_load(jid, {**load, **(mark or {})}, ["a", "b"])
        self.cache.store_return({"jid": jid, "id": "a", "fun": "state.apply", "return": "done", "retcode": 0})
        self.age(jid)

    def age(self, jid):
        """Hours pass. The jobs of our own job cache are kept for a second only, so that this is not needed."""
        if not self.cache.keeps_first_load:
            os.utime(path_of(self.opts, jid).with_name("jid"), (1, 1))

    def begin(self, reason):
        """A batch has sent its job to one of two minions, and waits. Returns its jid."""
        jid = str(salt.utils.jid.gen_jid(self.opts))
        bench = Bench("ab", jid=jid, timeout=600.0, **WAITS_FOR[reason])
        bench.sent()
        bench.wait(61)
        bench.returns("a")
        bench.tell(facts.Tick())
        assert (bench.batch.waits_for().by.value, bench.batch.pending.in_order()) == (reason, ["b"])
        self.publish(jid, {BATCH_MARK: True})
        self.benches[jid] = bench
        bench.keep(self.store)
        return jid

    def knows(self, jid):
        """Whether jobs.lookup_jid and job_cache.search know a job."""
        found = bool(self.run["jobs.lookup_jid"](jid))
        if self.cache.keeps_first_load:
            assert found == (jid in {job["JID"] for job in self.run["job_cache.search"]()["jobs"]})
        return found

    def clean(self):
        """What the engine does every few seconds, and Salt's maintenance process then."""
        for jid in self.store.jids(Kind.OPEN):
            self.store.keep_job(jid)
        masterapi.clean_old_jobs(self.opts, self.minion)
        return True


@pytest.fixture(params=[("salt_cache", "localfs"), ("salt_cache", "sqlite"), ("local_cache", "localfs")], ids="-".join)
def master(tmp_path, request):
    job_cache, driver = request.param
    keep = 3600 if job_cache == "local_cache" else 1
    made = Master(options_in(tmp_path, master_job_cache=job_cache, cache=driver, keep_jobs_seconds=keep))
    yield made
    made.minion.destroy()


@pytest.mark.parametrize("reason", WAITS_FOR)
def test_the_job_of_a_batch_is_kept_until_the_batch_has_ended_and_then_removed_like_any_other(master, reason):
    jid = master.begin(reason)
    other = str(salt.utils.jid.gen_jid(master.opts))
    master.publish(other)
    wait_for(lambda: master.clean() and not master.knows(other), what="another job, which is younger, is removed")
    assert master.knows(jid)
    assert master.run["jobs.lookup_jid"](jid) == {"a": "done"}
    assert master.cache.load(jid, to_publish=True)["arg"] == ["nginx"], "the engine goes on with it"
    master.benches[jid].keep(master.store, ended=True)
    master.age(jid)
    wait_for(lambda: master.clean() and not master.knows(jid), what="the batch has ended, and its job is removed")
