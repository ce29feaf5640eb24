"""The width of the terminal that a stream leads to."""

from __future__ import annotations

import os
import shutil
from typing import Any

#: Columns if the width is unknown, as in a pipe.
DEFAULT_WIDTH = 80


def is_terminal(stream: Any) -> bool:
    """Tell whether a stream leads to a terminal that can redraw a line."""
    try:
        return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # closed, or not a stream
        return False


def width_of_terminal(stream: Any) -> int:
    """Return the columns of the terminal that a stream leads to: what COLUMNS says, what the terminal says, or 80."""
    try:
        own = os.get_terminal_size(stream.fileno())
    except (AttributeError, ValueError, OSError):
        own = os.terminal_size((DEFAULT_WIDTH, 0))
    return shutil.get_terminal_size(own).columns or DEFAULT_WIDTH
