"""
To whom a job is published again: to those that missed it, as far as its own target still matches them. Pure.

What a minion is (its grains, its pillar, its addresses) may have been mistaken when the job was published, and changes; an
id does not. So a target by id needs no second look, and any other one is published as a compound target with the ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: Types of targets that only the id decides.
_BY_ID = frozenset({"glob", "pcre", "list"})
#: Letter in a compound target, by type; the last ones take no delimiter.
_LETTERS = {
    "grain": "G",
    "grain_pcre": "P",
    "pillar": "I",
    "pillar_pcre": "J",
    "ipcidr": "S",
    "range": "R",
    "nodegroup": "N",
}
_DELIMITED = frozenset("GPIJ")


def is_by_id(load: Mapping[str, Any]) -> bool:
    """Tell whether only the ids of minions decide which of them a job's target matches."""
    return str(load.get("tgt_type") or "glob") in _BY_ID


def expression_of(load: Mapping[str, Any]) -> str | None:
    """
    Return a job's target as a part of a compound target, or None where it goes by the id.

    :raises ValueError: where it cannot be said so; the message says why.
    """
    if is_by_id(load):
        return None
    kind, tgt = str(load["tgt_type"]), load.get("tgt")
    if kind == "compound":
        words = tgt.split() if isinstance(tgt, str) else [str(word) for word in tgt or ()]
        if not words or any(not word or word.split() != [word] for word in words):
            raise ValueError(f"its target {tgt!r} cannot be published again")
        return f"( {' '.join(words)} )"
    letter = _LETTERS.get(kind)
    if letter is None or not isinstance(tgt, str):
        raise ValueError(f"its target {tgt!r} of the type {kind} cannot be narrowed to single minions")
    if tgt.split() != [tgt]:
        raise ValueError(f"its target {tgt!r} has a blank, which a compound target cannot have")
    delimiter = str((load.get("kwargs") or {}).get("delimiter") or ":") if letter in _DELIMITED else ":"
    if len(delimiter) != 1:
        raise ValueError(f"its target has the delimiter {delimiter!r}; in a compound target it is one character")
    return f"{letter}{delimiter if delimiter != ':' else ''}@{tgt}"


def obstacle(load: Mapping[str, Any]) -> str:
    """Return why a job cannot be published again to single minions, or nothing where it can."""
    try:
        expression_of(load)
    except ValueError as exc:
        return str(exc)
    return ""


def narrowed(load: Mapping[str, Any], minions: Iterable[str], named: Iterable[str]) -> tuple[list[str] | str, str]:
    """
    Return (target, its type) of a job for some minions.

    :param named: those of ``minions`` that get it whatever the job's own target matches.
    :raises ValueError: as ``expression_of``.
    """
    exempt = set(named)
    bound = [minion for minion in minions if minion not in exempt]
    expression = expression_of(load) if bound else None
    if expression is None:
        return [*bound, *sorted(exempt)], "list"
    if any(minion.split() != [minion] or "," in minion for minion in (*bound, *exempt)):
        raise ValueError("an id with a blank or a comma cannot stand in a compound target")
    narrow = f"L@{','.join(bound)} and {expression}"
    return (f"L@{','.join(sorted(exempt))} or ( {narrow} )" if exempt else narrow), "compound"
