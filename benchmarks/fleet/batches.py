"""Scenarios of batches: one, one among faults, ten at once, a ramp that halts, groups and windows."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.fleet.site import Site
from benchmarks.fleet.story import Arguments, Story
from benchmarks.fleet.truth import Truth
from benchmarks.fleet.verdict import Check

#: Minions that are slow, fail or die, as shares of the runs.
FAULTS = {"slow": 0.05, "slow_seconds": 45.0, "failing": 0.05, "dying": 0.03}


def a_batch(site: Site, args: Arguments, meanwhile: Callable[[str], object] = lambda jid: None) -> Story:
    """
    A batch over the minions that are there.

    :param meanwhile: what happens while it runs; gets its jid.
    """
    story, since = Story(), site.mark("started")
    jid = site.batch(args.size)
    meanwhile(jid)
    site.wait([jid])
    truth = story.batches(site, {jid: args.size}, since)
    story.pace(truth, {jid: args.size})
    story.end(site, [jid], since, args.size)
    return story


def one(site: Site, args: Arguments) -> Story:
    """A batch over all minions, a tenth of them at a time, with jobs of 1 to 5 s."""
    site.start()
    return a_batch(site, args)


def faulty(site: Site, args: Arguments) -> Story:
    """A batch; some of its minions are slow, fail, die in the middle of the job, or were never there."""
    site.start([name for number, name in enumerate(site.names) if number % 20])
    site.script(seed=args.seed, **FAULTS)
    return a_batch(site, args)


def ten(site: Site, args: Arguments) -> Story:
    """Ten batches over all minions at once."""
    story = Story()
    site.start()
    site.script(seed=args.seed, failing=0.02)
    since = site.mark("started")
    limits = {site.batch(args.size): args.size for _ in range(10)}
    site.wait(limits)
    truth = story.batches(site, limits, since)
    story.pace(truth, limits)
    story.end(site, limits, since, args.size, each=True)
    return story


def canary(site: Site, args: Arguments) -> Story:
    """A ramp of one minion, a tenth and then half of them. Most fail: it must halt in the second wave."""
    story = Story()
    site.start()
    site.script(seed=args.seed, failing=0.7)
    since = site.mark("started")
    most = 1 + -(-len(site.names) // 10)
    jid = site.batch("1,10%,50%", max_failures="5%")
    site.wait([jid])
    truth = story.batches(site, {jid: most})
    runs, state = len(truth.of(jid)), site.ask("batch.status", jid)
    story.checks.append(Check("it has halted", state["state"] == "halted", str(state["halted_reason"])))
    story.checks.append(
        Check("no wave after the second has begun", runs <= most, f"{runs:,} runs of {len(site.names):,}")
    )
    story.end(site, [jid], since, most)
    return story


def groups(site: Site, args: Arguments) -> Story:
    """A batch through three groups, one after the other, and one that may begin jobs in every other minute only."""
    story = Story()
    site.start()
    since = site.mark("groups")
    grouped = site.batch("50%", by="nodegroups:[first,second,third]")
    site.wait([grouped])
    site.script(seed=args.seed, seconds=(6.0, 10.0))
    minutes = [time.strftime("%H:%M", time.localtime(time.time() + 60 * number)) for number in range(1, 13)]
    windows = ";".join(f"{opens}-{shuts}" for opens, shuts in zip(minutes[::2], minutes[1::2], strict=True))
    first = time.monotonic() + 60 - time.time() % 60
    site.mark("window")
    windowed = site.batch(args.size, window=f"'{windows}'")
    site.wait([windowed])
    truth = story.batches(site, {grouped: -(-len(site.names) // 6) + 1, windowed: args.size}, since)
    story.checks += [_in_order(truth, grouped), _in_windows(truth, windowed, first)]
    story.end(site, [grouped, windowed], since, each=True)
    return story


#: What its master is configured with.
GROUPS = {"nodegroups": {"first": "a*", "second": "b*", "third": "c*"}}


def _in_order(truth: Truth, jid: str) -> Check:
    runs = [run for found in truth.of(jid).values() for run in found]
    what = "a group begins when the one before has ended"
    groups = [[run for run in runs if run.minion[0] == name] for name in "abc"]
    if not all(groups):
        return Check(what, False, f"{', '.join(str(len(group)) for group in groups)} runs")
    spans = [(min(run.begun for run in group), max(run.end or 0 for run in group)) for group in groups]
    good = spans[0][1] <= spans[1][0] and spans[1][1] <= spans[2][0]
    return Check(
        what, good, ", ".join(f"{first - spans[0][0]:.1f} to {last - spans[0][0]:.1f} s" for first, last in spans)
    )


def _in_windows(truth: Truth, jid: str, first: float) -> Check:
    """:param first: when the first window opens. Windows, and the pauses between them, last a minute."""
    # What was published before a window closes begins when the minion has it.
    times = [run.begun - first for found in truth.of(jid).values() for run in found]
    late = [at for at in times if at < 0 or at % 120 > 62]
    return Check("nothing is begun while the window is shut", not late, f"{len(late)} of {len(times):,} runs")
