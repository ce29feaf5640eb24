"""
Drive asynchronous batches: publish them in sub-batches, keep their limits, and find the outcome of each minion.

.. code-block:: yaml

    engines:
      - batch_manager: {}

Its options are under ``batch_manager:`` in the master's configuration; all have defaults. ``docs/batch.md`` describes
them. Batches are started and watched with the ``batch`` runner.

This file only wires the parts: policy is in ``core/batch/machine.py``, input and output in ``core/batch/shell.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import salt.utils.job

from saltext.jobs.core import lines
from saltext.jobs.core.batch.effects import call_runner
from saltext.jobs.core.batch.live import Ports
from saltext.jobs.core.batch.minion_data import may_have_started
from saltext.jobs.core.batch.permission import Permission
from saltext.jobs.core.batch.shell import BatchShell
from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import process as engine
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.feeder import Feeder, why_unproven
from saltext.jobs.core.engine.loop import Clock, Worker
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY
from saltext.jobs.core.engine.proof import Returns, is_fed
from saltext.jobs.core.ledger.log import Reader, Writer
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.options import read_settings
from saltext.jobs.core.options.engines import BatchSettings
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

__virtualname__ = BATCH_MANAGER

# Salt's loader brings these.
__opts__: Mapping[str, Any]


def __virtual__() -> str:
    return __virtualname__


def start(**options: Any) -> None:
    """
    Run until the master stops. Called by Salt.

    :param options: engine options; those under ``batch_manager:`` in the master's configuration are read first.
    """
    engine.run(
        __opts__,
        BATCH_MANAGER,
        lambda: read_settings(BatchSettings, BATCH_MANAGER, __opts__.get(BATCH_MANAGER), options),
        lambda settings, loop, lease: BatchShell(_ports(loop, lease, dict(__opts__), settings), settings),
    )


def _ports(loop: Any, lease: Lease, opts: Mapping[str, Any], settings: BatchSettings) -> Ports:
    publisher = Publisher(opts, loop, BATCH_MANAGER, lease)
    bus, cache, worker, site = Bus(opts, loop, BATCH_MANAGER), JobCache(opts), Worker(loop), site_of(opts)
    fed, unproven = is_fed(opts), why_unproven(opts)
    forget = functools.partial(worker.call, cache.forget) if fed and not unproven else None
    questions = Questions(loop, publisher, kept=not (fed and unproven), forget=forget)

    def log_for(functions_of: Callable[[str, str], str | None], wake: Callable[[], object]) -> Reader:
        if fed:
            Feeder(loop, bus, cache, worker, Writer(site), functions_of, wake, questions.wants, unproven)
        return Reader(site)

    return Ports(
        loop=loop,
        clock=Clock(),
        bus=bus,
        publisher=publisher,
        questions=questions,
        cache=cache,
        returns=Returns(site, cache, fed),
        log=log_for,
        store=BatchStore(opts, lease),
        service=requests.Service(opts, BATCH_MANAGER, loop, lease),
        cache_worker=worker,
        disk_worker=Worker(loop),
        runner=functools.partial(call_runner, opts, loop),
        can_queue=lambda: requests.is_running(opts, JOB_RETRY),
        permission=Permission(opts, settings),
        rights_worker=Worker(loop),
        master_age=engine.master_age,
        restarted=lambda since: may_have_started(opts, since),
        keep=float(salt.utils.job.get_keep_jobs_seconds(opts) or 0),
        is_takeover=lease.is_takeover,
    )
