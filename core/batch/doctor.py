"""
What an operator should know about the engine and its surroundings before relying on batches. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.findings import about_returns, around
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.master.job_cache import JobCache


def examine(opts: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return how things stand.

    :param opts: the master's options.
    :return: engine (whether it runs), job_cache (the one that gets the returns), returns_proven (whether a return has to be
        in the job cache before it counts), set_aside (jids of batches whose journals could not be read), and findings: a
        sentence for each thing that an operator may want to change.
    """
    store, cache = BatchStore(opts), JobCache(opts)
    aside = store.jids_aside()
    found = around(opts, BATCH_MANAGER) + about_returns(opts, cache)
    if later := store.jids_of_later_versions():
        found.append(
            f"{len(later)} batches are left alone, since a later version of saltext-jobs has written their journals: "
            f"install it again. They are {', '.join(later[:5])}{' …' if len(later) > 5 else ''}"
        )
    if aside:
        found.append(f"the journals of {len(aside)} batches could not be read: see {store.folder}")
    return {
        "engine": requests.is_running(opts, BATCH_MANAGER),
        "job_cache": cache.name,
        "returns_proven": not cache.unproven,
        "set_aside": aside,
        "findings": found,
    }
