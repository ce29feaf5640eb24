"""
The loggers of this extension: each line that they log is one line, and of a bounded length, whatever a minion, a user or a
server has put into it.

What is logged carries ids, functions, reasons and the errors of others. A line feed in one of them would begin a line of its
own in the master's log, and a megabyte would fill it. So nothing in this extension logs with a logger from elsewhere.
"""

from __future__ import annotations

import logging
import re

#: Characters of a line, and lines of a traceback: its first and its last ones.
LONGEST, TRACED = 2000, 60
#: What would end a line, or act on the terminal on which it is read.
_ODD = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def logger(name: str) -> logging.Logger:
    """Return the logger of a module, given its ``__name__``."""
    found = logging.getLogger(name)
    if bounded not in found.filters:
        found.addFilter(bounded)
    return found


def bounded(record: logging.LogRecord) -> bool:
    """Cut what is too long in a record, and write out what is no plain character; a filter that lets all pass."""
    try:
        message = record.getMessage()
    except Exception:  # an argument that cannot be made text: logging itself tells of it
        return True
    if len(message) > LONGEST or _ODD.search(message):
        record.msg, record.args = one_line(message), ()
    if record.exc_info and not record.exc_text:
        record.exc_text = _traceback(logging.Formatter().formatException(record.exc_info))
    return True


def one_line(text: str) -> str:
    """Return a text as one line of at most ``LONGEST`` characters, and the number of those that are left out."""
    shown = _ODD.sub(lambda found: ascii(found[0])[1:-1], text[:LONGEST])
    left = len(text) - LONGEST
    return shown if left <= 0 else f"{shown}… ({left} characters more)"


def _traceback(text: str) -> str:
    lines = [one_line(line) for line in text[: LONGEST * TRACED].split("\n")]
    if len(lines) > TRACED:
        lines[TRACED // 2 : -TRACED // 2] = ["…"]
    return "\n".join(lines)
