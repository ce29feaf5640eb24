"""Which returns a master of a cluster stores when a peer's events announce them. Salt's own process does it here."""

from __future__ import annotations

import asyncio

import pytest
import salt.loader
import salt.master
import salt.utils.event
import salt.version

from saltext.jobs.core.engine.feeder import why_unproven
from saltext.jobs.core.ledger.log import Reader
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.site import site_of
from tests.functional.cache_servers import cache_servers as cache_servers
from tests.functional.options import options_in

pytestmark = pytest.mark.usefixtures("only_files_that_the_reference_names")

if salt.version.__saltstack_version__.major < 3008:
    pytest.skip("earlier releases store no returns that a peer's events announce", allow_module_level=True)

JID = "20261123000000000000"


@pytest.fixture
def opts(tmp_path):
    return options_in(tmp_path, master_job_cache="salt_cache", cache="localfs", cluster_id="both")


def tell(opts, minion, peer="there_master"):
    """Have the master hear of a return on its bus, from a peer."""
    monitor = salt.master.EventMonitor(opts, None)
    load = {"jid": JID, "id": minion, "fun": "test.ping", "return": True, "retcode": 0, "__peer_id": peer}
    asyncio.run(monitor.handle_event(salt.utils.event.SaltEvent.pack(f"salt/job/{JID}/ret/{minion}", load)))


def test_the_return_of_a_peer_of_the_same_site_is_left_to_that_peer(opts, cache_servers):
    opts.update(cache_servers("postgresql").make_database("peers"), saltext_jobs_site="postgresql")
    tell(opts, "forged")
    assert JobCache(opts).returned(JID, ["forged"]) == {}
    assert why_unproven(opts) == ""


def test_the_return_of_another_peer_is_stored_and_doctors_say_that_it_proves_nothing(opts):
    tail = Reader(site_of(opts))
    tail.read()
    tell(opts, "a")
    assert JobCache(opts).returned(JID, ["a"]) == {"a": 0}
    assert "the masters of a cluster store the returns" in why_unproven(opts)
    assert [record.minion for record in tail.read().records] == ["a"]


def test_the_return_of_a_minion_is_stored(opts):
    utils = salt.loader.utils(opts)
    returners = salt.loader.returners(opts, salt.loader.minion_mods(opts, utils=utils))
    returners["salt_cache.returner"]({"jid": JID, "id": "a", "fun": "test.ping", "return": True, "retcode": 0})
    assert JobCache(opts).returned(JID, ["a"]) == {"a": 0}
