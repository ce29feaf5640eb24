"""
Tells Salt's loader where this extension's modules are.

The ``salt.loader`` entry point names ``module_dirs``, which Salt calls when it looks for modules of a kind.
"""

from __future__ import annotations

import pathlib

_KINDS = ("cache", "engines", "executors", "output", "returners", "runners")


def module_dirs() -> dict[str, list[str]]:
    """
    Return ``{kind: [directory]}`` for each kind of Salt module in this extension.

    They are beside ``core``, in a checkout as in an installed wheel.
    """
    folder = pathlib.Path(__file__).absolute().parents[1]
    return {kind: [str(folder / kind)] for kind in _KINDS}
