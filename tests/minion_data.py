"""What a master knows of its minions."""

from __future__ import annotations

import salt.cache

from saltext.jobs.core import compat


def know(opts, minion, grains, pillar=()):
    """Cache the grains and pillar of a minion as the master does when it compiles that pillar."""
    cache, data = salt.cache.factory(opts), {"grains": grains, "pillar": dict(pillar)}
    if compat.HAS_NATIVE_BATCHES:
        for bank, values in data.items():
            cache.store(bank, minion, values)
    else:
        cache.store(f"minions/{minion}", "data", data)
