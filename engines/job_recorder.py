"""
Record job loads and returns, as they appear on the master event bus, into one or more returners.

.. code-block:: yaml

    engines:
      - job_recorder: {}

    job_recorder:
      returners:
        - pgjsonb
        - rawfile_json: {ret_config: audit}

Its options are under ``job_recorder:`` in the master's configuration; ``docs/job_recorder.md`` describes them. The
``job_recorder`` runner shows what it does.

This file only wires: policy is in ``core/recorder/pipeline.py``, input and output in ``core/recorder/shell.py``.
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
from saltext.jobs.core.master.job_cache import EXACT
from saltext.jobs.core.recorder.catch_up import CatchUp
from saltext.jobs.core.recorder.consumer import Consumer
from saltext.jobs.core.recorder.files import Seen
from saltext.jobs.core.recorder.intake import Intake
from saltext.jobs.core.recorder.returner import ReturnerModule
from saltext.jobs.core.recorder.shell import Ports, RecorderShell
from saltext.jobs.core.recorder.spool import Spool
from saltext.jobs.core.recorder.usable import check
from saltext.jobs.core.settings import RecorderSettings, read_settings
from saltext.jobs.core.site import FileSite

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
    opts = __opts__
    clock, disk = Clock(), Worker(loop)
    folder = FileSite(opts).path(JOB_RECORDER)
    spool = Spool(folder / "spool", settings.spool_max_bytes)
    seen = Seen(folder / "seen", settings.catch_up)
    job_cache = opts.get("ext_job_cache") or opts.get("master_job_cache", "local_cache")
    intake = Intake(settings, clock, spool, seen, ReturnerModule(opts, job_cache), disk)
    # Only one thread may use a loaded returner: the look-back has its own.
    past = ReturnerModule(opts, job_cache)
    catch_up = CatchUp(loop, intake, seen, disk, past, job_cache in EXACT, settings.catch_up)
    consumers = [
        Consumer(
            loop,
            clock,
            choice.label,
            ReturnerModule(opts, choice.returner, choice.ret_config),
            spool,
            folder / "returners" / choice.label,
            settings.spool_max_bytes,
        )
        for choice in settings.returners
    ]
    bus, inbox = Bus(opts, loop, JOB_RECORDER), Inbox(opts, JOB_RECORDER, lease)
    ports = Ports(loop, clock, bus, inbox, disk, spool, seen, intake, catch_up, consumers)
    return RecorderShell(ports, settings)
