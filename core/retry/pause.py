"""Whether replays are paused: a file in the engine's folder says so, also while no engine runs."""

from __future__ import annotations

from saltext.jobs.core.site import Folder

_NAME = "paused"


def is_paused(folder: Folder) -> bool:
    """Tell whether they are. :raises OSError: when that cannot be told."""
    return folder.exists(_NAME)


def pause(folder: Folder) -> None:
    """Have them paused. :raises OSError:"""
    folder.write(_NAME, b"")


def resume(folder: Folder) -> None:
    """Have them go on. :raises OSError:"""
    folder.remove(_NAME)
