"""
Plays many simulated worlds, one for each seed, and reports which of them broke a promise:

    python -m tests.worlds.adversary --profile Power --seeds 30000-50000
    python -m tests.worlds.together --seeds 30000-50000
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import time


@contextlib.contextmanager
def quiet():
    """Leave out the log lines about caused faults: a world looks only at errors with a traceback."""
    logger = logging.getLogger("saltext.jobs.core")
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.propagate = propagate


def live_through(profile, seed):
    """Play one world to its end and judge it."""
    with profile(seed) as world:
        try:
            world.play(steps=30)
            world.judge()
        except AssertionError as exc:
            raise AssertionError(f"{profile.__name__} {seed}: {exc}") from exc


def main(profiles):
    """Play what the command line names: one of these classes of worlds, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=[profile.__name__ for profile in profiles], help="by default all")
    parser.add_argument("--seeds", default="0-100", help="the first seed, and the one after the last")
    asked = parser.parse_args()
    first, last = map(int, asked.seeds.split("-"))
    bad = 0
    with quiet():
        for profile in profiles:
            if asked.profile not in (None, profile.__name__):
                continue
            began, found = time.process_time(), 0
            for seed in range(first, last):
                try:
                    live_through(profile, seed)
                except AssertionError as exc:
                    found += 1
                    print(exc, flush=True)
            spent = time.process_time() - began
            print(f"{profile.__name__}: {found} of {last - first} worlds are bad; {spent:.0f} s of CPU", flush=True)
            bad += found
    sys.exit(bool(bad))
