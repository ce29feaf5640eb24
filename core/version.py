"""
Which version of the extension this process runs: the one that was installed when it began, whatever is installed by now.
"""

from __future__ import annotations

import importlib.metadata


def _installed() -> str:
    try:
        return importlib.metadata.version("saltext-jobs")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is in module_dirs, and nothing else
        return ""


#: Empty where it is not known.
VERSION = _installed()
