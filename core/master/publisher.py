"""
Publishing through the master, on the engine's own loop: jobs, questions (``test.ping``, ``find_job``) and kills.

It keeps its connections to the master: Salt's own client opens one for each publish, which costs more CPU than the publish
itself (a zmq context with two threads). It holds no policy: no retry, no backoff. It must never publish twice by itself, nor
reuse a connection on which a request failed: the answer to that request may still come.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import salt.channel.client
import salt.client
import salt.utils.args
import salt.utils.jid
import salt.utils.network

from saltext.jobs.core import compat, lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.display.text import cut, joined
from saltext.jobs.core.errors import NoMinionMatched, PublishFailed
from saltext.jobs.core.master.passes import local_key, pass_for

log = lines.logger(__name__)

#: Options that travel with a job beside function and arguments (``salt.master.ClearFuncs._prep_pub``).
OPTIONS = ("metadata", "module_executors", "executor_opts", "ret_config", "ret_kwargs", "delimiter")
#: Most connections that are kept for the next publishes.
_IDLE = 3


class Publisher:
    """``origin``: the engine, as this master's log names it. ``lease``: that by which it leads; None if no other could."""

    def __init__(self, opts: Mapping[str, Any], loop: Any, origin: str = "", lease: Lease | None = None) -> None:
        self._opts, self._loop, self._lease, self._origin = opts, loop, lease, origin
        self._client = salt.client.LocalClient(mopts=dict(opts), io_loop=loop, keep_loop=True)
        self._idle: list[Any] = []  # connections
        #: Since the start: publishes that the master took, questions included; and failed ones.
        self.published = self.failed = 0

    def close(self) -> None:
        """Release the sockets."""
        while self._idle:
            self._idle.pop().close()
        self._client.destroy()

    def new_jid(self) -> str:
        """Return a fresh jid."""
        return str(salt.utils.jid.gen_jid(self._opts))

    async def publish(
        self,
        fun: str | list[str],
        arg: Iterable[Any],
        tgt: Any,
        tgt_type: str = "list",
        *,
        jid: str,
        user: str | None = None,
        ret: str = "",
        kwarg: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        timeout: float = 15.0,
        question: bool = False,
        kept: bool = False,
        once: Mapping[str, Any] | None = None,
        natively: bool = True,
    ) -> frozenset[str]:
        """
        Publish a job under ``jid`` and return the minions that it is for, as the master has answered within ``timeout``.

        :param user: the user to publish for. The master checks the access of users it knows.
        :param options: the job's values for names in OPTIONS.
        :param question: it is a question: minions announce no start, and unless ``kept``, answers are only on the bus.
        :param kept: its answers are stored under the names of their senders; the retry queue never delivers it.
        :param once: options for minions with the executor ``job_once`` (``rerun``: see there).
        :param natively: minions of Salt 3008 acknowledge it by themselves. That can delay one that has just started by a
            minute; the executor's acknowledgement does not wait.
        :raises PublishFailed: ``certain`` if nothing was published; ``forbidden`` if the master will refuse it again.
        :raises NoMinionMatched: when none of the target has an accepted key.
        """
        extra: dict[str, Any] = {name: options[name] for name in OPTIONS if options and options.get(name) is not None}
        if question:
            extra |= {} if kept else {"nocache": True}
        elif compat.HAS_START_EVENT and natively:
            extra["start_event"] = True
        extra["executor_opts"] = _with_wishes(extra.get("executor_opts"), question, once)
        wait = max(1, int(timeout))
        try:
            if self._opts.get("ipc_mode") != "tcp" and not os.path.exists(f"{self._opts['sock_dir']}/publish_pull.ipc"):
                raise OSError(f"no publisher listens in {self._opts['sock_dir']}")
            if self._lease is not None:
                self._lease.check()
            arguments = salt.utils.args.condition_input(list(arg), dict(kwarg or {}))
            named = pass_for(self._opts, jid, self._origin, self._lease.epoch if self._lease is not None else 0)
            request = self._client._prep_pub(tgt, fun, arguments, tgt_type, ret, named, wait, **extra)
            request |= {"user": self._allowed(user), "key": local_key(self._opts)}
        except OSError as exc:
            self.failed += 1
            raise PublishFailed(str(exc), certain=True) from exc
        try:
            answer = await self._send(request, wait)
        except Exception as exc:
            self.failed += 1
            raise PublishFailed(f"{type(exc).__name__}: {exc}") from exc
        if not isinstance(answer, Mapping):  # a text if the master failed at it, perhaps after the publish
            answer = {}
        if (error := answer.get("error")) or not answer:
            self.failed += 1
            name = error.get("name") if isinstance(error, Mapping) else ""
            text = f"{name}: {error.get('message')}" if isinstance(error, Mapping) else str(error or "it failed")
            raise PublishFailed(f"the master did not publish: {text}", bool(error), name == "AuthorizationError")
        matched = frozenset(answer["load"]["minions"])
        if not matched and not self._opts.get("order_masters"):
            raise NoMinionMatched(f"the master matched no minion with {cut(joined(tgt), 80)}")
        self.published += 1
        return matched

    async def _send(self, request: Mapping[str, Any], timeout: float) -> Any:
        if self._idle:
            channel = self._idle.pop()
        else:
            uri = f"tcp://{salt.utils.network.ip_bracket(self._opts['interface'])}:{self._opts['ret_port']}"
            channel = salt.channel.client.AsyncReqChannel.factory(
                self._client.opts, io_loop=self._loop, crypt="clear", master_uri=uri
            )
        try:
            answer = await channel.send(request, timeout=timeout)
        except BaseException:
            await compat.close_channel(channel)
            raise
        if len(self._idle) < _IDLE:
            self._idle.append(channel)
        else:
            await compat.close_channel(channel)
        return answer

    def _allowed(self, user: str | None) -> str:
        """
        Return the user to publish as. The master lets the key of root, and of a user called salt, publish for anyone, and
        any key for ``sudo_…`` (``LoadAuth.authenticate_key``). One that runs as another user publishes only as itself.
        """
        own = str(self._client.salt_user)
        if not user or user == own:
            return own
        if user.startswith("sudo_") or self._opts.get("user", "root") in ("root", "salt"):
            return user
        log.debug("Publishing as %s, since this master can't publish for %s", own, user)
        return own


def _with_wishes(given: Any, question: bool, once: Mapping[str, Any] | None) -> Any:
    """
    Return a job's options with those for the executor ``job_once``; minions without it ignore them. It does not record
    questions, and acknowledges jobs even if the master's release has no acknowledgement.
    """
    if given is not None and not isinstance(given, Mapping):
        return given  # options in an unknown form stay as they are
    return {**(given or {}), "job_once": {"question": True} if question else {"ack": True, **(once or {})}}
