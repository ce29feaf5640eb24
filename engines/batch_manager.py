"""
Drive asynchronous batches: sub-publishes, their limit, what became of each minion, and the index of active batches.

.. code-block:: yaml

    engines:
      - batch_manager: {}

Its options, all of which have defaults, stand under ``batch_manager:`` in the master's configuration; they are described
in ``docs/batch.md``. Batches are started and watched with the ``batch`` runner.

This file only wires: policy is in ``core/batch/machine.py``, input and output in ``core/batch/shell.py``.
"""

import logging

from saltext.jobs.core.batch.shell import Manager
from saltext.jobs.core.batch.store import ENGINE
from saltext.jobs.core.engine import process as engine
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.settings import BatchSettings, read_settings

log = logging.getLogger(__name__)

__virtualname__ = "batch_manager"


def __virtual__():
    return __virtualname__


def start(**options):
    """
    Run until the master stops. Called by Salt.

    :param options: engine options; those under ``batch_manager:`` in the master's configuration are read first.
    """
    try:
        settings = read_settings(BatchSettings, ENGINE, __opts__.get(ENGINE), options)
    except SettingsError as exc:
        log.critical("The batch_manager engine does not start: %s", exc)
        engine.wait_for_the_end()
        return
    engine.run(__opts__, ENGINE, lambda loop: Manager(__opts__, settings, loop))
