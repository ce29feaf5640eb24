"""
What Salt is doing at this moment, by the functions of its own that are on the stack.

Salt hands less to a runner or a returner than it knows: who has been authenticated stands in the local names of the method
that did it. It must never be taken from a frame that is not that very method.
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
    """Yield the frames of this call, and then those of all other threads: the one that has begun this is among them."""
    yield from of_this_call()
    others = dict(sys._current_frames())
    others.pop(threading.get_ident(), None)
    for innermost in others.values():
        frame: types.FrameType | None = innermost
        while frame is not None:
            yield frame
            frame = frame.f_back


def codes(module: str, owner: str, *methods: str) -> list[types.CodeType]:
    """Return the code of methods; a module that nobody has loaded has not called us."""
    found = getattr(sys.modules.get(module), owner, None)
    return [getattr(found, method).__code__ for method in methods if hasattr(found, method)]
