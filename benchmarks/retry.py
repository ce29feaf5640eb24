"""
What job retry costs: the real engine code on a real loop, a real store and a real job cache, and a simulated fleet.

    python benchmarks/retry.py                     all figures
    python benchmarks/retry.py return --minions 10000 --jobs 3

The fleet is a process of its own, so that its CPU time is not the engine's. It gets each publish, and answers as Salt's
minions do, on the socket on which the engine reads the bus of Salt 3007 and later; it stores returns in the job cache as a
master does. Only the master's own work is missing. CPU time is that of all threads of the engine's process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import pathlib
import queue
import random
import resource
import shutil
import socket
import tempfile
import threading
import time

import salt.cache
import salt.config
import salt.payload

from saltext.jobs.core import compat
from saltext.jobs.core.delivery.known import Answers, Evidence
from saltext.jobs.core.engine.loop import Clock
from saltext.jobs.core.ledger.log import Writer
from saltext.jobs.core.ledger.records import return_of
from saltext.jobs.core.master.bus import Stream
from saltext.jobs.core.master.job_cache import JobCache
from saltext.jobs.core.options.engines import RetrySettings
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.entry import Entry, Job, Key, Kind
from saltext.jobs.core.retry.shell import RetryShell
from saltext.jobs.core.retry.store import RetryStore
from saltext.jobs.core.site import site_of
from saltext.jobs.engines.job_retry import ports_of

#: The fleet's process is forked, and inherits what this one has made.
FORK = multiprocessing.get_context("fork")


# -- the fleet --------------------------------------------------------------------------------------------------------


class Fleet:
    """Minions that answer questions, run jobs at once and return them. Runs in its own process."""

    def __init__(self, opts, inbox, outbox, minions):
        self.opts, self.inbox, self.outbox = opts, inbox, outbox
        self.log = Writer(site_of(opts))
        self.down = set(minions)

    def run(self):
        while True:
            message = self.inbox.get()
            if message is None:
                return
            kind, *rest = message
            getattr(self, kind)(*rest)

    def start(self, minions, within):
        """All minions start, evenly spread over so many seconds."""
        order = list(minions)
        random.Random(7).shuffle(order)
        begun = time.monotonic()
        for at in range(100):
            part = order[at * len(order) // 100 : (at + 1) * len(order) // 100]
            self.fire([(f"salt/minion/{minion}/start", {"id": minion}) for minion in part])
            self.down.difference_update(part)
            self.drain(until=begun + (at + 1) * within / 100)

    def drain(self, until):
        """Answer questions and run jobs until then."""
        while (left := until - time.monotonic()) > 0:
            try:
                kind, *rest = self.inbox.get(timeout=left)
            except queue.Empty:
                return
            getattr(self, kind)(*rest)

    def question(self, jid, fun, minions):
        answers = {"saltutil.find_job": {}, "saltutil.find_cached_job": "enable cache_jobs", "saltutil.running": []}
        value = answers if isinstance(fun, list) else [] if fun == "saltutil.running" else True
        there = [minion for minion in minions if minion not in self.down]
        for minion in there:  # only the log gets them
            answer = {"fun": fun, "retcode": 0, "return": value}
            self.log.append(return_of(jid, minion, answer, asked=True, listed=False))
        self.fire([self.ret(jid, fun, minion, value) for minion in there])

    def job(self, jid, fun, minions):
        there = [minion for minion in minions if minion not in self.down]
        self.fire([(f"salt/job/{jid}/start/{minion}", {"jid": jid, "id": minion}) for minion in there])
        store(self.opts, self.log, jid, there, fun)
        self.fire([self.ret(jid, fun, minion, "done") for minion in there])

    @staticmethod
    def ret(jid, fun, minion, value):
        data = {"jid": jid, "id": minion, "fun": fun, "fun_args": [], "return": value, "retcode": 0, "success": True}
        return f"salt/job/{jid}/ret/{minion}", {**data, "_stamp": "2026-05-16T10:11:12.131415", "cmd": "_return"}

    def fire(self, batch):
        """Put events on the bus, in the form in which the publisher of Salt 3007 and later does."""
        events = (tag.encode() + b"\n\n" + salt.payload.dumps(data) for tag, data in batch)
        self.outbox.put(b"".join(salt.payload.dumps({"head": {}, "body": event}) for event in events))


def store(opts, log, jid, minions, fun):
    """Put returns into the job cache and into the log, as salt_cache would with localfs, without its locks."""
    folder = pathlib.Path(opts["cachedir"]) / "jobs" / "returns" / jid
    folder.mkdir(parents=True, exist_ok=True)
    data = salt.payload.dumps({"return": "done", "retcode": 0, "success": True})
    for minion in minions:
        (folder / f"{minion}.p").write_bytes(data)
        log.append(return_of(jid, minion, {"fun": fun, "retcode": 0}, True))


def run_fleet(opts, listening, inbox, minions):
    """Be the fleet. A slow engine delays no minion: what it has not read waits in a thread."""
    outbox, (bus, _) = queue.Queue(), listening.accept()
    threading.Thread(target=lambda: [bus.sendall(data) for data in iter(outbox.get, None)], daemon=True).start()
    Fleet(opts, inbox, outbox, minions).run()


# -- the engine -------------------------------------------------------------------------------------------------------


class Publisher:
    """Hands publishes to the fleet. ``publishes`` counts all: questions, pings and jobs."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.publishes = 0
        self.times = []
        self._jids = 10**19

    def close(self):
        pass

    def new_jid(self):
        self._jids += 1
        return str(self._jids)

    async def publish(self, fun, arg, tgt, tgt_type="list", *, jid, question=False, **_more):
        self.publishes += 1
        self.times.append(time.monotonic())
        self.fleet.put(("question" if question else "job", jid, fun, list(tgt)))
        return frozenset(tgt)


class Bus:
    """Takes what the fleet fires; what the engine announces is packed, as firing it does."""

    def __init__(self, loop, opts):
        self.loop, self.opts, self.listeners, self.stream = loop, opts, [], None
        self.announced = 0
        self.done_at = {}

    def listen(self, listener, on_ready):
        self.listeners.append(listener)
        if os.path.exists(f"{self.opts['sock_dir']}/master_event_pub.ipc"):
            self.stream = Stream(self.loop, self.opts, self.receive, lambda: None)
        self.loop.add_callback(on_ready)

    def close(self):
        if self.stream is not None:
            self.stream.destroy()

    def fire(self, tag, data):
        salt.payload.dumps({**data, "_stamp": "2026-05-16T10:11:12.131415"})
        self.announced += 1
        if tag.endswith("/done"):
            self.done_at[data["minion"]] = time.monotonic()

    def receive(self, raw):
        end = raw.find(b"\n\n")
        tag = raw[:end].decode("utf-8", "replace")
        if wanted := [listener for listener in self.listeners if listener.wants(tag)]:
            data = salt.payload.loads(raw[end + 2 :], encoding="utf-8")
            for listener in wanted:
                listener.handle(tag, data)


class Stage:
    """An engine and a fleet of their own, in a directory of their own."""

    def __init__(self, minions, **options):
        self.folder = tempfile.mkdtemp(prefix="retry-bench-")
        self.opts = salt.config.master_config(None)
        self.opts.update(cachedir=f"{self.folder}/cache", pki_dir=f"{self.folder}/pki", sock_dir=self.folder)
        self.opts.update(id="bench_master", master_job_cache="salt_cache", extension_modules=f"{self.folder}/ext")
        self.opts.update(timeout=5, gather_job_timeout=10, cluster_id=None)
        pathlib.Path(self.opts["cachedir"]).mkdir()
        for kind in ("minions", "minions_pre", "minions_rejected", "minions_denied"):
            (pathlib.Path(self.opts["pki_dir"]) / kind).mkdir(parents=True)
        self.minions = [f"minion{n:05d}" for n in range(minions)]
        for minion in self.minions:
            (pathlib.Path(self.opts["pki_dir"]) / "minions" / minion).write_text("x")
        self.settings, self.clock = RetrySettings(**options), Clock()
        self.loop = compat.new_loop()
        self.to_fleet, self.fleet = FORK.Queue(), None

    def build(self, kind=RetryShell):
        """Make the engine, a shell of this kind; its bus and its publisher lead to the fleet."""
        self.publisher = Publisher(self.to_fleet)
        self.bus = Bus(self.loop, self.opts)
        cache = JobCache(self.opts)
        ports = ports_of(self.opts, self.loop, None, cache, self.bus, self.publisher, clock=self.clock)
        self.shell = kind(self.opts, self.settings, ports)
        return self.shell

    def populate(self, jobs):
        """Write the queue: ``jobs`` is ``{jid: minions}``."""
        changes = {}
        for jid, minions in jobs.items():
            load = {"jid": jid, "fun": "state.apply", "arg": ["web"], "tgt": "*", "tgt_type": "glob", "user": "root"}
            at = time.time()
            snapshot = {"published_at": at, "load": load}
            changes[Key(Kind.JOB, jid)] = snapshot
            for minion in minions:
                entry = Entry(minion, jid, at, at + 86400, "was away")
                changes[Key(Kind.ENTRY, jid, minion)] = entry.as_record()
        RetryStore(site_of(self.opts)).write(changes)

    def go_on(self, until, limit):
        """Run the loop until a condition holds, and return whether it did."""
        deadline = time.monotonic() + limit

        def look():
            if until() or time.monotonic() > deadline:
                self.loop.stop()
            else:
                self.loop.call_later(0.05, look)

        self.loop.add_callback(look)
        self.loop.start()
        return until()

    def connect_fleet(self):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"{self.folder}/master_event_pub.ipc")
            listening.listen(1)
            self.fleet = FORK.Process(
                target=run_fleet, args=(self.opts, listening, self.to_fleet, self.minions), daemon=True
            )
            self.fleet.start()

    def close(self):
        self.to_fleet.put(None)
        if self.fleet is not None:
            self.fleet.join(5)
        self.to_fleet.cancel_join_thread()  # without a fleet its content is never taken
        self.shell.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def cpu():
    return time.process_time()


def memory():
    """Resident memory of this process now, in MB."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize() / 1e6


# -- figures ----------------------------------------------------------------------------------------------------------


def come_back(minions, jobs, within):
    """A fleet that is owed the same jobs starts within so many seconds."""
    stage = Stage(minions)
    stage.populate({str(20260516101112000000 + n): stage.minions for n in range(jobs)})
    shell = stage.build()
    stage.connect_fleet()
    shell.start()
    stage.go_on(lambda: shell.restored and shell.machine.next_due is not None, 60)
    stage.go_on(lambda: stage.publisher.publishes >= 1, 30)  # the ping at the start, which stays unanswered
    before, begun, spent = stage.publisher.publishes, time.monotonic(), cpu()
    stage.to_fleet.put(("start", stage.minions, within))
    done = stage.go_on(lambda: not shell.machine.total, 180 + within)
    spent, publishes = cpu() - spent, stage.publisher.publishes - before
    order = list(stage.minions)
    random.Random(7).shuffle(order)
    started = {minion: begun + within * n / len(order) for n, minion in enumerate(order)}
    waits = [at - started[minion] for minion, at in stage.bus.done_at.items()]
    report(f"{minions} minions owed the same {jobs} jobs start within {within:g} s", all_delivered=done)
    report("  publishes, questions included", publishes)
    report("  CPU of the engine, s", round(spent, 1))
    report("  longest wait of a minion for its last job, s", round(max(waits), 1))
    report("  resident memory, MB", round(memory()))
    report("  last job done, s after the last start", round(max(stage.bus.done_at.values()) - begun - within, 1))
    report("  whole, s", round(time.monotonic() - begun, 1))
    stage.close()


def different(minions, seconds):
    """A fleet that is owed a different job each starts at once: the rate holds."""
    stage = Stage(minions)
    stage.populate({str(20260516101112000000 + n): [minion] for n, minion in enumerate(stage.minions)})
    shell = stage.build()
    stage.connect_fleet()
    shell.start()
    stage.go_on(lambda: stage.publisher.publishes >= 1, 60)
    stage.to_fleet.put(("start", stage.minions, 10.0))
    stage.go_on(lambda: stage.publisher.publishes >= 20, 60)
    first, begun = stage.publisher.publishes, time.monotonic()
    stage.go_on(lambda: False, seconds)
    rate = (stage.publisher.publishes - first) / (time.monotonic() - begun)
    report(f"{minions} minions owed {minions} different jobs: publishes a second", round(rate, 2))
    report("  rate", stage.settings.rate)
    stage.close()


def missing(minions):
    """A job is published, and none of its minions is there."""
    stage = Stage(minions)
    stage.opts["gather_job_timeout"] = 1
    shell, written = stage.build(), []
    jid = "20260516101112131415"
    load = {"jid": jid, "fun": "state.apply", "arg": ["web"], "tgt": "*", "tgt_type": "glob", "user": "root"}
    JobCache(stage.opts).keep_load(jid, load, stage.minions)
    shell.start()
    stage.go_on(lambda: shell.restored, 30)
    spent = cpu()
    shell.step(facts.Published(jid, time.time() - 100, tuple(stage.minions)))
    stage.go_on(lambda: shell.machine.total == minions, 120)
    shell.writer.when_durable(lambda: written.append(True))
    stage.go_on(lambda: written, 120)
    spent = cpu() - spent
    stored = sum(1 for _ in RetryStore(site_of(stage.opts)).entries())
    report(f"queueing {minions} missing minions of one job, CPU s", round(spent, 2), stored=stored)
    cache = salt.cache.Cache({**stage.opts, "cachedir": f"{stage.folder}/peer"})
    records = [(entry.minion, entry.as_record()) for entry in shell.machine.entries()]
    spent = cpu()
    for minion, record in records:
        cache.store(f"job_retry/queue/{minion}", jid, record)
    report("  only storing the same entries through salt.cache, CPU s", round(cpu() - spent, 2))
    stage.close()


def foreign(count):
    """Events that the engine does not need."""
    stage = Stage(10)
    stage.build().start()
    stage.go_on(lambda: stage.bus.listeners, 30)
    data = Fleet.ret("20260516101112131415", "state.apply", "somebody", {"x" * 10: "y" * 300})
    kinds = [
        data,
        ("salt/auth", {"id": "somebody", "act": "accept"}),
        ("minion/refresh/somebody", {"Minion data cache refresh": "somebody"}),
        ("salt/job/20260516101112131415/prog/somebody/3", {"data": {}}),
        ("my/custom/event", {"x": "y" * 300}),
    ]
    raws = [tag.encode() + b"\n\n" + salt.payload.dumps(payload) for tag, payload in kinds]
    spent = cpu()
    for n in range(count):
        stage.bus.receive(raws[n % len(raws)])
    report("an event that is of no use, CPU µs", round((cpu() - spent) / count * 1e6, 2))
    stage.close()


def forged(minions, minutes=45, every=45):
    """A start of each minion is forged again and again: of minions that are owed a job and away, and of others."""
    for owed in (True, False):
        signs = minions * minutes * 60 // every
        spent, questions = forge(minions, owed, minutes, every)
        what = "owed a job and away" if owed else "owed nothing"
        report(f"{signs} forged starts of {minions} minions that are {what}, CPU s", round(spent, 1))
        report("  each, CPU µs", round(spent / signs * 1e6, 1), questions=questions)


def forge(minions, owed, minutes, every):
    """Return (CPU seconds, questions). The machine's time is simulated; asked minions stay silent."""
    stage, now, asked, questions = Stage(1), 0.0, [], 0
    stage.clock = Clock(0.0, lambda: now)
    names = [f"minion{n:05d}" for n in range(minions)]
    job = Job("20260516101112131415", ("state.apply",), 0.0)
    entries = [Entry(name, job.jid, 0.0, 1e6, "was away") for name in names]

    class Answered(RetryShell):
        """Look-ups find nothing, and asked minions stay silent."""

        def step(self, fact):
            for effect in self.machine.step(fact, now):
                if isinstance(effect, facts.LookUp):
                    asked.append((now, facts.Done(effect, facts.LookedUp())))
                elif isinstance(effect, facts.FindReturns):
                    asked.append((now, facts.Done(effect, frozenset())))
                elif isinstance(effect, facts.Ask):
                    silent = Answers({Evidence.SILENT: frozenset(effect.minions)})
                    asked.append((now + 10.0, facts.Done(effect, silent)))

    shell = stage.build(Answered)
    shell.machine.take_up([(entry, job) for entry in entries if owed], 0.0)
    shell.step(facts.Restored())
    starts = [f"salt/minion/{name}/start".encode() + b"\n\n" + salt.payload.dumps({"id": name}) for name in names]
    stage.bus.listener = shell
    spent = cpu()
    for second in range(minutes * 60):
        now, at = float(second), second % every
        for raw in starts[minions * at // every : minions * (at + 1) // every]:
            stage.bus.receive(raw)
        shell.step(facts.Tick())
        while asked and asked[0][0] <= now:
            answer = asked.pop(0)[1]
            questions += isinstance(answer.effect, facts.Ask)
            shell.step(answer)
    spent = cpu() - spent
    stage.close()
    return spent, questions


def idle(seconds):
    """An engine with 1,000 entries whose minions are away."""
    stage = Stage(1000)
    stage.populate({"20260516101112131415": stage.minions})
    shell = stage.build()
    shell.start()
    stage.go_on(lambda: stage.publisher.publishes >= 1, 30)
    stage.go_on(lambda: False, 12)
    spent, begun = cpu(), time.monotonic()
    while time.monotonic() - begun < seconds:
        stage.loop.call_later(seconds, stage.loop.stop)
        stage.loop.start()
    report("idle, % of a core", round(100 * (cpu() - spent) / (time.monotonic() - begun), 3))
    stage.close()


class Beat:
    """Turns a loop as often as it can, and measures the longest turn: seconds, and CPU seconds of the loop's thread."""

    def __init__(self, loop):
        self.loop, self.longest, self.last = loop, (0.0, 0.0), (time.monotonic(), time.thread_time())
        self.turn()

    def turn(self):
        now = time.monotonic(), time.thread_time()
        self.longest = tuple(max(most, at - last) for most, at, last in zip(self.longest, now, self.last, strict=True))
        self.last = now
        self.loop.call_later(0.005, self.turn)

    def take(self):
        """Return both since this was asked last."""
        (wall, spent), self.longest = self.longest, (0.0, 0.0)
        return f"{wall:.2f} s, {spent:.2f} s of CPU"


def big(entries):
    """An engine starts with a long queue; then events are lost, a sweep is due, and one job is cancelled."""
    stage = Stage(entries // 10, max_queue=max(200_000, entries))
    jids = [str(20260516101112000000 + n) for n in range(10)]
    writing = FORK.Process(target=stage.populate, args=(dict.fromkeys(jids, stage.minions),))
    writing.start()  # in a process of its own, whose memory is not the engine's
    writing.join()
    before = memory()
    spent, begun = cpu(), time.monotonic()
    shell, beat = stage.build(), Beat(stage.loop)
    shell.start()
    stage.go_on(lambda: shell.restored, 600)
    took, spent = round(time.monotonic() - begun, 1), round(cpu() - spent, 1)
    report(f"start with {shell.machine.total} entries, s", took, cpu=spent, longest_turn=beat.take())
    report("  resident memory, MB", round(memory()), before=round(before))

    def measure(what, do):
        spent, _ = cpu(), beat.take()
        stage.loop.add_callback(do)
        stage.go_on(lambda: False, 10)
        report(f"  {what}, CPU s", round(cpu() - spent, 1), longest_turn=beat.take())

    measure("the first sweep", lambda: None)
    measure("ten seconds with nothing to do", lambda: None)
    measure("a gap", shell.on_gap)
    measure(
        "one job is cancelled",
        lambda: shell.step(facts.Requested({"do": "cancel", "jid": jids[0], "asked_at": time.time()})),
    )
    report(
        "  resident memory, MB", round(memory()), most=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    )
    stage.close()


def report(name, value="", **more):
    extra = ", ".join(f"{key} {val}" for key, val in more.items())
    print(f"{name:<70} {value}{'  (' + extra + ')' if extra else ''}", flush=True)


FIGURES = {
    "return": lambda args: come_back(args.minions, args.jobs, args.within),
    "different": lambda args: different(args.minions, 20),
    "missing": lambda args: missing(args.minions),
    "foreign": lambda args: foreign(200_000),
    "forged": lambda args: forged(args.minions),
    "idle": lambda args: idle(30),
    "big": lambda args: big(args.entries),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("figure", nargs="?", choices=sorted(FIGURES))
    parser.add_argument("--minions", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--within", type=float, default=10.0, help="seconds in which minions start, for return")
    parser.add_argument("--entries", type=int, default=100_000)
    args = parser.parse_args()
    if args.figure:
        FIGURES[args.figure](args)
        return
    for name in FIGURES:  # each in a process of its own, so that memory and CPU are its own
        process = multiprocessing.get_context("spawn").Process(target=run_figure, args=(name, args))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"{name} failed")


def run_figure(name, args):
    FIGURES[name](args)


if __name__ == "__main__":
    main()
