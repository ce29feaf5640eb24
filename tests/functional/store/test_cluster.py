"""A ring of three masters on Salt 3008: what its cluster runners do with the banks of the job cache."""

from __future__ import annotations

import pytest
import salt.cache
import salt.config
import salt.loader
import salt.version

if salt.version.__saltstack_version__.major < 3008:
    pytest.skip("rings came with Salt 3008", allow_module_level=True)

from salt.cluster import migration, ring_membership, state_sync
from salt.cluster.consensus.raft.log import LogEntry, LogEntryType
from salt.cluster.consensus.storage import SaltStorage

from saltext.jobs.returners import salt_cache

NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
JIDS = [f"202605161200000000{number:02}" for number in range(15)] + ["20260516-special"]
LOAD = {"fun": "test.ping", "arg": [], "tgt": "*", "tgt_type": "glob", "user": "anna", "ret": "", "kwargs": {}}
BANKS = ("jobs/loads", "jobs/minions", "jobs/endtimes", "jobs/nocache")


class Master:
    def __init__(self, folder, node):
        own = {"cachedir": str(folder), "pki_dir": str(folder), "extension_modules": f"{folder}/ext"}
        self.opts = {**salt.config.DEFAULT_MASTER_OPTS, **own, "interface": node, "id": node}
        self.opts.update({"job_cache_store_endtime": True})
        self.node = node
        self.commit_ring()
        for jid in JIDS:
            self.run("save_load", jid, {**LOAD, "jid": jid}, minions=["web1", "web2"])
            self.run("returner", {"jid": jid, "id": "web1", "return": True, "retcode": 0, "success": True})
            self.run("update_endtime", jid, "end")

    def commit_ring(self):
        """What the daemon has on disk once the ring ``jobs`` is there."""
        ring = {"ring_id": "jobs", "founding_voters": list(NODES), "status": "active"}
        registry = LogEntry(1, 0, ring, self.node, LogEntryType.RING_REGISTRY)
        SaltStorage(self.node, self.opts, ring_id="cluster").append_log(registry)
        members = LogEntry(1, 0, {"voters": list(NODES)}, self.node, LogEntryType.CONFIG)
        SaltStorage(self.node, self.opts, ring_id="jobs").append_log(members)

    def run(self, function, *args, **kwargs):
        # Salt's loader keeps one set of options for a module in a process, and here are three masters.
        salt_cache.__opts__ = self.opts
        return getattr(salt_cache, function)(*args, **kwargs)

    def jobs(self):
        """Everything of every job that is here."""
        listed = self.run("get_jids")
        return {jid: (listed[jid], self.run("get_load", jid), self.run("get_jid", jid)) for jid in listed}


@pytest.fixture
def masters(tmp_path):
    return [Master(tmp_path / node, node) for node in NODES]


def owned(node):
    ring_membership.rebuild("jobs", list(NODES))
    ring_membership.set_route("jobs", "jobs")
    try:
        return {jid for jid in JIDS if ring_membership.owns_for({"interface": node}, "jobs", jid)}
    finally:
        ring_membership.set_route("jobs", None)


def test_shedding_leaves_each_job_whole_with_its_owner_and_collecting_brings_all_back(masters):
    before = masters[0].jobs()
    assert set(before) == set(JIDS)
    for master in masters:
        result = migration.perform_shed(master.opts, "jobs")
        assert result["status"] == "ok", result
        assert master.jobs().keys() == owned(master.node)
        assert 0 < len(master.jobs()) < len(JIDS)
        assert not any(master.run("get_jid", jid) for jid in set(JIDS) - owned(master.node))
    union = {}
    for master in masters:
        assert not union.keys() & master.jobs().keys()
        union.update(master.jobs())
    assert union == before

    banks = [*BANKS, *(f"jobs/returns/{jid}" for jid in JIDS)]
    for receiver in masters:
        for sender in masters:
            for bank in banks if sender is not receiver else ():
                for items in state_sync.iter_bank_chunks(sender.opts, bank):
                    state_sync.install_bank_chunk(receiver.opts, bank, items)
    for master in masters:
        assert master.jobs() == before


def test_a_shed_job_that_is_published_again_is_whole_again(masters):
    master = masters[0]
    migration.perform_shed(master.opts, "jobs")
    gone = min(set(JIDS) - owned(master.node))
    master.run("save_load", gone, {**LOAD, "jid": gone}, minions=["web2"])
    assert master.run("get_load", gone) == {**LOAD, "jid": gone, "Minions": ["web2"]}


def test_jobs_that_salts_own_runner_copies_from_local_cache_are_whole(tmp_path):
    master = Master(tmp_path, NODES[0])
    returners = salt.loader.returners(master.opts, {})
    source = {name: returners[f"local_cache.{name}"] for name in ("prep_jid", "save_load", "returner")}
    jid = "20260517120000000000"
    source["prep_jid"](passed_jid=jid)
    source["save_load"](jid, {**LOAD, "jid": jid}, minions=["web1"])
    source["returner"]({"jid": jid, "id": "web1", "return": {"a": 1}, "retcode": 0, "success": True})
    assert salt.loader.runner(master.opts)["cluster.migrate_jobs_to_cache"]()["migrated"] == 1
    assert master.run("get_load", jid) == {**LOAD, "jid": jid, "Minions": ["web1"]}
    assert master.run("get_jid", jid) == {"web1": {"return": {"a": 1}, "retcode": 0, "success": True}}
