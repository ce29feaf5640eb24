"""The version of the extension that this process runs: the one that was installed when the process began."""

from __future__ import annotations

from saltext.jobs import __version__

VERSION: str = __version__
