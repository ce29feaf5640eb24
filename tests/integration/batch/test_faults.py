"""Batches while everything around them fails: each fault is caused, on a real master with real minions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import salt.client
import salt.utils.event
from saltfactories.utils import random_string

from saltext.jobs.core import compat
from saltext.jobs.core.ledger.batches import Kind
from tests.faults import freeze, thaw
from tests.integration.batch.conftest import batch_master, timeouts
from tests.integration.faults import CountedJob, outlived, send_as
from tests.waiting import wait_for

MINIONS = ("f1", "f2", "f3", "f4")
SLOW_LISTENERS = {"pub_server_write_queue_size": 500}
#: Events that Salt 3008 queues for a slow listener before it cuts it off.
QUEUE = SLOW_LISTENERS["pub_server_write_queue_size"]


@pytest.fixture(scope="module")
def master(salt_factories):
    with batch_master(salt_factories, *MINIONS, engines=[], job_retry=False, **SLOW_LISTENERS) as daemon:
        yield daemon


@pytest.fixture
def job(tmp_path):
    return lambda seconds=0.0, retcode=0, gated=False: CountedJob(
        tmp_path, random_string("job-"), seconds, retcode, gated
    )


def start(run, work, *args, tgt="f*"):
    args = args if any(arg.startswith("presence=") for arg in args) else ("presence=none", *args)
    return run("batch.start", tgt, "cmd.run", work.command, *args)["jid"]


def ended(store, jid):
    """The batch, once it has ended."""
    return wait_for(lambda: (batch := store.read(jid)) and batch.finished and batch, what=f"batch {jid} has ended")


def job_of(store, work):
    """The jid of the batch whose job this is, once the batch is recorded."""

    def find():
        batches = filter(None, map(store.read, store.jids(*Kind)))
        return next((batch.spec.jid for batch in batches if work.command in batch.spec.arg), None)

    return wait_for(find, what="the batch is recorded")


def outcomes(batch):
    return {minion: outcome.value for minion, outcome in batch.outcomes.items()}


def all_completed(batch):
    return outcomes(batch) == dict.fromkeys(batch.spec.minions, "completed")


# -- the engine dies ---------------------------------------------------------------------------------------------------

#: Points of a batch's life at which the engine is killed, with what the next engine then has to repair.
DEATHS = [
    "before answer 1",  # recorded, not answered
    "before publish 1",  # the intent is durable
    "after publish 1",  # published, outcome not recorded
    "before end 1",
]


@pytest.mark.parametrize("trap", DEATHS)
def test_whenever_the_engine_is_killed_each_minion_runs_the_job_once(engine, run, store, job, trap):
    work = job(0.2)
    engine.start(trap)
    with ThreadPoolExecutor(1) as pool:  # the operator's command outlives the engine
        asked = pool.submit(start, run, work, "batch=2", *timeouts(2))
        engine.wait_for_death()
        engine.start()
        jid = job_of(store, work)
        assert outlived(asked) in (jid, None)
    assert all_completed(ended(store, jid))
    assert work.begun() == len(MINIONS)
    assert work.most_at_once() <= 2


def test_without_an_engine_status_watch_and_stop_say_so_and_the_stop_comes_before_any_publish(
    engine, run, command, store, job
):
    engine.start()
    work = job(gated=True)
    jid = start(run, work, "batch=1")
    wait_for(work.begun, what="the first has begun")
    engine.kill()
    assert run("batch.status", jid)["engine"] is False
    watched = command("batch.watch", jid, "timeout=1")
    assert (watched.returncode, "no batch_manager engine answers" in watched.stderr) == (1, True), watched
    stopped = command("batch.stop", jid, "--log-level=warning")  # as it is by default, and here is not
    told = "The batch_manager engine is not running; it will carry out the request when it starts"
    assert (stopped.data, told in stopped.stderr) == (True, True), stopped
    work.open_gate()
    engine.start()
    assert (ended(store, jid).state, work.begun()) == ("halted", 1)


# -- what comes from the bus -------------------------------------------------------------------------------------------


@pytest.mark.skipif(not compat.HAS_NATIVE_BATCHES, reason="Salt 3008 is the first release that cuts slow listeners off")
def test_a_gap_on_the_bus_is_noticed_and_made_good_from_the_job_cache(engine, run, returned, store, job, master):
    engine.start()
    work = job(12)
    jid = start(run, work, "batch=4", "timeout=600")  # so that nobody is overdue in this test
    wait_for(lambda: work.begun() == 4, what="all have begun")
    engine.freeze()
    try:
        with salt.utils.event.get_master_event(master.config, master.config["sock_dir"], listen=False) as bus:
            for number in range(4 * QUEUE):
                bus.fire_event({"number": number, "ballast": "x" * 500}, "test/flood")
        wait_for(lambda: len(returned(jid)) == 4, what="all have returned")
    finally:
        engine.thaw()
    assert all_completed(ended(store, jid))
    wait_for(lambda: "Events may have been lost on the bus" in engine.output(), what="the gap is noticed")


def test_a_batch_comes_to_its_end_while_the_bus_stands_still(engine, run, store, job, master):
    engine.start()
    work = job(gated=True)
    jid = start(run, work, "batch=4", "timeout=600")  # so that nobody is overdue in this test
    wait_for(lambda: work.begun() == 4, what="all have begun")
    # Without a publisher at all no return would be stored: Salt fires its event first.
    children = psutil.Process(master.pid).children(recursive=True)
    publisher = next(child for child in children if "EventPublisher" in " ".join(child.cmdline()))
    freeze(publisher.pid)
    try:
        work.open_gate()
        assert all_completed(ended(store, jid))
    finally:
        thaw(publisher.pid)
    assert work.begun() == 4
    assert "looked for in the job cache" not in engine.output().partition("has ended")[0]


def test_events_that_an_accepted_minion_forges_control_nothing_free_no_slot_and_make_no_success(
    engine, run, store, job, master
):
    engine.start()
    work = job(retcode=7, gated=True)
    jid, other = start(run, work, "batch=1", "max_failures=0", "timeout=600"), "20260516101112131415"
    wait_for(work.begun, what="the first runs")
    returned = {"jid": jid, "fun": "cmd.run", "fun_args": [], "return": "", "retcode": 0, "success": True}
    state = {"jid": jid, "driver": "cli", "halted": True, "fun": "cmd.run", "pending": ["f1"], "active": {}, "done": {}}
    forged = {f"salt/job/{jid}/ret/{name}": {**returned, "id": name} for name in MINIONS}
    forged[f"salt/batch/{other}/new"] = {"jid": other, "state": {**state, "jid": other}}
    for kind in ("new", "progress", "stop", "halted", "complete", "recover"):
        forged[f"salt/batch/{jid}/{kind}"] = {"jid": jid, "state": state, "reason": "stop"}
    events = [{"tag": tag, "data": data} for tag, data in forged.items()]
    send_as(master.fleet["f4"], "_minion_event", events=events)
    assert run("batch.status", jid)["active"] == 1  # the engine has taken what was on the bus before
    assert (work.begun(), outcomes(store.read(jid))) == (1, {})
    work.open_gate()
    batch = ended(store, jid)
    assert (batch.halted, batch.success, list(outcomes(batch).values())) == ("max_failures", False, ["failed"])
    assert work.begun() == 1
    assert store.read(other) is None
