"""
Two masters of a cluster with a site on PostgreSQL, and an active and a passive master with one disk. The leader is killed
or hands over. Its work goes on, and nothing runs twice.
"""

from __future__ import annotations

import pytest

from tests.functional.cache_servers import cache_servers as cache_servers
from tests.integration.job_retry.desk import Desk, kill, lines, make_retry_master
from tests.integration.several import (
    ENGINES,
    await_leader,
    cluster,
    ended,
    has_begun,
    in_a_cluster,
    share_disk,
    share_keys,
    start,
    takes_over,
    there,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

SETTINGS = {"engines": [{name: {}} for name in ENGINES]}
MINIONS = [f"take{number}" for number in range(3)]


@pytest.fixture
def masters(salt_factories, cache_servers, tmp_path):
    """Two masters of a cluster; the engines of the first one lead."""
    site = {**cache_servers("postgresql").make_database("takeover"), "saltext_jobs_site": "postgresql"}
    with cluster(salt_factories, tmp_path, site, **SETTINGS) as made:
        yield made


@pytest.mark.story
@in_a_cluster
def test_a_cluster_goes_on_when_the_leading_master_dies(masters, tmp_path):
    desks = [Desk(master, alone=False) for master in masters]
    try:
        with there(MINIONS, masters[1], *desks, master=masters[1].config["interface"]) as minions:
            takes_over(masters, desks, minions, "take2", tmp_path)
    finally:
        for desk in desks:
            desk.close()


def test_a_passive_master_with_another_id_goes_on_with_the_jobs_on_the_same_disk(salt_factories, tmp_path):
    active = make_retry_master(salt_factories, "active", interface="127.0.0.1", **SETTINGS)
    active.start()
    ports = {name: active.config[name] for name in ("ret_port", "publish_port")}
    passive = make_retry_master(salt_factories, "passive", interface="127.0.0.1", **ports, **SETTINGS)
    share_disk(active, passive)
    share_keys(active, passive)
    desk = Desk(active, alone=False)
    try:
        with there(MINIONS, active, desk, master=active.config["interface"]) as minions:
            await_leader(active, active)
            kill(minions["take2"])
            owed = desk.publish("cmd.run", f"echo x >> {tmp_path / 'owed'}", tgt="take2")
            desk.await_state("take2", owed, "pending")
            trace = tmp_path / "trace"
            jid = start(desk, trace, MINIONS[:2])
            has_begun(trace, 1)
            kill(active)
            desk.close()
            passive.start()
            desk = Desk(passive, alone=False)
            await_leader(passive, passive)
            assert ended(passive, jid) == dict.fromkeys(MINIONS[:2], "completed")
            assert lines(trace) == 2
            minions["take2"].get_check_events = list  # it would wait for those on the bus of the dead one
            minions["take2"].start()
            desk.await_return("take2", owed)
            wait_for(lambda: not desk.queue(), what="the queue is empty")
            assert lines(tmp_path / "owed") == 1
    finally:
        desk.close()
        for daemon in (active, passive):
            kill(daemon) if daemon.is_running() else daemon.terminate()
