"""A real master with this extension, real minions, and the commands of its operator."""

from __future__ import annotations

import contextlib
import functools
import pathlib

import pytest
import salt.loader
from saltfactories.utils import random_string

from tests.functional.cache_servers import free_port
from tests.integration import warm
from tests.salt_modules import all_but
from tests.waiting import lasting, stretched, wait_for

MASTER = {
    "master_job_cache": "salt_cache",
    "job_retry": True,
    "worker_threads": 3,
    "grains_cache": True,  # otherwise each command determines the machine's anew
    "open_mode": True,
    "timeout": 5,
    "gather_job_timeout": 5,
    "engines": [{"job_retry": {}}, {"batch_manager": {}}],
}
# The modules that tests and Salt itself call. The minions of tests/integration/test_sessions.py and of the demo have all.
_MODULES = (
    *("beacons", "cmdmod", "config", "cp", "event", "file", "grains", "http", "match", "mine", "minion", "pillar"),
    *("publish", "saltutil", "schedule", "service", "slsutil", "state", "status", "sysmod", "test"),
)
_FEW_MODULES = {"disable_modules": all_but(*_MODULES)}
#: Seconds that a command may take.
COMMAND = 90
#: Salt's options for how many seconds to wait for an answer, which takes longer on a busy machine.
_TIMEOUTS = ("timeout", "gather_job_timeout", "auth_timeout", "request_channel_timeout")


#: The logs of all daemons so far, by name.
_logs: dict[str, pathlib.Path] = {}
#: How many lines of each are shown.
_SHOWN = 40


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    warm.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Show what each daemon has warned of, if a test fails during which it has written into its log."""
    report = yield
    if report.failed:
        for name, path in _logs.items():
            if path.exists() and path.stat().st_mtime >= call.start:
                lines = path.read_text(errors="replace").splitlines()
                warned = [line for line in lines if "[INFO" not in line and "[DEBUG" not in line]
                report.sections += [(f"log of {name}", "\n".join(warned[-_SHOWN:]))] if warned else []
    return report


def log_of(daemon):
    """What a daemon has logged so far."""
    return pathlib.Path(daemon.config["log_file"]).read_text(encoding="utf-8", errors="replace")


def _patient(options):
    return {name: lasting(value) if name in _TIMEOUTS else value for name, value in options.items()}


#: Options by which a daemon logs no debugging, which takes a tenth of the tests' CPU time, and logs into its file only. Else
#: each of its processes, also that of a job, loads Salt's other handlers and connects to pytest, which takes a seventh.
_QUIET = {"log_level_logfile": "info", "configure_ext_handlers": False}


def make_master(factories, name=None, kind=warm.Master, **overrides):
    """A master daemon, not started, with the configuration of the README and ``overrides`` on top."""
    # Those that the factories choose may be taken before the master starts.
    ports = {"publish_port": free_port(), "ret_port": free_port()}
    daemon = factories.salt_master_daemon(
        name or random_string("m-", uppercase=False),
        factory_class=kind,
        defaults={"open_mode": True},
        overrides=_patient({**MASTER, **_QUIET, **ports, **overrides}),
        extra_cli_arguments_after_first_start_failure=["--log-level=info"],
    )
    return _known(daemon)


def _known(daemon):
    _logs[daemon.id] = pathlib.Path(daemon.config["log_file"])
    return daemon


def make_minion(master, name, /, kind=warm.Minion, **overrides):
    """A minion daemon of ``master``, not started."""
    options = {**_QUIET, **_FEW_MODULES, **overrides}
    return _known(
        master.salt_minion_daemon(name, factory_class=kind, overrides=_patient(options), defaults={"log_level": "info"})
    )


@contextlib.contextmanager
def minions(master, *names, **overrides):
    """Real minions of ``master``, started one by one and stopped at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(make_minion(master, name, **overrides).started()) for name in names]


def salt_cli(master, target, *args, **options):
    """Run ``salt`` as an operator does; the result of the command."""
    return warm.run(master.salt_cli(timeout=stretched(COMMAND)), *args, minion_tgt=target, **options)


def salt_run(master, *args, **options):
    """Run ``salt-run`` as an operator does; the result of the command."""
    return warm.run(master.salt_run_cli(timeout=stretched(COMMAND)), *args, **options)


def ask_runner(master, *args):
    """Run ``salt-run``, which must succeed; what the runner returned."""
    done = salt_run(master, *args)
    assert done.returncode == 0, done
    return done.data


@pytest.fixture
def command(master):
    """``salt-run``: the result of the command."""
    return lambda *args, **options: salt_run(master, *args, **options)


@pytest.fixture
def run(master):
    """``salt-run``: what it returned; the command must have succeeded."""
    return lambda *args: ask_runner(master, *args)


def look_at(master, function, *args, **options):
    """
    Call a runner's function in this process. Use it for polling: ``salt-run`` takes twenty times as much CPU time. The
    loader is made anew, because those of two masters share their modules.
    """
    return salt.loader.runner(dict(master.config))[function](*args, **options)


def returned_to(master, jid):
    """What the minions have returned, read from the job cache: ``jobs.lookup_jid`` makes two minions for each look."""
    records = salt.loader.returners(dict(master.config), {})[f"{master.config['master_job_cache']}.get_jid"](jid)
    return {minion: record["return"] for minion, record in records.items()}


def finished(look, jid, **patience):
    """Return the summary of a batch once it has ended."""
    return wait_for(
        lambda: (found := look("batch.status", jid))["finished"] and found,
        **patience,
        what=lambda: f"{jid} has ended: {look('batch.status', jid)}",
    )


@pytest.fixture
def look(master):
    """As ``run``, in this process."""
    return functools.partial(look_at, master)


@pytest.fixture
def returned(master):
    """What the minions have returned of a job, in this process; for polling."""
    return functools.partial(returned_to, master)


@pytest.fixture
def complaint(command):
    """``salt-run``: what it says when it fails, as it must."""

    def fail(*args):
        done = command(*args)
        assert done.returncode != 0, done
        return done.stdout + done.stderr

    return fail
