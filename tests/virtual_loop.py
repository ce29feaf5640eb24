"""A tornado loop whose time is made up: where a real one would wait, this one sets its clock forward."""

from __future__ import annotations

import asyncio
import selectors

from saltext.jobs.core import compat


class Time:
    """Seconds that rise only while a loop has nothing to do."""

    def __init__(self):
        self.now = 1000.0
        self.end = float("inf")
        self.over = lambda: False
        self.stop = None

    def pass_by(self, seconds):
        """Stand in for a wait of at most so many seconds; None stands for one without end."""
        if self.over() or (seconds is None and self.end == float("inf")):
            self.stop()
            return
        if seconds is None or self.now + seconds >= self.end:
            self.now = max(self.now, self.end)
            self.stop()
        else:
            self.now += max(1e-6, seconds)  # as on a real machine no two looks at the clock are the same


def _on_asyncio(time):
    from tornado.platform.asyncio import AsyncIOLoop

    class Selector(selectors.SelectSelector):
        def select(self, timeout=None):
            time.pass_by(timeout)
            return []

    class Loop(asyncio.SelectorEventLoop):
        def time(self):
            return time.now

    return AsyncIOLoop(asyncio_loop=Loop(Selector()))


def _on_old_tornado(time):
    from salt.ext.tornado.ioloop import PollIOLoop

    class Poll:
        def poll(self, timeout):
            time.pass_by(timeout)
            return []

        register = unregister = modify = close = fileno = lambda self, *args: 0

    class Loop(PollIOLoop):
        def initialize(self, **kwargs):
            super().initialize(impl=Poll(), time_func=lambda: time.now, **kwargs)

    loop = Loop()
    loop.make_current()
    return loop


class VirtualLoop:
    """
    ``loop`` is a tornado loop, ``time`` what its timers go by.

    Nothing of what runs on it may use a thread or a socket.
    """

    def __init__(self):
        self.time = Time()
        self.loop = (_on_asyncio if compat.IOLoop.__module__.startswith("tornado") else _on_old_tornado)(self.time)
        self.time.stop = self.loop.stop

    def steady(self):
        """The seconds of this loop, for a Clock."""
        return self.time.now

    def run(self, seconds, until=lambda: False):
        """Let so many seconds pass, or less if ``until`` comes true; tells whether it did."""
        self.time.end, self.time.over = self.time.now + seconds, until
        self.loop.start()
        return until()

    def close(self):
        self.loop.close(all_fds=False)
