"""
Tells Salt's loader where this extension's modules are: the ``salt.loader`` entry point names ``module_dirs``.

Loaders share modules by name, and a module has the options of the loader that came last. So each loader of ours gets a
name of its own (``base_of``). Until a module is removed, Python keeps it, with the connections and files that it has open.
"""

from __future__ import annotations

import itertools
import pathlib
import sys
import weakref

_COUNT = itertools.count()
_KINDS = ("cache", "engines", "executors", "output", "returners", "runners")


def module_dirs() -> dict[str, list[str]]:
    """Return ``{kind: [directory]}`` for each kind of Salt module here: beside ``core``, in a checkout as in a wheel."""
    folder = pathlib.Path(__file__).absolute().parents[1]
    return {kind: [str(folder / kind)] for kind in _KINDS}


def base_of(owner: object) -> str:
    """Return a ``loaded_base_name`` for the loaders of ``owner``. Their modules are removed when ``owner`` is gone."""
    base = f"saltext_jobs.loaded{next(_COUNT)}"
    weakref.finalize(owner, _remove, f"{base}.").atexit = False
    return base


def _remove(prefix: str) -> None:
    for name in list(sys.modules):
        if name.startswith(prefix):
            vars(sys.modules.pop(name)).clear()  # else its content stays until the collector comes
