"""
What the master's cache tells about minions: their grains and pillar, by which minions are grouped; which minions a
target may not really match; and when a minion last fetched its pillar, as each does when it starts.

Blocks: it reads one or two files, or asks a server, for each minion. It must never count a minion without cached data as one
that lacks a value: Salt's matcher assumes that every target by grains or pillar matches it; a batch leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import salt.cache
import salt.utils.data
import salt.utils.minions

from saltext.jobs.core import compat, lines
from saltext.jobs.core.batch.spec import By, Group, groups_of, labels_of, parse_by
from saltext.jobs.core.display.text import counted
from saltext.jobs.core.errors import JobCacheError, Refused

log = lines.logger(__name__)

#: Seconds by which the times of cached data may be wrong: the cache keeps whole seconds.
_SLACK = 1.0
#: Target types, and letters of words in compound targets, that depend only on the minion's id.
_BY_ID, _BY_ID_LETTERS = frozenset({"glob", "pcre", "list"}), frozenset("EL")

T = TypeVar("T")


def may_have_started(opts: Mapping[str, Any], since: Mapping[str, float]) -> frozenset[str]:
    """
    Return those of ``{minion: Unix time}`` that have fetched their pillar since, so they may have started.
    :raises JobCacheError: if the cache fails.
    """
    written = _read(opts, compat.minion_data_written, since)
    return frozenset(name for name, at in written.items() if at is not None and at >= since[name] - _SLACK)


def find_groups(opts: Mapping[str, Any], by: str, minions: Sequence[str], is_retry: bool = False) -> tuple[Group, ...]:
    """
    Return the groups of some minions, in order. ``by`` is as ``spec.parse_by`` takes it.

    :raises Refused: when no minion is known to be in any group, which must be a mistake unless it ``is_retry``.
    :raises JobCacheError: if the cache fails.
    """
    wanted = parse_by(by)
    labels = (_nodegroups_of if wanted.kind == "nodegroups" else _values_of)(opts, wanted, minions)
    if not (is_retry or any(labels.values())):
        known = f"the master knows {len(labels)} of {counted(len(minions), 'minion')} (minion_data_cache)"
        raise Refused(f"by is {by!r}, but no minion of the target is in such a group; {known}")
    if lacking := [name for name in wanted.order if not (is_retry or any(name in each for each in labels.values()))]:
        log.warning("by names %s first, and no minion of the target is known to be in it", ", ".join(lacking))
    return groups_of(minions, labels, wanted.order)


def _values_of(opts: Mapping[str, Any], by: By, minions: Iterable[str]) -> dict[str, Sequence[str]]:
    """Return ``{minion: labels}`` of the minions with cached data."""
    place, find = ("grains", "pillar").index(by.kind), salt.utils.data.traverse_dict_and_list
    return {minion: labels_of(find(data[place], by.key)) for minion, data in _cached(opts, minions).items()}


def _nodegroups_of(opts: Mapping[str, Any], by: By, minions: Iterable[str]) -> dict[str, Sequence[str]]:
    """Return ``{minion: names}``. In a nodegroup that goes by grains or pillar are only minions with cached data."""
    groups: Mapping[str, Any] = opts.get("nodegroups") or {}
    _require_nodegroups(by.order, groups)
    if not opts.get("minion_data_cache", True):
        return {}  # Salt's matcher then lets a compound match all minions, or none
    if any(_needs_data(word) for name in by.order for word in _nodegroup(name, groups)):
        minions = _cached(opts, minions)
    checker = salt.utils.minions.CkMinions(dict(opts))
    members = {name: set(checker.check_minions(name, "nodegroup").get("minions") or ()) for name in by.order}
    return {minion: tuple(name for name in by.order if minion in members[name]) for minion in minions}


def without_data(opts: Mapping[str, Any], tgt: Any, tgt_type: str, matched: Iterable[str]) -> frozenset[str]:
    """
    Return those of the matched minions of which the master has no grains and pillar, although the target depends on these.

    :raises Refused: if the master keeps no such data. :raises JobCacheError: if the cache fails.
    """
    groups, words = opts.get("nodegroups") or {}, None
    if tgt_type == "nodegroup":
        words = _nodegroup(tgt, groups)
    elif tgt_type == "compound":
        given = tgt.split() if isinstance(tgt, str) else map(str, tgt)
        words = [part for word in given for part in (_nodegroup(word[2:], groups) if word[:2] == "N@" else [word])]
    if tgt_type in _BY_ID or (words is not None and not any(map(_needs_data, words))):
        return frozenset()
    if not opts.get("minion_data_cache", True):
        raise Refused(
            f"with minion_data_cache: False the master cannot tell which minions {tgt_type} {tgt!r} matches; set that to "
            "True, or name the minions"
        )
    minions = frozenset(matched)
    return minions - _cached(opts, minions).keys()


def _require_nodegroups(names: Iterable[str], groups: Mapping[str, Any]) -> None:
    if missing := [name for name in names if name not in groups]:
        known = ", ".join(sorted(map(str, groups))) or "none"
        raise Refused(f"there is no nodegroup {', '.join(missing)}; the master's configuration has {known}")


def _nodegroup(name: str, groups: Mapping[str, Any]) -> list[str]:
    """Return the words of the compound target that a nodegroup stands for. :raises Refused: if there is none."""
    _require_nodegroups([name], groups)
    found = salt.utils.minions.nodegroup_comp(name, groups)
    return ["(", *(found.split() if isinstance(found, str) else map(str, found)), ")"]


def _needs_data(word: str) -> bool:
    head, at, _ = word.partition("@")
    return bool(at) and 1 <= len(head) <= 2 and head[0].isupper() and head not in _BY_ID_LETTERS


def _cached(opts: Mapping[str, Any], minions: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """Return ``{minion: (grains, pillar)}`` of the minions with cached data."""
    found = _read(opts, compat.minion_data, minions)
    return {minion: (grains, pillar or {}) for minion, (grains, pillar) in found.items() if grains}


def _read(opts: Mapping[str, Any], read: Callable[[Any, str], T], minions: Iterable[str]) -> dict[str, T]:
    cache, found = salt.cache.factory(dict(opts)), dict[str, T]()
    for minion in minions if opts.get("minion_data_cache", True) else ():
        try:
            found[minion] = read(cache, minion)
        except Exception as exc:  # a driver may raise anything
            raise JobCacheError(f"The master's cached data of {minion} cannot be read: {exc}") from exc
    return found
