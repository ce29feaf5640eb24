"""
An engine's figures: in the text format of Prometheus, and for a runner.

Labels are names of states, outcomes and returners, never of minions, jobs or users: their number must not grow with a fleet,
and the file may be read by everybody. Pure: stdlib only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True)
class Metric:
    """
    One figure, or one for each value of a label.

    ``name`` as Prometheus has it, with its unit; ``kind``: counter (since the engine's start) or gauge. ``label`` is empty
    where there is one sample only, which is then under "".
    """

    name: str
    kind: str
    about: str
    samples: Mapping[str, float]
    label: str = ""


def counter(name: str, about: str, value: float | Mapping[str, float], label: str = "") -> Metric:
    """Return a figure that only grows, from 0 at the engine's start; its name ends in ``_total``."""
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
    Return ``{name: figure}``, or where there is one for each value of a label ``{name: {value: figure}}``.

    A figure that is infinite is None: JSON has no word for it, and an answer of the API that has one cannot be read at all.
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
    """The figures of the last hour, one set a minute, for whoever begins to look at them."""

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


class Health(Protocol):
    """What is known of the engine's subscription: see ``master.bus.Bus``."""

    gaps: int

    @property
    def lag(self) -> float: ...


class Work(Protocol):
    """What was published: see ``master.publisher.Publisher``."""

    published: int
    failed: int
    questions: int


def of_bus(prefix: str, bus: Health) -> list[Metric]:
    """Return what every engine tells of its loop and its subscription."""
    return [
        counter(f"{prefix}_bus_gaps_total", "Times that events may have been lost on the bus.", bus.gaps),
        gauge(f"{prefix}_loop_lag_seconds", "Longest delay of the engine's loop within the last minute.", bus.lag),
    ]


def of_publisher(prefix: str, publisher: Work) -> list[Metric]:
    """Return what an engine that publishes tells of it."""
    return [
        counter(
            f"{prefix}_publishes_total", "Publishes that the master took, questions included.", publisher.published
        ),
        counter(f"{prefix}_publish_failures_total", "Publishes that failed.", publisher.failed),
        counter(f"{prefix}_questions_total", "Questions to minions among the publishes.", publisher.questions),
    ]
