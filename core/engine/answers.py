"""Answers to questions, gathered into groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Collected:
    """
    Gathers the answers to a question, and hands them on in groups.

    :param pause: seconds for which answers are gathered into one group.
    """

    def __init__(self, loop: Any, pause: float, hand_on: Callable[[dict[str, bool]], object]) -> None:
        self._loop, self._pause, self._hand_on = loop, pause, hand_on
        self._answers: dict[str, bool] = {}
        self._timer: Any = None

    def add(self, minion: str, answer: bool) -> None:
        """Take an answer."""
        self._answers[minion] = answer or self._answers.get(minion, False)  # one of two answers may be forged
        if self._timer is None:
            self._timer = self._loop.call_later(self._pause, self._hand_on_all)

    def rest(self) -> dict[str, bool]:
        """Return the answers that have not been handed on yet."""
        if self._timer is not None:
            self._loop.remove_timeout(self._timer)
            self._timer = None
        answers, self._answers = self._answers, {}
        return answers

    def _hand_on_all(self) -> None:
        self._hand_on(self.rest())
