"""
Modules of Salt's loader that no other loader of this process shares.

Loaders share modules by name, and a module has the options of the loader that came last. So each loader of ours gets a
name of its own. Until a module is removed, Python keeps it, with the connections and files that it has open.
"""

from __future__ import annotations

import itertools
import sys
import weakref

_COUNT = itertools.count()


def base_of(owner: object) -> str:
    """Return a ``loaded_base_name`` for the loaders of ``owner``. Their modules are removed when ``owner`` is gone."""
    base = f"saltext_jobs.loaded{next(_COUNT)}"
    weakref.finalize(owner, _remove, f"{base}.").atexit = False
    return base


def _remove(prefix: str) -> None:
    for name in list(sys.modules):
        if name.startswith(prefix):
            vars(sys.modules.pop(name)).clear()  # else its content stays until the collector comes
