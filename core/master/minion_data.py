"""
What the master's cache holds of minions: their grains, their pillar, and which nodegroups they are in by it.

Blocks: it reads one or two files, or asks a server, for each minion. It must never take a minion of which nothing is cached
for one that does not have a value: such a minion is missing from what is returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import salt.cache
import salt.utils.data
import salt.utils.minions

from saltext.jobs.core import compat
from saltext.jobs.core.errors import JobsError

#: Words of a compound target that are decided by what is cached of a minion, and not by its id.
_NEEDS_DATA = re.compile(r"[GPIJSRTM].?@")


class MinionDataUnreadable(JobsError):
    """The cache in which the master keeps minions' grains and pillar could not be read."""


def values_of(opts: Mapping[str, Any], kind: str, key: str, minions: Iterable[str]) -> dict[str, Any]:
    """
    Return ``{minion: value}`` of a grain or pillar key; None where a minion does not have it.

    :param kind: ``grains`` or ``pillar``.
    :param key: the key, its parts divided by colons.
    :return: only minions of which something is cached.
    :raises MinionDataUnreadable: when the cache fails.
    """
    known = _cached(opts, minions)
    place = 0 if kind == "grains" else 1
    return {minion: salt.utils.data.traverse_dict_and_list(data[place], key) for minion, data in known.items()}


def nodegroups_of(opts: Mapping[str, Any], names: Sequence[str], minions: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """
    Return ``{minion: names}``: in which of some nodegroups each minion is.

    :param names: nodegroups of the master's configuration.
    :return: only minions of which that is known: a nodegroup may be decided by grains or pillar, which may not be cached.
    :raises ValueError: naming the nodegroups that do not exist.
    :raises MinionDataUnreadable: when the cache fails.
    """
    groups = opts.get("nodegroups") or {}
    missing = [name for name in names if name not in groups]
    if missing:
        known = ", ".join(sorted(map(str, groups))) or "none"
        raise ValueError(f"there is no nodegroup {', '.join(missing)}; the master's configuration has {known}")
    if not opts.get("minion_data_cache", True):
        return {}  # Salt's matcher then takes a compound for all minions, or for none
    chosen = list(minions)
    if any(_needs_data(name, groups, frozenset()) for name in names):
        chosen = list(_cached(opts, chosen))
    checker = salt.utils.minions.CkMinions(dict(opts))
    members = {name: set(checker.check_minions(name, "nodegroup").get("minions") or ()) for name in names}
    return {minion: tuple(name for name in names if minion in members[name]) for minion in chosen}


def _cached(opts: Mapping[str, Any], minions: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """Return ``{minion: (grains, pillar)}`` of the minions of which these are cached."""
    if not opts.get("minion_data_cache", True):
        return {}
    cache = salt.cache.factory(dict(opts))
    found = {}
    for minion in minions:
        try:
            grains, pillar = compat.minion_data(cache, minion)
        except Exception as exc:  # a driver raises whatever its library does
            raise MinionDataUnreadable(f"The cached grains and pillar of {minion} cannot be read: {exc}") from exc
        if grains:
            found[minion] = (grains, pillar or {})
    return found


def _needs_data(name: str, groups: Mapping[str, Any], above: frozenset[str]) -> bool:
    definition = groups.get(name, "")
    words = definition.split() if isinstance(definition, str) else [str(word) for word in definition]
    nested = [word[2:] for word in words if word.startswith("N@") and word[2:] not in above | {name}]
    return any(_NEEDS_DATA.match(word) for word in words) or any(
        _needs_data(inner, groups, above | {name}) for inner in nested
    )
