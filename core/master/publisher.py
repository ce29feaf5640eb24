"""
Publishing through the master, on the engine's own loop: jobs, questions (``test.ping``, ``find_job``) and kills.

It holds no policy: no retry, no backoff. It must never publish twice by itself, nor reuse a connection on which a request
failed: the answer to that request may still come.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import salt.channel.client
import salt.client
import salt.exceptions
import salt.utils.jid
import salt.utils.network

from saltext.jobs.core import compat, lines
from saltext.jobs.core.disk.lease import Lease
from saltext.jobs.core.errors import NoMinionMatched, PublishFailed
from saltext.jobs.core.master.passes import pass_for

log = lines.logger(__name__)

#: Options that travel with a job beside function and arguments (``salt.master.ClearFuncs._prep_pub``).
OPTIONS = ("metadata", "module_executors", "executor_opts", "ret_config", "ret_kwargs", "delimiter")

#: Errors of the master that mean that it published nothing.
_REFUSALS = (
    salt.exceptions.AuthenticationError,
    salt.exceptions.AuthorizationError,
    salt.exceptions.PublishError,
)


class Publisher:
    """
    :param opts: the master's options.
    :param loop: the engine's tornado loop.
    :param origin: the engine, which the log of this master names with each publish.
    :param lease: the lease by which the engine leads; None if no other process could lead.
    """

    def __init__(self, opts: Mapping[str, Any], loop: Any, origin: str = "", lease: Lease | None = None) -> None:
        self._opts, self._loop, self._lease = opts, loop, lease
        epoch = lease.epoch if lease is not None else 0
        self._client = KeepingClient(origin, epoch, mopts=dict(opts), io_loop=loop, keep_loop=True)
        self._own_user = self._client.salt_user
        #: Since the start: publishes that the master took, questions included; and failed ones.
        self.published = self.failed = 0

    def close(self) -> None:
        """Release the client's sockets."""
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
        listed: bool = False,
        once: Mapping[str, Any] | None = None,
        natively: bool = True,
    ) -> frozenset[str]:
        """
        Publish a job and return the minions that it is for, as the master has answered.

        :param jid: the job's id, used as it is.
        :param user: the user to publish for. The master checks the access of users it knows.
        :param options: the job's values for names in OPTIONS.
        :param timeout: seconds to wait for the master's answer.
        :param question: it is a question: minions announce no start, and unless ``kept``, answers are only on the bus.
        :param kept: the answers to the question are stored under the names of their senders. The retry queue does not
            deliver the question later.
        :param listed: the job cache has the question and its answers.
        :param once: options for minions with the executor ``job_once`` (``rerun``: see there).
        :param natively: whether minions of Salt 3008 acknowledge it by themselves. That can delay a minion that has
            just started by a minute; the executor's acknowledgement does not wait.
        :raises PublishFailed: with ``certain`` if nothing was published, and ``forbidden`` if the master will refuse it
            again.
        :raises NoMinionMatched: when none of the target has an accepted key.
        """
        extra: dict[str, Any] = {name: options[name] for name in OPTIONS if options and options.get(name) is not None}
        if question:
            extra |= {} if kept else {"nocache": True}
            extra |= {"metadata": {"job_retry": False}} if listed else {}
        elif compat.HAS_START_EVENT and natively:
            extra["start_event"] = True
        extra["executor_opts"] = _with_wishes(extra.get("executor_opts"), question, once)
        try:
            if self._lease is not None:
                self._lease.check()
        except OSError as exc:
            self.failed += 1
            raise PublishFailed(str(exc), certain=True) from exc
        # The client reads its salt_user synchronously, before its first wait: no other publish can come between.
        self._client.salt_user = self._allowed(user)
        try:
            answer = await self._client.run_job_async(
                tgt,
                fun,
                list(arg),
                tgt_type,
                ret,
                jid=jid,
                kwarg=dict(kwarg or {}),
                timeout=max(1, int(timeout)),
                io_loop=self._loop,
                listen=False,
                **extra,
            )
        except Exception as exc:
            self.failed += 1
            refusal = _refusal_in(exc)
            forbidden = isinstance(refusal, salt.exceptions.AuthorizationError)
            raise PublishFailed(f"{type(exc).__name__}: {exc}", refusal is not None, forbidden) from exc
        if not answer or not answer.get("jid"):
            raise NoMinionMatched(f"the master matched no minion with {_short(tgt)}")
        self.published += 1
        return frozenset(answer["minions"])

    async def kill_job(
        self, jid: str, minions: Iterable[str], *, kill_jid: str, gently: bool = False
    ) -> frozenset[str]:
        """Send SIGKILL, or gently SIGTERM, to the processes of ``jid`` on minions. Returns and raises as ``publish``."""
        function = "saltutil.term_job" if gently else "saltutil.kill_job"
        return await self.publish(function, [jid], list(minions), jid=kill_jid, question=True)

    def _allowed(self, user: str | None) -> str:
        """
        Return the user to publish as.

        The master lets the key of root, and of a user called salt, publish for anyone, and any key for ``sudo_…``
        (``salt.auth.LoadAuth.authenticate_key``). A master that runs as another user can publish only as itself.
        """
        if not user or user == self._own_user:
            return str(self._own_user)
        if user.startswith("sudo_") or self._opts.get("user", "root") in ("root", "salt"):
            return user
        log.debug("Publishing as %s, since this master can't publish for %s", self._own_user, user)
        return str(self._own_user)


def _with_wishes(given: Any, question: bool, once: Mapping[str, Any] | None) -> Any:
    """
    Return a job's executor options with those for the executor ``job_once``; minions without it ignore them.

    The executor does not record questions, and acknowledges jobs even if the master's release has no acknowledgement.
    """
    if given is not None and not isinstance(given, Mapping):
        return given  # options in an unknown form stay as they are
    wishes = {"question": True} if question else {"ack": True, **(once or {})}
    return {**(given or {}), "job_once": wishes}


def _refusal_in(exc: BaseException) -> BaseException | None:
    """Return the master's error if it means that nothing was published, else None."""
    # run_job_async wraps unknown errors in a SaltClientError whose argument is the original.
    return next((found for found in (exc, *exc.args[:1]) if isinstance(found, _REFUSALS)), None)


def _short(tgt: Any) -> str:
    text = ",".join(tgt) if isinstance(tgt, (list, tuple)) else str(tgt)
    return text if len(text) <= 80 else text[:77] + "..."


# -- the client ---------------------------------------------------------------------------------------------------------


class KeepingClient(salt.client.LocalClient):  # type: ignore[misc]
    """
    A ``LocalClient`` for ``run_job_async`` on one loop. It keeps its connections to the master: Salt's own client opens one
    for each publish, which costs more CPU than the publish itself (a zmq context with two threads).

    :param origin: the engine that publishes.
    :param epoch: the epoch in which it leads; 0 if no other process could lead.
    :param kwargs: as for ``LocalClient``.
    """

    def __init__(self, origin: str, epoch: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.key: Any
        self._origin, self._epoch = origin, epoch
        self._made_with = kwargs
        self._idle: list[Any] = []  # channels

    def destroy(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()
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
        channel = self._idle.pop() if self._idle else self._connected(io_loop)
        try:
            answer = await channel.send(request, timeout=timeout)
        except BaseException:
            await compat.close_channel(channel)
            raise
        self._idle.append(channel)
        return answer

    def _connected(self, io_loop: Any) -> Any:
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
