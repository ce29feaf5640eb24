"""What functional tests of several wings need."""

from __future__ import annotations

import functools

import pytest

from saltext.jobs.core import compat
from tests.waiting import comes_true


@pytest.fixture
def loop():
    """An engine's loop, of the release that the tests run on."""
    made = compat.new_loop()
    yield made
    made.close(all_fds=True)


@pytest.fixture
def until(loop):
    """Runs the loop until a condition is true or the time is over, and tells whether it is."""
    return functools.partial(comes_true, loop)
