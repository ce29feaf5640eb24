"""
Tells Salt's loader where this extension's modules are.

Named by the ``salt.loader`` entry point; Salt calls it whenever it looks for modules of a kind.
"""

from __future__ import annotations

import importlib

_KINDS = ("cache", "engines", "executors", "returners", "runners")


def module_dirs() -> dict[str, list[str]]:
    """
    Return ``{kind: [directory]}`` for each kind of Salt module in this extension.
    """
    return {kind: list(importlib.import_module(f"saltext.jobs.{kind}").__path__) for kind in _KINDS}
