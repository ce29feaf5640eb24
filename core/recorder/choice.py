"""
Which jobs are recorded.

Pure: stdlib only, no clock, no I/O.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

#: Prefixes of the functions of jobs that run in the master itself. Their arguments and returns may contain a pillar:
#: they are recorded only if ``include`` names them.
_OF_THE_MASTER = ("runner.", "wheel.", "_system")


def is_wanted(fun: Any, include: Iterable[str], exclude: Iterable[str]) -> bool:
    """Tell whether jobs of a function are recorded. Of several functions one is enough."""
    names = fun if isinstance(fun, (list, tuple)) else [fun]
    include, exclude = tuple(include), tuple(exclude)
    return any(isinstance(name, str) and _is_wanted(name, include, exclude) for name in names)


def _is_wanted(name: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    own = next((start for start in _OF_THE_MASTER if name.startswith(start)), "")
    return any(glob.startswith(own) and fnmatch.fnmatchcase(name, glob) for glob in include) and not any(
        fnmatch.fnmatchcase(name, glob) for glob in exclude
    )
