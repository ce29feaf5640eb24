"""
Draws a state machine from its table of transitions: ``make docs-tables`` writes the pictures of docs/architecture.md.

The states stand below each other. Each state that can be entered has a track of its own colour, which ends with an
arrow at the state; a dot on the track says that the state at its height may go there.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

_ROW, _BOX, _TRACK, _MARGIN = 46, 32, 24, 16
#: Most pixels of a letter.
_LETTER = 8.2
_COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#1b7c83", "#cf222e")
_STYLE = """\
    svg { color-scheme: light dark; font-family: system-ui, sans-serif; font-size: 15px; }
    .ground { fill: #ffffff; }
    .state { fill: #f6f8fa; stroke: #57606a; stroke-width: 1.5; }
    .end { stroke-dasharray: 4 3; }
    text { fill: #1f2328; text-anchor: middle; }
    path { fill: none; stroke-width: 1.5; }
    .leaves { stroke: #8c959f; }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #0d1117; }
      .state { fill: #161b22; stroke: #8b949e; }
      text { fill: #e6edf3; }
      .leaves { stroke: #6e7681; }
    }"""


def draw(title: str, ways: Mapping[str, Sequence[str]]) -> str:
    """
    Return a picture as SVG.

    :param title: what a screen reader says of it.
    :param ways: ``{state: [state that it may go to]}``; the order is that in which they are drawn.
    """
    states = list(ways)
    entered = [state for state in states if any(state in to for to in ways.values())]
    box = max(map(len, states)) * _LETTER + 24
    right = _MARGIN + box
    track = {state: right + 30 + number * _TRACK for number, state in enumerate(entered)}
    colour = {state: _COLOURS[number % len(_COLOURS)] for number, state in enumerate(entered)}
    top = {state: _MARGIN + number * _ROW for number, state in enumerate(states)}
    leaves = {state: top[state] + 10 for state in states}
    enters = {state: top[state] + _BOX - 9 for state in states}
    width, height = max(track.values()) + _MARGIN, _MARGIN + len(states) * _ROW

    lines, dots, boxes = [], [], []
    for state, to in ways.items():
        if to:
            lines.append(
                f'<path class="leaves" d="M{right:g} {leaves[state]} H{max(track[other] for other in to):g}"/>'
            )
    for state in entered:
        stroke, x = colour[state], track[state]
        heights = [enters[state], *(leaves[other] for other in states if state in ways[other])]
        lines.append(
            f'<path stroke="{stroke}" d="M{x:g} {min(heights)} V{max(heights)} M{x:g} {enters[state]} H{right + 8:g}"/>'
        )
        dots.append(f'<path fill="{stroke}" style="fill:{stroke}" d="M{right:g} {enters[state]} l9 -4.5 v9 z"/>')
        dots += [
            f'<circle cx="{x:g}" cy="{leaves[other]}" r="4" fill="{stroke}"/>'
            for other in states
            if state in ways[other]
        ]
    for state, to in ways.items():
        kind = "state" if to else "state end"
        boxes.append(
            f'<rect class="{kind}" x="{_MARGIN}" y="{top[state]}" width="{box:g}" height="{_BOX}" rx="6"/>'
            f'<text x="{_MARGIN + box / 2:g}" y="{top[state] + 21}">{html.escape(state)}</text>'
        )
    drawn = "\n".join(f"  {part}" for part in (*lines, *dots, *boxes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" role="img"'
        f' aria-labelledby="title">\n'
        f'  <title id="title">{html.escape(title)}</title>\n  <style>\n{_STYLE}\n  </style>\n'
        f'  <rect class="ground" width="{width:g}" height="{height}"/>\n{drawn}\n</svg>\n'
    )
