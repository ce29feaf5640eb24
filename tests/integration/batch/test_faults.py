"""Batches while everything around them fails: each fault is caused, on a real master with real minions."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import salt.client
import salt.utils.event
from saltfactories.utils import random_string

from saltext.jobs.core import compat
from saltext.jobs.core.batch.store import journal_name
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.site import FileSite
from tests.faults import freeze, thaw
from tests.integration.batch.conftest import batch_master, timeouts
from tests.integration.conftest import salt_run
from tests.integration.faults import CountedJob, freeze_daemon, outlived, send_as
from tests.missing import missing
from tests.waiting import Deadline, lasting, wait_for

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
        batches = filter(None, map(store.read, store.open_jids() + store.ended_jids()))
        return next((batch.spec.jid for batch in batches if work.command in batch.spec.arg), None)

    return wait_for(find, what="the batch is recorded")


def outcomes(batch):
    return {minion: outcome.value for minion, (outcome, *_) in batch.outcomes.items()}


def all_completed(batch):
    return outcomes(batch) == dict.fromkeys(batch.spec.minions, "completed")


# -- the engine dies ---------------------------------------------------------------------------------------------------

#: Points of a batch's life at which the engine is killed, with what the next engine then has to repair.
DEATHS = [
    "before snapshot 1",  # the request is taken, nothing is recorded
    "after snapshot 1",  # recorded, not answered
    "before request removal 1",
    "after request removal 1",
    "before state file 1",
    "after state file 1",
    "before append 2",
    "after append 2",
    "before sync 1",  # the intent is written, not durable
    "after sync 1",  # durable, not published
    "before publish 1",
    "after publish 1",  # published, outcome not recorded
    "before publish 2",
    "after publish 2",
    "before announcement 2",
    "before end 1",
    "after end 1",
]


#: Those at which most is half done. `make test-slow` runs the others too.
WORST = ("after snapshot 1", "after state file 1", "before sync 1", "after sync 1", "after publish 1", "before end 1")


@pytest.mark.parametrize(
    "trap", [pytest.param(trap, marks=[] if trap in WORST else pytest.mark.slow) for trap in DEATHS]
)
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


def test_an_engine_that_is_killed_every_two_seconds_ends_its_batch_and_sends_to_no_minion_twice(
    engine, run, store, job
):
    work, lives = job(1), 1
    engine.start()
    jid = start(run, work, "batch=1", *timeouts(5))
    while not store.read(jid).finished:
        end = Deadline(2)
        while not end.is_over() and not store.read(jid).finished:
            time.sleep(0.1)
        engine.kill()
        engine.start()
        lives += 1
        # Four jobs of a second, one after the other: each life of the engine gets one done, or finds out that it was done.
        assert lives <= 3 * len(MINIONS), store.read(jid).outcomes
    assert all_completed(store.read(jid))
    assert (work.begun(), work.most_at_once()) == (len(MINIONS), 1)


@pytest.mark.parametrize("point", ["ping", "question"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_engine_killed_around_a_question_asks_again_and_sends_to_no_minion_twice(
    engine, run, store, job, when, point
):
    work = job(lasting(5) if point == "question" else 0.2)
    engine.start(f"{when} {point} 1")
    options = ("batch=2", *timeouts(2))
    jid = run("batch.start", "f*", "cmd.run", work.command, *options)["jid"]
    engine.wait_for_death()
    engine.start()
    assert all_completed(ended(store, jid))
    assert work.begun() == len(MINIONS)
    assert work.most_at_once() <= 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_engine_killed_around_a_kill_still_ends_what_runs_and_starts_nothing(engine, run, store, job, when):
    work = job(60)
    engine.start(f"{when} kill 1")
    jid = start(run, work, "batch=2", "timeout=600", timeouts(2)[1])
    wait_for(lambda: work.begun() == 2, what="two run")
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(run, "batch.stop", jid, "kill=True")
        engine.wait_for_death()
        engine.start()
        assert outlived(stopping) in (True, None)
    batch = ended(store, jid)
    assert sorted(outcomes(batch).values()) == ["killed", "killed"]
    assert work.lines() == ["begin", "begin"]


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_clock_that_is_set_while_a_batch_runs_and_back_at_a_restart_changes_nothing(engine, run, store, job, step):
    work = job(2)
    engine.start(clock=step)
    jid = start(run, work, "batch=1", *timeouts(2), "batch_wait=1")
    wait_for(work.begun, what="the first has begun")
    engine.signal(signal.SIGUSR1)
    wait_for(lambda: work.begun() >= 3, what="it goes on after the clock was set")
    engine.kill()
    engine.start()
    assert all_completed(ended(store, jid))
    assert (work.begun(), work.most_at_once()) == (len(MINIONS), 1)


def test_returns_that_came_while_the_engine_was_dead_are_found_in_the_job_cache(engine, run, returned, store, job):
    engine.start()
    work = job(1)
    jid = start(run, work, "batch=4", "timeout=60")
    wait_for(lambda: work.begun() == 4, what="all have begun")
    engine.kill()
    wait_for(lambda: len(returned(jid)) == 4, what="all have returned")
    engine.start()
    assert all_completed(ended(store, jid))
    questions = run("jobs.list_jobs", "search_function=saltutil.find_job")
    assert [question for question in questions.values() if jid in question["Arguments"]] == [], "nobody was asked"


def test_a_request_made_while_no_engine_runs_says_so_and_is_honoured_before_anything_is_published(
    engine, run, command, store, job
):
    engine.start()
    work = job(2)
    jid = start(run, work, "batch=1")
    wait_for(work.begun, what="the first has begun")
    engine.kill()
    assert run("batch.status", jid)["engine"] is False
    asked = command("batch.stop", jid)
    assert asked.data is True
    assert "No engine: the stop is carried out when the batch_manager engine runs again" in asked.stderr
    engine.start()
    batch = ended(store, jid)
    assert (batch.state, work.begun()) == ("halted", 1)


def test_a_batch_that_no_engine_takes_is_withdrawn_and_says_so(complaint, store, job):
    told = complaint("batch.start", "f*", "cmd.run", job().command)
    assert "batch_manager engine is not running" in told
    assert "withdrawn" in told
    assert store.folder.names("requests") == []


def test_without_an_engine_status_watch_and_stop_say_so(engine, run, command, store, job):
    engine.start()
    work = job(gated=True)
    jid = start(run, work, "batch=1")
    wait_for(work.begun, what="the first has begun")
    engine.kill()
    assert run("batch.status", jid)["engine"] is False
    watched = command("batch.watch", jid, "timeout=1")
    assert (watched.returncode, "(no engine)" in watched.stderr) == (1, True), watched
    stopped = command("batch.stop", jid, "--log-level=warning")  # as it is by default, and here is not
    assert (stopped.data, "engine is not running" in stopped.stderr) == (True, True), stopped
    work.open_gate()
    engine.start()
    assert ended(store, jid).state == "halted"


def test_a_batch_that_hands_minions_over_is_refused_without_a_retry_queue(engine, complaint, job):
    engine.start()
    told = complaint("batch.start", "f*", "cmd.run", job().command, "offline=queue")
    assert "job_retry" in told, told


# -- minions -----------------------------------------------------------------------------------------------------------


def test_a_job_that_outlives_every_timeout_never_runs_on_more_minions_than_the_limit(engine, run, store, job):
    engine.start()
    work = job(lasting(8))
    jid = start(run, work, "batch=1", *timeouts(2), tgt="f[12]")
    batch = ended(store, jid)
    assert all_completed(batch)
    assert work.most_at_once() == 1


def test_a_frozen_minion_is_given_up_and_its_late_return_still_counts(engine, run, store, job, master):
    engine.start()
    work = job(lasting(6))
    jid = start(run, work, "batch=1", *timeouts(2), tgt="f1")
    wait_for(work.begun, what="the job has begun")
    frozen = freeze_daemon(master.fleet["f1"])
    try:
        batch = wait_for(
            lambda: (batch := store.read(jid)) and "f1" in batch.outcomes and batch, what="f1 has been given up"
        )
        assert outcomes(batch) == {"f1": "lost"}, "it may have begun"
    finally:
        thaw(*frozen)
    wait_for(lambda: run("batch.status", jid)["completed"] == 1, what="the late return counts")


def test_a_minion_that_dies_in_mid_job_frees_its_slot_in_the_end(engine, run, store, job, master):
    engine.start()
    work = job(300)
    jid = start(run, work, "batch=1", *timeouts(2), tgt="f[34]")
    wait_for(work.begun, what="the job has begun")
    victim = next(iter(store.read(jid).flights))
    master.fleet[victim].terminate()
    try:
        wait_for(lambda: work.begun() == 2, what="the other one has its turn")
        assert store.read(jid).outcomes[victim][0].value in ("offline", "lost")
    finally:
        run("batch.stop", jid, "kill=True")
        master.fleet[victim].start()


# -- an operator ends the job by a signal ------------------------------------------------------------------------------


def publish(master, tgt, fun, *args):
    with salt.client.LocalClient(mopts=dict(master.config)) as client:
        assert client.run_job(tgt, fun, list(args), listen=False)


def test_a_minion_whose_job_an_operator_kills_while_it_is_silent_is_killed(engine, run, store, job, master):
    engine.start()
    work = job(300)
    jid = start(run, work, "batch=1", *timeouts(2), tgt="f[12]")
    wait_for(work.begun, what="the first one runs it")
    victim = wait_for(
        lambda: next((name for name, flight in store.read(jid).flights.items() if flight.seen), None),
        what="that is known",
    )
    frozen = freeze_daemon(master.fleet[victim])
    try:
        publish(master, victim, "saltutil.kill_job", jid)
        wait_for(lambda: work.begun() == 2, what="the other one has its turn")
        assert outcomes(store.read(jid)) == {victim: "killed"}
    finally:
        thaw(*frozen)
    assert store.read(jid).record.budget_used == 0
    run("batch.stop", jid, "kill=True")


# -- the master --------------------------------------------------------------------------------------------------------


def test_publishes_that_fail_are_made_good_without_running_anything_twice(engine, run, store, job, master):
    engine.start()
    work = job(1)
    jid = start(run, work, "batch=2", *timeouts(2))
    wait_for(work.begun, what="the first sub-batch runs")
    socket = os.path.join(master.config["sock_dir"], "publish_pull.ipc")
    os.rename(socket, socket + ".away")
    try:
        wait_for(lambda: store.read(jid).pace.publish_failures, what="a publish has failed")
    finally:
        os.rename(socket + ".away", socket)
    assert all_completed(ended(store, jid))
    assert work.begun() == len(MINIONS)


@pytest.fixture(scope="module")
def plain(salt_factories):
    """``salt-run`` of a master with Salt's default job cache, which refuses to publish one function."""
    options = {
        "master_job_cache": "local_cache",
        "job_retry": False,
        "engines": [{"batch_manager": {}}],
        "batch_manager": {"publish_retries": 1},
        "publisher_acl_blacklist": {"modules": ["test.refused"]},
    }
    with batch_master(salt_factories, "r1", "r2", **options) as daemon:
        yield lambda *args: salt_run(daemon, *args).data


def test_a_publish_that_stays_refused_pauses_the_batch_with_a_reason(plain):
    jid = plain("batch.start", "r1", "test.refused", "presence=none")["jid"]
    status = wait_for(lambda: (found := plain("batch.status", jid))["state"] == "paused" and found, what="it pauses")
    assert "Authorization" in status["paused_reason"]
    assert (status["pending"], status["publish_failures"]) == (1, 2)
    assert plain("batch.stop", jid) is True


def test_local_cache_shows_the_batch_s_own_target_too(plain):
    jid = plain("batch.start", "r*", "test.arg", "hello", "word=x", "batch=1")["jid"]
    assert plain("batch.wait", jid)["completed"] == 2
    job = plain("jobs.list_job", jid)
    assert (job["Target"], job["Target-type"], sorted(job["Minions"])) == ("r*", "glob", ["r1", "r2"])
    assert job["Arguments"] == ["hello", {"__kwarg__": True, "word": "x"}]
    assert {name: found["return"]["args"] for name, found in job["Result"].items()} == {
        "r1": ["hello"],
        "r2": ["hello"],
    }


# -- the disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(store):
    """The folder of the database on a file system of 2 MB."""
    if os.geteuid():
        missing("only root may mount a tmpfs")
    folder = pathlib.Path(store.folder.tables.place).parent
    folder.mkdir(parents=True, exist_ok=True)
    assert os.system(f"mount -t tmpfs -o size=2m tmpfs {folder}") == 0
    yield folder
    assert os.system(f"umount --lazy {folder}") == 0


@pytest.fixture
def absent(master):
    """Ids of minions that are accepted and not there: so many that their data fill a page."""
    keys = pathlib.Path(master.config["pki_dir"], "minions")
    key = (keys / MINIONS[0]).read_bytes()
    names = [f"e{number:03d}-absent" for number in range(120)]
    for name in names:
        (keys / name).write_bytes(key)
    yield names
    for name in names:
        (keys / name).unlink()


def test_a_full_disk_holds_a_batch_up_and_loses_nothing(small_disk, absent, engine, run, complaint, store, job):
    engine.start()
    work = job()
    # The absent ones come first: their outcomes are written down before anything else is published.
    target = ",".join([*absent, *MINIONS])
    jid = start(run, work, "batch=120", *timeouts(2), "tgt_type=list", tgt=target)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space left"):
        while True:
            stream.write(b"x" * 64)
    wait_for(lambda: "cannot be written down" in engine.output(), what="the engine has noticed")
    assert "cannot be written down" in complaint("batch.start", "f*", "test.ping")
    assert work.begun() == 0, "what is not recorded is not published"
    ballast.unlink()
    batch = ended(store, jid)
    assert {minion: outcomes(batch)[minion] for minion in MINIONS} == dict.fromkeys(MINIONS, "completed")
    assert {outcomes(batch)[minion] for minion in absent} == {"offline"}
    assert work.begun() == len(MINIONS)
    engine.kill()


def test_a_damaged_journal_is_set_aside_and_the_others_go_on(engine, run, store, job):
    engine.start()
    good, bad = job(3), job(3)
    healthy, broken = start(run, good, "batch=2", tgt="f[12]"), start(run, bad, "batch=2", tgt="f[34]")
    wait_for(lambda: good.begun() and bad.begun(), what="both run")
    engine.kill()
    name = journal_name(broken)
    store.folder.write(name, store.folder.read(name)[:30])
    engine.start()
    assert all_completed(ended(store, healthy))
    wait_for(lambda: store.folder.exists(f"{name}.corrupt"), what="the damaged journal is set aside")
    wait_for(lambda: f"Batch {broken} is set aside" in engine.output(), what="the log says so")
    store.folder.remove(f"{name}.corrupt")


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
    assert "Events may have been lost on the bus" in engine.output()


def publisher_of_events(master):
    """The process that hands on all that is fired on a master's bus."""
    children = psutil.Process(master.pid).children(recursive=True)
    return next(child for child in children if "EventPublisher" in " ".join(child.cmdline()))


def test_a_batch_comes_to_its_end_while_the_bus_stands_still(engine, run, store, job, master):
    engine.start()
    work = job(gated=True)
    jid = start(run, work, "batch=4", "timeout=600")  # so that nobody is overdue in this test
    wait_for(lambda: work.begun() == 4, what="all have begun")
    # Without a publisher at all no return would be stored: Salt fires its event first.
    publisher = publisher_of_events(master)
    freeze(publisher.pid)
    try:
        work.open_gate()
        assert all_completed(ended(store, jid))
    finally:
        thaw(publisher.pid)
    assert work.begun() == 4
    assert "looked for in the job cache" not in engine.output().partition("has ended")[0]


def forge(master, tag, data):
    with salt.utils.event.get_master_event(master.config, master.config["sock_dir"], listen=False) as bus:
        assert bus.fire_event(data, tag)


def test_forged_events_control_nothing(engine, run, store, job, master):
    engine.start()
    work = job(3)
    jid = start(run, work, "batch=1", "timeout=60")
    wait_for(work.begun, what="the first runs")
    forged = {
        "jid": jid,
        "driver": "cli",
        "halted": True,
        "fun": "cmd.run",
        "pending": ["f1"],
        "active": {},
        "done": {},
    }
    for kind in ("new", "progress", "stop", "halted", "complete", "recover"):
        forge(master, f"salt/batch/{jid}/{kind}", {"jid": jid, "state": forged, "reason": "stop"})
    waiting = store.read(jid).pending()[0]
    forge(
        master, f"salt/job/{jid}/ret/{waiting}", {"jid": jid, "id": "f1", "fun": "cmd.run", "return": "", "retcode": 0}
    )
    forge(master, f"salt/job/{jid}/ret/{waiting}", {"jid": "x", "id": waiting, "fun": "cmd.run", "return": ""})
    forge(master, "salt/batch/20260516101112131415/new", {"jid": "20260516101112131415", "state": {**forged}})
    batch = ended(store, jid)
    assert (batch.halted, all_completed(batch)) == (None, True)
    assert work.begun() == len(MINIONS)
    assert store.read("20260516101112131415") is None


def test_an_accepted_minion_that_forges_returns_of_others_frees_no_slot_and_makes_no_success(
    engine, run, store, job, master
):
    engine.start()
    work = job(retcode=7, gated=True)
    jid = start(run, work, "batch=1", "max_failures=0", "timeout=600")
    wait_for(lambda: work.begun() == 1, what="the first runs")
    forged = {"jid": jid, "fun": "cmd.run", "fun_args": [], "return": "", "retcode": 0, "success": True}
    events = [{"tag": f"salt/job/{jid}/ret/{name}", "data": {**forged, "id": name}} for name in MINIONS]
    send_as(master.fleet["f4"], "_minion_event", events=events)
    assert run("batch.status", jid)["active"] == 1  # the engine has taken what was on the bus before
    assert (work.begun(), outcomes(store.read(jid))) == (1, {})
    work.open_gate()
    batch = ended(store, jid)
    assert (batch.halted, batch.success) == ("max_failures", False)
    assert list(outcomes(batch).values()) == ["failed"]
    assert work.begun() == 1


def test_an_accepted_minion_that_answers_for_a_dead_one_does_not_make_it_present(engine, run, store, job, master):
    engine.start()
    work, asked = job(), set()
    dead, liar = "f1", master.fleet["f4"]

    def answer():
        """Answer every question on the bus, as a minion does that sees publishes."""
        data = {"id": dead, "fun": "test.ping", "return": True, "retcode": 0, "success": True}
        with salt.utils.event.get_master_event(master.config, master.config["sock_dir"], listen=True) as bus:
            while not done.is_set():
                event = bus.get_event(wait=0.2, full=True)
                if event and re.fullmatch("salt/job/[0-9]+/new", event["tag"]) and event["data"]["fun"] == "test.ping":
                    question = event["data"]["jid"]
                    asked.add(question)
                    forged = {"tag": f"salt/job/{question}/ret/{dead}", "data": {**data, "jid": question}}
                    send_as(liar, "_minion_event", events=[forged])

    done = threading.Event()
    frozen = freeze_daemon(master.fleet[dead])
    try:
        with ThreadPoolExecutor(1) as pool:
            lying = pool.submit(answer)
            try:
                jid = start(run, work, "presence=ping", "batch=2", *timeouts(2), tgt="f[12]")
                batch = ended(store, jid)
            finally:
                done.set()
            lying.result()
    finally:
        thaw(*frozen)
    assert asked
    assert outcomes(batch) == {"f1": "offline", "f2": "completed"}
    assert work.begun() == 1


@pytest.mark.skipif(not compat.HAS_NATIVE_BATCHES, reason="Salt 3008 is the first release that is shown a state file")
def test_the_contents_of_the_state_file_are_never_shown(engine, run, store, job):
    engine.start()
    jid = start(run, job(gated=True), "batch=4")
    assert store.native_path(jid).exists()
    store.write_native(jid, {"jid": jid, "driver": "cli", "fun": "test.forged", "pending": ["f1"]})
    assert run("batch.status", jid)["fun"] == "cmd.run"
    assert [batch["fun"] for batch in run("batch.list", "limit=1")] == ["cmd.run"]
    assert run("batch.stop", jid, "kill=True") is True


def test_one_of_two_stops_at_once_stops_the_batch(engine, run, command, complaint, store, job):
    engine.start()
    work = job(60)
    jid = start(run, work, "batch=2", *timeouts(2))
    wait_for(lambda: work.begun() == 2, what="two run")
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: command("batch.stop", jid, "kill=True").returncode, range(2)))
    assert sorted(answers) == [0, 1]
    batch = ended(store, jid)
    assert work.begun() == 2, "no replacement was started"
    assert sorted(outcomes(batch).values()) == ["killed", "killed"]
    assert len(batch.pending()) == 2
    assert work.lines().count("end") == 0
    before = store.read(jid).finished
    assert "there is nothing to stop" in complaint("batch.stop", jid)
    assert store.read(jid).finished == before


def test_a_frozen_engine_answers_nothing_and_the_request_is_withdrawn(engine, complaint):
    engine.start()
    engine.freeze()
    try:
        told = complaint("batch.start", "f*", "test.ping")
    finally:
        engine.thaw()
    assert "did not answer in time" in told
    assert "withdrawn" in told


def test_a_frozen_engine_is_reported_once_its_beat_is_missing(engine, run, complaint, look, store, job, master):
    engine.start()
    jid = start(run, job(gated=True), "batch=4")
    assert look("batch.status", jid)["engine_silent_seconds"] is None
    engine.freeze()
    try:
        lock = FileSite(master.config).lock_path(BATCH_MANAGER)
        then = time.time() - 80
        os.utime(lock, (then, then))  # as if it had been frozen for so long
        assert look("batch.status", jid)["engine_silent_seconds"] >= 80
        assert "has not answered for" in look("batch.doctor")["findings"][0]
        assert "it hangs or is stopped" in complaint("batch.start", "f*", "test.ping")
    finally:
        engine.thaw()
    wait_for(lambda: look("batch.status", jid)["engine_silent_seconds"] is None, what="it beats again")
    assert run("batch.stop", jid, "kill=True") is True
