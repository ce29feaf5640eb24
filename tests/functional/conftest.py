"""What functional tests of several wings need."""

from __future__ import annotations

import pytest

from saltext.jobs.core import compat


@pytest.fixture
def loop():
    """An engine's loop, of the release that the tests run on."""
    made = compat.new_loop()
    yield made
    made.close(all_fds=True)
