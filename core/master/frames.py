"""
Finds out what Salt is doing at this moment, from its functions on the stack.

Salt does not pass on everything that it knows to a runner or a returner: only the local variables of the authenticating
method say who was authenticated. They must never be taken from a frame of any other method.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator


def of_this_call() -> Iterator[types.FrameType]:
    """Yield the frames of this call, the innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def of_all_threads() -> Iterator[types.FrameType]:
    """
    Yield the frames of this call, and then those of all other threads, including the thread that started this one.
    """
    yield from of_this_call()
    others = dict(sys._current_frames())
    others.pop(threading.get_ident(), None)
    for innermost in others.values():
        frame: types.FrameType | None = innermost
        while frame is not None:
            yield frame
            frame = frame.f_back


def codes(module: str, owner: str, *methods: str) -> list[types.CodeType]:
    """Return the code of methods; none if the module is not loaded, since it cannot have called us then."""
    found = getattr(sys.modules.get(module), owner, None)
    return [getattr(found, method).__code__ for method in methods if hasattr(found, method)]
