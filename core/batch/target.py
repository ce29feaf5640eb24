"""
Of which minions it is not known whether a target matches them, and how the target travels with the job to those. Blocks.

Salt's matcher takes every minion of which the master has no grains or pillar for one that a target by those matches. Such a
minion must never be sent to without the target, so that it decides for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import salt.utils.minions

from saltext.jobs.core import compat
from saltext.jobs.core.master.minion_data import values_of

#: What stands for a type of target in a compound one.
_LETTERS = {"grain": "G", "grain_pcre": "P", "pillar": "I", "pillar_pcre": "J", "ipcidr": "S", "range": "R"}
#: Types of target that the id of a minion decides.
_BY_ID = frozenset({"glob", "pcre", "list"})
#: Letters of a compound target that the id of a minion decides.
_ID_LETTERS = frozenset({"E", "L"})


def doubts_about(
    opts: Mapping[str, Any], tgt: Any, tgt_type: str, matched: Iterable[str], delimiter: str = ":"
) -> tuple[frozenset[str], str]:
    """
    Return those of the matched minions of which it is not known that the target matches them, and the target as a compound.

    :param opts: the master's options.
    :raises ValueError: when there are such minions, and the target cannot be written as a compound.
    :raises MinionDataUnreadable: when the cache of minions' grains and pillar fails.
    """
    words = _words(opts, tgt, tgt_type)
    if tgt_type in _BY_ID or (words is not None and not any(_needs_data(word) for word in words)):
        return frozenset(), ""
    minions = list(matched)
    unsure = frozenset(minions) - values_of(opts, "grains", "id", minions).keys()
    if not unsure:
        return unsure, ""
    if not opts.get("minion_data_cache", True) and not compat.SENDS_COMPOUND_WITHOUT_DATA:
        raise ValueError(
            f"the master has no grains and pillar of {len(unsure)} minions, so only they can tell whether {tgt_type} "
            f"{tgt!r} matches them, and this release of Salt sends them no such target with minion_data_cache: False; "
            "set that to True, or name the minions"
        )
    if words is not None:
        return unsure, " ".join(words)
    letter, text = _LETTERS.get(tgt_type), str(tgt)
    if letter is None or text.split() != [text] or (delimiter != ":" and (len(delimiter) != 1 or letter not in "GPIJ")):
        names = ", ".join(sorted(unsure)[:5]) + (", …" if len(unsure) > 5 else "")
        raise ValueError(
            f"the master has no grains and pillar of {len(unsure)} minions ({names}), so only they can tell whether "
            f"{tgt_type} {text!r} matches them, and such a target cannot be sent to them; use a compound target"
        )
    return unsure, f"{letter}{delimiter if delimiter != ':' else ''}@{text}"


def _words(opts: Mapping[str, Any], tgt: Any, tgt_type: str) -> list[str] | None:
    """Return the words of a compound target, nodegroups written out; None for one of another type."""
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
