"""
How the cost grows with the fleet: CPU for each return, publishes, memory, and time, as a table and as curves.

    python -m benchmarks.fleet.grow --data grow.json                          100, 500 and 2,000 minions on a real master
    python -m benchmarks.fleet.grow --data grow.json --alone 10000,50000      the engines alone, beyond what a master bears
    python -m benchmarks.fleet.grow --data grow.json --draw docs/scale.svg    the curves of the figures in the file

On a real master it runs the scenarios ``one`` and ``power`` (``python -m benchmarks.fleet``), with lightweight minions
that send everything that real minions send. An engine alone works on real files, and nothing else delays it: the batch is
that of ``benchmarks/batch.py``, the power cut that of ``benchmarks/retry.py``.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

#: The values to draw, and the runs that they come from: ``{title: value}``.
CURVES = (
    "CPU of the engine for each return, ms",
    "publishes, questions included",
    "memory of the engine, MB",
    "seconds to drain",
)
_ENGINE = {"one": "batch_manager", "power": "job_retry"}
_NAMES = {
    "one": "a batch, a tenth at a time",
    "power": "a power cut, three jobs",
    "batch alone": "a batch, the engine alone",
    "retry alone": "a power cut, the engine alone",
}
Found = dict[str, dict[str, dict[str, float]]]

_BATCH = """
import json, resource, sys, time
from benchmarks.batch import Meter, Ours, jid_of, master_opts, minions_of, store_returns
count = int(sys.argv[1])
with master_opts() as opts:
    minions, begun = minions_of(count), time.monotonic()
    store_returns(opts, jid_of(1), minions)
    engine = Ours(opts)
    begun = time.monotonic()
    with Meter() as meter:
        engine.add(jid_of(1), minions, count // 10)
        engine.drain(jid_of(1))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps([meter.cpu, engine.publishes, most, time.monotonic() - begun]))
    engine.close()
"""


def on_a_master(name: str, count: int, *more: str) -> dict[str, float]:
    """Run a scenario with further arguments, and return its figures. :raises SystemExit: if its verdict is bad."""
    with tempfile.NamedTemporaryFile("r", prefix="sj-", suffix=".json") as file:
        words = [name, "--minions", str(count), "--json", file.name, *more]
        done = subprocess.run([sys.executable, "-m", "benchmarks.fleet", *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"python -m benchmarks.fleet {' '.join(words)}:\n{done.stdout}{done.stderr}")
        values = json.loads(file.readlines()[-1])["values"]
    engine = _ENGINE[name]
    names = (f"CPU of {engine}, ms", "publishes", f"memory of {engine}, MB", "seconds")
    return dict(zip(CURVES, (values[name] for name in names), strict=True))


def batch_alone(count: int) -> dict[str, float]:
    spent, publishes, memory, seconds = json.loads(_output("-c", _BATCH, str(count)).splitlines()[-1])
    return dict(zip(CURVES, (1000 * spent / count, publishes, memory, seconds), strict=True))


def retry_alone(count: int) -> dict[str, float]:
    text = _output("-m", "benchmarks.retry", "return", "--minions", str(count), "--jobs", "3")
    if "all_delivered True" not in text:
        raise SystemExit(f"Not all was delivered to {count:,} minions:\n{text}")
    starts = ("publishes", "CPU of the engine, s", "resident memory, MB", "longest wait")
    publishes, spent, memory, seconds = (
        float(re.search(rf"^  {start}.*?([\d.]+)$", text, re.M)[1]) for start in starts
    )
    return dict(zip(CURVES, (1000 * spent / (3 * count), publishes, memory, seconds), strict=True))


def _output(*words: str) -> str:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True).stdout


def table(found: Found) -> str:
    """Return the figures as a table of Markdown."""
    lines = ["| | minions | " + " | ".join(CURVES) + " |", "|---|---:|" + "---:|" * len(CURVES)]
    for name, sizes in found.items():
        for size, values in sorted(sizes.items(), key=lambda item: int(item[0])):
            cells = [f"{values[curve]:,.3f}" if values[curve] < 10 else f"{values[curve]:,.0f}" for curve in CURVES]
            lines.append(f"| {_NAMES[name]} | {int(size):,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(found: Found) -> str:
    """Return the curves as SVG: four panels, with logarithmic scales."""
    colours = dict(zip(_NAMES, ("#3b78b5", "#2a8c4a", "#7fb0de", "#7fcf9a"), strict=True))
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 640" font-family="sans-serif" font-size="11">',
        '<rect width="900" height="640" fill="#ffffff"/>',
    ]
    for number, curve in enumerate(CURVES):
        points = {
            name: sorted((int(size), values[curve]) for size, values in sizes.items()) for name, sizes in found.items()
        }
        parts += _panel(curve, points, colours, 60 + number % 2 * 440, 40 + number // 2 * 290)
    for number, (name, colour) in enumerate(colours.items()):
        parts.append(f'<text x="{60 + number * 210}" y="628" fill="{colour}">{html.escape(_NAMES[name])}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    title: str, curves: Mapping[str, Sequence[tuple[int, float]]], colours: Mapping[str, str], left: int, top: int
) -> list[str]:
    width, height = 370, 220
    sizes = [size for points in curves.values() for size, _ in points] or [1]
    values = [value for points in curves.values() for _, value in points if value > 0] or [1]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.01))
    first, last = math.floor(math.log10(min(sizes))), math.ceil(math.log10(max(sizes) * 1.01))

    def x(size: float) -> float:
        return left + (math.log10(size) - first) / (last - first) * width

    def y(value: float) -> float:
        return top + height - (math.log10(max(value, 10.0**low)) - low) / (high - low) * height

    parts = [f'<text x="{left}" y="{top - 8}" font-size="12">{html.escape(title)}</text>']
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="{left}" y1="{at:.1f}" x2="{left + width}" y2="{at:.1f}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>')
    for power in range(first, last + 1):
        parts.append(f'<text x="{x(10**power):.1f}" y="{top + height + 16}" text-anchor="middle">{10**power:,}</text>')
    for name, points in curves.items():
        line = " ".join(f"{x(size):.1f},{y(value):.1f}" for size, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colours[name]}" stroke-width="1.5"/>')
        parts += [f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="2.5" fill="{colours[name]}"/>' for s, v in points]
    return parts


def sizes(text: str) -> list[int]:
    """Return the numbers of a comma-separated list."""
    return [int(word) for word in text.split(",") if word]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=sizes, metavar="N,…", help="numbers of minions on a real master (100,500,2000)")
    parser.add_argument("--alone", type=sizes, metavar="N,…", help="numbers of minions for the engines alone (none)")
    parser.add_argument("--answer", type=float, default=2.0, help="as in benchmarks.fleet")
    parser.add_argument("--only", choices=_NAMES, help="one of the four")
    parser.add_argument("--data", type=pathlib.Path, required=True, help="JSON to which the figures are added")
    parser.add_argument(
        "--pictures", type=pathlib.Path, metavar="FOLDER", help="for the timeline of each on a real master"
    )
    parser.add_argument("--draw", type=pathlib.Path, help="draw the figures in --data, and measure nothing")
    args = parser.parse_args()
    found: Found = json.loads(args.data.read_text()) if args.data.exists() else {}
    if args.draw:
        args.draw.write_text(draw(found))
        return
    alone = args.alone or []
    on_masters = args.sizes if args.sizes is not None else [] if alone else [100, 500, 2000]

    def scenario(name: str, size: int) -> dict[str, float]:
        drawn = ("--picture", str(args.pictures / f"{name}-{size}.svg")) if args.pictures else ()
        return on_a_master(name, size, "--answer", str(args.answer), *drawn)

    runs = [(name, size, lambda name=name, size=size: scenario(name, size)) for size in on_masters for name in _ENGINE]
    runs += [("batch alone", size, lambda size=size: batch_alone(size)) for size in alone]
    runs += [("retry alone", size, lambda size=size: retry_alone(size)) for size in alone]
    for name, size, run in runs:
        if args.only in (None, name):
            found.setdefault(name, {})[str(size)] = run()
            args.data.write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
