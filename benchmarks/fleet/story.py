"""The result of a scenario: checks against the truth, figures, and a timeline. All scenarios end in the same way."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from benchmarks.fleet import verdict
from benchmarks.fleet.picture import Panel, draw
from benchmarks.fleet.site import Site
from benchmarks.fleet.truth import Truth, ideal, makespan
from benchmarks.fleet.verdict import Check
from benchmarks.fleet.watch import ENGINES, difference
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY


@dataclasses.dataclass
class Story:
    """
    ``checks`` decide the verdict. ``figures``: the measurements, with units. ``values``: some of them as numbers, for
    further use. ``panels``, ``marks``: for the picture.
    """

    checks: list[Check] = dataclasses.field(default_factory=list)
    figures: dict[str, str] = dataclasses.field(default_factory=dict)
    values: dict[str, float] = dataclasses.field(default_factory=dict)
    panels: list[Panel] = dataclasses.field(default_factory=list)
    marks: Sequence[tuple[float, str]] = ()

    def is_good(self) -> bool:
        return bool(self.checks) and all(check.good for check in self.checks)

    def text(self, title: str) -> str:
        widest = max(map(len, self.figures), default=0)
        figures = "\n".join(f"  {name:<{widest}}  {value}" for name, value in self.figures.items())
        good = "GOOD: all that was checked is as it really was" if self.is_good() else "WRONG: see above"
        return f"{title}\n\n{figures}\n\n{verdict.table(self.checks)}\n\n{good}"

    def picture(self, title: str) -> str:
        return draw(title, self.panels, self.marks)

    # -- shared by scenarios -----------------------------------------------------------------------------------

    def batches(
        self,
        site: Site,
        limits: Mapping[str, int],
        since: float | None = None,
        names: Collection[str] | None = None,
    ) -> Truth:
        """
        Judge batches that have ended.

        :param limits: ``{jid: how many at a time}``.
        :param since: their beginning, if each minion that has been there since must have run them.
        :param names: the minions that they are for; None for all.
        """
        names = site.names if names is None else names

        def judge() -> tuple[Truth, list[Check]]:
            truth, now, evidence, checks = site.truth(), time.monotonic(), site.evidence(), []
            for number, (jid, limit) in enumerate(limits.items(), 1):
                found = site.ask("batch.minions", jid)
                told = "" if len(limits) == 1 else f"batch {number}: "
                each = verdict.batch(truth, jid, names, found, limit, now, BATCH_MANAGER, evidence)
                if since is not None:
                    each.append(verdict.reached(truth, jid, names, since))
                summary = site.ask("batch.status", jid)
                over = summary["state"] in ("complete", "halted")
                counts = ", ".join(f"{summary[name]:,} {name}" for name in _COUNTED if summary.get(name))
                each.append(Check("it has come to its end", over, f"{summary['state']}: {counts}"))
                checks += [dataclasses.replace(check, what=told + check.what) for check in each]
            return truth, checks

        return self._settled(site, judge)

    def owed(self, site: Site, jids: Collection[str], names: Collection[str] | None = None) -> Truth:
        """Judge jobs that are owed to these minions; None for all."""
        pairs = [(name, jid) for name in (site.names if names is None else names) for jid in jids]

        def judge() -> tuple[Truth, list[Check]]:
            truth = site.truth()
            return truth, verdict.owed(truth, pairs, site.ask("job_retry.list"), JOB_RETRY, site.evidence())

        return self._settled(site, judge)

    def _settled(self, site: Site, judge: Callable[[], tuple[Truth, list[Check]]]) -> Truth:
        """
        Judge what the engines say now. They may not have heard of the latest events yet, such as a late return. So an
        error counts only if it is still there once they have had time to hear. On a busy machine their answers show when
        that is.
        """
        begun = time.monotonic()
        while True:
            truth, checks = judge()
            evidence = site.evidence()
            until = max(evidence.durable_at(engine, begun + _SETTLE) for engine in ENGINES)
            if all(check.good for check in checks) or time.monotonic() > min(until, begun + site.limit):
                self.checks += checks
                return truth
            time.sleep(2)

    def pace(self, truth: Truth, limits: Mapping[str, int]) -> None:
        """Compute how much longer batches took than their slots allow."""
        shares = []
        for jid, limit in limits.items():
            runs = [run for found in truth.of(jid).values() for run in found]
            if least := ideal(runs, limit):
                shares.append(makespan(runs) / least)
        if shares:
            told = f"{min(shares):.3f}" if len(shares) == 1 else f"{min(shares):.3f} to {max(shares):.3f}"
            self.figures["makespan, as a multiple of what the slots allow"] = told
            self.values["makespan over ideal"] = max(shares)

    def end(
        self, site: Site, jids: Iterable[str], since: float, limit: float | None = None, each: bool = False
    ) -> None:
        """Take the figures and the timeline since a moment, and judge the engines."""
        jids, until = list(jids), time.monotonic()
        time.sleep(1.5)  # for one more look at the processes
        truth, sent, failed = site.crowd.report()
        samples = [sample for sample in site.watch.read() if sample.at >= since]
        self.checks += verdict.responsive(samples, site.spared, site.answer)
        self.checks += verdict.alive(samples, site.spared, ENGINES) + verdict.flat(samples, ENGINES)
        jobs, questions = truth.published(since=since)
        self.values.setdefault("publishes", jobs + questions)
        self.values.setdefault("seconds", until - since)
        size = sum(publish.size for publish in truth.publishes if publish.at >= since)
        self.figures["publishes"] = f"{jobs:,} of jobs, {questions:,} of questions; {size / 1e3:,.0f} kB to each minion"
        runs = max(1, sum(run.begun >= since for run in truth.runs))
        for kind, (seconds, written) in sorted(difference(site.watch.read(), since, until).items()):
            self.values[f"CPU of {kind}, ms"] = 1000 * seconds / runs
            told = f"{seconds:.1f} s, {1000 * seconds / runs:.2f} ms a run; {written / 1e3:,.0f} kB written"
            self.figures[f"CPU of {kind}"] = told
        for engine in ENGINES:
            most = max((s.kinds[engine].resident for s in samples if engine in s.kinds), default=0)
            self.figures[f"most memory of {engine}"] = f"{most / 1e6:.0f} MB"
            self.values[f"memory of {engine}, MB"] = most / 1e6
        self.figures["messages of the minions"] = ", ".join(f"{count:,} {what}" for what, count in sorted(sent.items()))
        self.figures["messages that failed"] = (
            ", ".join(f"{n:,} {what}" for what, n in sorted(failed.items())) or "none"
        )
        now = {"all": truth.busy(set(jids), until)}
        if each:
            now = {f"batch {number}": truth.busy({jid}, until) for number, jid in enumerate(jids, 1)}
        self.panels += [
            Panel("runs at a time", now, limit),
            Panel("runs that have ended", {"ended": truth.ended(set(jids))}),
            Panel("minions that are there", {"there": _there(truth)}),
            Panel(
                "memory, MB",
                {e: [(s.at, s.kinds[e].resident / 1e6) for s in samples if e in s.kinds] for e in ENGINES},
            ),
            Panel(
                "seconds until an engine answers",
                {e: [(s.at, s.answered[e].own) for s in samples if e in s.answered] for e in ENGINES},
                site.answer,
            ),
        ]
        self.panels = [
            dataclasses.replace(p, curves={n: _since(c, since) for n, c in p.curves.items()}) for p in self.panels
        ]
        self.marks = [mark for mark in site.marks if mark[0] >= since]


#: Seconds after which idle engines have heard of everything that has happened.
_SETTLE = 20.0
#: The fields of a batch's summary to print.
_COUNTED = ("completed", "failed", "lost", "offline", "timed_out", "killed", "active", "pending")


def _there(truth: Truth) -> list[tuple[float, int]]:
    count, found = 0, []
    for at, _, is_there in sorted(truth.presence):
        count += 1 if is_there else -1
        found.append((at, count))
    return found


def _since(points, since: float):
    before = [point for point in points if point[0] < since]
    return [*([(since, before[-1][1])] if before else []), *(point for point in points if point[0] >= since)]


#: A scenario's own arguments, as the command line has them.
Arguments = argparse.Namespace
