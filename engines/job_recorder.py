"""
Record the loads and returns that the job cache ``salt_cache`` has, into one or more returners.

.. code-block:: yaml

    engines:
      - job_recorder: {}

    job_recorder:
      returners:
        - pgjsonb
        - rawfile_json: {ret_config: audit}

Its options are under ``job_recorder:`` in the master's configuration; ``docs/job_recorder.md`` describes them. The
``job_recorder`` runner shows what it does.

This file only wires: policy is in ``core/recorder/pipeline.py``, input and output in ``core/recorder/consumer.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.engine import process as engine
from saltext.jobs.core.engine.alarm import Clock
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.engine.requests import Inbox
from saltext.jobs.core.engine.worker import Worker
from saltext.jobs.core.master.bus import Bus
from saltext.jobs.core.options import read_settings
from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.recorder.consumer import Consumer
from saltext.jobs.core.recorder.returner import ReturnerModule
from saltext.jobs.core.recorder.shell import Ports, RecorderShell
from saltext.jobs.core.recorder.source import Source
from saltext.jobs.core.recorder.usable import check
from saltext.jobs.core.site import site_of

log = lines.logger(__name__)

__virtualname__ = JOB_RECORDER

# Salt's loader brings these.
__opts__: Mapping[str, Any]


def __virtual__() -> str:
    return __virtualname__


def start(**options: Any) -> None:
    """
    Run until the master stops. Called by Salt.

    :param options: engine options; those under ``job_recorder:`` in the master's configuration are read first.
    """
    engine.run(__opts__, JOB_RECORDER, lambda: _settings(options), _wired)


def _settings(options: Mapping[str, Any]) -> RecorderSettings:
    settings = read_settings(RecorderSettings, JOB_RECORDER, __opts__.get(JOB_RECORDER), options)
    check(__opts__, settings)
    return settings


def _wired(settings: RecorderSettings, loop: Any, lease: Lease) -> RecorderShell:
    opts, clock, tables = __opts__, Clock(), site_of(__opts__).tables
    consumers = [
        Consumer(
            loop,
            clock,
            choice.label,
            ReturnerModule(opts, choice.returner, choice.ret_config),
            Source(opts, settings),
            tables,
            lease,
            settings.catch_up,
        )
        for choice in settings.returners
    ]
    bus, inbox = Bus(opts, loop, JOB_RECORDER), Inbox(opts, JOB_RECORDER, lease)
    return RecorderShell(Ports(loop, clock, bus, inbox, Worker(loop), tables, lease, consumers), settings)
