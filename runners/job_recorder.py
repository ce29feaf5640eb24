"""
See what the job_recorder engine does, and what it could not deliver: records and notices.

.. code-block:: bash

    salt-run job_recorder.stats
    salt-run job_recorder.set_aside
    salt-run job_recorder.test_notice
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

# Every salt-run imports this file. What a call needs beyond these, it imports itself.
from saltext.jobs.core import runner
from saltext.jobs.core.engine.names import JOB_RECORDER
from saltext.jobs.core.options import kinds

__virtualname__ = JOB_RECORDER

#: Seconds to wait until a test notice has arrived.
_TEST_PATIENCE = 10.0

# Salt's loader brings these.
__opts__: Mapping[str, Any]


def __virtual__() -> str:
    return __virtualname__


@runner.verb
def stats(returner: object = None) -> Any:
    """
    Return what the recorder has done since its engine started, for each returner and each target of notices.

    A target of notices is named ``notices:webhook``, or ``notices:`` and its returner. For each: ``delivered`` (loads and
    returns, or notices), ``queued`` (records that it has not got yet, at most 100,000), ``lag`` (the age of the oldest of
    them in seconds), ``dropped`` (records that it will never get, since they are kept no more), ``refused`` (records that it
    refused and gets again), ``set_aside`` (records that it refused for good) and ``trouble`` (its last error, or None).
    Beside them: ``bus_gaps`` (how often events may have been lost) and ``loop_lag`` (most seconds by which the engine was
    late in the last minute).

    :param returner: show this one only.

    CLI Example:

    .. code-block:: bash

        salt-run job_recorder.stats
        salt-run job_recorder.stats pgjsonb
    """
    return _ask("stats", returner)


@runner.verb
def history() -> Any:
    """
    Return the engine's figures over the last day: a set each minute of the last hour, and each quarter before.
    ``[[Unix time, figures]]``, oldest first, by their names in Prometheus. They begin with the start of the engine. Refused
    if no engine runs.

    CLI Example:

    .. code-block:: bash

        salt-run job_recorder.history --out=json
    """
    from saltext.jobs.core.engine import requests

    return requests.history(__opts__, JOB_RECORDER)


@runner.verb
def doctor() -> dict[str, Any]:
    """
    Return what an operator should know before relying on the recorder and on notices.

    The exit status of ``salt-run`` is 1 if something does not work, or soon will not; it is 0 if all findings are advice.

    :return: a dict with engine (whether it runs), process (its pid, user and host), returners (those that get the records,
        and the targets of notices), findings (each a dict with code, severity, text and do), and retcode (the exit
        status).

    CLI Example:

    .. code-block:: bash

        salt-run job_recorder.doctor
    """
    from saltext.jobs.core.recorder import doctor as examination

    _require_no_peer()
    return examination.examine(__opts__)


@runner.verb
def set_aside(returner: object = None, limit: object = 100) -> Any:
    """
    Return the records that a returner refused for good, oldest first.

    For each returner a list of mappings: ``name``, ``kind`` (``load``, ``ret`` or ``notice``), ``jid`` (of a notice its id)
    and ``minion``, ``reason``, ``tries`` and ``time`` (Unix time).

    :param returner: show this one only.
    :param limit: the most records to show for each returner, the newest ones.

    CLI Example:

    .. code-block:: bash

        salt-run job_recorder.set_aside
        salt-run job_recorder.set_aside pgjsonb limit=5
    """
    limit = kinds.whole(1).given("limit", limit)
    return _ask("set_aside", returner, limit=limit)


@runner.verb
def redeliver(returner: object = None, names: object = None) -> Any:
    """
    Give records that were set aside to their returner again. First fix what made it refuse them.

    Returns how many, for each returner.

    :param returner: only records of this returner.
    :param names: only records with these names, as ``set_aside`` shows them: one, or a list.

    CLI Example:

    .. code-block:: bash

        salt-run job_recorder.redeliver
        salt-run job_recorder.redeliver pgjsonb names=ret/20260516101112131415/web1
    """
    return _change("redeliver", returner, names)


@runner.verb
def drop(returner: object = None, names: object = None) -> Any:
    """
    Forget records that were set aside: their returner never gets them.

    Returns how many, for each returner.

    :param returner: only records of this returner.
    :param names: only records with these names, as ``set_aside`` shows them: one, or a list.

    CLI Example:

    .. code-block:: bash

        salt-run job_recorder.drop pgjsonb names=ret/20260516101112131415/web1
    """
    return _change("drop", returner, names)


@runner.verb
def test_notice() -> dict[str, str]:
    """
    Send a notice of the kind ``test`` to all targets of notices, wait up to ten seconds, and return what became of it:
    ``{target: arrived}``, or why it has not arrived. The engine then sends it again; ``stats`` tells whether it has arrived
    since. A target gets no second test while one still waits.

    CLI Example:

    .. code-block:: bash

        salt-run job_recorder.test_notice
    """
    _require_no_peer()
    before, end = _ask("stats", None)["returners"], time.monotonic() + _TEST_PATIENCE
    told = dict.fromkeys(_ask("test_notice", None), "")
    while not all(told.values()) and time.monotonic() < end:
        time.sleep(0.5)
        for name, now in _ask("stats", None)["returners"].items():
            if name in told and now["delivered"] > before[name]["delivered"]:
                told[name] = "arrived"
            elif name in told and now["trouble"]:
                told[name] = f"not arrived, and sent again: {now['trouble']}"
    return {name: text or "not answered yet; job_recorder.stats tells when it is" for name, text in told.items()}


def _change(verb: str, returner: object, names: object) -> Any:
    wanted = [] if names is None else list(kinds.NAMES.given("names", names))
    _require_no_peer()
    return _ask(verb, returner, names=wanted)


def _require_no_peer() -> None:
    from saltext.jobs.core.master import caller

    caller.require_no_peer(caller.caller(__opts__, globals().get("__user__")))


def _ask(verb: str, returner: object, **more: object) -> Any:
    from saltext.jobs.core.engine import requests

    returner = None if returner is None else kinds.WORD.given("returner", returner)
    return requests.ask(__opts__, JOB_RECORDER, {"do": verb, "returner": returner, **more})
