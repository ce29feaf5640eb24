"""A master of masters, with a syndic below it: each master owes jobs to its own minions."""

from __future__ import annotations

import contextlib

import pytest

from saltext.jobs.core import compat
from tests.integration import warm
from tests.integration.conftest import MASTER
from tests.integration.job_retry.desk import OPTIONS, TIMES, Desk, kill, make_retry_master, retry_minion
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.story,
    pytest.mark.slow,
    pytest.mark.skipif(
        compat.HAS_NATIVE_BATCHES,
        reason="a syndic of Salt 3008.4 gets jobs, and all that it sends to the master above times out",
    ),
]

ENGINES = [{"job_retry": {}}, {"batch_manager": {}}]


@pytest.fixture(scope="module")
def top(salt_factories):
    with make_retry_master(
        salt_factories, "top", order_masters=True, engines=ENGINES, syndic_wait=1
    ).started() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def lower(salt_factories, top):
    """The master below, and its syndic."""
    syndic = top.salt_syndic_daemon(
        "lower",
        overrides={"engines": ENGINES},  # the syndic's file is read after the master's
        master_defaults={"open_mode": True},
        master_overrides={**MASTER, **TIMES, "job_retry": dict(OPTIONS), "log_level_logfile": "info"},
        master_factory_class=warm.Master,
        # A minion of the factories names the port of its master, and a syndic takes that for the port of the master above.
        minion_overrides={"publish_port": top.config["publish_port"]},
        minion_factory_class=warm.Minion,
    )
    with syndic.started():
        yield syndic.master


@pytest.fixture
def above(top):
    with contextlib.closing(Desk(top, alone=False)) as desk:
        yield desk


@pytest.fixture
def below(lower):
    with contextlib.closing(Desk(lower, alone=False)) as desk:
        yield desk


def test_a_job_from_above_is_delivered_once_by_the_master_whose_minion_was_away(above, below, lower, tmp_path):
    ran = tmp_path / "ran"
    with retry_minion(lower, "leaf") as leaf:
        there = above.publish("cmd.run", f"echo there >> {ran}", tgt="leaf")
        above.await_return("leaf", there)
        kill(leaf)
        owed = above.publish("cmd.run", f"echo owed >> {ran}", tgt="leaf")
        killed = above.publish("cmd.run", f"echo killed >> {ran}", tgt="leaf")
        for jid in (owed, killed):
            below.await_state("leaf", jid, "pending")
        above.publish("saltutil.kill_job", killed, tgt="leaf")
        below.await_state("leaf", killed, "cancelled")
        leaf.start()
        above.await_return("leaf", owed)
        wait_for(lambda: below.queue() == {("leaf", killed): "cancelled"}, what="nothing more is owed")
        assert ran.read_text().split() == ["there", "owed"]
        assert above.queue() == {}
        assert "leaf" not in above.returned(killed)
