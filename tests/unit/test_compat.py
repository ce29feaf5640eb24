"""What differs between Salt releases, as far as tests without a master can show."""

from __future__ import annotations

import pytest

from saltext.jobs.core import compat


class Proxy:
    """As ``__opts__`` is on the releases that wrap it."""

    def value(self):
        return {"id": "m"}


@pytest.mark.parametrize("opts", [Proxy(), {"id": "m"}])
def test_the_options_are_read_with_and_without_a_proxy(opts):
    assert compat.plain_opts(opts) == {"id": "m"}
