"""
The cost of each file of tests. With ``-p tests.times`` pytest lists them at its end, the most CPU time first, and then
those that ended last.

CPU time is that of the tests' own process, of all that it has waited for, such as servers, and of all of Salt's commands
and daemons that have ended (``tests/integration/warm.py``).
"""

from __future__ import annotations

import collections
import os
import sys
import time

_KEY = "cpu and wall"
_LINES = 60
_LAST = 15


class _Moment:
    def __init__(self):
        own = os.times()
        warm = sys.modules.get("tests.integration.warm")  # where no test needs a daemon, it is not imported
        self.cpu, self.wall = sum(own[:4]) + (warm.spent() if warm else 0.0), time.monotonic()


class _Measuring:
    """In each process that runs tests."""

    def __init__(self):
        self._begun = _Moment()

    def pytest_runtest_logstart(self):
        self._begun = _Moment()

    def pytest_runtest_makereport(self, item, call):
        # What has passed since the last report of the test, with what fixtures and plugins took of it.
        now = _Moment()
        item.user_properties.append((f"{call.when} {_KEY}", (now.cpu - self._begun.cpu, now.wall - self._begun.wall)))
        self._begun = now


class _Table:
    """In the process that reports."""

    def __init__(self):
        self._costs = collections.defaultdict(lambda: [0.0, 0.0, 0])
        self._begun, self._ended = time.monotonic(), {}

    def pytest_runtest_logreport(self, report):
        file = report.nodeid.partition("::")[0]
        cost, self._ended[file] = self._costs[file], time.monotonic() - self._begun
        for name, (cpu, wall) in report.user_properties:
            if name == f"{report.when} {_KEY}":
                cost[0] += cpu
                cost[1] += wall
                cost[2] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("CPU time and duration by file, in seconds")
        total = [sum(column) for column in zip(*self._costs.values(), strict=True)] or [0, 0, 0]
        rows = sorted(self._costs.items(), key=lambda row: -row[1][0])[:_LINES]
        for name, (cpu, wall, tests) in [*rows, ("all files", total)]:
            terminalreporter.write_line(f"{cpu:8.1f} {wall:8.1f}  {tests:5} tests  {name}")
        terminalreporter.section("the files that ended last, and when, in seconds")
        for name, ended in sorted(self._ended.items(), key=lambda row: row[1])[-_LAST:]:
            terminalreporter.write_line(f"{ended:8.1f}  {name}")


def pytest_configure(config):
    config.pluginmanager.register(_Measuring())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Table())
