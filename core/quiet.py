"""
Logs the same thing at most once a minute, however often it happens: for lines that anyone on the bus can trigger.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable

#: Seconds between two lines about the same subject.
PAUSE = 60.0
#: Most subjects with a line of their own in that time. All others share one, so that made-up names cannot fill the log.
_SUBJECTS = 20


class Quiet:
    """
    :param logger: where the lines go.
    :param steady: returns seconds that only ever rise.
    :param pause: seconds between two lines about the same subject.
    """

    def __init__(
        self, logger: logging.Logger, steady: Callable[[], float] = time.monotonic, pause: float = PAUSE
    ) -> None:
        self._logger, self._steady, self.pause = logger, steady, pause
        self._since = steady()
        self._silent: dict[Hashable, int] = {}  # subject -> how often it happened in this minute after its line

    def warning(self, subject: Hashable, message: str, *args: object) -> None:
        """Log a warning, unless ``subject`` had a line in this minute; then count it, and log the count later."""
        self._log(logging.WARNING, subject, message, args)

    def error(self, subject: Hashable, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        """Log an error, as ``warning`` does."""
        self._log(logging.ERROR, subject, message, args, exc_info)

    def critical(self, subject: Hashable, message: str, *args: object) -> None:
        """Log a critical line, as ``warning`` does."""
        self._log(logging.CRITICAL, subject, message, args)

    def _log(
        self,
        level: int,
        subject: Hashable,
        message: str,
        args: tuple[object, ...],
        exc_info: BaseException | None = None,
    ) -> None:
        if self._steady() - self._since >= self.pause:
            self._begin_minute()
        if subject not in self._silent and len(self._silent) >= _SUBJECTS:
            subject = None
        if subject in self._silent:
            self._silent[subject] += 1
            return
        self._silent[subject] = 0
        self._logger.log(level, message, *args, exc_info=exc_info)

    def _begin_minute(self) -> None:
        seconds = self._steady() - self._since
        self._since = self._steady()
        for subject, count in self._silent.items():
            if count:
                about = "others" if subject is None else subject
                self._logger.warning("The same %d times more in the last %.0f s (%s)", count, seconds, about)
        self._silent.clear()
