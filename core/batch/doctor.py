"""
What an operator should know about the engine and its surroundings before relying on batches. Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import findings
from saltext.jobs.core.engine.feeder import why_unproven
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.options import engine_options, read_settings
from saltext.jobs.core.options.engines import BatchSettings


def examine(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``batch.doctor``."""
    store = BatchStore(opts)
    aside = store.jids(Kind.ASIDE)

    def own() -> Iterator[str]:
        yield from findings.about_returns(opts)
        if aside:
            yield (
                f"{len(aside)} of {store.where()} could not be read and stand still: see the master's log, and start "
                "batches for the minions that have not returned"
            )
        read_settings(BatchSettings, BATCH_MANAGER, *engine_options(opts, BATCH_MANAGER))

    more = {"job_cache": JobCache(opts).name, "returns_proven": not why_unproven(opts)}
    return findings.examine(opts, BATCH_MANAGER, own(), **more, set_aside=aside)
