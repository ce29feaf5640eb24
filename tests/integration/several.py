"""Shared by tests of several masters: who leads, minions that all of them reach, a batch that traces what has begun."""

from __future__ import annotations

import contextlib
import pathlib
import shutil

import psutil
import pytest
import salt.version

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from tests.functional.cache_servers import free_port
from tests.integration.conftest import make_minion
from tests.integration.job_retry.desk import kill, lines, make_retry_master
from tests.waiting import wait_for

ENGINES = (BATCH_MANAGER, JOB_RETRY)
ADDRESSES = ("127.0.0.1", "127.0.0.2")
in_a_cluster = pytest.mark.skipif(salt.version.__saltstack_version__.major < 3007, reason="clusters came in Salt 3007")


def leader(master, engine=BATCH_MANAGER):
    process = requests.process_of(master.config, engine)
    return process.master if process is not None else None


def leads(master, engine=BATCH_MANAGER, pid=None):
    """Whether an engine of this master leads; with ``pid``, whether it is that process."""
    process = requests.process_of(master.config, engine)
    return process is not None and process.master == master.config["id"] and pid in (None, process.pid)


def await_leader(seen_by, master):
    for engine in ENGINES:
        wait_for(lambda e=engine: leader(seen_by, e) == master.config["id"], what=f"{master.id} leads {engine}")


def engine_of(master, name):
    """The process of the engine that leads."""
    process = requests.process_of(master.config, name)
    assert process.master == master.config["id"]
    return psutil.Process(process.pid)


def share_keys(first, second):
    """Give a master that is still to be started the keys of another one."""
    shutil.rmtree(second.config["pki_dir"])
    pki = pathlib.Path(second.config["pki_dir"])
    pki.symlink_to(first.config["pki_dir"])
    for key in pki.glob(f"{first.config['id']}.p*"):  # from Salt 3008 on a master's key has its id for a name
        shutil.copy(key, pki / f"{second.config['id']}{key.suffix}")


def share_disk(first, second):
    """Give a master that is still to be started the cachedir of another one."""
    cachedir = pathlib.Path(second.config["cachedir"])
    shutil.rmtree(cachedir, ignore_errors=True)
    cachedir.symlink_to(first.config["cachedir"])


@contextlib.contextmanager
def hot_hot(factories, name, site, first=None, **options):
    """
    Two masters with one key and one site; if they run engines, those of the first one lead.

    :param site: the options of the site. ``first``: options of the first master alone.
    """
    names = [f"{name}-{number}" for number, _ in enumerate(ADDRESSES, 1)]
    with _started(factories, names, share_keys, [first or {}, {}], {**options, **site}) as made:
        yield made


@contextlib.contextmanager
def cluster(factories, folder, site, first=None, **options):
    """The same, of a Salt cluster, which shares its cachedir. ``folder`` gets its keys."""
    (folder / "keys").mkdir()
    common = {"cluster_id": "both", "cluster_pki_dir": str(folder / "keys"), "cluster_pool_port": free_port()}
    own = [{"cluster_peers": [other for other in ADDRESSES if other != address]} for address in ADDRESSES]
    own[0] |= first or {}
    with _started(factories, ADDRESSES, share_disk, own, {**options, **common, **site}) as made:
        yield made


@contextlib.contextmanager
def _started(factories, names, share, own, common):
    made, run_engines = [], bool(common["engines"])  # the factory adds one of its own to the list
    with contextlib.ExitStack() as stack:
        for name, address, options in zip(names, ADDRESSES, own, strict=True):
            daemon = make_retry_master(factories, name, interface=address, **common, **options)
            if made:
                share(made[0], daemon)
            stack.callback(lambda daemon=daemon: kill(daemon) if daemon.is_running() else daemon.terminate())
            daemon.start()
            made.append(daemon)
            if run_engines:
                await_leader(daemon, made[0])
            common |= {name: daemon.config[name] for name in ("ret_port", "publish_port")}
        yield made


@contextlib.contextmanager
def there(names, master, /, *desks, **options):
    """Start minions of a master, and wait until the masters of all desks reach them."""
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


def start(desk, trace, tgt, seconds=2):
    command = f"echo $(hostname) >> {trace}; sleep {seconds}"
    return desk.run("batch.start", tgt, "cmd.run", command, batch=1, tgt_type="list", presence="none")["jid"]


def has_begun(trace, many):
    wait_for(lambda: lines(trace) >= many, what=f"{many} minions have begun")


def ended(master, jid):
    store = BatchStore(master.config)
    batch = wait_for(lambda: (found := store.read(jid)) and found.finished and found, what="the batch has ended")
    return {minion: outcome.value for minion, outcome in batch.outcomes.items()}


def takes_over(masters, desks, minions, away, folder):
    """
    Kill the leader of two masters in the middle of a batch, while jobs of both are owed to a minion. The other one goes on,
    and nothing runs twice.

    :param away: the minion that gets its jobs when it is back.
    """
    (one, two), here = masters, [name for name in minions if name != away]
    assert desks[1].run("batch.doctor")["returns_proven"] is True
    kill(minions[away])
    owed = [desk.publish("cmd.run", f"echo x >> {folder / str(n)}", tgt=away) for n, desk in enumerate(desks)]
    for jid in owed:
        desks[1].await_state(away, jid, "pending")
    trace = folder / "trace"
    jid = start(desks[1], trace, here)
    has_begun(trace, 1)
    assert desks[1].run("batch.status", jid)["state"] == "running"
    late = desks[0].publish("cmd.run", f"echo x >> {folder / 'late'}", tgt=away)
    kill(one)
    await_leader(two, two)
    assert ended(two, jid) == dict.fromkeys(here, "completed")
    assert lines(trace) == len(here)
    assert desks[1].run("batch.doctor")["returns_proven"] is True
    minions[away].get_check_events = list  # it would wait for those on the bus of the dead one
    minions[away].start()
    for each in (*owed, late):
        desks[1].await_return(away, each)
    wait_for(lambda: not desks[1].queue(), what="the queue is empty")
    assert [lines(folder / name) for name in ("0", "1", "late")] == [1, 1, 1]


def standing_by(desk, engine):
    masters = desk.run("batch.masters")["engines"].get(engine, {"masters": {}})["masters"]
    return [name for name, told in masters.items() if told["state"] == "stands by"]
