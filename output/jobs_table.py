"""
Show the results of the runners of saltext-jobs as tables that fit the terminal.

``salt-run`` uses it by itself for ``batch.*``, ``job_retry.*``, ``job_cache.*``, ``job_recorder.*`` and
``jobs_doctor.*``, unless ``--out`` or ``output:`` in the master's configuration names another. Programs get plain data:

.. code-block:: bash

    salt-run batch.list
    salt-run --out=json batch.list

With ``salt-run -a pam`` Salt chooses the outputter itself: name this one with ``--out=jobs_table``. Results of other
functions are shown as by ``nested``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.batch import tables as batches
from saltext.jobs.core.display.page import Page, doctor
from saltext.jobs.core.display.text import DEFAULT_WIDTH, width_of_terminal
from saltext.jobs.core.retry import tables as retries
from saltext.jobs.core.store import tables as jobs

log = lines.logger(__name__)

__virtualname__ = "jobs_table"

# Salt's loader brings these.
__opts__: Mapping[str, Any]
__salt__: Mapping[str, Callable[..., str]]

_RUNNERS = ("batch", "job_retry", "job_cache", "job_recorder", "jobs_doctor")
#: The function that draws each result; the others are facts.
_PAGES: dict[str, Callable[[Any, Page], None]] = {
    **dict.fromkeys(("batch.list", "batch.list_active"), batches.listed),
    **{f"batch.{verb}": batches.standing for verb in ("status", "start", "preview", "run", "wait", "watch", "retry")},
    "batch.minions": batches.minions,
    "batch.failures": batches.failures,
    "batch.output": batches.returned,
    "job_retry.list": retries.entries,
    "job_retry.show": retries.entry,
    "job_retry.coverage": retries.coverage,
    **{f"job_retry.{verb}": draw for verb, draw in retries.ANSWERS.items()},
    "job_cache.search": jobs.search,
    "job_cache.minions": jobs.minions,
    "job_cache.outcome": jobs.outcome,
    "job_cache.running": jobs.running,
    **dict.fromkeys(("jobs_doctor.run", *(f"{runner}.doctor" for runner in _RUNNERS)), doctor),
}


def __virtual__() -> str:
    return __virtualname__


def output(data: Any, **kwargs: Any) -> str:
    """
    Return the text for people.

    :param data: the result of a runner; ``salt-run`` names the function in its options.

    CLI Example:

    .. code-block:: bash

        salt-run --out=jobs_table batch.list
    """
    function = str(__opts__.get("fun"))
    if function.partition(".")[0] not in _RUNNERS:
        return __salt__["nested"](data, **kwargs)
    # A refusal that came over the master (salt-run -a) is a text, for every function.
    draw = _facts if isinstance(data, str) else _PAGES.get(function, _facts)
    try:
        return _drawn(draw, data)
    except Exception:
        # Another function of that name, such as Salt's own, may return anything.
        log.debug("%s returned nothing that %s shows", function, draw.__name__, exc_info=True)
        return _drawn(_facts, data)


def _facts(data: Any, page: Page) -> None:
    page.facts(data)


def _drawn(draw: Callable[[Any, Page], None], data: Any) -> str:
    to_file = bool(__opts__.get("output_file"))
    # Salt handles pipes and --no-color; with --out-file it still goes by the terminal.
    plain = to_file or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    colours = bool(__opts__.get("color")) and not plain
    words = [str(word).removeprefix("jid=") for word in __opts__.get("arg") or ()]
    page = Page(
        DEFAULT_WIDTH if to_file else width_of_terminal(sys.stdout),
        time.time(),
        colours=colours or bool(__opts__.get("force_color")),
        chosen=bool(words),
        jid=next((word for word in words if word.isascii() and word[:20].isdecimal()), "JID"),
    )
    draw(data, page)
    if to_file:
        return page.text()
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return page.text().encode(encoding, "backslashreplace").decode(encoding)
