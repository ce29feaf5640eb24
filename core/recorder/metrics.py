"""
The figures of the job_recorder engine, from what ``job_recorder.stats`` shows. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.metrics import Metric, counter, gauge

#: For each figure of a returner: name, kind, description, and its key in the statistics.
_OF_RETURNERS = (
    (counter, "delivered_total", "Records that it has got.", "delivered"),
    (counter, "dropped_total", "Records lost because the spool was full (spool_max_bytes) or damaged.", "dropped"),
    (gauge, "lag_records", "Records that it has not got yet.", "queued"),
    (gauge, "lag_seconds", "Time since the oldest of these was taken in.", "lag"),
    (gauge, "refused_records", "Records that it refused, and that are tried again.", "refused"),
    (gauge, "set_aside_records", "Records that it refused for good.", "set_aside"),
)


def metrics_of(stats: Mapping[str, Any]) -> list[Metric]:
    """Return the figures; ``stats`` are those of all returners."""
    prefix, returners = "saltext_jobs_recorder", stats["returners"]
    return [
        counter(f"{prefix}_returns_total", "Returns taken in.", stats["recorded"]),
        counter(f"{prefix}_events_total", "Events taken in because of the option events.", stats["events"]),
        counter(f"{prefix}_events_dropped_total", "Of these, dropped for lack of room.", stats["events_dropped"]),
        counter(
            f"{prefix}_found_total",
            "Returns that the job cache had and no event had reported.",
            stats["found_in_job_cache"],
        ),
        gauge(f"{prefix}_unwritten_records", "Records that are in memory only.", stats["unwritten"]),
        gauge(f"{prefix}_spool_bytes", "Size of the spool.", stats["spool_bytes"]),
        *(
            kind(f"{prefix}_{name}", about, {returner: one[field] for returner, one in returners.items()}, "returner")
            for kind, name, about, field in _OF_RETURNERS
        ),
        gauge(
            f"{prefix}_trouble",
            "Whether it accepts no records at present.",
            {returner: one["trouble"] is not None for returner, one in returners.items()},
            "returner",
        ),
    ]
