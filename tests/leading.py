"""An engine's process that leads, as the runners and other engines see it."""

from __future__ import annotations

import contextlib
import os

from saltext.jobs.core.disk import files
from saltext.jobs.core.site import site_of


@contextlib.contextmanager
def leading(opts, engine, run="1-1.00"):
    """Have this process lead an engine while the block runs; yields the lease."""
    lease = site_of(opts).lease(engine, run)
    assert lease.take()
    try:
        yield lease
    finally:
        lease.release()


def lock_of(opts, engine):
    """The file that the leader of an engine has locked."""
    return site_of(opts).folder(engine) / "lock"


@contextlib.contextmanager
def single_holder(path):
    """Hold a lock file while the block runs; yields whether it was free."""
    handle = files.open_lock(path)
    try:
        yield files.hold(handle)
    finally:
        os.close(handle)
