"""
What the master's cache tells about minions: their grains and pillar, by which minions are grouped; which minions a
target may not really match; and when a minion last fetched its pillar, as each does when it starts.

Blocks: it reads one or two files, or asks a server, for each minion.

A minion without cached data may have any value: it must never count as one that lacks the value. Salt's matcher assumes
that every target by grains or pillar matches such a minion; a batch leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import salt.cache
import salt.utils.data
import salt.utils.minions

from saltext.jobs.core import compat
from saltext.jobs.core.batch.plan import Group, groups_of, labels_of
from saltext.jobs.core.errors import JobsError
from saltext.jobs.core.grouping import parse_by

#: Seconds by which the times of cached data may be wrong: the cache keeps whole seconds.
_SLACK = 1.0


class MinionDataUnreadable(JobsError):
    """The master's cache of grains and pillar could not be read."""


def values_of(opts: Mapping[str, Any], kind: str, key: str, minions: Iterable[str]) -> dict[str, Any]:
    """
    Return ``{minion: value}`` of a grain or pillar key; the value is None if the minion does not have the key.

    :param kind: ``grains`` or ``pillar``.
    :param key: the key; colons separate its parts.
    :return: only minions with cached data.
    :raises MinionDataUnreadable: if the cache fails.
    """
    known = _cached(opts, minions)
    place = 0 if kind == "grains" else 1
    return {minion: salt.utils.data.traverse_dict_and_list(data[place], key) for minion, data in known.items()}


def require_nodegroups(opts: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """Return the nodegroups of the master's configuration. :raises ValueError: with those of ``names`` that do not exist."""
    groups: Mapping[str, Any] = opts.get("nodegroups") or {}
    missing = [name for name in names if name not in groups]
    if missing:
        known = ", ".join(sorted(map(str, groups))) or "none"
        raise ValueError(f"there is no nodegroup {', '.join(missing)}; the master's configuration has {known}")
    return groups


def nodegroups_of(opts: Mapping[str, Any], names: Sequence[str], minions: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """
    Return ``{minion: names}``: which of some nodegroups each minion is in.

    :param names: nodegroups of the master's configuration.
    :return: only minions whose nodegroups are known: a nodegroup may match by grains or pillar, and not all are cached.
    :raises ValueError: with the nodegroups that do not exist.
    :raises MinionDataUnreadable: if the cache fails.
    """
    groups = require_nodegroups(opts, names)
    if not opts.get("minion_data_cache", True):
        return {}  # Salt's matcher then lets a compound match all minions, or none
    chosen = list(minions)
    if any(_needs_data(word) for name in names for word in _nodegroup(name, groups)):
        chosen = list(_cached(opts, chosen))
    checker = salt.utils.minions.CkMinions(dict(opts))
    members = {name: set(checker.check_minions(name, "nodegroup").get("minions") or ()) for name in names}
    return {minion: tuple(name for name in names if minion in members[name]) for minion in chosen}


def may_have_started(opts: Mapping[str, Any], since: Mapping[str, float]) -> frozenset[str]:
    """
    Return the minions whose process may have started since a given time: they have fetched their pillar since.

    If nothing is cached (``minion_data_cache: False``), no minion is returned. Blocks.

    :param since: ``{minion: Unix time}``.
    :raises MinionDataUnreadable: if the cache fails.
    """
    if not opts.get("minion_data_cache", True):
        return frozenset()
    cache, found = salt.cache.factory(dict(opts)), set()
    for minion, moment in since.items():
        try:
            written = compat.minion_data_written(cache, minion)
        except Exception as exc:  # a driver may raise anything
            raise MinionDataUnreadable(f"The time when {minion} last fetched its pillar cannot be read: {exc}") from exc
        if written is not None and written >= moment - _SLACK:
            found.add(minion)
    return frozenset(found)


def _cached(opts: Mapping[str, Any], minions: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """Return ``{minion: (grains, pillar)}`` of the minions with cached data."""
    if not opts.get("minion_data_cache", True):
        return {}
    cache = salt.cache.factory(dict(opts))
    found = {}
    for minion in minions:
        try:
            grains, pillar = compat.minion_data(cache, minion)
        except Exception as exc:  # a driver may raise anything
            raise MinionDataUnreadable(f"The cached grains and pillar of {minion} cannot be read: {exc}") from exc
        if grains:
            found[minion] = (grains, pillar or {})
    return found


def find_groups(opts: Mapping[str, Any], by: Any, minions: Sequence[str]) -> tuple[Group, ...]:
    """
    Return the groups of some minions, in order.

    :param opts: the master's options.
    :param by: as ``grouping.parse_by`` takes it.
    :raises ValueError: when ``by`` is malformed, or no minion is known to be in any group, which must be a mistake.
    :raises MinionDataUnreadable: when the cache of minions' grains and pillar fails.
    """
    labels, wanted = _labels(opts, by, minions), parse_by(by)
    if not any(labels.values()):
        known = f"{len(labels)} of the {len(minions)} minions are known to the master (minion_data_cache)"
        raise ValueError(f"by is {by!r}, but no minion of the target is in such a group; {known}")
    return groups_of(minions, labels, wanted.order)


def _labels(opts: Mapping[str, Any], by: Any, minions: Sequence[str]) -> Mapping[str, Sequence[str]]:
    wanted = parse_by(by)
    if wanted.kind == "nodegroups":
        return nodegroups_of(opts, wanted.order, minions)
    values = values_of(opts, wanted.kind, wanted.key, minions)
    return {minion: labels_of(value) for minion, value in values.items()}


#: Target types that depend only on the minion's id.
_BY_ID = frozenset({"glob", "pcre", "list"})
#: Letters of compound targets that depend only on the minion's id.
_ID_LETTERS = frozenset({"E", "L"})


def without_data(opts: Mapping[str, Any], tgt: Any, tgt_type: str, matched: Iterable[str]) -> frozenset[str]:
    """
    Return those of the matched minions of which the master has no grains and pillar, although the target depends on these:
    whether it matches them is not known.

    :param opts: the master's options.
    :raises ValueError: if the master keeps no such data.
    :raises MinionDataUnreadable: if the cache of minions' grains and pillar fails.
    """
    words = _words(opts, tgt, tgt_type)
    if tgt_type in _BY_ID or (words is not None and not any(_needs_data(word) for word in words)):
        return frozenset()
    if not opts.get("minion_data_cache", True):
        raise ValueError(
            f"with minion_data_cache: False the master cannot tell which minions {tgt_type} {tgt!r} matches; set that to "
            "True, or name the minions"
        )
    minions = frozenset(matched)
    return minions - values_of(opts, "grains", "id", minions).keys()


def _words(opts: Mapping[str, Any], tgt: Any, tgt_type: str) -> list[str] | None:
    """Return the words of a compound target, with nodegroups expanded; None for a target of another type."""
    groups = opts.get("nodegroups") or {}
    if tgt_type == "nodegroup":
        return _nodegroup(tgt, groups)
    if tgt_type != "compound":
        return None
    words = tgt.split() if isinstance(tgt, str) else [str(word) for word in tgt]
    return [part for word in words for part in (_nodegroup(word[2:], groups) if word.startswith("N@") else [word])]


def _nodegroup(name: str, groups: Mapping[str, Any]) -> list[str]:
    found = salt.utils.minions.nodegroup_comp(name, groups)
    return ["(", *(found.split() if isinstance(found, str) else map(str, found)), ")"]


def _needs_data(word: str) -> bool:
    head, at, _ = word.partition("@")
    return bool(at) and 1 <= len(head) <= 2 and head[0].isupper() and head not in _ID_LETTERS
