"""
Tells Salt's loader where this extension's modules are.

Named by the ``salt.loader`` entry point; Salt calls it whenever it looks for modules of a kind.
"""

from __future__ import annotations

import pathlib

_KINDS = ("cache", "engines", "executors", "output", "returners", "runners")


def module_dirs() -> dict[str, list[str]]:
    """
    Return ``{kind: [directory]}`` for each kind of Salt module in this extension.

    They lie beside ``core``, in a checkout as where a wheel was installed.
    """
    folder = pathlib.Path(__file__).absolute().parents[1]
    return {kind: [str(folder / kind)] for kind in _KINDS}
