"""What becomes of a test whose means are missing: skipped with the reason, but failed in CI, where nothing goes untested."""

from __future__ import annotations

import os

import pytest


def missing(reason: str) -> None:
    """End the running test, saying what it lacks."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}, and CI is set")
    pytest.skip(reason)
