"""A real cluster of three masters on Salt 3008, sharing nothing, with every job in ``salt_cache``."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib

import pytest
import salt.version

from tests.integration.conftest import ask_runner, make_master, minions, salt_cli
from tests.waiting import Patience, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(salt.version.__saltstack_version__.major < 3008, reason="rings came with Salt 3008"),
]
NODES = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
JOBS = 9


@pytest.fixture(scope="module")
def masters(salt_factories):
    root = pathlib.Path(salt_factories.root_dir)
    ports = {}
    with contextlib.ExitStack() as running:
        started = []
        for node in NODES:
            pki = root / f"cluster-{node}"
            (pki / "peers").mkdir(parents=True)
            settings = {"interface": node, "cluster_id": "jobs", "cluster_peers": [n for n in NODES if n != node]}
            settings.update({"cluster_pki_dir": str(pki), "cluster_isolated_filesystem": True, "engines": []})
            master = make_master(salt_factories, node, **settings, **ports)
            running.enter_context(master.started(start_timeout=Patience(120)))
            ports = {name: master.config[name] for name in ("ret_port", "publish_port")}
            started.append(master)
        yield started


def jobs_of(master):
    """``{jid: minions that returned}`` of what is in the banks of this master."""
    banks = pathlib.Path(master.config["cachedir"]) / "jobs"
    jids = {path.stem for path in (banks / "loads").glob("*.p")}
    return {jid: sorted(path.stem for path in (banks / "returns" / jid).glob("*.p")) for jid in jids}


def pick(master, jids):
    return {jid: minions for jid, minions in jobs_of(master).items() if jid in jids}


def test_a_ring_shards_the_jobs_and_gives_them_back(masters):
    first = masters[0]
    wait_for(
        lambda: all(sorted(ask_runner(master, "cluster.members")["voters"]) == NODES for master in masters),
        what="all masters vote",
    )
    with minions(first, "ringed"):
        for number in range(JOBS):
            assert salt_cli(first, "ringed", "test.echo", f"job {number}").data == f"job {number}"
        found = ask_runner(first, "jobs.list_jobs", "search_function=test.echo")
        jids = set(found)
        assert len(jids) == JOBS
        whole = {jid: ["ringed"] for jid in jids}
        for master in masters:
            wait_for(lambda m=master: pick(m, jids) == whole, what=f"{master.id} has every job")

        ask_runner(first, "cluster.ring_create", "name=jobs", f"voters={json.dumps(NODES)}")
        wait_for(
            lambda: all("jobs" in ask_runner(master, "cluster.rings")["active_rings"] for master in masters),
            what="the ring is there",
        )
        sheds = [
            wait_for(lambda m=master: shed(m), what=f"{master.id} knows who votes in the ring") for master in masters
        ]
        # Which master keeps a job depends on its jid: in one run of thirteen, one of them keeps none.
        assert sum(result["kept"] > 0 for result in sheds) > 1
        kept = [pick(master, jids) for master in masters]
        assert sum(map(len, kept)) == JOBS, "each job is with one master"
        assert {jid: names for part in kept for jid, names in part.items()} == whole, "and none is lost"

        banks = [
            "jobs/loads",
            "jobs/minions",
            "jobs/endtimes",
            "jobs/nocache",
            *(f"jobs/returns/{jid}" for jid in jids),
        ]
        for master in masters:
            ask_runner(master, "cluster.collect_from_peers", f"banks={json.dumps(banks)}")
            wait_for(lambda m=master: pick(m, jids) == whole, what=f"{master.id} has every job again")
        for master in masters:
            for jid in jids:
                assert ask_runner(master, "jobs.lookup_jid", jid) == {"ringed": found[jid]["Arguments"][0]}
    assert os.path.isdir(first.config["cachedir"])


def shed(master):
    result = ask_runner(master, "cluster.shed_unowned", "ring=jobs")
    return result if result["status"] == "ok" else None
