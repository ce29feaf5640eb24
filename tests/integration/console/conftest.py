"""One browser for each file of tests."""

from __future__ import annotations

import pytest

from tests.integration.console.browser import chromium


@pytest.fixture(scope="module")
def chrome():
    with chromium() as browser:
        yield browser
