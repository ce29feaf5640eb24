"""
The figures of the engines: what they are called and mean, in the text format of Prometheus, and for a runner.

Labels are names of states, outcomes and returners, never of minions, jobs or users: their number must not grow with a
fleet, and everyone may read the file. Pure: stdlib only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

#: The prefix of each figure's name.
PREFIX = "saltext_jobs_"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

#: Those that apply now, by their names without the prefix: a finite number, or one for each value of a label.
Figures = dict[str, float | Mapping[str, float]]

#: Each figure with its label (empty for none) and what it is. ``_total`` only grows, from 0 at the start unless kept.
FIGURES: Mapping[str, tuple[str, str]] = {
    # of every engine
    "written_timestamp_seconds": ("engine", "When this file was written."),
    "bus_gaps_total": ("engine", "Times that events may have been lost on the bus."),
    "loop_lag_seconds": ("engine", "Longest delay of the engine's loop within the last minute."),
    "publishes_total": ("engine", "Publishes that the master took, questions included."),
    "publish_failures_total": ("engine", "Publishes that failed."),
    "leader": ("engine", "Whether the engine of this master leads."),
    "lease_left_seconds": ("engine", "Time for which the leader may publish without a renewal."),
    "fenced_total": ("engine", "Times that this master could not act because it did not lead, or could not tell."),
    "site_up": ("engine", "Whether the last sign of life could be written where the masters share it."),
    # batch_manager
    "batches": ("state", "Batches that have not ended."),
    "batches_ended_total": ("outcome", "Batches that ended."),
    "batch_minions_total": ("outcome", "Minions that ended, counted as each one ends."),
    "batch_in_flight_minions": ("", "Minions in flight."),
    "batch_in_flight_limit_minions": ("", "Minions that may be in flight over all batches."),
    "batch_pending_minions": ("", "Minions to be sent to."),
    "batch_without_progress_seconds": ("", "Time since the last progress of the running batch that waits longest."),
    # job_retry
    "retry_entries": ("state", "Entries of the queue."),
    "retry_oldest_pending_seconds": ("", "Age of the oldest pending entry."),
    "retry_next_expiry_seconds": ("", "Time until the first pending entry expires."),
    "retry_transitions_total": ("outcome", "Times that an entry came into a state; sent is a replay."),
    "retry_paused": ("", "Whether replays are paused."),
    # job_recorder
    "recorder_records_total": ("", "Records and notices that were delivered, in all."),
    "recorder_delivered_total": ("returner", "Records that it has got."),
    "recorder_dropped_total": ("returner", "Records that it will never get: they are kept no more."),
    "recorder_lag_records": ("returner", "Records that it has not got yet."),
    "recorder_lag_seconds": ("returner", "Time since the oldest of these was taken in."),
    "recorder_refused_records": ("returner", "Records that it refused, and that are tried again."),
    "recorder_set_aside_records": ("returner", "Records that it refused for good."),
    "recorder_trouble": ("returner", "Whether it accepts no records at present."),
}


def text_of(figures: Figures) -> str:
    """Return figures in the text format of Prometheus."""
    lines = []
    for name, value in figures.items():
        label, about = FIGURES[name]
        lines.append(f"# HELP {PREFIX}{name} {about}")
        lines.append(f"# TYPE {PREFIX}{name} {'counter' if name.endswith('_total') else 'gauge'}")
        for key, number in value.items() if isinstance(value, Mapping) else [("", value)]:
            labels = f'{{{label}="{key.translate(_ESCAPES)}"}}' if label else ""
            lines.append(f"{PREFIX}{name}{labels} {float(number):.15g}")
    return "\n".join(lines) + "\n"


def figures_of(figures: Figures) -> dict[str, Any]:
    """Return ``{name: figure}``, or ``{name: {value: figure}}`` for a figure with a label."""
    return {f"{PREFIX}{name}": dict(value) if isinstance(value, Mapping) else value for name, value in figures.items()}


class History:
    """The figures of the last day, for runners and the console: a set each minute of the last hour, one a quarter before."""

    #: Seconds between two sets.
    INTERVAL = 60.0

    def __init__(self) -> None:
        self._minutes = deque[tuple[float, dict[str, Any]]]()
        self._quarters = deque[tuple[float, dict[str, Any]]](maxlen=4 * 23)
        self._taken = 0

    def take(self, now: float, figures: Figures) -> None:
        """Keep figures; ``now`` is Unix time."""
        self._taken += 1
        self._minutes.append((round(now, 1), figures_of(figures)))
        if len(self._minutes) > 60:
            oldest = self._minutes.popleft()
            if self._taken % 15 == 0:
                self._quarters.append(oldest)

    def told(self) -> Sequence[tuple[float, dict[str, Any]]]:
        """Return ``[(Unix time, figures)]``, oldest first, figures as ``figures_of`` gives them."""
        return [*self._quarters, *self._minutes]


def of_engine(engine: str, bus: Any, publisher: Any = None) -> Figures:
    """Return the figures of an engine's loop, of its ``master.bus.Bus``, and of its ``Publisher`` if it has one."""
    found: dict[str, float] = {"bus_gaps_total": bus.gaps, "loop_lag_seconds": bus.lag}
    if publisher is not None:
        found |= {"publishes_total": publisher.published, "publish_failures_total": publisher.failed}
    return {name: {engine: value} for name, value in found.items()}
