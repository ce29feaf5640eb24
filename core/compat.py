"""What differs between Salt releases: each name here is one fact. Other modules must never check the release."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import salt.utils.msgpack
import salt.version

try:  # Salt 3006 carries its own tornado, whose loop is not an asyncio loop.
    from salt.ext.tornado.concurrent import Future as Future
    from salt.ext.tornado.gen import sleep as sleep
    from salt.ext.tornado.ioloop import IOLoop
    from salt.ext.tornado.iostream import IOStream as IOStream
    from salt.ext.tornado.locks import Lock as Lock
except ImportError:  # Salt 3007 and later use the tornado package.
    from tornado.concurrent import Future as Future
    from tornado.gen import sleep as sleep
    from tornado.ioloop import IOLoop
    from tornado.iostream import IOStream as IOStream
    from tornado.locks import Lock as Lock

try:  # Up to Salt 3006.9 and 3007.1 a module cannot import its options.
    from salt.loader.dunder import __opts__ as _opts
except ImportError:
    from salt.loader.context import LoaderContext

    _opts = LoaderContext().named_context("__opts__")
loader_opts = _opts

_MAJOR = int(re.split(r"[^0-9]", str(salt.version.__version__))[0])

#: Minions of Salt 3008 announce the start of a job published with ``start_event=True``; earlier masters drop that.
HAS_START_EVENT = _MAJOR >= 3008

#: Salt 3008 runs a batch manager of its own beside ours.
HAS_NATIVE_BATCHES = _MAJOR >= 3008


def new_loop() -> Any:
    """
    Return a fresh tornado loop, current for this thread: an engine process may have inherited one of the master, from which
    it was forked. Its timers use a clock that cannot be set; Salt 3006's tornado would use the system's clock.
    """
    if _MAJOR < 3007:
        loop = IOLoop(time_func=time.monotonic)
        loop.make_current()
        return loop
    asyncio.set_event_loop(asyncio.new_event_loop())
    return IOLoop.current()


class Frames:
    """What comes from the publisher of the event bus, as events. Some patches of Salt 3006 put its length before each."""

    def __init__(self) -> None:
        self._unpacker = salt.utils.msgpack.Unpacker(raw=True)
        self._left: bytearray | None = None  # the beginning of an event that comes with its length; else None
        self._is_first = True

    def take(self, data: bytes) -> Iterator[bytes]:
        """Yield the events that are whole with more data. :raises Exception: of many kinds, if these are no events."""
        if self._is_first:
            # A frame of msgpack, a mapping, begins with another byte than the length of an event of less than 16 MiB.
            self._left, self._is_first = bytearray() if data[0] == 0 else None, False
        if self._left is None:
            self._unpacker.feed(data)
        else:
            self._left += data
            while len(self._left) >= 4 and len(self._left) >= (end := 4 + int.from_bytes(self._left[:4], "big")):
                self._unpacker.feed(bytes(self._left[4:end]))
                del self._left[:end]
        for frame in self._unpacker:
            yield frame[b"body"]


def stamp() -> str:
    """Return the time as Salt writes it into an event; before Salt 3008 without a zone."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return (now if _MAJOR >= 3008 else now.replace(tzinfo=None)).isoformat()


async def close_channel(channel: Any) -> None:
    """Close a request channel to the master. On Salt 3008 the close must be awaited, or it leaves a zmq context behind."""
    if _MAJOR >= 3008:
        await channel.close_async()
    else:
        channel.close()


def minion_data(cache: Any, minion: str) -> tuple[Any, Any]:
    """
    Return the grains and the pillar that the master has cached (``salt.cache.Cache``) for a minion; empty or None if there
    are none. Salt 3008 has a bank for each of the two, earlier releases one for each minion. Blocks.
    """
    if _MAJOR >= 3008:
        return cache.fetch("grains", minion), cache.fetch("pillar", minion)
    data = cache.fetch(f"minions/{minion}", "data") or {}
    return data.get("grains"), data.get("pillar")


def minion_data_written(cache: Any, minion: str) -> float | None:
    """Return the Unix time at which the master last cached a minion's grains, or None. Blocks."""
    place = ("grains", minion) if _MAJOR >= 3008 else (f"minions/{minion}", "data")
    written = cache.updated(*place) if cache.contains(*place) else None
    return None if written is None else float(written)


def minion_keys(opts: Any) -> tuple[frozenset[str], frozenset[str]]:
    """
    Return (minions whose key is accepted, minions with a key in any state). Blocks. ``salt.key.Key`` treats an unreadable
    directory as an empty one, and opens each key: it is used only if Salt 3008 keeps the keys elsewhere.

    :raises OSError: if a directory of keys cannot be read.
    """
    if _MAJOR >= 3008 and (opts.get("keys.cache_driver") or "localfs_key") != "localfs_key":
        import salt.key

        found = salt.key.Key(dict(opts)).list_keys()
        return frozenset(found["minions"]), frozenset(name for names in found.values() for name in names)
    pki_dir = _pki_dir(opts)
    accepted = _files_in(os.path.join(pki_dir, "minions"))
    names = set(accepted)
    for state in ("minions_pre", "minions_rejected", "minions_denied"):
        with contextlib.suppress(FileNotFoundError):  # Salt makes the directory with its first key
            names |= _files_in(os.path.join(pki_dir, state))
    return accepted, frozenset(names)


def lacks_key(opts: Any, minion: object) -> bool:
    """Tell whether it is known that no key is that of this minion. Blocks."""
    try:
        return minion not in minion_keys(opts)[1]
    except Exception:  # what keeps the keys may be away, and raise anything
        return False


def matched_minions(opts: Any, tgt: Any, tgt_type: str) -> list[str]:
    """
    Return the minions with an accepted key that a target matches, sorted. Blocks. Salt's matcher also names what has no key
    of its own, and cannot be asked: hosts of a roster (``enable_ssh_minions``), and on Salt 3008 resources of minions.

    :raises Exception: whatever the matcher raises, and OSError as ``minion_keys``.
    """
    import salt.utils.minions  # here, as this module is loaded in many processes

    matched = salt.utils.minions.CkMinions(dict(opts)).check_minions(tgt, tgt_type).get("minions") or []
    return sorted(minion_keys(opts)[0].intersection(matched)) if matched else []


def _pki_dir(opts: Any) -> str:
    return str((opts.get("cluster_pki_dir") if opts.get("cluster_id") else None) or opts["pki_dir"])


def master_key_paths(opts: Any) -> tuple[str, ...]:
    """Return where Salt may keep the private key that its masters share: a cluster's key, else the master's own."""
    if opts.get("cluster_id"):
        return (os.path.join(_pki_dir(opts), "cluster.pem"),)
    # Salt 3008 names it after the master's id.
    names = str(opts.get("id") or "").removesuffix("_master") or "master", "master"
    return tuple(os.path.join(_pki_dir(opts), f"{name}.pem") for name in names)


def _files_in(folder: str) -> frozenset[str]:
    with os.scandir(folder) as entries:
        return frozenset(
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and entry.is_file(follow_symlinks=_MAJOR < 3008)
        )


def plain_opts(opts: Any) -> dict[str, Any]:
    """Return the options behind the ``__opts__`` of a loaded module, which on some releases is a proxy."""
    value: dict[str, Any] = opts.value() if hasattr(opts, "value") else opts
    return value


def at_signal(action: Callable[[], None]) -> None:
    """Have Salt call ``action`` when a signal stops this process, which then ends at once (``os._exit``)."""
    process = multiprocessing.current_process()
    if hasattr(process, "register_finalize_method"):  # not in a process that is not Salt's
        process.register_finalize_method(action)
