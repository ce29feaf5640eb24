"""
The loggers of this extension: each message is one line of bounded length, whatever a minion, a user or a server has put
into it.

Messages contain ids, functions, reasons and errors from elsewhere. With a line feed in one of them, a sender could forge
a line of the master's log, and with a megabyte fill it. So all code of this extension uses these loggers.
"""

from __future__ import annotations

import logging

#: Most characters of a line, and most lines of a traceback (its first and its last ones).
LONGEST, TRACED = 2000, 60


def logger(name: str) -> logging.Logger:
    """Return the logger of a module, given its ``__name__``."""
    found = logging.getLogger(name)
    if bounded not in found.filters:
        found.addFilter(bounded)
    return found


def bounded(record: logging.LogRecord) -> bool:
    """
    Shorten a record that is too long, and escape its special characters. It is a filter that lets all records pass.
    """
    try:
        message = record.getMessage()
    except Exception:  # an argument has no text form: logging itself reports it
        return True
    if len(message) > LONGEST or not message.isprintable():
        record.msg, record.args = one_line(message), ()
    if record.exc_info and not record.exc_text:
        record.exc_text = _traceback(logging.Formatter().formatException(record.exc_info))
    return True


def one_line(text: str) -> str:
    """
    Return a text as one line of at most ``LONGEST`` characters; a longer one ends with the number of characters left out.

    Characters that would end a line, act on a reader's terminal or turn the direction of writing are shown as escapes.
    """
    shown = "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in text[:LONGEST])
    left = len(text) - LONGEST
    return shown if left <= 0 else f"{shown}… ({left} characters more)"


def _traceback(text: str) -> str:
    lines = [one_line(line) for line in text[: LONGEST * TRACED].split("\n")]
    if len(lines) > TRACED:
        lines[TRACED // 2 : -TRACED // 2] = ["…"]
    return "\n".join(lines)
