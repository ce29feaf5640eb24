"""
What is to be published for the retry queue, let go no faster than ``rate``. Part of the retry machine, and as pure as it.

What has been prepared goes first, then pings, then questions. It must never hold a minion back for another job's sake:
minions that wait for the same job go together, in one publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from saltext.jobs.core.retry.timers import Timers


class Outbox:
    """
    :param rate: publishes per second.
    :param timers: the machine's; the key ``("rate",)`` is set here.
    """

    def __init__(self, rate: float, timers: Timers) -> None:
        self._rate, self._timers = rate, timers
        self.publishes = 0
        self._tokens, self._filled = max(1.0, rate), 0.0
        self._asks: dict[str, dict[str, None]] = {}  # jid -> minions to ask
        self._sends: dict[str, dict[str, None]] = {}  # jid -> minions to publish to
        self._pings: dict[str, None] = {}

    def ask(self, jid: str, minions: Iterable[str]) -> None:
        """Let minions be asked about a job."""
        self._asks.setdefault(jid, {}).update(dict.fromkeys(minions))

    def send(self, jid: str, minion: str) -> None:
        """Let a job be published to a minion."""
        self._sends.setdefault(jid, {})[minion] = None

    def ping(self, minions: Iterable[str]) -> None:
        """Let minions be pinged."""
        self._pings.update(dict.fromkeys(minions))

    def withdraw(self, jid: str, minion: str) -> None:
        """Let a minion neither be asked about a job nor get it."""
        for waiting in (self._asks, self._sends):
            waiting.get(jid, {}).pop(minion, None)

    def take_sends(self) -> dict[str, dict[str, None]]:
        """Return ``{jid: minions}`` of what was to be published, and forget it."""
        sends, self._sends = self._sends, {}
        return sends

    def release(
        self,
        now: float,
        send: Callable[[str, Iterable[str]], bool],
        ping: Callable[[Iterable[str]], bool],
        ask: Callable[[str, Iterable[str]], bool],
    ) -> None:
        """Hand over what may be published by now. Each function tells whether there was still something to publish."""
        gained = (now - self._filled) * self._rate
        self._tokens, self._filled = min(max(1.0, self._rate), self._tokens + gained), now
        while self._sends or self._pings or self._asks:
            if self._tokens < 1:
                self._timers.set(("rate",), now + (1 - self._tokens) / self._rate)
                return
            if self._release_one(send, ping, ask):
                self._tokens -= 1
                self.publishes += 1
        self._timers.cancel(("rate",))

    def _release_one(
        self,
        send: Callable[[str, Iterable[str]], bool],
        ping: Callable[[Iterable[str]], bool],
        ask: Callable[[str, Iterable[str]], bool],
    ) -> bool:
        if self._sends:
            jid = next(iter(self._sends))
            return send(jid, self._sends.pop(jid))
        if self._pings:
            minions, self._pings = self._pings, {}
            return ping(minions)
        jid = next(iter(self._asks))
        return ask(jid, self._asks.pop(jid))
