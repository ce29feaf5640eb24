"""What differs between Salt releases, as far as it can be told without a master."""

from __future__ import annotations

import types

import pytest

from saltext.jobs.core import compat


class Proxy:
    """As ``__opts__`` is on the releases that wrap it."""

    def value(self):
        return {"id": "m"}


@pytest.mark.parametrize("opts", [Proxy(), {"id": "m"}])
def test_the_options_are_had_with_and_without_a_proxy(opts):
    assert compat.plain_opts(opts) == {"id": "m"}


@pytest.mark.parametrize("name", ["kwargs", "_kwargs"])
def test_the_arguments_of_a_cache_driver_are_found_under_either_name(name):
    cache = types.SimpleNamespace(**{name: {"cachedir": "/c"}})
    assert compat.driver_arguments(cache) == {"cachedir": "/c"}
