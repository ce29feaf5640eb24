"""
Reads what operators write to group minions: a grain, a pillar key or nodegroups.

Pure: stdlib only.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

#: What minions may be grouped by.
KINDS = ("grains", "pillar", "nodegroups")

_BY = re.compile(r"(?P<kind>[a-z]+):(?P<key>[^\[\]]*?)(?::?\[(?P<order>[^\[\]]*)\])?", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class By:
    """
    What minions are grouped by: a grain or pillar key (``key``, parts divided by colons) or nodegroups.

    ``order`` are the names of groups that come first, in this order; for nodegroups, of all groups.
    """

    kind: str
    key: str
    order: tuple[str, ...] = ()


def parse_by(value: Any) -> By:
    """
    Read ``grains:rack``, ``pillar:site:ring``, ``grains:rack:[r7,r2]`` or ``nodegroups:[canary,eu,us]``.

    :raises ValueError: naming what is malformed, and what is accepted.
    """
    match = _BY.fullmatch(value.strip()) if isinstance(value, str) else None
    kind, key = (match["kind"], match["key"].strip().strip(":")) if match else ("", "")
    given = match["order"] if match else None
    order = tuple(name.strip() for name in given.split(",")) if given is not None else ()
    malformed = kind not in KINDS or bool(key) == (kind == "nodegroups") or (kind == "nodegroups" and not order)
    if malformed or not all(order) or len(set(order)) < len(order):
        raise ValueError(
            f"by is {value!r}; accepted is a grain, a pillar key or nodegroups, such as 'grains:rack', 'pillar:site:ring', "
            "'grains:rack:[r7,r2]' (r7 and r2 first) or 'nodegroups:[canary,eu,us]'"
        )
    return By(kind, key, order)
