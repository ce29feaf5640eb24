"""
What connects featherweight minions with a real master: Salt's own channel classes, shared by all of them.

Each minion signs in under its own id and has its own session key; each of its messages is packed, encrypted, sent again and
checked by Salt's ``AsyncReqChannel``. They share what is expensive: the key pair, the connections, and the subscription,
which decrypts each publish once for all.

Over TCP a master sends a publish only to its targets, so there each minion has its own subscription.

If many minions send at once, a message first waits for a free connection. Its timeout begins after that.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import pathlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import salt.channel.client
import salt.config
import salt.crypt
import salt.exceptions
import salt.transport

#: The minion that listens for all; the number of connections over which all send, and over which they sign in.
LISTENER, CONNECTIONS, SIGN_INS = "listener", 40, 8
#: Seconds that a minion waits for the answer to a message, and how often it sends it (``return_retry_timer_max``,
#: ``return_retry_tries``).
TIMEOUT, TRIES = 10, 3
#: How many publishes over TCP are remembered, to recognize them when the next minion hears them.
_REMEMBERED = 1000


def accept(opts: Mapping[str, Any], minions: list[str]) -> pathlib.Path:
    """Have a master accept the keys of minions, before it starts. Returns the folder with the one key that they share."""
    keys = pathlib.Path(opts["pki_dir"])
    own = keys.parent / "featherweight"
    for folder in (own, keys / "minions"):
        folder.mkdir(parents=True, exist_ok=True)
    salt.crypt.write_keys(str(own), "minion", 2048)
    for minion in (*minions, LISTENER):
        shutil.copy(own / "minion.pub", keys / "minions" / minion)
    return own


#: Gets the load of a publish, the minion that has heard it (None: all), and whether it was heard for the first time.
Heard = Callable[[Mapping[str, Any], "str | None", bool], Awaitable[None]]


class Refused(Exception):
    """The master has not let a minion sign in."""


class Wire:
    """
    :param opts: the master's options.
    :param own: the folder that ``accept`` has returned.
    """

    def __init__(self, opts: Mapping[str, Any], own: pathlib.Path) -> None:
        self._opts = salt.config.minion_config(None)
        self._opts.update(
            id=LISTENER,
            pki_dir=str(own),
            cachedir=str(own / "cache"),
            sock_dir=str(own),
            master=opts["interface"],
            master_ip=opts["interface"],
            master_port=opts["ret_port"],
            master_uri=f"tcp://{opts['interface']}:{opts['ret_port']}",
            publish_port=opts["publish_port"],
            transport=opts.get("transport", "zeromq"),
            acceptance_wait_time=1,
            rejected_retry=True,
        )
        self._identities: dict[str, Identity] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._loads: dict[bytes, Any] = {}  # what was published last, over TCP, by a digest of its encrypted form
        #: How many messages of each kind were answered; what went wrong, by kind and error.
        self.sent: collections.Counter[str] = collections.Counter()
        self.failed: collections.Counter[str] = collections.Counter()

    async def connect(self, heard: Heard) -> None:
        """
        Be ready to send, and to hear what is published.

        :param heard: gets the load of each publish; over TCP once for each minion, with its id, and whether it is the first.
        """
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        self._free_to_sign_in: asyncio.Queue[Any] = asyncio.Queue()
        for _ in range(CONNECTIONS):
            self._free.put_nowait(self._connection())
        for _ in range(SIGN_INS):
            self._free_to_sign_in.put_nowait(self._connection())
        self._channel = salt.channel.client.AsyncPubChannel.factory(self._opts, io_loop=self._loop)
        await self._channel.connect()

        async def published(payload: Mapping[str, Any]) -> None:
            await heard(payload["load"], None, True)

        self._channel.on_recv(published)

    async def subscribe(self, minion: str) -> None:
        """Have a minion hear what is published, once it has signed in."""
        if self._opts["transport"] != "tcp" or minion in self._subscriptions:
            return
        opts = {**self._opts, "id": minion}
        transport = salt.transport.publish_client(
            opts, self._loop, host=opts["master_ip"], port=int(opts["publish_port"])
        )
        channel = self._subscriptions[minion] = Subscription(opts, transport, self._channel.auth, self._loop)
        channel.loads = self._loads
        await channel.connect()

        async def published(payload: Mapping[str, Any]) -> None:
            await self._heard(payload["load"], minion, payload["first"])

        channel.on_recv(published)

    def unsubscribe(self, minion: str) -> None:
        """A minion is gone, and hears nothing more."""
        channel = self._subscriptions.pop(minion, None)
        if channel is not None:
            channel.close()

    async def close(self) -> None:
        """Release all connections that are not in use."""
        for minion in list(self._subscriptions):
            self.unsubscribe(minion)
        self._channel.close()
        for free in (self._free, self._free_to_sign_in):
            while not free.empty():
                connection = free.get_nowait()
                await getattr(connection, "close_async", _at_once(connection.close))()

    def key(self) -> Any:
        """Return the master's key for its publishes. If it changes, every minion fetches the new one itself."""
        return self._channel.auth.creds["aes"]

    async def sign_in(self, minion: str) -> None:
        """:raises Refused: if the master does not accept the minion within a minute."""
        identity = self._identities.get(minion)
        if identity is None:
            identity = self._identities[minion] = Identity(self, minion)
        await identity.authenticate()

    async def send(
        self, minion: str, load: Mapping[str, Any], what: str, timeout: float, wanted: Callable[[], bool]
    ) -> float | None:
        """
        Send a message and return when there was a connection for it; None if it was not wanted, or was not answered.

        :param wanted: tells, once there is a connection, whether the message is to be sent at all.
        """
        async with self._connected(self._free) as connection:
            if not wanted():
                return None
            since = time.monotonic()
            channel = salt.channel.client.AsyncReqChannel(self._opts, connection, self._identities[minion])
            channel.opts["id"] = minion
            try:
                await channel.send(dict(load), tries=TRIES, timeout=timeout)
            except Exception as exc:
                self.failed[f"{what}: {type(exc).__name__}"] += 1
                raise _Broken from exc
            self.sent[what] += 1
            return since
        return None

    async def ask_for_keys(self, minion: str) -> Mapping[str, Any]:
        """Sign in once. Returns what the master has answered, checked. Raises whatever goes wrong."""
        auth = self._channel.auth
        payload = {**auth.minion_sign_in_payload(), "id": minion}
        async with self._connected(self._free_to_sign_in) as connection:
            channel = salt.channel.client.AsyncReqChannel(self._opts, connection, None)
            try:
                answer = await channel.send(payload, tries=1, timeout=TIMEOUT)
            except Exception as exc:
                raise _Broken from exc
            try:
                creds = auth.handle_signin_response(payload, answer)
            except salt.exceptions.SaltClientError as exc:
                raise Refused(f"{minion} does not trust the master: {exc}") from exc
            if isinstance(creds, dict):
                self.sent["sign-ins"] += 1
                return creds
            self.failed[f"sign-ins: {creds}"] += 1
        raise Refused(f"{minion} could not sign in")

    def token(self, clear: bytes) -> bytes:
        return self._channel.auth.gen_token(clear)

    def crypticle(self, key: Any) -> Any:
        return salt.crypt.Crypticle(self._opts, key)

    def _connection(self) -> Any:
        return salt.transport.request_client(self._opts, io_loop=self._loop)

    @contextlib.asynccontextmanager
    async def _connected(self, free: asyncio.Queue[Any]) -> AsyncIterator[Any]:
        """A connection for exclusive use. A connection without an answer is replaced."""
        connection = await free.get()
        try:
            yield connection
        except _Broken:
            old, connection = connection, self._connection()
            old.close()
        finally:
            free.put_nowait(connection)


class Subscription(salt.channel.client.AsyncPubChannel):
    """
    One minion's subscription over TCP. It sends its id, and does not announce its connection.

    ``loads``: the publishes that were decoded last, shared by all minions; see ``Wire``.
    """

    loads: dict[bytes, Any]

    async def connect_callback(self, _result: Any) -> None:
        if not self._closing:
            again, self._reconnected = self._reconnected, True
            await self.send_id(self.token, again)

    def disconnect_callback(self) -> None:
        pass

    async def _decode_payload(self, payload: dict[str, Any]) -> Any:
        digest = hashlib.blake2b(payload["load"], digest_size=8).digest()  # each publish is encrypted again
        first = digest not in self.loads
        if first:
            decoded = await super()._decode_payload(payload)
            # The shared key accepts each publish once. Another minion may have decoded this one meanwhile.
            if decoded and decoded["load"]:
                self.loads[digest] = decoded["load"]
                if len(self.loads) > _REMEMBERED:
                    del self.loads[next(iter(self.loads))]
        load = self.loads.get(digest)
        return None if load is None else {**payload, "load": load, "first": first}


def _at_once(close: Callable[[], Any]) -> Callable[[], Awaitable[None]]:
    """Make ``close`` awaitable: that of a connection over TCP is done at once."""

    async def closed() -> None:
        close()

    return closed


class _Broken(Exception):
    """No answer came over a connection."""


class Identity:
    """What a channel asks of ``salt.crypt.AsyncAuth``, for one minion of many."""

    mpub = "minion_master.pub"

    def __init__(self, wire: Wire, minion: str) -> None:
        self._wire, self._minion = wire, minion
        self._underway: asyncio.Future[None] | None = None
        self.session_crypticle: Any = None
        self.authenticated = False

    def gen_token(self, clear: bytes) -> bytes:
        return self._wire.token(clear)

    async def authenticate(self) -> None:
        """Sign in again; concurrent callers wait for the same sign-in."""
        if self._underway is None:
            self._underway = asyncio.ensure_future(self._authenticate())
            self._underway.add_done_callback(self._is_over)
        await asyncio.shield(self._underway)

    def _is_over(self, _: Any) -> None:
        self._underway = None

    async def _authenticate(self) -> None:
        for _ in range(6):
            with contextlib.suppress(Refused):
                creds = await self._wire.ask_for_keys(self._minion)
                self.session_crypticle = self._wire.crypticle(creds["session"])
                self.authenticated = True
                return
            await asyncio.sleep(1)
        raise Refused(f"{self._minion} was not let in")
