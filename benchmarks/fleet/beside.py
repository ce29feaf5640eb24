"""Side by side: the same batches by ``batch_manager`` and by Salt 3008's own manager, on one master and one fleet."""

from __future__ import annotations

import time

from benchmarks.fleet import verdict
from benchmarks.fleet.batches import FAULTS
from benchmarks.fleet.site import Site
from benchmarks.fleet.story import Arguments, Story
from benchmarks.fleet.truth import ideal, makespan
from benchmarks.fleet.verdict import Check, wrong_about
from benchmarks.fleet.watch import difference
from saltext.jobs.core.engine.names import BATCH_MANAGER

#: For each round: the faults of its runs, and the number of batches at once.
_ROUNDS = {
    "plain": ({}, 1),
    "slow, failing, dying": ({**FAULTS, "away": 60.0}, 1),
    "ten at once": ({}, 10),
}


def beside(site: Site, args: Arguments) -> Story:
    """Run one batch, one with faults, and ten at once: each first with ours, then with Salt's own manager."""
    story = Story()
    site.start()
    since = site.mark("started")
    told: list[str] = []
    jids: list[str] = []
    for title, (script, count) in _ROUNDS.items():
        if args.only and args.only != title.split(",")[0].split()[0]:
            continue
        for driver in ("ours", "Salt's"):
            site.start()
            site.script(seed=args.seed, **script)
            site.mark(f"{driver}, {title}")
            found, checks = _round(site, args, driver == "Salt's", count)
            jids += found.pop("jids")
            if driver == "ours":
                story.checks += [Check(f"{title}: {check.what}", check.good, check.found) for check in checks]
            for name, value in found.items():
                story.figures[f"{title}: {driver}: {name}"] = value
            told.append(title)
    story.end(site, jids, since, args.size)
    return story


def _round(site: Site, args: Arguments, native: bool, count: int):
    """Run batches, wait for their end and for all runs, and return ``{figure: value}`` and the checks."""
    begun = time.monotonic()
    start = site.native_batch if native else site.batch
    jids = [start(args.size) for _ in range(count)]
    site.wait(jids)
    reported = time.monotonic()
    states = {jid: site.ask("batch.minions", jid) for jid in jids}
    site.need(lambda: not site.crowd.running(jids), site.limit, "all runs have come to an end")
    until = time.monotonic()
    time.sleep(1.5)  # for one more look at the processes, and for returns that are on their way
    truth = site.truth()
    wrong = most = again = 0
    shares = []
    for jid in jids:
        runs = truth.of(jid)
        wrong += sum(
            wrong_about(states[jid].get(name, {}).get("state", "not named"), runs.get(name, ()), native) is not None
            for name in site.names
        )
        most = max(most, truth.most_at_once(jid, until))
        every = [run for found in runs.values() for run in found]
        least = ideal(every, args.size)
        shares.append(makespan(every) / least if least else 0.0)
        again += len({second.minion for _, second in truth.again({jid})})
    spent = difference(site.watch.read(), begun, until)
    jobs, questions = truth.published(since=begun)
    driver = "Salt's own batch manager" if native else "batch_manager"
    figures = {
        "jids": jids,
        "makespan over ideal": f"{min(shares):.2f}" if count == 1 else f"{min(shares):.2f} to {max(shares):.2f}",
        "said to have ended after": f"{reported - begun:.0f} s",
        "reported wrongly": f"{wrong:,} of {count * len(site.names):,}",
        "most at once": f"{most:,} of {args.size:,}",
        "ran more than once": f"{again:,}",
        "publishes": f"{jobs:,} of jobs, {questions:,} of questions",
        **{
            f"CPU of {'the driver' if kind == driver else kind}": f"{cpu:.1f} s; {written / 1e3:,.0f} kB written"
            for kind, (cpu, written) in sorted(spent.items())
            if kind in (driver, "workers", "publisher of events", "publisher of jobs", "router")
        },
    }
    checks = [
        Check("none of ours is reported wrongly", not wrong, str(wrong)),
        Check(f"never more than {args.size:,} at a time", most <= args.size, f"{most:,}"),
        verdict.twice(truth, set(jids), BATCH_MANAGER, site.evidence()),
    ]
    return figures, checks
