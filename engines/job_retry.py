"""
Deliver a job to a minion that missed it, once, under the job's own jid, when the minion shows a sign of life.

.. code-block:: yaml

    master_job_cache: salt_cache
    job_retry: True
    engines:
      - job_retry: {}

``job_retry`` may be a mapping of options instead; ``docs/job_retry.md`` describes them. The ``job_retry`` runner shows
and controls the queue.

This file only wires: policy is in ``core/retry/machine.py``, input and output in ``core/retry/shell.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.boot import since_boot
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import process as engine
from saltext.jobs.core.engine.loop import Clock, Worker
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.engine.proof import Returns
from saltext.jobs.core.engine.requests import Service
from saltext.jobs.core.ledger.log import Reader
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.master.publisher import Publisher
from saltext.jobs.core.master.questions import Questions
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry.doctor import doubts_about, settings_of
from saltext.jobs.core.retry.effects import Ports
from saltext.jobs.core.retry.reader import JobReader
from saltext.jobs.core.retry.shell import RetryShell
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

__virtualname__ = JOB_RETRY

# Salt's loader brings these.
__opts__: Mapping[str, Any]


def __virtual__() -> str:
    return __virtualname__


def start(**options: Any) -> None:
    """
    Run until the master stops. Called by Salt.

    :param options: engine options; those under ``job_retry:`` in the master's configuration are read first.
    """
    switch = __opts__.get(JOB_RETRY, False)
    if switch is False or switch is None:
        log.info("The %s engine is off: %s is not set to True in the master's configuration", JOB_RETRY, JOB_RETRY)
        engine.wait_for_the_end()
        return
    engine.run(
        __opts__,
        JOB_RETRY,
        lambda: _settings(switch, options),
        lambda settings, loop, lease: RetryShell(__opts__, settings, _ports(loop, lease)),
    )


def _ports(loop: Any, lease: Lease) -> Ports:
    bus, publisher = Bus(__opts__, loop, JOB_RETRY), Publisher(__opts__, loop, JOB_RETRY, lease)
    return ports_of(__opts__, loop, lease, JobCache(__opts__), bus, publisher)


def ports_of(
    opts: Mapping[str, Any],
    loop: Any,
    lease: Lease | None,
    cache: JobCache,
    bus: Bus,
    publisher: Publisher,
    **others: Any,
) -> Ports:
    """Return ports with real threads. ``others``: clock and acks, if they are not those of this machine and release."""
    site = site_of(opts)
    returns, store = Returns(site, cache), RetryStore(site, lease)
    return Ports(
        loop=loop,
        bus=bus,
        publisher=publisher,
        questions=Questions(loop, publisher),
        cache=cache,
        returns=returns,
        reader=JobReader(opts, returns, store.done),
        store=store,
        cache_worker=Worker(loop),
        disk_worker=Worker(loop),
        service=Service(opts, JOB_RETRY, loop, lease),
        log=lambda position: Reader(site, position),
        **{"clock": Clock(steady=since_boot), **others},
    )


def _settings(switch: Any, options: Mapping[str, Any]) -> RetrySettings:
    settings = settings_of(__opts__, switch, options)
    for doubt in doubts_about(__opts__, settings):
        log.warning("%s: %s", JOB_RETRY, doubt)
    return settings
