"""
How often the files in ``reactor/`` do something, since every accepted minion can fire every event as often as it likes.

Asked where the event is, in the process of Salt's reactor, so that an event too many costs no runner and no process. Who has
fired an event cannot be told: a minion that does not want to be known is not. So the limits are those of a file, and of the
minion or job that a tag names. They begin anew with the process.
It must never let more happen in any period than the limits say.
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
#: Keys that are told apart; whoever makes up names has the oldest forgotten, and meets the limit of all.
_KEYS = 10_000


class Limiter:
    """
    Counts what is done.

    :param steady: returns seconds that only ever rise.
    """

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        #: When each thing was done, the latest last.
        self.done: collections.OrderedDict[Hashable, collections.deque[float]] = collections.OrderedDict()

    def allows(self, *limits: tuple[Hashable, tuple[int, float]]) -> bool:
        """Tell whether one more may be done by all of these limits, ``(key, (count, seconds))`` each; if so it counts."""
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
    Tell whether a file of ``reactor/`` may do its work for one more event; if not, that is logged once a minute.

    :param opts: the master's options.
    :param name: a field of ReactorSettings.
    :param key: the minion or job that the event is about, where the file has a limit for each.
    """
    try:
        settings = read_settings(ReactorSettings, SECTION, opts.get(SECTION))
    except SettingsError as exc:
        _QUIET.error(name, "Nothing is done for an event, since its limit cannot be read: %s", exc)
        return False
    limits: list[tuple[Hashable, tuple[int, float]]] = [((name, key), getattr(settings, name))]
    whole = getattr(settings, f"{name}_in_all", None)
    # The limit of all comes first: a made-up key is not even remembered when that is reached.
    limits[:0] = [(name, whole)] if whole else []
    if (limiter or _LIMITER).allows(*limits):
        return True
    _QUIET.warning(name, "Events ask for %s more often than %s: lets them; nothing is done for this one", name, SECTION)
    return False


def ignore(name: str, message: str, *args: object) -> None:
    """Log why nothing is done for an event, once a minute for each file."""
    _QUIET.warning(name, message, *args)
