"""
Record job loads and returns, as they appear on the master event bus, into one or more returners.

.. code-block:: yaml

    engines:
      - job_recorder: {}

    job_recorder:
      returners:
        - pgjsonb
        - rawfile_json: {ret_config: audit}

Its options stand under ``job_recorder:`` in the master's configuration and are described in ``docs/job_recorder.md``. What
it does is shown by the ``job_recorder`` runner.

This file only wires: policy is in ``core/recorder/lane.py``, input and output in ``core/recorder/shell.py``.
"""

import logging

from saltext.jobs.core.engine import process as engine
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.recorder.shell import ENGINE, Recorder, check
from saltext.jobs.core.settings import RecorderSettings, read_settings

log = logging.getLogger(__name__)

__virtualname__ = "job_recorder"


def __virtual__():
    return __virtualname__


def start(**options):
    """
    Run until the master stops. Called by Salt.

    :param options: engine options; those under ``job_recorder:`` in the master's configuration are read first.
    """
    try:
        settings = read_settings(RecorderSettings, ENGINE, __opts__.get(ENGINE), options)
        check(__opts__, settings)
    except SettingsError as exc:
        log.critical("The job_recorder engine does not start: %s", exc)
        engine.wait_for_the_end()
        return
    engine.run(__opts__, ENGINE, lambda loop: Recorder(__opts__, settings, loop))
