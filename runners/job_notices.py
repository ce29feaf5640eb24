"""
See whether notices of the job_notices engine arrive, and if not, why.

.. code-block:: bash

    salt-run job_notices.test
    salt-run job_notices.stats
    salt-run job_notices.doctor
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

# Every salt-run imports this file. What a call needs beyond these, it imports itself.
from saltext.jobs.core import runner
from saltext.jobs.core.engine.names import JOB_NOTICES

if TYPE_CHECKING:
    from saltext.jobs.core.options.engines import ReturnerChoice

__virtualname__ = JOB_NOTICES

# Salt's loader brings these.
__opts__: Mapping[str, Any]


def __virtual__() -> str:
    return __virtualname__


@runner.verb
def stats() -> Any:
    """
    Return for each target (``webhook`` or a returner): how many notices were sent since the engine started, how many wait,
    how many were dropped, how many tries failed, when a notice arrived last (``delivered``, Unix time, or None), and what is
    wrong now (``trouble``, or None). Refused if no engine runs.

    CLI Example:

    .. code-block:: bash

        salt-run job_notices.stats
    """
    return _ask("stats")


@runner.verb
def test() -> Any:
    """
    Send a notice of the kind ``test`` to all targets, and return their names. ``stats`` tells whether it has arrived. A
    target gets no second test while one still waits.

    CLI Example:

    .. code-block:: bash

        salt-run job_notices.test
    """
    _require_no_peer()
    return _ask("test")


@runner.verb
def doctor() -> dict[str, Any]:
    """
    Return what an operator should know before relying on notices.

    The exit status of ``salt-run`` is 1 if something does not work, or soon will not; it is 0 if all findings are advice.

    :return: a dict with engine (whether it runs), process (its number, user and machine), targets (names of those that are
        notified), waiting (``{target: notices that have not arrived}``), delivered (``{target: when it last got one}``, Unix
        time or None), findings (a sentence for each thing that you may want to change), and retcode (the exit status).

    CLI Example:

    .. code-block:: bash

        salt-run job_notices.doctor
    """
    from saltext.jobs.core.notices import doctor as examination

    _require_no_peer()
    return examination.examine(__opts__, _missing)


def _missing(choice: ReturnerChoice) -> str:
    """Return why a returner cannot be loaded; empty where it can."""
    from saltext.jobs.core.recorder.returner import ReturnerAbsent, ReturnerModule

    try:
        ReturnerModule(__opts__, choice.returner, choice.ret_config).has("returner")
    except ReturnerAbsent as exc:
        return str(exc)
    return ""


def _require_no_peer() -> None:
    from saltext.jobs.core.master import caller

    caller.require_no_peer(caller.caller(__opts__, globals().get("__user__")))


def _ask(verb: str) -> Any:
    from saltext.jobs.core.engine import requests

    return requests.ask(__opts__, JOB_NOTICES, {"do": verb})
