"""
The figures of the job_notices engine. Pure: their sources are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from saltext.jobs.core.metrics import Metric, counter, gauge


def metrics_of(targets: Mapping[str, tuple[int, int, int, int]]) -> list[Metric]:
    """Return the figures. :param targets: for each target how many notices wait, were sent, failed and were dropped."""
    prefix = "saltext_jobs_notices"
    waiting, sent, failures, dropped = ({name: found[place] for name, found in targets.items()} for place in range(4))
    return [
        gauge(f"{prefix}_waiting", "Notices that have not arrived yet.", waiting, "target"),
        counter(f"{prefix}_sent_total", "Notices that have arrived.", sent, "target"),
        counter(f"{prefix}_failures_total", "Tries that failed.", failures, "target"),
        counter(f"{prefix}_dropped_total", "Notices that were given up.", dropped, "target"),
    ]
