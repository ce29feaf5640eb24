"""
Limits how often the files in ``reactor/`` act: every accepted minion can fire every event at any rate, and hide that it did.

It runs in the process of Salt's reactor, so an event beyond the limit costs no runner. There is a limit for each file, and
for the minion or job that a tag names. It must never allow more in any period than the limits say.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable

from saltext.jobs.core import lines
from saltext.jobs.core.lines import Quiet

log = lines.logger(__name__)

#: (count, seconds): at most this many actions in this time.
Limit = tuple[int, float]
#: Most keys that are counted. Invented names push out the oldest, but the limit of all still applies.
_KEYS = 10_000


#: By file, and by file and key: the times of actions, the latest last.
Done = collections.OrderedDict[tuple[str, ...], collections.deque[float]]
_DONE: Done = collections.OrderedDict()
_QUIET = Quiet(log)


def may_act(
    name: str,
    limit: Limit,
    key: str = "",
    in_all: Limit | None = None,
    done: Done = _DONE,
    steady: Callable[[], float] = time.monotonic,
) -> bool:
    """
    Tell whether a file of ``reactor/`` may act on one more event, and count it; if not, that is logged once a minute.

    :param name: the file, without its ending.
    :param limit: how many actions are allowed in how many seconds, for each ``key``, the minion or job of the event.
    :param in_all: the limit for all of them together.
    """
    now, counted = steady(), []
    # The limit of all comes first: once it is reached, an invented key is not even remembered.
    for subject, each in (((name,), in_all), ((name, key), limit)):
        if each is None:
            continue
        times = done.setdefault(subject, collections.deque())
        while times and now - times[0] >= each[1]:
            times.popleft()
        if len(times) >= each[0]:
            _QUIET.warning(name, "Ignoring an event: events ask for %s more often than its file allows", name)
            return False
        counted.append((subject, times))
    for subject, times in counted:
        times.append(now)
        done.move_to_end(subject)
    while len(done) > _KEYS:
        done.popitem(last=False)
    return True


def ignore(name: str, message: str, *args: object) -> None:
    """Log why an event is ignored, once a minute for each file."""
    _QUIET.warning(name, message, *args)
