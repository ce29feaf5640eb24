"""
What an operator should know about the engine and its surroundings before relying on batches. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import requests
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
    runs, unproven, aside = requests.is_running(opts, BATCH_MANAGER), cache.unproven, store.jids_aside()
    findings = []
    if not runs:
        findings.append(f"no {BATCH_MANAGER} engine runs: add it to `engines:`, and look for it in the master's log")
    if unproven:
        findings.append(f"a return that a minion forges on the bus counts as genuine: {unproven}")
    elif not (opts.get("require_minion_sign_messages") and opts.get("drop_messages_signature_fail")):
        findings.append(
            "an accepted minion can have returns of others stored, as a syndic does, unless "
            "require_minion_sign_messages and drop_messages_signature_fail are set, and every minion signs its messages "
            "(minion_sign_messages)"
        )
    if aside:
        findings.append(f"the journals of {len(aside)} batches could not be read: see {store.folder}")
    return {
        "engine": runs,
        "job_cache": cache.name,
        "returns_proven": not unproven,
        "set_aside": aside,
        "findings": findings,
    }
