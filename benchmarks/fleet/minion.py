"""
A featherweight minion: what a minion of Salt 3008 says and remembers, without running anything.

Facts in, effects out. Facts: messages that came over the wire, and time that has passed. Effects: messages to send, now
or after so many seconds. Pure: stdlib only. It must never look at the master's state.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.fleet.script import Script
from benchmarks.fleet.truth import CUT, ENDED, KILLED, Run, Truth

#: How many jids a minion remembers (``minion_jid_queue_hwm``).
REMEMBERED = 100
#: The field of a return that names its run of the job on its minion.
RUN = "run"
#: Functions that run at once, as questions or commands, without a run time of their own.
_AT_ONCE = ("saltutil.", "job_once.", "sys.", "match.", "test.ping")
_NOT_KEPT = "Local jobs cache directory not found"
_NO_CACHE = "Local jobs cache directory not found; you may need to enable cache_jobs on this minion"
#: The fields of a job's load that come back in its return, and in its acknowledgement.
_IN_RETURN, _IN_START = ("user", "master_id", "metadata"), ("jid", "fun", "tgt", "tgt_type", "user")
#: The fields that a minion adds to the load of a job that it runs.
_IN_PROC = {"minion_is_target": True, "pure_resource_target": False, "resource_targets": []}


@dataclasses.dataclass(frozen=True)
class Send:
    """Send this to the master. ``what``: its kind, for counting. ``run``: the run whose return it is."""

    load: Mapping[str, Any]
    what: str
    run: Run | None = None


@dataclasses.dataclass(frozen=True)
class Prepare:
    """
    A job has arrived. Call ``begin`` for it, once its acknowledgement (if any) has been answered: until then a minion of
    Salt 3008 does not begin.
    """

    jid: str
    delivery: int
    acknowledgement: Send | None


@dataclasses.dataclass(frozen=True)
class Runs:
    """Call ``end`` for this delivery after so many seconds."""

    jid: str
    delivery: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Dies:
    """Kill this minion after so many seconds, if the delivery still runs; start it ``away`` seconds later, or never."""

    jid: str
    delivery: int
    seconds: float
    away: float | None


Effect = Send | Prepare | Runs | Dies


@dataclasses.dataclass
class _Delivery:
    number: int
    load: Mapping[str, Any]
    run: Run | None = None


@dataclasses.dataclass
class _Record:
    """The record of a job that the executor ``job_once`` has on the minion's disk."""

    fun: str
    at: float
    state: str = "begun"
    ended_at: float = 0.0
    value: Any = None
    retcode: int = 0


class Minion:
    """
    :param name: its id.
    :param executor: whether it has the executor ``job_once``, whose records outlive it.
    :param keeps: whether it keeps what it returns (``cache_jobs``), which outlives it too.
    """

    def __init__(self, name: str, truth: Truth, executor: bool = False, keeps: bool = False) -> None:
        self.name, self.executor, self.keeps, self.there = name, executor, keeps, False
        self.lives = 0  # how often it has started
        self.truth = truth
        self._seen: collections.deque[str] = collections.deque(maxlen=REMEMBERED)
        self._deliveries: dict[str, _Delivery] = {}
        self._records: dict[str, _Record] = {}
        self._kept_returns: dict[str, Mapping[str, Any]] = {}
        self._recorded_since: float | None = None
        self._number = 0
        self._times: collections.Counter[str] = collections.Counter()

    def start(self, now: float) -> list[Effect]:
        """The minion starts, and says so."""
        self.there = True
        self.lives += 1
        if self._recorded_since is None:
            self._recorded_since = now
        self.truth.presence.append((now, self.name, True))
        return [self.started()]

    def started(self) -> Send:
        """Return the event by which it tells each of its masters that it has started."""
        tag = f"salt/minion/{self.name}/start"
        return Send(self._event(tag, f"Minion {self.name} started at some time"), "starts")

    def stop(self, now: float) -> None:
        """The minion is killed with everything that it runs. What it has on the disk stays: records and kept returns."""
        if not self.there:
            return
        self.there = False
        self.truth.presence.append((now, self.name, False))
        self._seen.clear()
        for jid in list(self._deliveries):
            self._cut(jid, CUT, now)

    def take(self, load: Mapping[str, Any], now: float) -> list[Effect]:
        """Take what was published to this minion."""
        jid = str(load["jid"])
        if jid in self._seen:
            self.truth.repeats.append((now, self.name, jid))
            return []
        self._seen.append(jid)
        functions = load["fun"] if isinstance(load["fun"], list) else [load["fun"]]
        acknowledgement = self._acknowledgement(load) if load.get("start_event") else None
        if all(str(function).startswith(_AT_ONCE) for function in functions):
            answer = self._answer(load, functions, now)
            return [*([acknowledgement] if acknowledgement else []), answer]
        self._number += 1
        self._deliveries[jid] = _Delivery(self._number, load)
        return [Prepare(jid, self._number, acknowledgement)]

    def begin(self, jid: str, delivery: int, script: Script, told: bool, now: float) -> list[Effect]:
        """
        Run a job that has arrived, unless there is a record that it was begun here before.

        :param told: whether the master has answered its acknowledgement.
        """
        found = self._current(jid, delivery)
        if found is None:
            return []
        wishes = _wishes(found.load)
        if self.executor:
            record = self._records.get(jid)
            if record is not None and not (record.state == "interrupted" and wishes.get("rerun")):
                del self._deliveries[jid]
                self.truth.repeats.append((now, self.name, jid))
                return [self._return(found.load, *self._kept(jid, record))]
            self._records[jid] = _Record(str(found.load["fun"]), now)
        self._times[jid] += 1
        work = script.work(self.name, jid, self._times[jid])
        number = self._times[jid]
        found.run = Run(self.name, jid, now, retcode=work.retcode, number=number, told=told, recorded=self.executor)
        self.truth.runs.append(found.run)
        effects: list[Effect] = [Runs(jid, delivery, work.seconds)]
        if self.executor and wishes.get("ack") and not found.load.get("start_event"):
            effects.insert(0, self._acknowledgement(found.load))
        if work.dies_after is not None:
            effects.append(Dies(jid, delivery, work.dies_after, work.away))
        return effects

    def end(self, jid: str, delivery: int, script: Script, now: float) -> list[Effect]:
        """Return the result of a job."""
        found = self._current(jid, delivery)
        if found is None or found.run is None:
            return []
        del self._deliveries[jid]
        found.run.end, found.run.how = now, ENDED
        retcode = found.run.retcode or 0
        value = {"result": not retcode, "comment": "x" * script.size, RUN: found.run.number}
        record = self._records.get(jid) if self.executor else None
        if record is not None:
            record.state, record.ended_at, record.value, record.retcode = "ended", now, value, retcode
        returned = self._return(found.load, value, retcode)
        if self.keeps:
            self._kept_returns[jid] = {name: each for name, each in returned.load.items() if name != "cmd"}
        return [dataclasses.replace(returned, run=found.run)]

    def runs(self, jid: str, delivery: int) -> bool:
        """Tell whether a delivery is still running."""
        return self._current(jid, delivery) is not None

    # -- what it says --------------------------------------------------------------------------------------------------

    def _event(self, tag: str, data: Any) -> dict[str, Any]:
        return {"id": self.name, "cmd": "_minion_event", "pretag": None, "data": data, "tag": tag}

    def _acknowledgement(self, load: Mapping[str, Any]) -> Send:
        data = {"id": self.name, **{name: load.get(name) for name in _IN_START}}
        data.update({name: load[name] for name in ("master_id", "metadata") if load.get(name) is not None})
        return Send(self._event(f"salt/job/{load['jid']}/start/{self.name}", data), "acknowledgements")

    def _return(self, load: Mapping[str, Any], value: Any, retcode: Any, success: Any = None) -> Send:
        fun = load["fun"]
        answer = {
            "cmd": "_return",
            "id": self.name,
            "success": not retcode if success is None else success,
            "return": value,
            "retcode": retcode,
            "jid": load["jid"],
            "fun": fun,
            "fun_args": load["arg"],
            **{name: load[name] for name in _IN_RETURN if name in load},
        }
        return Send(answer, f"returns of {'questions' if isinstance(fun, list) else fun}")

    # -- what it is asked ------------------------------------------------------------------------------------------------

    def _answer(self, load: Mapping[str, Any], functions: list[str], now: float) -> Send:
        arguments = load["arg"] if isinstance(load["fun"], list) else [load["arg"]]
        values = {function: self._call(function, arg, now) for function, arg in zip(functions, arguments, strict=True)}
        retcodes = {function: int(_says_no(value)) for function, value in values.items()}
        if isinstance(load["fun"], list):
            return self._return(load, values, retcodes, {function: not code for function, code in retcodes.items()})
        return self._return(load, values[functions[0]], retcodes[functions[0]])

    def _call(self, function: str, arg: list[Any], now: float) -> Any:
        jid = str(arg[0]) if arg else ""
        if function == "saltutil.find_job":
            return self._proc(jid) if jid in self._deliveries else {}
        if function == "saltutil.running":
            return [self._proc(each) for each in self._deliveries]
        if function in ("saltutil.kill_job", "saltutil.term_job"):
            if jid not in self._deliveries:
                return ""
            pid = self._proc(jid)["pid"]
            self._cut(jid, KILLED, now)
            return f"Signal {9 if function.endswith('kill_job') else 15} sent to job {jid} at pid {pid}"
        if function == "saltutil.find_cached_job":
            if self.executor:
                return self._cached(jid, now)
            return self._kept_returns.get(jid, _NOT_KEPT) if self.keeps else _NO_CACHE
        if function == "job_once.seen" and self.executor:
            return {str(each): self._told(str(each), now) for each in arg}
        if function.startswith("job_once."):
            return f"'{function}' is not available."
        return True

    def _proc(self, jid: str) -> dict[str, Any]:
        found = self._deliveries[jid]
        return {"pid": 100_000 + found.number, **found.load, **_IN_PROC}

    def _told(self, jid: str, now: float) -> dict[str, Any]:
        """The executor's answer about a job (``job_once.seen``)."""
        record = self._records.get(jid)
        if record is None:
            since = now if self._recorded_since is None else self._recorded_since
            return {"state": "never", "recorded_for": now - since}
        told = {"state": record.state, "at": record.at, "fun": record.fun}
        if record.state == "ended":
            told |= {"ended_at": record.ended_at, "retcode": record.retcode, "success": not record.retcode}
            told["return"] = record.value
        return told

    def _cached(self, jid: str, now: float) -> dict[str, Any]:
        told = self._told(jid, now)
        return {"jid": jid, **{n: told.pop(n) for n in ("return", "retcode", "success") if n in told}, "job_once": told}

    def _kept(self, jid: str, record: _Record) -> tuple[Any, int]:
        if record.state == "ended":
            return record.value, record.retcode
        return f"Job {jid} was begun on this minion and was interrupted. It is not run again.", 1

    # -- what it runs ------------------------------------------------------------------------------------------------------

    def _current(self, jid: str, delivery: int) -> _Delivery | None:
        found = self._deliveries.get(jid)
        return found if found is not None and found.number == delivery else None

    def _cut(self, jid: str, how: str, now: float) -> None:
        found = self._deliveries.pop(jid)
        if found.run is None:
            return
        found.run.end, found.run.how = now, how
        if jid in self._records:
            self._records[jid].state = "interrupted"


def _wishes(load: Mapping[str, Any]) -> Mapping[str, Any]:
    """The master's options for the executor, for one job."""
    options = load.get("executor_opts")
    found = options.get("job_once") if isinstance(options, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _says_no(value: Any) -> bool:
    """Salt gives a dict with a false ``result`` or ``success`` the retcode 1."""
    return isinstance(value, Mapping) and not all(value.get(name, True) for name in ("result", "success"))
