"""What the tests of the batch wing share."""

from __future__ import annotations

import pytest

from tests.unit.batch.shell_bench import ShellBench


@pytest.fixture(params=[False, True], ids=["looked for", "logged"])
def both_ways(request, monkeypatch):
    """Once where returns are looked for in the job cache, and once where the master keeps a log."""
    monkeypatch.setattr(ShellBench, "logged", request.param)
