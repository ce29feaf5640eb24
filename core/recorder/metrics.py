"""
The figures of the job_recorder engine, from what ``job_recorder.stats`` shows. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saltext.jobs.core.metrics import Figures

#: The figures of each returner, by the keys of its statistics.
_FIGURES = {
    "delivered_total": "delivered",
    "dropped_total": "dropped",
    "lag_records": "queued",
    "lag_seconds": "lag",
    "refused_records": "refused",
    "set_aside_records": "set_aside",
}


def figures(stats: Mapping[str, Any]) -> Figures:
    """Return the figures; ``stats`` are those of all returners."""
    returners = stats["returners"]
    return {
        "recorder_records_total": sum(one["delivered"] for one in returners.values()),
        **{
            f"recorder_{name}": {returner: one[key] for returner, one in returners.items()}
            for name, key in _FIGURES.items()
        },
        "recorder_trouble": {returner: one["trouble"] is not None for returner, one in returners.items()},
    }
