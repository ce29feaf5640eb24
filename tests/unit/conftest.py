"""What unit tests of several wings need."""

from __future__ import annotations

import pytest


class Steady:
    """A clock that only a test sets forward."""

    seconds = 500.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def steady():
    return Steady()
