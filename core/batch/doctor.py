"""What an operator should know about the engine and its surroundings before relying on batches. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from saltext.jobs.core.batch.store import BatchStore
from saltext.jobs.core.engine import findings
from saltext.jobs.core.engine.feeder import why_unproven
from saltext.jobs.core.engine.names import BATCH_MANAGER
from saltext.jobs.core.findings import Finding, fault
from saltext.jobs.core.ledger.batches import Kind
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.options import engine_options, read_settings
from saltext.jobs.core.options.engines import BatchSettings
from saltext.jobs.core.site import site_of


def examine(opts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of ``batch.doctor``."""
    store, cache, aside = BatchStore(opts), JobCache(opts), list[str]()

    def own() -> Iterator[Finding]:
        yield from findings.about_returns(opts)
        aside.extend(store.jids(Kind.ASIDE))
        if aside:
            told = f"{len(aside)} of the batches in {site_of(opts).place} could not be read and stand still"
            do = "see the master's log, and start batches for the minions that have not returned"
            yield fault("batches-unreadable", told, do)
        read_settings(BatchSettings, BATCH_MANAGER, *engine_options(opts, BATCH_MANAGER))

    more = {"job_cache": cache.name, "returns_proven": not why_unproven(opts)}
    return findings.examine(opts, BATCH_MANAGER, own(), **more, set_aside=aside)
