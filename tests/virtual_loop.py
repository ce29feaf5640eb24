"""A tornado loop whose time is made up: where a real one would wait, this one sets its clock forward."""

from __future__ import annotations

import asyncio
import collections
import functools
import heapq
import itertools
import logging
import warnings
from asyncio import _set_running_loop

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
            self.now += max(1e-6, seconds)  # as on a real machine, where no two looks at the clock are the same


class Timer:
    """A call that a loop makes at some time, unless it is cancelled."""

    __slots__ = ("args", "call")

    def __init__(self, call, args):
        self.call, self.args = call, args

    def cancel(self):
        self.call = None


class Steps:
    """Drives a coroutine from one future to the next. A task would take two more turns of the loop for each coroutine."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine):
        self._coroutine = coroutine

    def go(self, _awaited=None):
        try:
            awaited = self._coroutine.send(None)
        except StopIteration:
            return
        awaited.add_done_callback(self.go)


class Calls(asyncio.AbstractEventLoop):
    """
    An asyncio loop with only calls and timers. Many thousand worlds are played on it: a loop with sockets, tasks and
    contexts would cost them thrice as much CPU time.
    """

    def __init__(self, time):
        self._time, self._ready, self._timers, self._count = time, collections.deque(), [], itertools.count()
        self._stopping = self._closed = self._running = False

    def time(self):
        return self._time.now

    def call_soon(self, callback, *args, context=None):
        timer = Timer(callback, args)
        self._ready.append(timer)
        return timer

    call_soon_threadsafe = call_soon

    def call_later(self, delay, callback, *args, context=None):
        return self.call_at(self._time.now + delay, callback, *args)

    def call_at(self, when, callback, *args, context=None):
        timer = Timer(callback, args)
        heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer

    def run_forever(self):
        ready, timers, time = self._ready, self._timers, self._time
        self._running = True
        _set_running_loop(self)
        try:
            while not self._stopping:
                while timers and timers[0][2].call is None:
                    heapq.heappop(timers)
                if ready:
                    time.pass_by(0.0)
                else:
                    time.pass_by(max(0.0, timers[0][0] - time.now) if timers else None)
                while timers and timers[0][0] <= time.now:
                    ready.append(heapq.heappop(timers)[2])
                for _ in range(len(ready)):
                    timer = ready.popleft()
                    if timer.call is None:
                        continue
                    try:
                        made = timer.call(*timer.args)
                    except Exception:
                        logging.getLogger("asyncio").exception("A call on the loop has failed")
                        continue
                    if made is not None and asyncio.iscoroutine(made):
                        self.call_soon(Steps(made).go)
        finally:
            _set_running_loop(None)
            self._running = self._stopping = False

    def stop(self):
        self._stopping = True

    def close(self):
        self._closed = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a task that was to begin in a moment
            self._ready.clear()
            self._timers.clear()

    def is_closed(self):
        return self._closed

    def is_running(self):
        return self._running

    def get_debug(self):
        return False

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coro, **more):
        return asyncio.Task(coro, loop=self, **more)

    def call_exception_handler(self, context):
        if "exception" in context:  # else it is a task that waits for ever, like those of a killed engine
            logging.getLogger("asyncio").error(context["message"], exc_info=context["exception"])


def _on_asyncio(time):
    from tornado.platform.asyncio import AsyncIOLoop

    class Loop(AsyncIOLoop):
        """Tornado's own would add the time that the test itself takes."""

        def time(self):
            return time.now

        def call_at(self, when, callback, *args, **more):
            return self.asyncio_loop.call_at(when, functools.partial(callback, **more) if more else callback, *args)

        def call_later(self, delay, callback, *args, **more):
            return self.call_at(time.now + delay, callback, *args, **more)

        def add_callback(self, callback, *args, **more):
            self.asyncio_loop.call_soon(functools.partial(callback, **more) if more else callback, *args)

        spawn_callback = add_callback

    return Loop(asyncio_loop=Calls(time))


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
        came: list[bool] = []  # it may last for a moment only

        def over():
            if until():
                came.append(True)
            return bool(came)

        self.time.end, self.time.over = self.time.now + seconds, over
        self.loop.start()
        return over()

    def close(self):
        self.loop.close(all_fds=False)
