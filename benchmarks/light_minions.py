"""
A fleet in one process that a real Salt 3008 master takes for a thousand minions: it speaks their protocol and runs nothing.

One of them signs in and reads what is published to all; what each sends is encrypted with its own session key and signed in
its own name, as the master's workers demand. They know a jid again that they have seen since they started, as minions do,
and say that a job begins before they return it.
"""

from __future__ import annotations

import asyncio
import collections
import fnmatch
import pathlib
import shutil
import time
import uuid

import salt.channel.client
import salt.config
import salt.crypt
import salt.payload
import zmq
import zmq.asyncio

#: Connections over which the fleet sends; the minion that listens.
CONNECTIONS, LISTENER = 20, "listener"


def accept(opts, minions):
    """Have a master accept the keys of minions, before it starts. Returns the folder with the one key that they share."""
    keys = pathlib.Path(opts["pki_dir"])
    own = keys.parent / "light-minions"
    for folder in (own, keys / "minions"):
        folder.mkdir(parents=True, exist_ok=True)
    salt.crypt.write_keys(str(own), "minion", 2048)
    for minion in (*minions, LISTENER):
        shutil.copy(own / "minion.pub", keys / "minions" / minion)
    return own


class LightMinions:
    """
    :param opts: the master's options.
    :param own: the folder that ``accept`` has returned.
    :param minions: ids. None is there before ``start``.
    """

    def __init__(self, opts, own, minions):
        self.minions, self.there = list(minions), set()
        #: Every run of a job, as it happened: (minion, jid, the time of a clock that nobody sets).
        self.runs = []
        #: How many requests of each kind were sent, and what the master refused.
        self.sent, self.refused = collections.Counter(), []
        self._seen = collections.defaultdict(set)
        self._to_send = asyncio.Queue()
        self._sessions = pathlib.Path(opts["cachedir"]) / "sessions"
        self._uri = f"tcp://127.0.0.1:{opts['ret_port']}"
        self._opts = salt.config.minion_config(None)
        self._opts.update(
            id=LISTENER,
            pki_dir=str(own),
            cachedir=str(own / "cache"),
            sock_dir=str(own),
            master_ip="127.0.0.1",
            master_uri=self._uri,
            publish_port=opts["publish_port"],
            acceptance_wait_time=1,
        )
        self._crypticles = {}

    async def connect(self):
        """Be ready: from now on what is published is heard."""
        loop = asyncio.get_running_loop()
        self._channel = salt.channel.client.AsyncPubChannel.factory(self._opts, io_loop=loop)
        await self._channel.connect()
        self._channel.on_recv(self._published)
        self._token = self._channel.auth.gen_token(b"salt")
        context = zmq.asyncio.Context()
        self._senders = [loop.create_task(self._send(context)) for _ in range(CONNECTIONS)]

    async def start(self, within):
        """Start all minions, evenly spread over so many seconds."""
        begun = time.monotonic()
        for at, minion in enumerate(self.minions):
            await asyncio.sleep(max(0.0, begun + within * at / len(self.minions) - time.monotonic()))
            self.there.add(minion)
            self._fire(minion, f"salt/minion/{minion}/start", {"id": minion})

    async def _published(self, payload):
        load = payload["load"]
        jid, fun, named = load["jid"], load["fun"], load["tgt"]
        if load["tgt_type"] == "list":
            chosen = [minion for minion in named if minion in self.there]
        else:
            chosen = fnmatch.filter(self.there, named)
        for minion in chosen:
            if jid not in self._seen[minion]:
                self._seen[minion].add(jid)
                self._run(minion, jid, fun, load)

    def _run(self, minion, jid, fun, load):
        answer = "done"
        if isinstance(fun, list):
            advice = "Local jobs cache directory not found; you may need to enable cache_jobs on this minion"
            answer = {"saltutil.find_job": {}, "saltutil.find_cached_job": advice, "saltutil.running": []}
            answer = {name: answer[name] for name in fun if name in answer}
        elif fun == "saltutil.running":
            answer = []
        elif fun.startswith(("saltutil.", "test.ping")):
            answer = True
        else:
            self.runs.append((minion, jid, time.monotonic()))
        if load.get("start_event"):
            names = ("fun", "tgt", "tgt_type", "user")
            begun = {"id": minion, "jid": jid, **{name: load.get(name) for name in names}}
            self._fire(minion, f"salt/job/{jid}/start/{minion}", begun)
        result = {"return": answer, "retcode": 0, "success": True}
        if isinstance(fun, list):
            result["retcode"], result["success"] = dict.fromkeys(fun, 0), dict.fromkeys(fun, True)
        what = f"returns of {'+'.join(fun) if isinstance(fun, list) else fun}"
        self._put(minion, {"cmd": "_return", "jid": jid, "fun": fun, "fun_args": load["arg"], **result}, what)

    def _fire(self, minion, tag, data):
        what = "starts" if tag.startswith("salt/minion/") else "begun jobs"
        self._put(minion, {"cmd": "_minion_event", "pretag": None, "tag": tag, "data": data}, what)

    def _put(self, minion, load, what):
        self.sent[what] += 1
        self._to_send.put_nowait((minion, load))

    async def _send(self, context):
        socket = context.socket(zmq.REQ)
        socket.connect(self._uri)
        while True:
            minion, load = await self._to_send.get()
            load = {**load, "id": minion, "tok": self._token, "nonce": uuid.uuid4().hex, "ts": int(time.time())}
            request = {"enc": "aes", "id": minion, "version": 3, "load": self._crypticle(minion).dumps(load)}
            algorithms = {"enc_algo": self._opts["encryption_algorithm"], "sig_algo": self._opts["signing_algorithm"]}
            await socket.send(salt.payload.dumps({**request, **algorithms}))
            answer = salt.payload.loads(await socket.recv())
            if not isinstance(answer, bytes):  # what it takes it answers encrypted
                self.refused.append(answer)

    def _crypticle(self, minion):
        """Signing in gives a minion this key; the master keeps it in a file, and takes one that is there."""
        if minion not in self._crypticles:
            path = self._sessions / minion
            salt.crypt.Crypticle.write_key(path)
            self._crypticles[minion] = salt.crypt.Crypticle(self._opts, salt.crypt.Crypticle.read_key(path))
        return self._crypticles[minion]


def serve(opts, own, minions, pipe):
    """
    Be the fleet, in a process of its own.

    :param pipe: gets ``None`` once the fleet can hear; takes the seconds within which all start, and after that ``report``,
        which is answered with (runs, sent, refused), and ``end``.
    """

    async def work():
        fleet = LightMinions(opts, own, minions)
        await fleet.connect()
        pipe.send(None)
        tasks, loop = [], asyncio.get_running_loop()
        while (message := await loop.run_in_executor(None, pipe.recv)) != "end":
            if message == "report":
                pipe.send((fleet.runs, dict(fleet.sent), fleet.refused))
            else:
                tasks.append(loop.create_task(fleet.start(message)))

    asyncio.run(work())
