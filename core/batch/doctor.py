"""
What an operator should know about the engine and its surroundings before relying on batches. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine.feeder import why_unproven
from saltext.jobs.core.engine.findings import about_returns, around, standing
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.options import engine_options, read_settings
from saltext.jobs.core.options.engines import BatchSettings


def examine(opts: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the state of the engine.

    :param opts: the master's options.
    :return: engine (whether it runs), process (its pid, user and host; None if not known), job_cache (the one that gets
        the returns), returns_proven (whether a return must be in the job cache before it counts), set_aside (jids of
        batches that could not be read), findings (one sentence for each thing that an operator may want to
        change), and retcode: 1 if a finding is more than advice.
    """
    store = BatchStore(opts)
    aside = store.jids(Kind.ASIDE)
    found = [*_about_options(opts), *around(opts, BATCH_MANAGER), *about_returns(opts)]
    if aside:
        found.append(
            f"{len(aside)} of {store.where()} could not be read and stand still: see the master's log, and "
            "start batches for the minions that have not returned"
        )
    more = {"job_cache": JobCache(opts).name, "returns_proven": not why_unproven(opts)}
    return standing(opts, BATCH_MANAGER, found, **more, set_aside=aside)


def _about_options(opts: Mapping[str, Any]) -> list[str]:
    try:
        read_settings(BatchSettings, BATCH_MANAGER, *engine_options(opts, BATCH_MANAGER))
    except SettingsError as exc:
        return [f"the engine does not start: {exc}"]
    return []
