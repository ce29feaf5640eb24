"""
The timeline of a scenario as SVG: panels with a common time axis, curves in steps, a limit, marks for what was done.

Plain code, so that every run can draw. Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence

Points = Sequence[tuple[float, float]]

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 960, 170, 60, 150, 62, 34
_COLOURS = (
    "#3b78b5",
    "#2a8c4a",
    "#d08c2f",
    "#a8455f",
    "#6a5aa8",
    "#8c8c8c",
    "#1f9aa8",
    "#7d6b3d",
    "#c2569b",
    "#444444",
)


@dataclasses.dataclass(frozen=True)
class Panel:
    """
    ``curves``: ``{name: [(time, value)]}``, each value holds until the next. ``limit``: a line that no curve may cross.
    """

    title: str
    curves: dict[str, Points]
    limit: float | None = None


def draw(title: str, panels: Sequence[Panel], marks: Sequence[tuple[float, str]] = (), most: int = 1500) -> str:
    """
    Return a picture as SVG.

    :param marks: (time, what was done then). Times are in seconds from any origin.
    :param most: most points of a curve; a longer one is thinned out, and keeps its highest points.
    """
    times = [at for panel in panels for points in panel.curves.values() for at, _ in points] + [at for at, _ in marks]
    first, last = min(times, default=0.0), max(times, default=1.0)
    span = max(last - first, 1e-9)
    height = TOP + len(panels) * (PANEL + GAP) + 16

    def x(at: float) -> float:
        return LEFT + (at - first) / span * (WIDTH - LEFT - RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="12">{html.escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, TOP + number * (PANEL + GAP), x, first, last, most)
    bottom = TOP + len(panels) * (PANEL + GAP) - GAP
    told = -math.inf
    for at, what in sorted(marks):
        line = f'<line x1="{x(at):.1f}" y1="{TOP - 18}" x2="{x(at):.1f}" y2="{bottom}"'
        parts.append(f'{line} stroke="#b03030" stroke-dasharray="2 3"/>')
        if x(at) > told + 90:  # where many marks are close together, one label stands for all
            parts.append(f'<text x="{x(at) + 2:.1f}" y="{TOP - 22}" fill="#b03030">{html.escape(what)}</text>')
            told = x(at)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _panel(panel: Panel, top: float, x, first: float, last: float, most: int) -> list[str]:
    values = [value for points in panel.curves.values() for _, value in points]
    highest = _round_up(max([*values, panel.limit or 0, 1e-9]) * 1.05)

    def y(value: float) -> float:
        return top + PANEL - value / highest * PANEL

    parts = [f'<text x="{LEFT}" y="{top - 6}" fill="#444444">{html.escape(panel.title)}</text>']
    for share in (0, 0.5, 1):
        at = y(highest * share)
        parts.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{highest * share:g}</text>')
    step = _round_up((last - first) / 8)
    for number in range(int((last - first) / step) + 1):
        at = x(first + number * step)
        parts.append(f'<text x="{at:.1f}" y="{top + PANEL + 14}" text-anchor="middle">{number * step:g} s</text>')
    if panel.limit is not None:
        at = y(panel.limit)
        parts.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#b03030"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{at + 4:.1f}" fill="#b03030">limit {panel.limit:g}</text>')
    for number, (name, points) in enumerate(panel.curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(
            f'<path d="{_steps(thinned(points, most), x, y, last)}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
        )
        label = top + 14 + 14 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{label}" fill="{colour}">{html.escape(name)}</text>')
    return parts


def _steps(points: Points, x, y, last: float) -> str:
    if not points:
        return "M0 0"
    words = [f"M{x(points[0][0]):.1f} {y(points[0][1]):.1f}"]
    words += [f"H{x(at):.1f}V{y(value):.1f}" for at, value in points[1:]]
    return "".join(words) + f"H{x(last):.1f}"


def thinned(points: Points, most: int) -> Points:
    """Return at most so many points: the highest of neighbouring ones, and always the last one."""
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / (most - 1))
    return [max(points[at : at + size], key=lambda point: point[1]) for at in range(0, len(points), size)] + [
        points[-1]
    ]


def _round_up(value: float) -> float:
    """Return the next number of the form 1, 2 or 5 times a power of ten."""
    scale = 10 ** math.floor(math.log10(max(value, 1e-9)))
    return next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= value * (1 - 1e-9))
