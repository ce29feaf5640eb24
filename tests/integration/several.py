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
from tests.waiting import wait_for

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


def start(desk, trace, whom):
    command = f"echo $(hostname) >> {trace}; sleep 2"
    return desk.run("batch.start", whom, "cmd.run", command, batch=1, tgt_type="list", presence="none")["jid"]


def has_begun(trace, many):
    wait_for(lambda: lines(trace) >= many, what=f"{many} minions have begun")


def ended(master, jid):
    store = BatchStore(master.config)
    batch = wait_for(lambda: (found := store.read(jid)) and found.finished and found, what="the batch has ended")
    return {minion: outcome.value for minion, (outcome, *_) in batch.outcomes.items()}
