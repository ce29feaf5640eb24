"""
Runs a job once on this minion, however often it arrives: ``module_executors: [job_once, direct_call]``.

Before the function runs, the jid is on the disk; after it, the result. A jid that was begun here before is not run
again: the minion returns what it returned then, or says that the job was interrupted. ``job_once.seen`` asks the minion
about jobs, and ``saltutil.find_cached_job`` answers from the same records.

This file stands alone, so that ``saltutil.sync_executors`` can bring it to a minion: it imports nothing but Salt. It
must never run a job again that is recorded as begun, and must never refuse a job because the disk cannot be written,
unless ``job_once_strict`` says so.

On the disk, below ``<cachedir>/job_once/<minion>``: one file for each run of a job. Its name is the jid, with ``~2``,
``~3`` if an interrupted job was run again on purpose. A link puts the file there as a whole, so that only one of two
deliveries runs the job. Each line is a checksum and JSON: first the run itself, then one line for each function that
ended. A torn line is ignored. The time of the file ``.since`` tells since when every job here has had a record.
"""

from __future__ import annotations

import base64
import calendar
import contextlib
import errno
import functools
import hashlib
import io
import json
import logging
import os
import re
import threading
import time
import types
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Literal

import salt.exceptions
import salt.minion
import salt.payload
import salt.utils.event
import salt.utils.process
import salt.version

try:
    import psutil
except ImportError:  # Salt requires it, but not on every platform
    psutil = None

log = logging.getLogger(__name__)

__virtualname__ = "job_once"

# Salt's loader brings these.
__context__: MutableMapping[str, Any]
__executors__: Any
__proxy__: Mapping[str, Any]
__salt__: Mapping[str, Callable[..., Any]]

#: Seconds for which a record is kept, unless ``job_once_keep`` says otherwise or the master says longer, up to a century.
KEEP, LONGEST_KEEP = 7 * 86400, 100 * 365 * 86400
#: Most records, and bytes of all of them, that are kept: the oldest go first.
MOST, MOST_BYTES = 20_000, 64 << 20
#: Most bytes of one return, packed, that are kept.
LARGEST = 1 << 20
#: Most characters that are kept of what a function has raised.
LONGEST = 1 << 16
#: Seconds between two sweeps of the records. One job in SWEEP_ONE_OF also sweeps, which bounds a flood too.
SWEEP, SWEEP_ONE_OF = 3600, 500
#: Seconds from the beginning of a job to each repeat of its acknowledgement.
REPEATS = (5, 20, 80, 320)
#: Seconds to wait for the master's answer that it has the acknowledgement.
ANSWER = 15
#: Seconds for which an empty record counts as being made, on a file system without links.
MAKING = 10
#: Functions that are never recorded: they may run as often as they are called, and questions consist of them.
PASS = ("saltutil.", "sys.", "job_once.")
#: The function that returns an earlier job, and those that are served here.
CACHED = "saltutil.find_cached_job"
SEEN, FORGET = "job_once.seen", "job_once.forget"
SERVED = (SEEN, FORGET, CACHED)
#: The keyword by which Salt passes a job's executor options to a function that takes ``**kwargs``.
_PUBLISHED = "__pub_executor_opts"
#: Salt's executors that run the function. The others return None, and the next one of the list goes on.
RUNNERS = {"direct_call", "sudo", "docker", "transactional_update"}
#: Exceptions that Salt handles specially: they are raised again by name.
RAISED = {
    error.__name__: error
    for error in (
        salt.exceptions.CommandNotFoundError,
        salt.exceptions.CommandExecutionError,
        salt.exceptions.SaltInvocationError,
        salt.exceptions.SaltClientError,
        TypeError,
    )
}
#: From this release on minions acknowledge jobs themselves.
_ACKNOWLEDGES = 3008
_RELEASE = int(re.split(r"[^0-9]", str(salt.version.__version__))[0])

#: The format of the records. A record of a later version counts as interrupted, and stays as it is.
FORMAT = 1
#: The fields of a record's first line.
_ABOUT = ("jid", "fun", "at", "parts", "pid", "birth", "ordered", "thread")

#: The job that this thread works on: Salt calls the executor once for each function of a job, in one thread.
_at = threading.local()


def execute(
    opts: Mapping[str, Any],
    data: Mapping[str, Any],
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """
    Run a function, or return what it returned before. Called by the minion.

    Returns None if the next executor of the list must go on.
    """
    name = func if isinstance(func, str) else getattr(func, "name", "")
    _take_out_options(kwargs)
    followers = _followers(opts, data)
    if followers is None:
        return None
    call = functools.partial(_call, name, followers, opts, data, func, args, kwargs)
    job = _job_of(opts, data)
    if job is None:
        return None if followers and name not in SERVED else call()
    part = job.take(name)
    value = job.run(part, func, call) if job.runs else job.again(part, func)
    return _nothing(followers, args) if value is None and followers else value


def allow_missing_func(function: str) -> bool:
    """Tell Salt that a function without an execution module is served here."""
    return function in (SEEN, FORGET)


# -- a job -------------------------------------------------------------------------------------------------------------


def _job_of(opts: Mapping[str, Any], data: Mapping[str, Any]) -> Job | Unrecorded | Refused | None:
    """Return the job that this thread works on, claimed with its first function. None if it is not recorded."""
    if getattr(_at, "data", None) is not data:
        _at.data, _at.job = data, None
        if _options(data).get("question"):
            Records(opts).watch()
        elif not _passes(opts, data):
            _at.job = _claim(opts, data)
    job: Job | Unrecorded | Refused | None = _at.job
    return job


def _claim(opts: Mapping[str, Any], data: Mapping[str, Any]) -> Job | Unrecorded | Refused:
    """Return the job that has arrived: recorded as begun now, begun before, refused, or to be run without a record."""
    records = Records(opts)
    try:
        job: Job | Unrecorded = records.claim(data)
    except salt.exceptions.CommandExecutionError as exc:
        return Refused(opts, data, str(exc))
    except OSError as exc:
        if opts.get("job_once_strict"):
            return Refused(
                opts,
                data,
                f"Job {data['jid']} was not run, since it cannot be recorded in {records.folder}: {exc}. Without "
                "job_once_strict in the minion's configuration it would run anyway.",
            )
        # A job that runs without a record must not count as never seen. A file's time can be set even on a full disk.
        records.note_unrecorded()
        log.warning("Job %r runs without a record in %s, and may run again: %s", data["jid"], records.folder, exc)
        job = Unrecorded(opts, data)
    if job.runs:
        _acknowledge(opts, data, job.over)
    return job


class Delivery:
    """
    A delivery of a job, and how far Salt has got with its functions; ``passed`` are those that it skipped. ``over`` is
    set when the start need not be acknowledged again.

    A function is looked up when Salt looks it up, after all earlier ones have ended, because these may install what it
    needs.
    """

    def __init__(self, opts: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        self.opts, self.data = opts, data
        self.names, self.parts = _functions_of(data), _parts_of(data)
        self.next, self.passed, self.over = 0, set[int](), threading.Event()
        self._refusals: dict[int, Exception | None] = {}

    def take(self, name: str) -> int:
        """Return the part that Salt calls now: the first remaining one of this name that it should call."""
        left = [part for part in range(self.next, len(self.names)) if self.names[part] == name] or [self.next]
        part = next((part for part in left if self.refusal(part) is None), left[0])
        self.passed.update(range(self.next, part))
        self.next = part + 1
        return part

    def is_last(self, part: int) -> bool:
        """Tell whether this part, which has ended, is the last one that Salt calls."""
        return all(self.refusal(later) is not None for later in range(part + 1, self.parts))

    def refusal(self, part: int) -> Exception | None:
        """Return why Salt skips this one of several functions; None if Salt calls it."""
        if part not in self._refusals:
            self._refusals[part] = _refusal(self.opts, self.data, part) if self.parts > 1 else None
        return self._refusals[part]


class Unrecorded(Delivery):
    """A job that runs without a record. The master is told that it begins."""

    runs: Literal[True] = True

    def run(self, part: int, func: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """Run one function of the job. Raises what the function raises."""
        try:
            return call()
        finally:
            if self.is_last(part):
                self.over.set()


class Refused(Delivery):
    """A job that does not run and has nothing to return: each of its functions is refused."""

    runs: Literal[False] = False

    def __init__(self, opts: Mapping[str, Any], data: Mapping[str, Any], why: str) -> None:
        super().__init__(opts, data)
        self.why = why

    def again(self, part: int, func: Callable[..., Any]) -> Any:
        """:raises CommandExecutionError: for each function of the job."""
        raise salt.exceptions.CommandExecutionError(self.why)


class Job(Delivery):
    """
    A job with a record.

    :param record: the newest record of the job.
    :param runs: whether this delivery is the one that runs it.
    """

    def __init__(
        self, opts: Mapping[str, Any], data: Mapping[str, Any], records: Records, record: Record, runs: bool
    ) -> None:
        super().__init__(opts, data)
        self.records, self.record, self.runs = records, record, runs

    def run(self, part: int, func: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """Run one function of the job and record its result. Raises what the function raises."""
        before = self.record.ended.get(part)
        if before is not None and "refused" not in before:
            return self.again(part, func)  # it has run already; another part was queued
        try:
            value = call()
        except Exception as exc:
            self.ended(part, _raised(exc))
            raise
        except BaseException:
            self.over.set()
            self.ended(part, {"interrupted": True})
            raise
        if isinstance(value, types.GeneratorType):
            return self.collected(part, func, value)
        if isinstance(value, dict) and value.get("__no_return__"):
            return self.queued(part, value)
        self.ended(part, self.outcome(value, func), is_dict=isinstance(value, dict))
        return value

    def queued(self, part: int, value: dict[str, Any]) -> dict[str, Any]:
        """A state run waits in the minion's own queue; the whole job will be redelivered from there."""
        if len(_functions_of(self.data)) > 1:
            self.ended(part, {"queued": True})
            return value
        self.over.set()
        self.records.drop(self.record)
        return value

    def outcome(self, value: Any, func: Callable[..., Any]) -> dict[str, Any]:
        """Return the record of a function's return."""
        context = _context(func)
        retcode = context.get("retcode") or 0
        if not retcode and isinstance(value, dict) and not all(value.get(name, True) for name in ("result", "success")):
            retcode = 1
        done = f"Job {self.record.jid} has run here, {_when(time.time())}. What it returned"
        try:
            packed = zlib.compress(salt.payload.dumps(value), 1)
        except Exception as exc:
            return {"retcode": retcode, "lost": f"{done} could not be kept: {exc}"}
        if len(packed) > LARGEST:
            return {"retcode": retcode, "lost": f"{done} was too large to be kept: {len(packed)} bytes, packed."}
        return {"retcode": retcode, "value": base64.b64encode(packed).decode()}

    def collected(self, part: int, func: Callable[..., Any], values: Iterator[Any]) -> Iterator[Any]:
        """Pass on what a generator yields, and record the return that Salt makes of it."""
        whole: Any = {}
        try:
            for value in values:
                if isinstance(value, dict) and isinstance(whole, dict):
                    whole.update(value)
                else:
                    whole = whole if isinstance(whole, list) else []
                    whole.append(value)
                yield value
        except Exception as exc:
            self.ended(part, _raised(exc))
            raise
        except BaseException:
            self.over.set()
            raise
        self.ended(part, self.outcome(whole, func))

    def ended(self, part: int, outcome: dict[str, Any], is_dict: bool = False) -> None:
        """Record the result of one function. On a full disk the record lacks its end; the job goes on."""
        line = {**outcome, "part": part, "at": time.time()}
        if part == 0 and not is_dict and _for_resources(self.data) and not self.data.get("pure_resource_target"):
            line["last"] = True  # the minion's own state run has failed: Salt then calls none for its resources
        is_last = self.is_last(part) or "last" in line
        if is_last:
            self.over.set()
            self.passed.update(range(self.next, len(self.names)))
        try:
            self.records.append(self.record, line)
            while self.passed:
                other = self.passed.pop()
                text = self.refusal(other) or RuntimeError("Salt has not called it")
                self.records.append(self.record, {**_raised(text), "refused": True, "part": other, "at": line["at"]})
        except OSError as exc:
            log.warning("The end of job %r could not be recorded: %s", self.record.jid, exc)
            return
        if is_last:
            try:
                self.records.sweep(self.record)
            except OSError as exc:
                log.warning("Old records in %s could not be dropped: %s", self.records.folder, exc)

    def again(self, part: int, func: Callable[..., Any]) -> Any:
        """Return what one function of a job returned before, or raise what it raised."""
        context = _context(func)
        context["retcode"] = 1
        if self.record.fun not in ("", _fun_of(self.data)):
            return self.another()
        found = self.record.ended.get(part)
        if found is None or "interrupted" in found or "queued" in found:
            return self.interrupted()
        if "raised" in found:
            text = found["text"]
            if found["raised"] in RAISED:
                raise RAISED[found["raised"]](text)
            raise salt.exceptions.CommandExecutionError(f"{found['raised']}: {text}")
        context["retcode"] = found["retcode"]
        return _unpacked(found["value"]) if "value" in found else found["lost"]

    def another(self) -> str:
        """Say that a jid was begun here with another function: jobs of two masters can share a jid."""
        return (
            f"Job {self.record.jid} was begun on this minion {_when(self.record.at)} and ran {self.record.fun}, so "
            f"{_fun_of(self.data)} is not run under this jid. Publish it again, under a jid of its own."
        )

    def interrupted(self) -> str:
        """Say that a job was begun and has not ended, and how to run it anyway."""
        jid, minion, key = self.record.jid, self.opts["id"], _key_of(self.data)
        return (
            f"Job {jid} was begun on this minion {_when(self.record.at)} and was interrupted; how far it got is not known. "
            f"It is not run again. To run it anyway, publish it under a new jid, or have the minion forget it (salt "
            f"'{minion}' {FORGET} {key}) and publish it again under this jid (if it is queued: salt-run job_retry.retry)."
        )


def _raised(exc: Exception) -> dict[str, Any]:
    """Return the record of an exception."""
    text = str(exc)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text)} characters)"
    return {"raised": type(exc).__name__, "text": text, "retcode": 1}


def _when(at: float) -> str:
    return time.strftime("at %Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _unpacked(text: str) -> Any:
    return salt.payload.loads(zlib.decompress(base64.b64decode(text)))


# -- what a delivery says ----------------------------------------------------------------------------------------------


def _options(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the master's options for this executor: ``ack``, ``keep`` (seconds), ``rerun``, ``question``."""
    found = data.get("executor_opts")
    found = found.get(__virtualname__) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _take_out_options(kwargs: dict[str, Any]) -> None:
    """Remove the master's options for this executor from the function's arguments, as in a first publish."""
    options = kwargs.get(_PUBLISHED)
    if isinstance(options, dict) and __virtualname__ in options:
        left = {name: value for name, value in options.items() if name != __virtualname__}
        kwargs.update({_PUBLISHED: left} if left else {})
        if not left:
            del kwargs[_PUBLISHED]


def _passes(opts: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    """Tell whether a job runs as if this executor were not there."""
    if not data.get("jid"):
        return True
    if str(opts.get("__cli")).startswith("salt-call"):  # salt-call has no jid: this one is an argument of the function
        return True
    return all(function.startswith(PASS) for function in _functions_of(data))


def _functions_of(data: Mapping[str, Any]) -> list[str]:
    """Return the names of a job's functions."""
    return [str(fun) for fun in data["fun"]] if isinstance(data["fun"], (list, tuple)) else [str(data["fun"])]


def _fun_of(data: Mapping[str, Any]) -> str:
    """Return the functions of a job in the form of its record."""
    return ",".join(_functions_of(data))


def _key_of(data: Mapping[str, Any]) -> str:
    """Return the key of a job here: its jid, and on Salt 3008 the minion's resource that it is for."""
    resource = data.get("resource_target")
    if not isinstance(resource, dict):
        return str(data["jid"])
    return f"{data['jid']}@{resource.get('type')}@{resource.get('id')}"


def _parts_of(data: Mapping[str, Any]) -> int:
    """Return how many calls Salt makes for a job."""
    return len(_functions_of(data)) + _for_resources(data)


def _refusal(opts: Mapping[str, Any], data: Mapping[str, Any], part: int) -> Exception | None:
    """
    Return why Salt skips one of several functions (``Minion._execute_job_function``), such as a blackout or an argument that
    the function does not take. None if Salt calls it, as far as can be told.
    """
    names, args = _functions_of(data), data.get("arg") or ()
    if part >= min(len(names), len(args)):
        return None
    try:
        if _is_blacked_out(opts, names[part]):
            raise salt.exceptions.SaltInvocationError("Minion in blackout mode.")
        if names[part] in __salt__:
            salt.minion.load_args_and_kwargs(__salt__[names[part]], args[part], data)
    except Exception as exc:
        return exc
    return None


def _is_blacked_out(opts: Mapping[str, Any], name: str) -> bool:
    about = [opts.get(kind) or {} for kind in ("pillar", "grains")]
    allowed = [each.get("minion_blackout_whitelist") or () for each in about if each.get("minion_blackout")]
    return name != "saltutil.refresh_pillar" and any(name not in names for names in allowed)


def _for_resources(data: Mapping[str, Any]) -> int:
    """Return how many further calls a job has for resources of the minion, which Salt 3008 makes within one job."""
    merged = getattr(salt.minion.Minion, "_MERGE_RESOURCE_FUNS", ())
    if data.get("resource_target") or not isinstance(data["fun"], str) or data["fun"] not in merged:
        return 0
    return len(data.get("resource_targets") or ()) - bool(data.get("pure_resource_target"))


# -- the records -------------------------------------------------------------------------------------------------------


class Record:
    """
    A run of a job, as read from its file. ``at``: Unix time of its beginning; ``parts``: how many functions it has;
    ``pid``, ``birth`` and ``thread``: its holder, see ``_here``; ``ended``: ``{part: outcome}`` of those that have
    ended; ``written``: bytes of them that were written here; ``in_making``: its holder has just made the file.
    """

    in_making = False

    def __init__(
        self,
        path: str,
        jid: str,
        fun: str = "",
        at: float = 0.0,
        parts: int = 1,
        pid: int = 0,
        birth: str = "",
        ordered: bool = False,
        thread: int = 0,
        ended: Mapping[int, dict[str, Any]] = types.MappingProxyType({}),
    ) -> None:
        self.path, self.jid, self.fun, self.at, self.pid, self.birth = path, jid, fun, at, pid, birth
        self.ordered, self.thread, self.ended = ordered, thread, dict(ended)
        self.parts = 1 if self.ended.get(0, {}).get("last") else parts
        self.written = 0

    @functools.cached_property
    def state(self) -> str:
        """
        ``ended``; ``begun`` if its holder is alive; ``interrupted`` if the holder is gone; ``queued`` if the rest waits
        in the minion's own queue of states.
        """
        if all("interrupted" not in self.ended.get(part, ("interrupted",)) for part in range(self.parts)):
            return "queued" if any("queued" in outcome for outcome in self.ended.values()) else "ended"
        if self.in_making:
            return "begun"
        cut = any("interrupted" in outcome for outcome in self.ended.values())
        return "begun" if not cut and self.birth and _birth(self.pid) == self.birth else "interrupted"


class Records:
    """
    :param opts: the minion's options. Records of proxies that share a ``cachedir`` are kept apart.
    """

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self.opts = opts
        self.folder = os.path.join(opts["cachedir"], __virtualname__, _plain(opts["id"]))
        self._since = os.path.join(self.folder, ".since")
        self._told = os.path.join(self.folder, ".keep")

    def claim(self, data: Mapping[str, Any]) -> Job:
        """
        Return the Job for a delivery: recorded as begun now, or with the record of the earlier run.

        Waits while the earlier run goes on; the Job then has its return. Raises OSError if the job cannot be recorded, and
        CommandExecutionError if it was begun before and nothing else is known.
        """
        jid, key, options, pause = str(data["jid"]), _key_of(data), _options(data), 0.1
        while True:
            found, number = self._begun_before(jid, key)
            goes_on = found is not None and found.state == "queued" and found.fun == _fun_of(data)
            if found is None or goes_on or (found.state == "interrupted" and options.get("rerun")):
                self._prepare(options.get("keep"))
                ended = found.ended.values() if found is not None and goes_on else ()
                done = [line for line in ended if "queued" not in line]
                record = self._new(_file_of(self.folder, _plain(key), number + 1), jid, data, done)
                if record is not None:
                    return Job(self.opts, data, self, record, runs=True)
            elif found.state == "begun" and ((found.pid, found.birth) != _here() or _elsewhere(found.thread)):
                time.sleep(pause)
                pause = min(2 * pause, 5.0)
            else:  # it has ended, was interrupted, or was begun by this very thread, which no longer works on it
                with contextlib.suppress(OSError):
                    self._prepare(options.get("keep"))
                log.info("Job %r was begun here before, %s; it is not run again", jid, _when(found.at))
                return Job(self.opts, data, self, found, runs=False)

    def seen(self, jid: str) -> dict[str, Any]:
        """
        Return the record of a job: a dict with ``state``.

        ``never``: it was not begun here; ``recorded_for``: for how many seconds every job here has had a record.
        ``begun``: it runs. ``interrupted``: it was begun, and has no end. ``ended``: with ``return`` (or a sentence
        that says why it was not kept), ``retcode``, ``success`` and ``ended_at``. All but ``never`` have ``at`` (Unix
        time of the beginning, by this minion's clock) and ``fun``.
        """
        try:
            return self._seen(jid)
        except Exception as exc:  # one strange record must not hide the others
            return {"state": "unknown", "reason": str(exc)}

    def _seen(self, jid: str) -> dict[str, Any]:
        found, _ = self._newest(jid)
        if found is None:
            return {"state": "never", "recorded_for": max(0.0, min(time.time() - self._complete_since(), self._keep()))}
        told = {"state": "begun" if found.state == "queued" else found.state, "at": found.at, "fun": found.fun}
        if told["state"] == "ended":
            told.update(_told_of(found))
        return told

    def _complete_since(self) -> float:
        """Return the Unix time since which every job here has had a record; now, if a gap could not be noted."""
        since = os.stat(self._since).st_mtime
        try:
            self._open(self._since, os.O_WRONLY).close()
        except OSError:
            return time.time()
        return since

    def append(self, record: Record, line: dict[str, Any]) -> None:
        """Add a line to the record of a run, durably. :raises OSError: if that is not possible."""
        with self._open(record.path, os.O_WRONLY | os.O_APPEND) as file:
            record.written += _write(file, line)
        record.ended[line["part"]] = line

    def forget(self, jid: str) -> bool:
        """Drop the records of a job, unless it runs. Return whether there was one."""
        found, number = self._newest(jid)
        if found is None:
            return False
        if found.state == "begun":
            raise salt.exceptions.CommandExecutionError(f"Job {jid} runs here, in process {found.pid}")
        self._remove(_plain(jid), number)
        return True

    def drop(self, record: Record) -> None:
        """Drop a deferred run and its predecessors: the redelivery carries no ``rerun``."""
        name, _, number = os.path.basename(record.path).partition("~")
        with contextlib.suppress(OSError):
            self._remove(name, int(number or 1))

    def _remove(self, name: str, number: int) -> None:
        """Remove the files of all ``number`` runs of a job, the newest first: after a crash the rest still shows the job."""
        for each in range(number, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_file_of(self.folder, name, each))

    def note_unrecorded(self) -> None:
        """Note that a job may have run here without a record."""
        with contextlib.suppress(OSError):
            self._note_since(time.time())

    def _note_since(self, at: float) -> None:
        """Note, durably, the Unix time since which every job here has had a record."""
        os.utime(self._since, (at, at))  # first: this works even if the process can open no more files
        with self._open(self._since, os.O_WRONLY) as file:
            os.fsync(file.fileno())

    def watch(self) -> None:
        """Note that from now on every job here has a record."""
        with contextlib.suppress(OSError):
            self._prepare(None)

    def sweep(self, record: Record) -> None:
        """
        Drop old records, and those beyond the limits. It runs now and then, and reads only records that it may have to
        drop.
        """
        if not self._is_time_to_sweep(record.written):
            return
        jobs, clock = self._runs_of_jobs(), time.time()
        told = {jid: _published(jid, clock) for jid in jobs}
        newest = max(told.values(), default=0)
        now = min(clock, newest + 86400) if newest else clock  # a clock that has jumped ahead makes all look old
        old = now - self._keep()
        newest_run = {jid: max(runs) for jid, runs in jobs.items()}
        # A record that looks old may have begun before the clock was set.
        ages = {jid: at if at >= old else max(at, told[jid]) for jid, (at, _, _) in newest_run.items()}
        sizes = {jid: sum(size for _, size, _ in runs) for jid, runs in jobs.items()}
        count, size, drop = sum(map(len, jobs.values())), sum(sizes.values()), []
        for jid in sorted(jobs, key=ages.__getitem__):
            if ages[jid] >= old and count <= MOST and size <= MOST_BYTES:
                break
            found = _read(newest_run[jid][2])
            if found is None or found.state != "begun":
                drop.append(jid)
                count, size = count - len(jobs[jid]), size - sizes[jid]
        if drop:
            self._dropping(ages[drop[-1]], old)
        for jid in drop:
            for _, _, path in sorted(jobs[jid], reverse=True):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def _is_time_to_sweep(self, written: int) -> bool:
        """
        Tell whether to sweep: once in SWEEP seconds, which is noted, and also at random: about once in SWEEP_ONE_OF
        jobs, and once for each eighth of MOST_BYTES that they write. It is random because the processes of jobs do not
        know of each other.
        """
        marker, now = os.path.join(self.folder, ".swept"), time.time()
        with contextlib.suppress(FileNotFoundError):
            chances = 1 + SWEEP_ONE_OF * 8 * written // MOST_BYTES
            is_recent = 0 <= now - os.stat(marker).st_mtime < SWEEP
            if is_recent and int.from_bytes(os.urandom(2), "big") % SWEEP_ONE_OF >= chances:
                return False
        with self._open(marker, os.O_WRONLY | os.O_CREAT):
            os.utime(marker)
        return True

    def _runs_of_jobs(self) -> dict[str, list[tuple[float, int, str]]]:
        """Return ``{key of a job: [(Unix time, bytes, path) of each run]}``, and remove unfinished files."""
        jobs: dict[str, list[tuple[float, int, str]]] = {}
        now = time.time()
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat()
                    if not entry.name.startswith("."):
                        run = (about.st_mtime, about.st_size, entry.path)
                        jobs.setdefault(entry.name.partition("~")[0], []).append(run)
                    elif entry.name.endswith(".new") and about.st_mtime < now - SWEEP:
                        os.unlink(entry.path)
        return jobs

    def _dropping(self, at: float, old: float) -> None:
        """Note that records up to a time are dropped: older jobs without a record may have been begun."""
        if os.stat(self._since).st_mtime < at:
            self._note_since(at)
        if at >= old:
            log.warning("Records of jobs in %s were dropped early: there were more than are kept", self.folder)

    def _keep(self) -> float:
        """
        Return for how many seconds a record is kept: by the minion's options, or longer if the master asked for it.
        """
        keep: float = self.opts.get("job_once_keep", KEEP)
        if isinstance(keep, bool) or not isinstance(keep, (int, float)) or keep < 0:
            log.error("job_once_keep is %r and must be a number of seconds; %d is used", keep, KEEP)
            keep = KEEP
        with contextlib.suppress(OSError, ValueError), open(self._told, encoding="ascii") as file:
            keep = max(keep, float(file.read()))
        return keep

    def _prepare(self, keep: Any) -> None:
        """Make the folder and files, and note for how long the master wants records kept."""
        if not os.path.exists(self._since):
            os.makedirs(os.path.dirname(self.folder), mode=0o755, exist_ok=True)
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            with self._open(self._since, os.O_WRONLY | os.O_CREAT):
                pass
        if isinstance(keep, (int, float)) and not isinstance(keep, bool) and keep > self._keep():
            temporary = f"{self._told}.{os.getpid()}.{threading.get_ident()}.new"
            with self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
                file.write(b"%d" % min(keep, LONGEST_KEEP))
            os.replace(temporary, self._told)

    def _begun_before(self, jid: str, key: str) -> tuple[Record | None, int]:
        """Return as ``_newest``. Nothing is written: a full disk must not make a begun job run again."""
        try:
            return self._newest(key)
        except OSError as exc:
            if not os.path.lexists(_file_of(self.folder, _plain(key), 1)):
                raise
            raise salt.exceptions.CommandExecutionError(
                f"Job {jid} was begun on this minion and is not run again; its record cannot be read: {exc}"
            ) from exc

    def _newest(self, key: str) -> tuple[Record | None, int]:
        """Return the record of the newest run of a job, or None, and how many runs there were."""
        number, newest = 0, None
        while True:
            record = _read(_file_of(self.folder, _plain(key), number + 1))
            if record is None:
                return newest, number
            number, newest = number + 1, record

    def _new(self, path: str, jid: str, data: Mapping[str, Any], done: list[dict[str, Any]]) -> Record | None:
        """
        Record durably that a job begins now, with the lines ``done`` of its earlier run. Returns None if another
        delivery was faster.
        """
        number, birth = _here()
        about: dict[str, Any] = {
            "jid": jid,
            "fun": _fun_of(data),
            "at": time.time(),
            "parts": _parts_of(data),
            "pid": number,
            "birth": birth,
            "ordered": bool(self.opts.get("multifunc_ordered")),
            "thread": threading.get_ident(),
        }
        lines = [{"format": FORMAT, **about}, *done]
        # A unique name: a file that a killed process has left may be another record's second name.
        temporary = os.path.join(self.folder, f".{uuid.uuid4().hex}.new")
        try:
            with self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                for line in lines:
                    _write(file, line)
            try:
                os.link(temporary, path)
            except FileExistsError:
                if os.stat(temporary).st_nlink < 2:  # NFS may say so although it made the link, if its answer was lost
                    return None
            except OSError:  # a file system without links: a crash may leave an empty file, see MAKING
                self._new_without_link(path, lines)
        except FileExistsError:
            return None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        self._sync_folder(path)
        return Record(path, ended={line["part"]: line for line in done}, **about)

    def _new_without_link(self, path: str, lines: list[dict[str, Any]]) -> None:
        with self._open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            try:
                for line in lines:
                    _write(file, line)
            except OSError:
                os.unlink(path)
                raise

    def _sync_folder(self, path: str) -> None:
        """Sync the name of a new record. Raises OSError if that fails and job_once_strict is set."""
        if not hasattr(os, "O_DIRECTORY"):  # Windows cannot
            return
        try:
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as exc:
            if exc.errno == errno.EINVAL:  # a file system that cannot sync folders, such as vboxsf or 9p
                return
            if self.opts.get("job_once_strict"):
                with contextlib.suppress(OSError):
                    os.unlink(path)  # the job does not run: it must not look interrupted
                raise
            log.warning("The record of a job may not outlive a power cut: %s: %s", path, exc)

    @staticmethod
    def _open(path: str, flags: int) -> io.FileIO:
        return os.fdopen(
            os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0), 0o600), "wb", 0
        )


def _told_of(record: Record) -> dict[str, Any]:
    """Return the return of an ended job, in Salt's form."""
    functions = record.fun.split(",")
    if len(functions) == 1:
        return _told_of_part(record.ended[0])
    told = [_told_of_part(record.ended[part]) for part in range(record.parts)]
    answer = {"ended_at": told[-1]["ended_at"]}
    for name in ("return", "retcode", "success"):
        values = [one[name] for one in told]
        answer[name] = values if record.ordered else dict(zip(functions, values, strict=True))
    return answer


def _told_of_part(outcome: dict[str, Any]) -> dict[str, Any]:
    told = {"ended_at": outcome["at"], "retcode": outcome["retcode"], "success": not outcome["retcode"]}
    if "raised" in outcome:
        return {**told, "return": f"ERROR: {outcome['text']}"}
    return {**told, "return": _unpacked(outcome["value"]) if "value" in outcome else outcome["lost"]}


def _file_of(folder: str, name: str, number: int) -> str:
    return os.path.join(folder, name if number == 1 else f"{name}~{number}")


def _plain(name: str) -> str:
    """Return a file name that is unique to a name."""
    name = str(name)
    if re.fullmatch(r"[A-Za-z0-9_@-][A-Za-z0-9_.@-]{0,100}", name) and not name.endswith("."):
        return name
    return "=" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def _published(jid: str, now: float) -> float:
    """
    Return the Unix time in a jid of Salt's form, by the master's clock; 0 for another form, or a time in the future.

    It protects the records of a minion whose own clock was not set yet. It is not exact, because the master's zone may
    differ.
    """
    try:
        parts = [int(jid[:4]), *(int(jid[at : at + 2]) for at in range(4, 14, 2))]
        at = calendar.timegm(tuple(parts))
    except (ValueError, OverflowError):
        return 0
    return at if at < now + 86400 else 0


def _write(file: io.RawIOBase, line: dict[str, Any]) -> int:
    """
    Write a line with its checksum durably, and return its length. After a torn line it begins a new one.
    """
    text = json.dumps(line, default=repr, skipkeys=True).encode()
    whole = b"\n%08x %s\n" % (zlib.crc32(text), text)
    if file.write(whole) != len(whole):
        raise OSError(28, "No space left on device")
    os.fsync(file.fileno())
    return len(whole)


def _read(path: str) -> Record | None:
    """Return the record in a file, or None if there is no file."""
    record = _parsed(path)
    if record is not None and record.state == "interrupted":
        return _parsed(path)  # the holder may have written the end after the reading, and ended before the check
    return record


def _parsed(path: str) -> Record | None:
    """Return the current record in a file. An unreadable one counts as interrupted, unless it is just being made."""
    try:
        with open(path, "rb") as file:
            whole, at = file.read(), os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    lines = [line for line in map(_line, whole.split(b"\n")) if line is not None]
    number = lines[0].get("format", FORMAT) if lines else FORMAT
    if number != FORMAT:
        log.error(
            "%s is of format %r, from a later version of saltext-jobs, and this one knows %d: its job counts as interrupted",
            *(path, number, FORMAT),
        )
    if not lines or number != FORMAT or "pid" not in lines[0]:
        record = Record(path, os.path.basename(path), at=at)
        record.in_making = not whole and abs(time.time() - at) < MAKING
        return record
    about = {name: lines[0][name] for name in _ABOUT if name in lines[0]}
    return Record(path, ended={line["part"]: line for line in lines[1:]}, **about)


def _line(text: bytes) -> dict[str, Any] | None:
    checksum, _, text = text.partition(b" ")
    return json.loads(text) if text and checksum == b"%08x" % zlib.crc32(text) else None


# -- who is at a job ---------------------------------------------------------------------------------------------------


def _here() -> tuple[int, str]:
    """
    Return the holder of a job here: its number, and a mark that tells it from a later one with that number.

    The holder is this thread if Linux says when it began, because a process that runs jobs in threads outlives them;
    elsewhere it is this process.
    """
    number = getattr(threading, "get_native_id", int)()  # Solaris has none
    if birth := _birth_of_thread(number):
        return number, birth
    return os.getpid(), _birth(os.getpid())


def _elsewhere(thread: int) -> bool:
    """Tell whether a thread is another one of this process, and alive: ``_here`` may not tell threads apart."""
    return thread != threading.get_ident() and any(thread == each.ident for each in threading.enumerate())


def _birth_of_thread(number: int) -> str:
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return "" if fields[0] in (b"Z", b"X") else f"{boot} {int(fields[19])}"
    except (OSError, IndexError, ValueError):
        return ""


def _birth(pid: int) -> str:
    """Return a mark that tells a thread or process from a later one with its number; empty if none is alive."""
    if birth := _birth_of_thread(pid):
        return birth
    if psutil is not None:
        try:
            return f"{psutil.Process(pid).create_time():.0f}"
        except psutil.Error:
            return ""
    return "there" if salt.utils.process.os_is_running(pid) else ""


# -- questions ---------------------------------------------------------------------------------------------------------


def _serve(opts: Mapping[str, Any], name: str, args: Sequence[Any]) -> dict[str, Any]:
    """
    Answer the questions of this executor.

    ``job_once.seen JID...``: ``{jid: record}``, see ``Records.seen``. ``job_once.forget JID...``: drops the records of
    jobs that do not run, so that they may be run again; returns ``{jid: whether there was one}``.
    """
    jids = [str(jid) for jid in args if not isinstance(jid, dict)]
    if not jids:
        raise salt.exceptions.SaltInvocationError(f"{name} takes one or more jids")
    records = Records(opts)
    if name == SEEN:
        return {jid: records.seen(jid) for jid in jids}
    return {jid: records.forget(jid) for jid in jids}


def _find_cached(
    records: Records,
    followers: list[str],
    opts: Mapping[str, Any],
    data: Mapping[str, Any],
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Answer ``saltutil.find_cached_job`` from the records and from what ``cache_jobs`` has kept."""
    jid = str(args[0])
    told = records.seen(jid)
    found = _follow(followers, opts, data, func, args, kwargs)
    answer = dict(found) if isinstance(found, dict) and found.get("jid") == jid else {"jid": jid}
    for name in ("return", "retcode", "success", "fun"):
        if name in told:
            answer.setdefault(name, told.pop(name))
    return {**answer, __virtualname__: told}


# -- the acknowledgement -----------------------------------------------------------------------------------------------


def _acknowledge(opts: Mapping[str, Any], data: Mapping[str, Any], ended: threading.Event) -> None:
    """
    Tell the master, if it asked for that, that this minion begins a job. Repeat it until the master answers that it knows.

    A minion of Salt 3008 does so itself, once; a proxy does not, on any release. Tag and payload are the same. The job
    does not wait for any of this. After its end there is no need for it, because of the return.
    """
    natively = bool(data.get("start_event"))
    if not natively and not _options(data).get("ack"):
        return
    sent = natively and _RELEASE >= _ACKNOWLEDGES and not opts.get("proxy")
    names = ("jid", "fun", "tgt", "tgt_type", "user")
    payload = {"id": opts["id"], **{name: data.get(name) for name in names}}
    payload.update({name: data[name] for name in ("master_id", "metadata") if data.get(name)})
    tag = f"salt/job/{data['jid']}/start/{opts['id']}"
    if not sent:
        _fire(opts, tag, payload)
    repeat = threading.Thread(target=_repeat, args=(opts, tag, payload, ended), daemon=True)
    with contextlib.suppress(RuntimeError):  # no more threads: the first acknowledgement must do
        repeat.start()


def _repeat(opts: Mapping[str, Any], tag: str, payload: dict[str, Any], ended: threading.Event) -> None:
    """Repeat an event until the master is known to have it or the job has ended."""
    arrived: bool | None = False
    begun = time.monotonic()
    for after in REPEATS:
        if ended.wait(max(0.0, begun + after - time.monotonic())):
            return
        if arrived is None:
            _fire(opts, tag, payload)
            continue
        arrived = _request(opts, tag, payload, ended)
        if arrived:
            return


def _request(opts: Mapping[str, Any], tag: str, payload: dict[str, Any], ended: threading.Event) -> bool | None:
    """
    Send an event to the master as a request, and return whether the master confirms it; None without an answer.

    A job's process sends requests through the minion's main process, and gets the answer from there
    (``Minion._send_req_sync``). In some patch releases that differs, or no answer comes: 3007.15 is one.
    """
    number, answer = str(uuid.uuid4()), None
    load = {"id": opts["id"], "cmd": "_minion_event", "pretag": None, "tag": tag, "data": payload}
    try:
        with salt.utils.event.get_event("minion", opts=opts, listen=True) as bus:
            bus.fire_event(load, f"__master_req_channel_payload/{number}/{opts['master']}")
            late = time.monotonic() + ANSWER
            while answer is None and time.monotonic() < late and not ended.wait(0.05):
                answer = bus.get_event(wait=1, tag=f"__master_req_channel_return/{number}")
    except Exception as exc:
        log.debug("The beginning of job %r could not be told to the master: %s", payload["jid"], exc)
    if answer is None:
        return None
    if answer.get("error"):
        return False
    return True if answer.get("ret") in (None, True) else None  # {} or "" if the master does not take it


def _fire(opts: Mapping[str, Any], tag: str, payload: dict[str, Any]) -> None:
    """Pass an event to the minion's main process, which sends it to the master if it can."""
    try:
        with salt.utils.event.MinionEvent(opts, listen=False) as bus:
            bus.fire_event({"data": payload, "tag": tag, "events": None, "pretag": None}, "fire_master")
    except Exception as exc:
        log.debug("The beginning of job %r could not be told to the master: %s", payload["jid"], exc)


# -- what Salt would do next -------------------------------------------------------------------------------------------


def _call(
    name: str,
    followers: list[str],
    opts: Mapping[str, Any],
    data: Mapping[str, Any],
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Run a function that is served here, or pass it to the executors after this one."""
    if name in (SEEN, FORGET):
        return _serve(opts, name, args)
    if name == CACHED and args and data.get("jid"):
        return _find_cached(Records(opts), followers, opts, data, func, args, kwargs)
    return _follow(followers, opts, data, func, args, kwargs)


def _followers(opts: Mapping[str, Any], data: Mapping[str, Any]) -> list[str] | None:
    """
    Return the names of the executors after this one for a job (``Minion._thread_return``).

    Returns None if an executor before this one runs the function: then the function has returned None, and must not run
    again.
    """
    names = data.get("module_executors")
    if not names and opts.get("proxy"):
        names = __proxy__.get("{}.module_executors".format(opts["proxy"].get("proxytype")), list)()
    names = names or opts.get("module_executors") or []
    names = [names] if isinstance(names, str) else list(names)
    at = names.index(__virtualname__) if __virtualname__ in names else len(names)
    if set(names[:at]) & RUNNERS:
        log.error("module_executors is %r: nothing is recorded unless %r comes first", names, __virtualname__)
        return None
    return [name for name in names[at + 1 :] if name != __virtualname__]


def _follow(
    followers: list[str],
    opts: Mapping[str, Any],
    data: Mapping[str, Any],
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Run the function as the executors after this one would."""
    if not followers:
        return func(*args, **kwargs)
    for follower in followers:
        if f"{follower}.execute" not in __executors__:
            raise salt.exceptions.SaltInvocationError(f"Executor '{follower}' is not available")
        value = __executors__[f"{follower}.execute"](opts, data, func, args, kwargs)
        if value is not None:
            return value
    return None


def _nothing(followers: list[str], args: Sequence[Any]) -> None:
    """
    Return None for a function that has returned None, so that no executor after this one runs it again.

    Salt asks the next executor when one returns None. So in this process each later executor gets a guard that skips
    calls with these arguments. It knows them by their list, which is the same object for all executors of one call.
    """
    _at.done = args
    loader = __executors__.value() if hasattr(__executors__, "value") else __executors__
    for follower in followers:
        name = f"{follower}.execute"
        if name in loader and not hasattr(loader._dict[name], "passes_by"):  # ``in`` loads it
            loader._dict[name] = _guarded(loader._dict[name])


def _guarded(execute_next: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(
        opts: Mapping[str, Any],
        data: Mapping[str, Any],
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        if getattr(_at, "done", None) is args:
            return None
        return execute_next(opts, data, func, args, kwargs)

    guarded.__dict__["passes_by"] = True
    guarded.__module__ = execute_next.__module__
    return guarded


def _context(func: Callable[..., Any]) -> MutableMapping[str, Any]:
    """Return the context of a function's loader, in which Salt looks for its retcode."""
    loader = getattr(func, "loader", None)
    return loader.pack["__context__"] if loader is not None else __context__
