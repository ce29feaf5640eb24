"""
Limits how often the files in ``reactor/`` act: every accepted minion can fire every event at any rate.

It runs in the process of Salt's reactor, so an event beyond the limit costs no runner and no process. The sender of an
event is unknown, because a minion can hide it. So there is a limit for each file, and for the minion or job that a tag
names. Counts begin at zero in each process. It must never allow more in any period than the limits say.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Hashable

from saltext.jobs.core import lines
from saltext.jobs.core.lines import Quiet

log = lines.logger(__name__)

#: A count, and the seconds in which at most so many are allowed.
Limit = tuple[int, float]
#: Most keys that are counted. Invented names push out the oldest, but the limit of all still applies.
_KEYS = 10_000


class Limiter:
    """
    Counts actions.

    :param steady: returns seconds that only ever rise.
    """

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        #: By key: the times of its actions, the latest last.
        self.done: collections.OrderedDict[Hashable, collections.deque[float]] = collections.OrderedDict()

    def allows(self, *limits: tuple[Hashable, Limit]) -> bool:
        """
        Tell whether all of these limits, ``(key, (count, seconds))`` each, allow one more action; if so, count it.
        """
        now, kept = self._steady(), []
        for key, (count, seconds) in limits:
            times = self.done.setdefault(key, collections.deque())
            while times and now - times[0] >= seconds:
                times.popleft()
            kept.append((key, times))
            if len(times) >= count:
                return False
        for key, times in kept:
            times.append(now)
            self.done.move_to_end(key)
        while len(self.done) > _KEYS:
            self.done.popitem(last=False)
        return True


_LIMITER = Limiter()
_QUIET = Quiet(log)


def may_act(
    name: str, limit: Limit, key: str = "", in_all: Limit | None = None, limiter: Limiter | None = None
) -> bool:
    """
    Tell whether a file of ``reactor/`` may act on one more event; if not, that is logged once a minute.

    :param name: the file, without its ending.
    :param limit: how many actions are allowed in how many seconds.
    :param key: the minion or job of the event, if the limit is for each.
    :param in_all: the limit for all of them together.
    """
    # The limit of all comes first: once it is reached, an invented key is not even remembered.
    limits: list[tuple[Hashable, Limit]] = [] if in_all is None else [(name, in_all)]
    if (limiter or _LIMITER).allows(*limits, ((name, key), limit)):
        return True
    _QUIET.warning(name, "Ignoring an event: events ask for %s more often than its file allows", name)
    return False


def ignore(name: str, message: str, *args: object) -> None:
    """Log why an event is ignored, once a minute for each file."""
    _QUIET.warning(name, message, *args)
