"""Scenarios of what goes wrong around the engines: power cuts, restarts, kills, floods, a full disk, no job cache."""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import salt.transport.frame
import salt.utils.event

from benchmarks.fleet.batches import a_batch
from benchmarks.fleet.site import Site
from benchmarks.fleet.story import Arguments, Story
from demo.processes import free_port, wait_for
from saltext.jobs.core.engine import requests
from saltext.jobs.core.engine.names import BATCH_MANAGER, JOB_RETRY

#: Limits for three jobs: publishes, and seconds (an aim on two quiet cores).
_PUBLISHES, _SECONDS = 60, 30
#: Seconds without a change after which the remaining entries are asked what they wait for.
_STANDS = 10.0
#: Seconds for which the process that forwards events works, and for which it is then frozen.
_BUS_LIVES, _BUS_FROZEN = 2.0, 3.0
#: Seconds for measuring the capacity of the bus.
_ALONE = 10.0
#: Seconds that an engine may take for an answer which comes by a bus that carries all it can.
_CROWDED = 30.0
#: Seconds for which the master goes on without the process that forwards events.
_WITHOUT = 10.0


def power(site: Site, args: Arguments) -> Story:
    """A power cut: all minions go, three jobs are published, and all come back within ten seconds."""
    story = Story()
    site.start()
    jids = owe(site, 3)
    since = site.mark("power back")
    site.crowd.start(site.names, args.within)
    drain(site)
    _deliver(site, story, jids, since)
    story.end(site, jids, since)
    return story


def owe(site: Site, jobs: int) -> list[str]:
    """Have all minions go, publish jobs, and wait until all are owed. Returns the jids."""
    site.crowd.stop(site.names)
    site.mark("power cut")
    jids = [site.publish() for _ in range(jobs)]
    site.need(lambda: site.queued() >= jobs * len(site.names), site.limit, f"{jobs} jobs are owed to all minions")
    return jids


def drain(site: Site) -> None:
    """
    Wait until everything owed is settled or needs an operator. Give up when nothing changes any more, which the verdict
    will show.
    """
    looked = changed = time.monotonic()
    left = site.queued()
    while left and time.monotonic() < changed + site.limit:
        time.sleep(0.5)
        before, left = left, site.queued()
        if left != before:
            looked = changed = time.monotonic()
        elif time.monotonic() > looked + _STANDS:
            if site.is_drained():
                break
            looked = time.monotonic()


def _deliver(site: Site, story: Story, jids: list[str], since: float) -> None:
    """Judge the delivery of jobs that were owed to all minions, and measure its speed."""
    truth = story.owed(site, jids)
    last_start = max((at for at, _, is_there in truth.presence if is_there), default=0.0)
    waited = truth.last_begun(jids) - last_start
    story.figures["last job begun, after the last start"] = f"{waited:.1f} s (aim on two quiet cores: {_SECONDS} s)"
    publishes = sum(truth.published(since=since))
    story.figures["publishes from the first start on"] = f"{publishes:,} (aim: {_PUBLISHES})"
    story.values |= {"seconds": waited, "publishes": publishes}


def restarts(site: Site, args: Arguments) -> Story:
    """All minions are restarted, one after the other, while a batch runs; each is away for five seconds."""

    def restart(_jid: str) -> None:
        site.crowd.restart(site.names, args.within * 4, 5.0)
        site.mark("restarts")

    site.start()
    return a_batch(site, args, restart)


def kills(site: Site, args: Arguments) -> Story:
    """
    An engine is killed after five seconds, again and again: in a batch, and while missed jobs are delivered after a
    power cut.
    """
    story = Story()
    site.start()
    since = site.mark("started")
    jid = site.batch(args.size)
    _kill_until(site, lambda: site.are_over([jid]), site.limit, BATCH_MANAGER)
    truth = story.batches(site, {jid: args.size}, since)
    story.pace(truth, {jid: args.size})
    jids = owe(site, 3)
    back = site.mark("power back")
    site.crowd.start(site.names, args.within)
    _kill_until(site, lambda: not site.queued(), site.limit, JOB_RETRY)
    _deliver(site, story, jids, back)
    story.figures["kills"] = f"{sum('killed' in what for _, what in site.marks)}"
    story.end(site, [jid, *jids], since)
    return story


def _kill_until(site: Site, over: Callable[[], bool], limit: float, engine: str, alive: float = 5.0) -> None:
    """Kill an engine whenever it has run for a few seconds, until something holds, for at most so many seconds."""
    begun, runs_since = time.monotonic(), None
    while not over() and time.monotonic() - begun < limit:
        now = time.monotonic()
        if not requests.is_running(site.opts, engine):
            runs_since = None
        elif runs_since is None:
            runs_since = now
        elif now - runs_since >= alive and site.kill_engine(engine):
            runs_since = None
        time.sleep(0.1)


def master(site: Site, args: Arguments) -> Story:
    """The whole master is killed in the middle of a batch, and is back five seconds later."""

    def kill(jid: str) -> None:
        _need_begun(site, args, jid)
        site.kill_master()
        time.sleep(5)
        site.start_master()

    site.start()
    return a_batch(site, args, kill)


def _batch_and_power_cut(site: Site, args: Arguments) -> tuple[str, list[str], float]:
    """
    A batch, then three missed jobs that are delivered. Returns the batch's jid, the jobs' jids, and when the minions
    came back.
    """
    jid = site.batch(args.size)
    site.wait([jid])
    jids = owe(site, 3)
    back = site.mark("power back")
    site.crowd.start(site.names, args.within)
    drain(site)
    return jid, jids, back


def bus(site: Site, args: Arguments) -> Story:
    """The process that forwards events is frozen again and again: in a batch, and after a power cut."""
    story = Story()
    site.start()
    since = site.mark("started")
    over, frozen = threading.Event(), [0]

    def freeze() -> None:
        while not over.wait(_BUS_LIVES):
            site.freeze_bus(_BUS_FROZEN)
            frozen[0] += 1

    freezer = threading.Thread(target=freeze, daemon=True)
    freezer.start()
    try:
        jid, jids, back = _batch_and_power_cut(site, args)
    finally:
        over.set()
        freezer.join()
    story.figures["times that the bus was frozen"] = str(frozen[0])
    truth = story.batches(site, {jid: args.size}, since)
    story.pace(truth, {jid: args.size})
    _deliver(site, story, jids, back)
    story.end(site, [jid, *jids], since)
    return story


def publisher(site: Site, args: Arguments) -> Story:
    """
    The process that forwards events is killed in the middle of a batch. Salt 3008 does not bring it back to work: its master
    then publishes and stores nothing, but confirms returns. Ten seconds later an operator restarts it.
    """

    def kill(jid: str) -> None:
        _need_begun(site, args, jid)
        begun = site.kill_bus()
        time.sleep(_WITHOUT)
        site.kill_master()
        site.start_master()
        site.spared.append((begun, time.monotonic()))
        site.unstorable.append((begun, time.monotonic(), "nothing forwarded events"))

    site.start()
    return a_batch(site, args, kill)


def _need_begun(site: Site, args: Arguments, jid: str) -> None:
    site.need(lambda: site.crowd.begun(jid) > len(site.names) / 4, site.limit, "a quarter has run it")


def flood(site: Site, args: Arguments) -> Story:
    """A batch, and a power cut with three jobs, while 2,000 events a second that belong to no job come over the bus."""
    story = Story()
    site.start()
    with flooded(site.opts, math.inf) as fired:
        time.sleep(_ALONE)
    story.figures["events a second that the bus takes, alone"] = f"{fired.value / _ALONE:,.0f}"
    since = site.mark("flood")
    with flooded(site.opts, args.rate) as fired:
        jid, jids, back = _batch_and_power_cut(site, args)
    story.figures["events fired"] = f"{fired.value:,}, {fired.value / (time.monotonic() - since):,.0f} a second"
    truth = story.batches(site, {jid: args.size})
    story.pace(truth, {jid: args.size})
    _deliver(site, story, jids, back)
    story.end(site, [jid, *jids], since)
    return story


def forged(site: Site, args: Arguments) -> Story:
    """
    A batch, then three jobs that all are owed, while 10,000 events a second claim that their minions have begun, failed or
    returned them or restarted, that the batch has halted, and that an operator asks for something.
    """
    story = Story()
    site.start()
    site.answer = max(site.answer, _CROWDED)
    context = multiprocessing.get_context("spawn")
    named, since = context.Array("c", 256), site.mark("forged")
    with flooded(site.opts, args.rate, site.names, named) as fired:
        jid = site.batch(args.size)
        named.value = jid.encode()
        site.wait([jid])
        over = time.monotonic()
        named.value = b""  # nothing can be believed of a minion that is away while its every start is forged
        jids = owe(site, 3)
        named.value = " ".join([jid, *jids]).encode()
        back = site.mark("power back")
        site.crowd.start(site.names, args.within)
        drain(site)
    told = f"{fired.value:,}, {fired.value / (time.monotonic() - since):,.0f} a second"
    story.figures["events forged"] = f"{told}; the batch took {over - since:.0f} s"
    truth = story.batches(site, {jid: args.size})
    story.pace(truth, {jid: args.size})
    _deliver(site, story, jids, back)
    story.end(site, [jid, *jids], since)
    return story


@contextlib.contextmanager
def flooded(
    opts, rate: float, names: Sequence[str] = (), named: multiprocessing.sharedctypes.SynchronizedString | None = None
) -> Iterator[multiprocessing.sharedctypes.Synchronized]:
    """
    Fire events on a master's bus as long as the block runs, so many a second; yields a count of them.

    :param names: minions in whose names events are forged; without any, the events are returns of unknown jobs.
    :param named: the jids, with blanks between them, of the jobs that these claim to have run.
    """
    context = multiprocessing.get_context("spawn")
    fired = context.Value("q", 0)
    process = context.Process(target=_flood, args=(dict(opts), rate, fired, names, named), daemon=True)
    process.start()
    try:
        yield fired
    finally:
        process.terminate()
        process.join(5)


def _flood(opts, rate: float, fired, names: Sequence[str], named) -> None:
    """Write to the publisher's socket as Salt's own senders do, many events at a time, as fast as it takes them."""
    path, begun = os.path.join(opts["sock_dir"], "master_event_pull.ipc"), time.monotonic()
    events = _forgeries(names, named) if names else map(_unknown_return, itertools.count())
    while True:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as bus:  # the master may be killed
            bus.connect(path)
            while True:
                count = int(min(50.0, rate * max(1e-6, time.monotonic() - begun) - fired.value))
                if count <= 0:
                    time.sleep(0.005)
                    continue
                bus.sendall(b"".join(itertools.islice(events, count)))
                fired.value += count
        time.sleep(0.5)


def _unknown_return(number: int) -> bytes:
    """A return of an unknown job, as the publisher's socket takes it."""
    minion = f"other{number % 500}"
    tag = f"salt/job/20200101000000{number % 1_000_000:06d}/ret/{minion}"
    return _packed(tag, {"id": minion, "return": "x" * 300, "retcode": 0})


def _packed(tag: str, data: dict) -> bytes:
    return salt.transport.frame.frame_msg_ipc(salt.utils.event.SaltEvent.pack(tag, data))


def _forgeries(names: Sequence[str], named) -> Iterator[bytes]:
    """
    Yield endless events that lie about jobs, in each minion's name in turn. They are returns of unknown jobs until one is
    named.
    """
    while True:
        jids = named.value.decode().split()
        yield from [event for jid in jids for event in _lies(jid, names)] or map(_unknown_return, range(500))


def _lies(jid: str, names: Sequence[str]) -> Iterator[bytes]:
    for number, minion in enumerate(names):
        returned = {"id": minion, "jid": jid, "fun": "state.apply", "fun_args": ["featherweight"], "return": "x" * 300}
        for retcode in (0, 1):
            result = {"retcode": retcode, "success": not retcode}
            yield _packed(f"salt/job/{jid}/ret/{minion}", {**returned, **result})
        yield _packed(f"salt/job/{jid}/start/{minion}", {"id": minion, "jid": jid})
        yield _packed(f"salt/minion/{minion}/start", {"id": minion})
        if number % 10 == 0:
            yield _packed(f"salt/batch/{jid}/halted", {"jid": jid, "halted_reason": "stop"})


def disk(site: Site, args: Arguments) -> Story:
    """No file of the master's can grow for a while, in the middle of a batch."""

    def fill(jid: str) -> None:
        _need_begun(site, args, jid)
        with site.full_disk():
            time.sleep(args.away)

    site.start()
    return a_batch(site, args, fill)


def redis(site: Site, args: Arguments) -> Story:
    """The job cache is in redis, which is away for a while, in the middle of a batch."""

    def go_away(jid: str) -> None:
        _need_begun(site, args, jid)
        begun = site.mark("redis away")
        site.beside.stop()
        time.sleep(args.away)
        site.beside.start()
        site.spared.append((begun, site.mark("redis back")))
        site.unstorable.append((begun, time.monotonic(), "redis was away"))

    site.start()
    return a_batch(site, args, go_away)


class Redis:
    """A server on a free loopback port, whose data outlive it. Use it as a context manager."""

    def __enter__(self) -> Redis:
        if shutil.which("redis-server") is None:
            raise SystemExit("redis-server is not installed (Debian: redis-server)")
        self.port = free_port()
        self._folder = tempfile.mkdtemp(prefix="sj-redis-")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def options(self) -> dict[str, object]:
        """The master's options to use it as its cache."""
        return {"cache": "redis", "cache.redis.host": "127.0.0.1", "cache.redis.port": self.port}

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        words = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder]
        words += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        with (pathlib.Path(self._folder) / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self._takes_connections, 60)

    def _takes_connections(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def stop(self) -> None:
        """Kill it."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
