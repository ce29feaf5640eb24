"""
See whether notices of the job_notices engine arrive.

.. code-block:: bash

    salt-run job_notices.test
    salt-run job_notices.stats

.. versionadded:: 0.3.0
"""

from saltext.jobs.core import runner
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import JOB_NOTICES
from saltext.jobs.core.master import caller

__virtualname__ = JOB_NOTICES


def __virtual__():
    return __virtualname__


@runner.verb
def stats():
    """
    Return for each target, ``webhook`` or a returner, how many notices were sent since the engine started, how many wait,
    how many tries failed, how many were dropped, and what is wrong now (``trouble``, or None). Refused when no engine runs.

    CLI Example:

    .. code-block:: bash

        salt-run job_notices.stats
    """
    return _ask("stats")


@runner.verb
def test():
    """
    Send a notice of the kind ``test`` to all targets, and return their names. ``stats`` tells whether it has arrived.
    A target for which a test waits already gets no second one.

    CLI Example:

    .. code-block:: bash

        salt-run job_notices.test
    """
    caller.require_no_peer(caller.caller(__opts__, globals().get("__user__")))
    return _ask("test")


def _ask(verb):
    return requests.ask(__opts__, JOB_NOTICES, {"do": verb})
