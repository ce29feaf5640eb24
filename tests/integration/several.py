"""What tests of several masters do: who leads, minions that all of them reach, a batch that traces what has begun."""

from __future__ import annotations

import contextlib
import pathlib
import shutil

import psutil

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from tests.integration.conftest import make_minion
from tests.integration.job_retry.desk import kill, lines
from tests.waiting import stretched, wait_for

ENGINES = (BATCH_MANAGER, JOB_RETRY)


def leader(master, engine=BATCH_MANAGER):
    process = requests.process_of(master.config, engine)
    return process.master if process is not None else None


def await_leader(seen_by, master):
    for engine in ENGINES:
        wait_for(lambda e=engine: leader(seen_by, e) == master.config["id"], what=f"{master.id} leads {engine}")


def engine_of(master, name):
    """The process of the engine that leads."""
    process = requests.process_of(master.config, name)
    assert process.master == master.config["id"]
    return psutil.Process(process.pid)


def share_keys(first, second):
    """Have a master that was not started yet use the keys of another one."""
    shutil.rmtree(second.config["pki_dir"])
    pki = pathlib.Path(second.config["pki_dir"])
    pki.symlink_to(first.config["pki_dir"])
    for key in pki.glob(f"{first.config['id']}.p*"):  # from Salt 3008 on a master's key has its id for a name
        shutil.copy(key, pki / f"{second.config['id']}{key.suffix}")


@contextlib.contextmanager
def there(names, master, /, *desks, **options):
    """Minions made by a master, which all masters of the desks can reach."""
    daemons = {name: make_minion(master, name, **options) for name in names}
    try:
        for name, daemon in daemons.items():
            daemon.start()
            for desk in desks:
                wait_for(lambda desk=desk, name=name: desk.ask(name, "test.ping"), what=f"{name} hears the masters")
        yield daemons
    finally:
        for daemon in daemons.values():
            kill(daemon) if daemon.is_running() else daemon.terminate()


def start(desk, trace, whom, seconds=2):
    command = f"echo $(hostname) >> {trace}; sleep {seconds}"
    return desk.run("batch.start", whom, "cmd.run", command, batch=1, tgt_type="list", presence="none")["jid"]


def has_begun(trace, many):
    wait_for(lambda: lines(trace) >= many, what=f"{many} minions have begun")


def ended(master, jid):
    store = BatchStore(master.config)
    batch = wait_for(lambda: (found := store.read(jid)) and found.finished and found, what="the batch has ended")
    return {minion: outcome.value for minion, (outcome, *_) in batch.outcomes.items()}


def hand_over_and_back(masters, desks, minions, folder):
    """
    Have the leading master hand over while a batch runs and a job is owed, and the other one hand back; nothing runs twice.
    """
    *whom, away = minions
    daemon = minions[away]
    kill(daemon)
    owed = desks[0].publish("cmd.run", f"echo x >> {folder / 'owed'}", tgt=away)
    desks[1].await_state(away, owed, "pending")
    one, two = (master.config["id"] for master in masters)
    for engine in ENGINES:
        wait_for(lambda e=engine: standing_by(desks[0], e) == [two], what=f"{two} stands by")
    trace = folder / "trace"
    jid = start(desks[1], trace, whom, 10)
    has_begun(trace, 1)
    assert desks[0].run("batch.status", jid)["engine_master"] == one
    for desk, giving, taking in ((desks[1], one, two), (desks[0], two, one)):
        if giving == two:
            for engine in ENGINES:
                wait_for(lambda e=engine: standing_by(desks[0], e) == [one], what=f"{one} stands by")
        done = desk.run("batch.hand_over", giving)
        assert {engine: told["to"] for engine, told in done.items()} == dict.fromkeys(reversed(ENGINES), taking)
        print({engine: told["seconds"] for engine, told in done.items()})  # shown by pytest -s
        assert all(told["seconds"] < stretched(2.5) for told in done.values())
        assert [leader(master) for master in masters] == [taking, taking]
    assert ended(masters[0], jid) == dict.fromkeys(whom, "completed")
    assert lines(trace) == len(whom)
    daemon.start()
    desks[0].await_return(away, owed)
    wait_for(lambda: not desks[1].queue(), what="the queue is empty")
    assert lines(folder / "owed") == 1
    told = desks[1].run("batch.masters")["engines"]
    assert {engine: (told[engine]["takeovers"], told[engine]["hand_overs"]) for engine in ENGINES} == dict.fromkeys(
        ENGINES, (0, 2)
    )


def standing_by(desk, engine):
    masters = desk.run("batch.masters")["engines"].get(engine, {"masters": {}})["masters"]
    return [name for name, told in masters.items() if told["state"] == "stands by"]
