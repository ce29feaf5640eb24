"""
Put a real master and hundreds or thousands of featherweight minions through a scenario, and judge what the engines say.

    python -m benchmarks.fleet one --minions 2000                                   a batch of all, a tenth at a time
    python -m benchmarks.fleet power --minions 1000 --picture power.svg             a power cut, and its timeline
    python -m benchmarks.fleet random --seconds 3600 --minions 500 --executor 0.5   an hour of everything at random

The minions are one process with Salt's own channel classes, real sign-ins, session keys and a subscription. They run
nothing, and note each run. Each scenario ends with figures, with the checks against these notes, and with exit status 0
if all are good. Everything is on loopback and below one temporary folder (TMPDIR; faster in memory). On a busy machine
the wall time means little; CPU time, publishes and wrong reports count. It needs Salt 3008.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.fleet import batches, beside, chaos, faults, masters
from benchmarks.fleet.several import Database, Masters
from benchmarks.fleet.site import Site
from benchmarks.fleet.story import Story
from benchmarks.fleet.verdict import ANSWER
from demo.fleet import StepFailed, quiet_salt


@dataclasses.dataclass(frozen=True)
class Scenario:
    """
    :param play: runs the scenario. ``options``: of its master. ``needs``: makes a server, whose ``options`` the
        master gets too. ``site``: makes the site on which it runs.
    """

    play: Callable[[Any, argparse.Namespace], Story]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needs: Callable[[], Any] = contextlib.nullcontext
    site: type[Site] = Site


SCENARIOS = {
    "one": Scenario(batches.one),
    "faulty": Scenario(batches.faulty),
    "ten": Scenario(batches.ten),
    "canary": Scenario(batches.canary),
    "groups": Scenario(batches.groups, batches.GROUPS),
    "power": Scenario(faults.power),
    "restarts": Scenario(faults.restarts),
    "kills": Scenario(faults.kills),
    "master": Scenario(faults.master),
    "bus": Scenario(faults.bus),
    "publisher": Scenario(faults.publisher),
    "flood": Scenario(faults.flood),
    "forged": Scenario(faults.forged),
    "disk": Scenario(faults.disk),
    "redis": Scenario(faults.redis, needs=faults.Redis),
    "random": Scenario(chaos.everything),
    "beside": Scenario(beside.beside),
    "masters": Scenario(masters.masters, needs=Database, site=Masters),
}


def arguments(words: list[str]) -> argparse.Namespace:
    """Return the options that were typed. A wrong one ends the program, with the reason."""
    listed = "\n".join(f"  {name:<9} {scenario.play.__doc__}" for name, scenario in SCENARIOS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet",
        description=__doc__,
        epilog=f"scenarios:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=SCENARIOS, metavar="NAME")
    parser.add_argument("--minions", type=int, default=200, metavar="N", help="how many (200)")
    parser.add_argument("--size", type=int, metavar="N", help="how many run a batch's job at a time (a tenth)")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long random goes on (300)")
    parser.add_argument("--seed", type=int, default=1, help="of all chance (1)")
    parser.add_argument("--executor", type=float, default=0.0, metavar="SHARE", help="of minions with job_once (0)")
    parser.add_argument("--transport", choices=("zeromq", "tcp"), default="zeromq", help="(zeromq)")
    parser.add_argument(
        "--cache",
        choices=("localfs", "sqlite", "postgresql"),
        default="localfs",
        help="for the job cache; with postgresql the whole site is there (localfs)",
    )
    parser.add_argument("--workers", type=int, default=5, metavar="N", help="worker_threads of the master (5)")
    parser.add_argument("--within", type=float, default=10.0, metavar="S", help="seconds in which all come back (10)")
    parser.add_argument("--away", type=float, metavar="S", help="seconds without disk (60) or redis (30)")
    parser.add_argument("--rate", type=float, metavar="N", help="events a second of flood (2000) or forged (10000)")
    parser.add_argument("--kills", type=int, default=10, metavar="N", help="of masters: kills of the leader (10)")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="of masters: times each other fault (1)")
    parser.add_argument("--only", metavar="ROUND", help="of beside: plain, slow or ten")
    parser.add_argument(
        "--limit",
        type=float,
        default=900.0,
        metavar="S",
        help="seconds without a change after which it is given up (900)",
    )
    parser.add_argument(
        "--answer",
        type=float,
        default=ANSWER,
        metavar="S",
        help="seconds that an engine has for a runner, those without a core not counted (2)",
    )
    parser.add_argument("--picture", type=pathlib.Path, metavar="FILE", help="where to draw the timeline, as SVG")
    parser.add_argument("--log", type=pathlib.Path, metavar="FILE", help="where to copy the master's log")
    parser.add_argument(
        "--json", type=pathlib.Path, metavar="FILE", help="to which figures and checks are added, as JSON"
    )
    args = parser.parse_args(words)
    if args.rate is None:
        args.rate = 10_000.0 if args.name == "forged" else 2000.0
    for name, least in (("minions", 10), ("workers", 1), ("seconds", 1), ("rate", 1), ("within", 0.1), ("limit", 1)):
        if getattr(args, name) < least:
            parser.error(f"--{name} is {getattr(args, name)} and must be at least {least}")
    if not 0 <= args.executor <= 1:
        parser.error(f"--executor is {args.executor} and must be a share from 0 to 1")
    if args.size is None:
        args.size = max(1, args.minions // 10)
    if not 1 <= args.size <= args.minions:
        parser.error(f"--size is {args.size} and must be from 1 to {args.minions}, the number of minions")
    if args.away is None:
        args.away = 30.0 if args.name == "redis" else 60.0
    return args


def play(args: argparse.Namespace) -> Story:
    """Run a scenario on a master of its own."""
    scenario = SCENARIOS[args.name]
    with (Database if args.cache == "postgresql" else scenario.needs)() as server:
        options = {"transport": args.transport, "worker_threads": args.workers, **scenario.options}
        options |= {"cache": args.cache, **(server.options if server else {})}
        with scenario.site(args.minions, args.executor, server, **options) as site:
            site.script(seed=args.seed)
            site.answer, site.limit = args.answer, args.limit
            try:
                return scenario.play(site, args)
            finally:
                if args.log:
                    site.save_log(args.log)


def main(words: list[str]) -> int:
    args = arguments(words)
    quiet_salt()
    begun = time.monotonic()
    try:
        story = play(args)
    except StepFailed as exc:
        print(f"The scenario {args.name} could not go on: {exc}", file=sys.stderr)
        return 2
    title = f"{args.name}: {args.minions:,} minions, {args.size:,} at a time"
    print(story.text(f"{title}; {time.monotonic() - begun:.0f} s in all"))
    if args.picture:
        args.picture.write_text(story.picture(f"{title}. {SCENARIOS[args.name].play.__doc__}"))
    if args.json:
        found = {"scenario": args.name, "minions": args.minions, "size": args.size, "good": story.is_good()}
        found |= {
            "figures": story.figures,
            "values": story.values,
            "checks": [dataclasses.asdict(check) for check in story.checks],
        }
        with args.json.open("a") as file:
            file.write(json.dumps(found) + "\n")
    return 0 if story.is_good() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
