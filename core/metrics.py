"""
An engine's figures: in the text format of Prometheus, and for a runner.

Labels are names of states, outcomes and returners, never of minions, jobs or users: their number must not grow with a
fleet, and everyone may read the file. Pure: stdlib only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The prefix of each figure's name, and the label of the figures that every engine has.
PREFIX, ENGINE = "saltext_jobs_", "engine"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True)
class Metric:
    """
    One figure, or one for each value of a label.

    ``name`` as Prometheus has it, with its unit; ``kind``: counter (see ``counter``) or gauge. ``label`` is empty if
    there is only one sample, whose key is then "".
    """

    name: str
    kind: str
    about: str
    samples: Mapping[str, float]
    label: str = ""


def counter(name: str, about: str, value: float | Mapping[str, float], label: str = "") -> Metric:
    """Return a figure that only grows, from 0 at the engine's start unless it is kept; its name ends in ``_total``."""
    return Metric(name, "counter", about, _samples(value), label)


def gauge(name: str, about: str, value: float | Mapping[str, float], label: str = "") -> Metric:
    """Return a figure that goes up and down."""
    return Metric(name, "gauge", about, _samples(value), label)


def _samples(value: float | Mapping[str, float]) -> Mapping[str, float]:
    return dict(value) if isinstance(value, Mapping) else {"": value}


def text_of(metrics: Iterable[Metric]) -> str:
    """Return metrics in the text format of Prometheus."""
    lines = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {metric.about}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for value, number in metric.samples.items():
            labels = f'{{{metric.label}="{value.translate(_ESCAPES)}"}}' if metric.label else ""
            lines.append(f"{metric.name}{labels} {_number(number)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return f"{float(value):.15g}" if math.isfinite(value) else "+Inf" if value > 0 else "-Inf" if value < 0 else "NaN"


def figures_of(metrics: Iterable[Metric]) -> dict[str, Any]:
    """
    Return ``{name: figure}``, or ``{name: {value: figure}}`` for a metric with a label.

    An infinite figure becomes None: JSON has no infinity, and clients could not parse an API answer that contains one.
    """
    return {
        metric.name: {value: _finite(number) for value, number in metric.samples.items()}
        if metric.label
        else _finite(metric.samples[""])
        for metric in metrics
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class History:
    """The figures of the last hour, one set a minute, for runners and the console."""

    #: Seconds between two sets.
    INTERVAL = 60.0

    def __init__(self) -> None:
        self._kept: deque[tuple[float, dict[str, Any]]] = deque(maxlen=60)

    def take(self, now: float, metrics: Iterable[Metric]) -> None:
        """Keep figures; ``now`` is Unix time."""
        self._kept.append((round(now, 1), figures_of(metrics)))

    def told(self) -> Sequence[tuple[float, dict[str, Any]]]:
        """Return ``[(Unix time, figures)]``, oldest first, figures as ``figures_of`` gives them."""
        return list(self._kept)


def of_bus(engine: str, bus: Any) -> list[Metric]:
    """Return the figures of an engine's loop and of its ``master.bus.Bus``, which every engine has."""
    lag = "Longest delay of the engine's loop within the last minute."
    return [
        counter(
            f"{PREFIX}bus_gaps_total", "Times that events may have been lost on the bus.", {engine: bus.gaps}, ENGINE
        ),
        gauge(f"{PREFIX}loop_lag_seconds", lag, {engine: bus.lag}, ENGINE),
    ]


def of_publisher(engine: str, publisher: Any) -> list[Metric]:
    """Return the figures of an engine's ``master.publisher.Publisher``."""
    taken = "Publishes that the master took, questions included."
    return [
        counter(f"{PREFIX}publishes_total", taken, {engine: publisher.published}, ENGINE),
        counter(f"{PREFIX}publish_failures_total", "Publishes that failed.", {engine: publisher.failed}, ENGINE),
        counter(
            f"{PREFIX}questions_total",
            "Questions to minions among the publishes.",
            {engine: publisher.questions},
            ENGINE,
        ),
    ]


def of_lead(
    engine: str,
    *,
    leads: bool,
    since: float,
    left: float | None,
    takeovers: int,
    hand_overs: int,
    refused: int,
    is_up: bool,
    took: float,
) -> list[Metric]:
    """
    Return the figures of the lead, which the engine of each master has.

    :param since: when the present leader took the lead, in Unix time; ``left``: seconds that its lease lasts.
    :param refused: how often this master's engine was kept from doing something because it did not lead, or could not tell.
    :param took: seconds that writing its last sign of life took; ``is_up``: whether that could be written.
    """
    figures = [
        ("leader", "Whether the engine of this master leads.", float(leads)),
        ("lead_since_timestamp_seconds", "When the present leader took the lead.", since),
        ("site_up", "Whether the last sign of life could be written where the masters share it.", float(is_up)),
        ("site_seconds", "Time that it took to write the last sign of life there.", took),
    ]
    if left is not None:
        figures.append(("lease_left_seconds", "Time for which the leader may publish without a renewal.", left))
    counted = [
        ("takeovers_total", "Times that another master has taken over, in all.", takeovers),
        ("hand_overs_total", "Times that a master has handed over, in all.", hand_overs),
        ("fenced_total", "Times that this master could not act because it did not lead, or could not tell.", refused),
    ]
    return [
        *(gauge(f"{PREFIX}{name}", about, {engine: value}, ENGINE) for name, about, value in figures),
        *(counter(f"{PREFIX}{name}", about, {engine: value}, ENGINE) for name, about, value in counted),
    ]


def of_writing(engine: str, at: float) -> Metric:
    """Return when an engine's file was written, in Unix time."""
    return gauge(f"{PREFIX}written_timestamp_seconds", "When this file was written.", {engine: at}, ENGINE)
