"""
Limits how often the files in ``reactor/`` act: every accepted minion can fire every event at any rate.

It runs in the process of Salt's reactor, so an event beyond the limit costs no runner and no process. The sender of an
event is unknown, because a minion can hide it. So there is a limit for each file, and for the minion or job that a tag
names. Counts begin at zero in each process. It must never allow more in any period than the limits say.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.errors import SettingsError
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.settings import ReactorSettings, read_settings

log = lines.logger(__name__)

#: The section of the master's configuration.
SECTION = "saltext_jobs_reactor"
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

    def allows(self, *limits: tuple[Hashable, tuple[int, float]]) -> bool:
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


def may_act(opts: Mapping[str, Any], name: str, key: str = "", limiter: Limiter | None = None) -> bool:
    """
    Tell whether a file of ``reactor/`` may act on one more event; if not, that is logged once a minute.

    :param opts: the master's options.
    :param name: a field of ReactorSettings.
    :param key: the minion or job of the event, if the file has a limit for each.
    """
    try:
        settings = read_settings(ReactorSettings, SECTION, opts.get(SECTION))
    except SettingsError as exc:
        _QUIET.error(name, "Ignoring an event, because its limit cannot be read: %s", exc)
        return False
    limits: list[tuple[Hashable, tuple[int, float]]] = [((name, key), getattr(settings, name))]
    whole = getattr(settings, f"{name}_in_all", None)
    # The limit of all comes first: once it is reached, an invented key is not even remembered.
    limits[:0] = [(name, whole)] if whole else []
    if (limiter or _LIMITER).allows(*limits):
        return True
    _QUIET.warning(name, "Ignoring an event: events ask for %s more often than %s allows", name, SECTION)
    return False


def ignore(name: str, message: str, *args: object) -> None:
    """Log why an event is ignored, once a minute for each file."""
    _QUIET.warning(name, message, *args)
