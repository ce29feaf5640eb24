"""
The version of the extension that this process runs: the one that was installed when the process began.
"""

from __future__ import annotations

import importlib.metadata


def _installed() -> str:
    try:
        return importlib.metadata.version("saltext-jobs")
    except importlib.metadata.PackageNotFoundError:  # only a checkout in module_dirs
        return ""


#: Empty if it is not known.
VERSION = _installed()
