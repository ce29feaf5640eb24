"""A real master with this extension, and real minions."""

from __future__ import annotations

import contextlib

import pytest
from saltfactories.utils import random_string

MASTER = {
    "master_job_cache": "salt_cache",
    "job_retry": True,
    "worker_threads": 3,
    "open_mode": True,
    "timeout": 5,
    "gather_job_timeout": 5,
    "engines": [{"job_retry": {}}, {"batch_manager": {}}],
}


def make_master(factories, name=None, **overrides):
    """A master daemon, not started, with the configuration of the README and ``overrides`` on top."""
    return factories.salt_master_daemon(
        name or random_string("m-", uppercase=False),
        defaults={"open_mode": True},
        overrides={**MASTER, **overrides},
        extra_cli_arguments_after_first_start_failure=["--log-level=info"],
    )


@contextlib.contextmanager
def minions(master, *names, **overrides):
    """Real minions of ``master``, started one by one and stopped at the end."""
    with contextlib.ExitStack() as stack:
        daemons = []
        for name in names:
            daemon = master.salt_minion_daemon(name, overrides=overrides, defaults={"log_level": "info"})
            daemon.slow_stop = False
            daemons.append(stack.enter_context(daemon.started()))
        yield daemons


@pytest.fixture(scope="module")
def salt_master(salt_factories):
    daemon = make_master(salt_factories)
    daemon.slow_stop = False
    with daemon.started():
        yield daemon
