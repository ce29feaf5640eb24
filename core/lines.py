"""
The loggers of this extension: each message is one line of bounded length, whatever a minion, a user or a server has put
into it. With a line feed a sender could forge a line of the master's log, and with a megabyte fill it. So all code of this
extension uses these loggers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import Any

#: Most characters of a line, and most lines of a traceback (its first and its last ones).
LONGEST, TRACED = 2000, 60


def logger(name: str) -> logging.Logger:
    """Return the logger of a module, given its ``__name__``."""
    found = logging.getLogger(name)
    if bounded not in found.filters:
        found.addFilter(bounded)
    return found


def bounded(record: logging.LogRecord) -> bool:
    """Shorten a record that is too long, and escape its special characters. A filter that lets all records pass."""
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
    What would end a line, act on a terminal or turn the direction of writing is shown as an escape.
    """
    shown = "".join(char if char.isprintable() or char == "\t" else ascii(char)[1:-1] for char in text[:LONGEST])
    left = len(text) - LONGEST
    return shown if left <= 0 else f"{shown}… ({left} characters more)"


def _traceback(text: str) -> str:
    lines = [one_line(line) for line in text[: LONGEST * TRACED].split("\n")]
    if len(lines) > TRACED:
        lines[TRACED // 2 : -TRACED // 2] = ["…"]
    return "\n".join(lines)


# -- lines that anyone on the bus can trigger -----------------------------------------------------------------------------

#: Seconds between two lines about the same subject.
PAUSE = 60.0
#: Most subjects with a line of their own in that time. All others share one, so that made-up names cannot fill the log.
_SUBJECTS = 20


class Quiet:
    """Logs the same thing at most once a minute, however often it happens."""

    def __init__(self, logger: logging.Logger, steady: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._steady = logger, steady
        self._since = steady()
        self._silent: dict[Hashable, int] = {}  # subject -> how often it happened in this minute after its line

    def warning(self, subject: Hashable, message: str, *args: object) -> None:
        """Log a warning, unless ``subject`` had a line in this minute; then count it, and log the count later."""
        self._log(logging.WARNING, subject, message, args)

    def error(self, subject: Hashable, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log an error, as ``warning`` does."""
        self._log(logging.ERROR, subject, message, args, exc_info=exc_info)

    def critical(self, subject: Hashable, message: str, *args: object) -> None:
        """Log a critical line, as ``warning`` does."""
        self._log(logging.CRITICAL, subject, message, args)

    def _log(self, level: int, subject: Hashable, message: str, args: tuple[object, ...], **more: Any) -> None:
        if self._steady() - self._since >= PAUSE:
            self._begin_minute()
        silent = self._silent  # another thread may begin a minute meanwhile
        if subject not in silent and len(silent) >= _SUBJECTS:
            subject = None
        if subject in silent:
            silent[subject] += 1
            return
        silent[subject] = 0
        self._logger.log(level, message, *args, **more)

    def _begin_minute(self) -> None:
        now = self._steady()
        seconds, self._since = now - self._since, now
        silent, self._silent = self._silent, {}
        for subject, count in list(silent.items()):
            if count:
                about = "others" if subject is None else subject
                self._logger.warning("The same %d times more in the last %.0f s (%s)", count, seconds, about)
