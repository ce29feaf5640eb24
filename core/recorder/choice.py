"""
Which jobs and events are recorded.

Pure: stdlib only, no clock, no I/O.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
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


def any_of(globs: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that tells whether a tag matches one of ``globs``. It is called for every event on the bus."""
    pattern = "|".join(fnmatch.translate(glob) for glob in globs)
    if not pattern:
        return lambda tag: False
    match = re.compile(pattern).match
    return lambda tag: match(tag) is not None


class Recent:
    """
    A bounded memory of names: at least the last ``size`` that were added, at most twice as many.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._new: set[str] = set()
        self._old: set[str] = set()

    def __contains__(self, item: str) -> bool:
        return item in self._new or item in self._old

    def add(self, item: str) -> None:
        self._new.add(item)
        if len(self._new) >= self._size:
            self._new, self._old = set(), self._new
