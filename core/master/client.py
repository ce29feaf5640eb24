"""
The client through which jobs are published. It keeps its connections to the master: Salt's own client opens one for each
publish, which costs more CPU than the publish itself (a zmq context with two threads).

It holds no policy. It must never reuse a connection on which a request failed: its answer may still come.
"""

from __future__ import annotations

import os
import time
from typing import Any

import salt.channel.client
import salt.client
import salt.exceptions
import salt.utils.network

from saltext.jobs.core import compat
from saltext.jobs.core.master.passes import pass_for

#: How many idle connections are kept, and for how many seconds: a firewall may drop them later.
_KEPT, _KEPT_FOR = 4, 30.0


class KeepingClient(salt.client.LocalClient):  # type: ignore[misc]
    """
    A ``LocalClient`` for ``run_job_async`` on one loop.

    :param origin: the engine that publishes.
    :param epoch: the epoch in which it leads; 0 if no other process could lead.
    :param kwargs: as for ``LocalClient``.
    """

    def __init__(self, origin: str, epoch: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.key: Any
        self._origin, self._epoch = origin, epoch
        self._made_with = kwargs
        self._kept: list[tuple[Any, float]] = []  # the channel and when it was used last, oldest first

    def destroy(self) -> None:
        """Close all connections."""
        while self._kept:
            self._kept.pop()[0].close()
        super().destroy()

    async def pub_async(
        self,
        tgt: Any,
        fun: Any,
        arg: Any = (),
        tgt_type: str = "glob",
        ret: str = "",
        jid: str = "",
        timeout: int | None = None,
        io_loop: Any = None,
        listen: bool = False,
        **kwargs: Any,
    ) -> Any:
        wait = timeout if timeout is not None else self.opts.get("publish_timeout", 30)
        if self.opts.get("ipc_mode") != "tcp" and not os.path.exists(f"{self.opts['sock_dir']}/publish_pull.ipc"):
            raise salt.exceptions.SaltClientError(f"no publisher listens in {self.opts['sock_dir']}")
        named = pass_for(self.opts, jid, self._origin, self._epoch)
        request = self._prep_pub(tgt, fun, arg, tgt_type, ret, named, wait, **kwargs)
        answer = await self._ask(request, io_loop, wait)
        if not answer and self._has_new_key():
            answer = await self._ask({**request, "key": self.key}, io_loop, wait)
        if not answer:
            return answer
        if error := answer.get("error"):
            raise _exception_for(error)
        return {"jid": answer["load"]["jid"], "minions": answer["load"]["minions"]}

    async def _ask(self, request: dict[str, Any], io_loop: Any, timeout: float) -> Any:
        channel = await self._take(io_loop)
        try:
            answer = await channel.send(request, timeout=timeout)
        except BaseException:
            await compat.close_channel(channel)
            raise
        if len(self._kept) < _KEPT:
            self._kept.append((channel, time.monotonic()))
        else:
            await compat.close_channel(channel)
        return answer

    async def _take(self, io_loop: Any) -> Any:
        while self._kept:
            channel, used = self._kept.pop()
            if time.monotonic() - used < _KEPT_FOR:
                return channel
            await compat.close_channel(channel)
        address = salt.utils.network.ip_bracket(self.opts["interface"])
        uri = f"tcp://{address}:{self.opts['ret_port']}"
        return salt.channel.client.AsyncReqChannel.factory(self.opts, io_loop=io_loop, crypt="clear", master_uri=uri)

    def _has_new_key(self) -> bool:
        """Tell whether the master has made a new key for local clients, and use it."""
        fresh = salt.client.LocalClient(**self._made_with)
        try:
            known, self.key = self.key, fresh.key
        finally:
            fresh.destroy()
        return bool(self.key != known)


def _exception_for(error: Any) -> Exception:
    """Return the exception that Salt's client raises for an error in the master's answer."""
    name, message = (error.get("name"), error.get("message", "")) if isinstance(error, dict) else (None, error)
    if name in ("AuthenticationError", "AuthorizationError"):
        refusal: Exception = getattr(salt.exceptions, name)(message)
    else:
        refusal = salt.exceptions.PublishError(error)
    return refusal
