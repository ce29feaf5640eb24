"""
Runs a job once on this minion, however often it arrives: ``module_executors: [job_once, direct_call]``.

Before the function runs, the jid is on the disk; after it, the result. A jid that was begun here before is not run
again: the minion returns what it returned then, or says that the job was interrupted. ``job_once.seen`` asks the minion
about jobs, and ``saltutil.find_cached_job`` answers from the same records.

This file stands alone, so that ``saltutil.sync_executors`` can bring it to a minion: it imports nothing but Salt. It
must never run a job again that is recorded as begun, and must never refuse a job because the disk cannot be written,
unless ``job_once_strict`` says so.

On the disk, below ``<cachedir>/job_once/<minion>``: one file for each job, named by its jid. Each line is JSON. One says
that a run of the job begins, and one follows for each function that has ended; the last one of a run is marked. Whoever
runs the job has the file locked (``flock``), so a run without an end is interrupted if nobody has the lock. An empty
file is a job that was never begun, because the first line is on the disk before the function runs. The time of the file
``.since`` is that since when every job here has had a record.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import hashlib
import io
import json
import logging
import os
import random
import re
import threading
import time
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import salt.minion
import salt.payload
import salt.utils.event
from salt.exceptions import CommandExecutionError, CommandNotFoundError, SaltClientError, SaltInvocationError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

__virtualname__ = "job_once"

# Salt's loader brings these.
__context__: MutableMapping[str, Any]
__executors__: Any
__proxy__: Mapping[str, Any]

#: Most records, and bytes of all of them, that are kept: the oldest go first. One job in SWEEP_ONE_OF checks that.
MOST, MOST_BYTES, SWEEP_ONE_OF = 20_000, 64 << 20, 500
#: Most bytes of one return, packed, and most characters of what a function has raised, that are kept.
LARGEST, LONGEST = 1 << 20, 1 << 16
#: Seconds to wait before each repeat of a job's acknowledgement.
REPEATS = (5, 15, 60, 240)
#: Functions that are never recorded: they may run as often as they are called, and questions consist of them.
PASS = ("saltutil.", "sys.", "job_once.")
#: The function that returns an earlier job, and the one that is served here.
CACHED, SEEN = "saltutil.find_cached_job", "job_once.seen"
#: Salt's executors that run the function. The others return None, and the next one of the list goes on.
RUNNERS = {"direct_call", "sudo", "docker", "transactional_update"}
#: Exceptions that Salt handles specially: they are raised again.
RAISED = (CommandNotFoundError, CommandExecutionError, SaltInvocationError, SaltClientError, TypeError)
#: The format of the records. A job whose record is of another version counts as interrupted.
FORMAT = 1

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
    if getattr(_at, "done", None) is args:  # this executor is in the list twice
        return None
    name = func if isinstance(func, str) else getattr(func, "name", "")
    _take_out_options(kwargs)
    followers = _followers(opts, data)
    if followers is None:
        return None
    call = functools.partial(_follow, followers, opts, data, func, args, kwargs)
    if name == SEEN:
        call = functools.partial(_seen, opts, args)
    elif name == CACHED and args and data.get("jid"):
        call = functools.partial(_find_cached, opts, str(args[0]), call)
    job = _job_of(opts, data)
    if job is None and followers and name not in (SEEN, CACHED):
        return None
    value = call() if job is None else job.take(name, func, call)
    return _nothing(followers, args) if value is None and followers else value


def allow_missing_func(function: str) -> bool:
    """Tell Salt that a function without an execution module is served here."""
    return function == SEEN


# -- a job -------------------------------------------------------------------------------------------------------------


def _job_of(opts: Mapping[str, Any], data: Mapping[str, Any]) -> Job | None:
    """Return the job that this thread works on, claimed with its first function. None if it is not recorded."""
    if getattr(_at, "data", None) is not data:
        if earlier := getattr(_at, "job", None):
            earlier.close()
        _at.data, _at.job = data, None
        if _options(data).get("question"):
            with contextlib.suppress(OSError):
                Records(opts).prepare()
        elif not _passes(opts, data):
            job = Job(opts, data)
            job.claim()
            if job.runs:
                _acknowledge(job)
            _at.job = job
    found: Job | None = _at.job
    return found


class Job:
    """
    A job that has arrived here, and how far Salt has got with its functions.

    ``runs``: whether this delivery runs it; ``record``: what is recorded of it; ``file``: its record, locked, while this
    delivery runs and records it; ``refusal``: why none of its functions runs; ``over`` is set at its end.
    """

    def __init__(self, opts: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        self.opts, self.data, self.records = opts, data, Records(opts)
        self.runs, self.record, self.refusal, self.over = False, Record(b""), "", threading.Event()
        self.file: io.FileIO | None = None
        self._jid, self._names, self._next = str(data["jid"]), _functions_of(data), 0
        self._fun, self._pid = ",".join(self._names), os.getpid()

    def __del__(self) -> None:
        self.close()

    def claim(self) -> None:
        """Find out whether the job is to run now, and record that. Waits while another delivery runs it."""
        path = self.records.path_of(_key_of(self.data))
        try:
            self.file = self.records.open(path)
            self.record = _read(self.file)
        except OSError as exc:
            if not os.path.exists(path) or not os.path.getsize(path):
                self._go_without_record(exc)
            else:
                self.refusal = (
                    f"Job {self._jid} was begun on this minion and is not run again; its record cannot be read: {exc}"
                )
            return
        state, options = self.record.state, _options(self.data)
        goes_on = state == "queued" and self.record.fun == self._fun
        if state != "never" and not goes_on and not (state == "interrupted" and options.get("rerun")):
            log.info("Job %r was begun here before, %s; it is not run again", self._jid, _when(self.record.at))
            self.close()
            return
        ordered = bool(self.opts.get("multifunc_ordered"))
        try:
            _write(self.file, {"format": FORMAT, "fun": self._fun, "at": time.time(), "ordered": ordered})
        except OSError as exc:
            self._go_without_record(exc)
        else:
            self.record, self.runs = _read(self.file), True

    def _go_without_record(self, exc: OSError) -> None:
        """Have a job that cannot be recorded run, or be refused by a strict minion."""
        self.close()
        folder = self.records.folder
        if self.opts.get("job_once_strict"):
            self.refusal = (
                f"Job {self._jid} was not run, since it cannot be recorded in {folder}: {exc}. Without "
                "job_once_strict in the minion's configuration it would run anyway."
            )
            return
        # A job that runs without a record must not count as never seen. A file's time can be set even on a full disk.
        with contextlib.suppress(OSError):
            self.records.note_since(time.time())
        log.warning("Job %r runs without a record in %s, and may run again: %s", self._jid, folder, exc)
        self.record, self.runs = Record(b""), True

    def close(self) -> None:
        """Let go of the record. Without an end it is that of an interrupted job then."""
        if self.file is not None:
            if os.getpid() == self._pid:  # a process that the job has forked has the file open too
                with contextlib.suppress(OSError):
                    fcntl.flock(self.file, fcntl.LOCK_UN)
            self.file.close()
            self.file = None

    def take(self, name: str, func: Callable[..., Any], call: Callable[[], Any]) -> Any:
        """Run the function that Salt calls next, or return what it returned before. Raises what the function raises."""
        # Salt skips functions whose arguments are wrong: the part is the first remaining one of this name.
        left = range(self._next, len(self._names))
        part = next((part for part in left if self._names[part] == name), self._next)
        self._next = part + 1
        if self.refusal:
            raise CommandExecutionError(self.refusal)
        if not self.runs:
            return self._again(part, func)
        if part in self.record.ended:  # it has run before the job arrived again, from the minion's queue of states
            self._end(part, self.record.ended[part])
            return self._again(part, func)
        with self._failures_of(part):
            value = call()
        if isinstance(value, types.GeneratorType):
            return self._collected(part, func, value)
        self._end(part, self._outcome(value, func), is_dict=isinstance(value, dict))
        return value

    @contextlib.contextmanager
    def _failures_of(self, part: int) -> Iterator[None]:
        """Record what a function raises."""
        try:
            yield
        except Exception as exc:
            text = str(exc).encode(errors="backslashreplace").decode()  # a lone surrogate could not be sent
            text = text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"
            self._end(part, {"raised": type(exc).__name__, "text": text, "retcode": 1})
            raise
        except BaseException:
            self.over.set()
            self.close()
            raise

    def _collected(self, part: int, func: Callable[..., Any], values: Iterator[Any]) -> Iterator[Any]:
        """Pass on what a generator yields, and record the return that Salt makes of it."""
        whole: Any = {}
        with self._failures_of(part):
            for value in values:
                if isinstance(value, dict) and isinstance(whole, dict):
                    whole.update(value)
                else:
                    whole = whole if isinstance(whole, list) else []
                    whole.append(value)
                yield value
        self._end(part, self._outcome(whole, func))

    def _outcome(self, value: Any, func: Callable[..., Any]) -> dict[str, Any]:
        """Return what is recorded of a function's return."""
        if isinstance(value, dict) and value.get("__no_return__"):
            return {"queued": True}  # in the minion's own queue of states: the whole job arrives again from there
        retcode = _context(func).get("retcode") or 0
        if not retcode and isinstance(value, dict) and not all(value.get(name, True) for name in ("result", "success")):
            retcode = 1
        try:
            packed = zlib.compress(salt.payload.dumps(value), 1)
            if len(packed) <= LARGEST:
                return {"retcode": retcode, "value": base64.b64encode(packed).decode()}
            why = f"was too large to be kept: {len(packed)} bytes, packed."
        except Exception as exc:
            why = f"could not be kept: {exc}"
        return {"retcode": retcode, "lost": why}

    def _end(self, part: int, outcome: Mapping[str, Any], is_dict: bool = False) -> None:
        """Record the result of one function. On a full disk the record lacks the return, or its end; the job goes on."""
        resources = _for_resources(self.data)
        # If the minion's own state run has failed, Salt calls none for its resources.
        failed = part == 0 and resources and not is_dict and not self.data.get("pure_resource_target")
        is_last = bool(failed or self._next >= len(self._names) + resources)
        if self.file is not None:
            end = {"part": part, "at": time.time(), "last": is_last}
            try:
                _write(self.file, {**outcome, **end})
            except OSError as exc:
                log.warning("The end of job %r could not be recorded: %s", self._jid, exc)
                with contextlib.suppress(OSError, KeyError):  # a short line may fit; a part that waits has no end
                    _write(self.file, {"retcode": outcome["retcode"], "lost": f"could not be kept: {exc}", **end})
            if is_last:
                self.records.sweep(os.fstat(self.file.fileno()).st_size)
        if is_last:
            self.over.set()
            self.close()

    def _again(self, part: int, func: Callable[..., Any]) -> Any:
        """Return what one function of a job returned before, or raise what it raised."""
        context = _context(func)
        context["retcode"] = 1
        begun = f"Job {self._jid} was begun on this minion {_when(self.record.at)} and"
        if self.record.fun not in ("", self._fun):  # jobs of two masters can share a jid
            return (
                f"{begun} ran {self.record.fun}, so {self._fun} is not run under this jid. Publish it again, under a jid of "
                "its own."
            )
        found = self.record.ended.get(part, {"queued": True})
        if "queued" in found:
            return (
                f"{begun} was interrupted; how far it got is not known. It is not run again. To run it anyway, publish it "
                "under a new jid (if it is queued: salt-run job_retry.retry)."
            )
        if "raised" in found:
            for kind in RAISED:
                if kind.__name__ == found["raised"]:
                    raise kind(found["text"])
            raise CommandExecutionError(f"{found['raised']}: {found['text']}")
        context["retcode"] = found["retcode"]
        return _value_of(found)


def _value_of(line: Mapping[str, Any]) -> Any:
    """Return a recorded return, or a sentence that says why there is none."""
    why = line.get("lost")
    try:
        if "value" in line:
            return salt.payload.loads(zlib.decompress(base64.b64decode(line["value"])))
    except Exception as exc:
        why = f"cannot be read: {exc}"
    return f"The job has run here, {_when(line['at'])}. What it returned {why}"


def _when(at: float) -> str:
    return time.strftime("at %Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


# -- what a delivery says ----------------------------------------------------------------------------------------------


def _options(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the master's options for this executor, each a bool: ``ack``, ``rerun``, ``question``."""
    found = data.get("executor_opts")
    found = found.get(__virtualname__) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _take_out_options(kwargs: dict[str, Any]) -> None:
    """Remove the master's options for this executor from the function's arguments, as in a first publish."""
    published = "__pub_executor_opts"  # Salt passes them to a function that takes ``**kwargs``
    options = kwargs.get(published)
    if isinstance(options, dict) and __virtualname__ in options:
        del kwargs[published]
        if left := {name: value for name, value in options.items() if name != __virtualname__}:
            kwargs[published] = left


def _passes(opts: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    """Tell whether a job runs as if this executor were not there."""
    if not data.get("jid") or str(opts.get("__cli")).startswith("salt-call"):
        return True  # salt-call has no jid: one that is there is an argument of the function
    return all(function.startswith(PASS) for function in _functions_of(data))


def _functions_of(data: Mapping[str, Any]) -> list[str]:
    """Return the names of a job's functions."""
    return [str(fun) for fun in data["fun"]] if isinstance(data["fun"], (list, tuple)) else [str(data["fun"])]


def _key_of(data: Mapping[str, Any]) -> str:
    """Return the key of a job here: its jid, and on Salt 3008 the minion's resource that it is for."""
    resource = data.get("resource_target")
    if not isinstance(resource, dict):
        return str(data["jid"])
    return f"{data['jid']}@{resource.get('type')}@{resource.get('id')}"


def _for_resources(data: Mapping[str, Any]) -> int:
    """Return how many further calls a job has for resources of the minion, which Salt 3008 makes within one job."""
    merged = getattr(salt.minion.Minion, "_MERGE_RESOURCE_FUNS", ())
    if data.get("resource_target") or not isinstance(data["fun"], str) or data["fun"] not in merged:
        return 0
    return len(data.get("resource_targets") or ()) - bool(data.get("pure_resource_target"))


# -- the records -------------------------------------------------------------------------------------------------------


class Record:
    """
    The newest run of a job, as the lines of its record say. ``at``: Unix time of its beginning; ``ended``: ``{part: line}``
    of the functions that have ended; ``state``, if nobody runs the job: ``never`` begun, ``interrupted``, ``ended``, or
    ``queued`` if some functions have ended and the others wait in the minion's own queue of states.
    """

    def __init__(self, text: bytes, at: float = 0.0) -> None:
        self.fun, self.at, self.ordered, self.ended = "", at, False, dict[int, dict[str, Any]]()
        self.state, known = "interrupted" if text else "never", False  # what cannot be read may have begun
        for each in text.split(b"\n"):
            try:
                line = json.loads(each)
            except ValueError:  # torn, or empty
                continue
            if isinstance(line, dict) and "fun" in line:
                kept = self.ended if self.state == "queued" else {}
                self.ended = {part: one for part, one in kept.items() if "queued" not in one}
                self.state, known = "interrupted", line.get("format") == FORMAT
                if known:
                    self.fun, self.at, self.ordered = line["fun"], line["at"], line["ordered"]
            elif known and isinstance(line, dict):
                self.ended[line["part"]] = line
                if line["last"]:
                    waits = ["queued" in one for one in self.ended.values()]
                    self.state = "never" if all(waits) else "queued" if any(waits) else "ended"


class Records:
    """The records of a minion. Those of proxies that share a ``cachedir`` are kept apart."""

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self.folder = os.path.join(opts["cachedir"], __virtualname__, _plain(opts["id"]))
        self._since = os.path.join(self.folder, ".since")

    def path_of(self, key: str) -> str:
        """Return the path of a job's record."""
        return os.path.join(self.folder, _plain(key))

    def prepare(self) -> None:
        """Make the folder, and note that from now on every job here has a record. :raises OSError: if that fails."""
        if not os.path.exists(self._since):
            os.makedirs(os.path.dirname(self.folder), mode=0o755, exist_ok=True)
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            _opened(self._since, "ab").close()

    def open(self, path: str) -> io.FileIO:
        """Open and lock a record, which may be new. Waits while another delivery runs the job. :raises OSError:"""
        if fcntl is None:
            raise OSError(errno.ENOLCK, "this platform has no flock")
        self.prepare()
        while True:
            with contextlib.ExitStack() as stack:
                file = stack.enter_context(_opened(path, "a+b"))
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.fstat(file.fileno()).st_nlink:  # else it was dropped meanwhile
                    stack.pop_all()
                    return file

    def seen(self, key: str) -> dict[str, Any]:
        """
        Return what is known of a job: a dict with ``state``.

        ``never``: it was not begun here; ``recorded_for``: for how many seconds every job here has had a record.
        ``begun``: it runs. ``interrupted``: it was begun, and has no end. ``ended``: with ``return`` (or a sentence
        that says why it was not kept), ``retcode``, ``success`` and ``ended_at``. All but ``never`` have ``at`` (Unix
        time of the beginning, by this minion's clock) and ``fun``. ``unknown``: the records cannot be read.
        """
        try:
            return self._seen(key)
        except Exception as exc:  # one strange record must not hide the others
            return {"state": "unknown", "reason": str(exc)}

    def _seen(self, key: str) -> dict[str, Any]:
        try:
            with _opened(self.path_of(key), "rb") as file:
                runs = not _is_idle(file)
                record = _read(file)
        except FileNotFoundError:
            runs, record = False, Record(b"")
        if record.state == "never":
            now, since = time.time(), os.stat(self._since).st_mtime
            try:
                _opened(self._since, "ab").close()
            except OSError:  # nor could it be noted that a job runs without a record
                since = now
            return {"state": "never", "recorded_for": max(0.0, now - since)}
        told = {"state": record.state, "at": record.at, "fun": record.fun}
        if record.state == "ended":
            told.update(_told_of(record))
        elif record.state == "queued" or runs:
            told["state"] = "begun"
        return told

    def note_since(self, at: float) -> None:
        """Note, durably, the Unix time since which every job here has had a record. :raises OSError: if that fails."""
        os.utime(self._since, (at, at))  # first: this works even if the process can open no more files
        with _opened(self._since, "ab") as file:
            os.fsync(file.fileno())

    def sweep(self, written: int) -> None:
        """Drop the oldest records beyond the bounds, but for those of jobs that run; now and then, the more were written."""
        # At random, because the processes of jobs do not know of each other. All of them fork with the same ``random``.
        if random.SystemRandom().random() >= 1 / SWEEP_ONE_OF + 8 * written / MOST_BYTES:
            return
        try:
            with os.scandir(self.folder) as entries:
                files = [(entry.stat(), entry.path) for entry in entries if not entry.name.startswith(".")]
            files.sort(key=lambda file: file[0].st_mtime, reverse=True)
            size, drop = 0, []
            for number, (about, path) in enumerate(files):
                size += about.st_size
                if number >= MOST or size > MOST_BYTES:
                    drop.append((about.st_mtime, path))
            if drop and os.stat(self._since).st_mtime < drop[0][0]:
                self.note_since(drop[0][0])  # older jobs without a record may have begun
            for _, path in drop:
                with _opened(path, "rb") as file:
                    if _is_idle(file):
                        os.unlink(path)
        except OSError as exc:
            log.warning("Old records in %s could not be dropped: %s", self.folder, exc)


def _told_of(record: Record) -> dict[str, Any]:
    """Return the return of an ended job, in Salt's form."""
    functions = record.fun.split(",")
    told = [_told_of_part(record.ended[part]) if part in record.ended else {} for part in range(len(functions))]
    if len(functions) == 1:
        return told[0]
    answer = {"ended_at": max(line["at"] for line in record.ended.values())}
    for name in ("return", "retcode", "success"):
        values = {fun: one[name] for fun, one in zip(functions, told, strict=True) if one}
        answer[name] = [one.get(name) for one in told] if record.ordered else values
    return answer


def _told_of_part(line: Mapping[str, Any]) -> dict[str, Any]:
    value = f"ERROR: {line['text']}" if "raised" in line else _value_of(line)
    return {"ended_at": line["at"], "retcode": line["retcode"], "success": not line["retcode"], "return": value}


def _plain(name: str) -> str:
    """Return a file name that is unique to a name."""
    name = str(name)
    if re.fullmatch(r"[A-Za-z0-9_@-][A-Za-z0-9_.@-]{0,100}", name) and not name.endswith("."):
        return name
    return "=" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def _opened(path: str, mode: str) -> io.FileIO:
    """Open a file without a buffer. Only the minion's user may read it."""
    return open(path, mode, buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))  # type: ignore[return-value]


def _is_idle(file: io.FileIO) -> bool:
    """Tell whether nobody runs the job of a record. Nobody begins it until the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: io.FileIO) -> Record:
    file.seek(0)
    return Record(file.read(), os.fstat(file.fileno()).st_mtime)


def _write(file: io.FileIO, line: Mapping[str, Any]) -> None:
    """Add a line to a record durably, and the file's name if it is new. After an error (OSError) the file is as before."""
    # It begins with a line's end, since a power cut may have torn the line before.
    whole = b"\n%s\n" % json.dumps(line, default=repr, skipkeys=True).encode()
    before = file.seek(0, os.SEEK_END)
    try:
        if file.write(whole) != len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
        if not before:
            _sync_folder(os.path.dirname(file.name))
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(before)
        raise


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as exc:
        if exc.errno != errno.EINVAL:  # a file system that cannot sync folders, such as vboxsf or 9p
            raise
    finally:
        os.close(folder)


def _seen(opts: Mapping[str, Any], args: Sequence[Any]) -> dict[str, Any]:
    """Answer ``job_once.seen JID...``: ``{jid: record}``, see ``Records.seen``."""
    jids = [str(jid) for jid in args if not isinstance(jid, dict)]
    if not jids:
        raise SaltInvocationError(f"{SEEN} takes one or more jids")
    return {jid: Records(opts).seen(jid) for jid in jids}


def _find_cached(opts: Mapping[str, Any], jid: str, follow: Callable[[], Any]) -> dict[str, Any]:
    """Answer ``saltutil.find_cached_job`` from the records and from what ``cache_jobs`` has kept."""
    told, found = Records(opts).seen(jid), follow()
    answer = dict(found) if isinstance(found, dict) and found.get("jid") == jid else {"jid": jid}
    for name in ("return", "retcode", "success", "fun"):
        if name in told:
            answer.setdefault(name, told.pop(name))
    return {**answer, __virtualname__: told}


# -- the acknowledgement -----------------------------------------------------------------------------------------------


def _acknowledge(job: Job) -> None:
    """
    Tell the master, if it asked for that, that this minion begins a job, and again while it runs: the event may be lost.

    A minion of Salt 3008 does so itself, once, with the same tag and payload; a proxy does not. The job does not wait.
    """
    opts, data = job.opts, job.data
    natively = bool(data.get("start_event"))
    if not natively and not _options(data).get("ack"):
        return
    payload = {"id": opts["id"], **{name: data.get(name) for name in ("jid", "fun", "tgt", "tgt_type", "user")}}
    payload.update({name: data[name] for name in ("master_id", "metadata") if data.get(name)})
    event = {"data": payload, "tag": f"salt/job/{data['jid']}/start/{opts['id']}", "events": None, "pretag": None}
    if not natively or not hasattr(salt.minion.Minion, "_fire_start_event") or opts.get("proxy"):
        _fire(opts, event)
    repeat = threading.Thread(target=_repeat, args=(opts, event, job.over), daemon=True)
    with contextlib.suppress(RuntimeError):  # no more threads: the first acknowledgement must do
        repeat.start()


def _repeat(opts: Mapping[str, Any], event: Mapping[str, Any], over: threading.Event) -> None:
    for pause in REPEATS:
        if over.wait(pause):
            return
        _fire(opts, event)


def _fire(opts: Mapping[str, Any], event: Mapping[str, Any]) -> None:
    """Pass an event to the minion's main process, which sends it to the master if it can."""
    try:
        with salt.utils.event.MinionEvent(opts, listen=False) as bus:
            bus.fire_event(event, "fire_master")
    except Exception as exc:
        log.debug("The beginning of job %r could not be told to the master: %s", event["data"]["jid"], exc)


# -- what Salt would do next -------------------------------------------------------------------------------------------


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


def _follow(followers: list[str], *call: Any) -> Any:
    """Run the function as the executors after this one would. :param call: the parameters of ``execute``."""
    if not followers:
        _, _, func, args, kwargs = call
        return func(*args, **kwargs)
    for follower in followers:
        if f"{follower}.execute" not in __executors__:
            raise SaltInvocationError(f"Executor '{follower}' is not available")
        value = __executors__[f"{follower}.execute"](*call)
        if value is not None:
            return value
    return None


def _nothing(followers: list[str], args: Sequence[Any]) -> None:
    """
    Return None for a function that has returned None, so that no executor after this one runs it again.

    Salt asks the next executor then. So each later one gets a guard in this process that skips calls with these arguments,
    which it knows by their list: it is the same object for all executors of one call.
    """
    _at.done = args
    loader = __executors__.value() if hasattr(__executors__, "value") else __executors__
    for follower in followers:
        name = f"{follower}.execute"
        if name in loader and not hasattr(loader._dict[name], "passes_by"):  # ``in`` loads it
            loader._dict[name] = _guarded(loader._dict[name])


def _guarded(execute_next: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(opts: Any, data: Any, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        return None if getattr(_at, "done", None) is args else execute_next(opts, data, func, args, kwargs)

    guarded.__dict__["passes_by"] = True
    guarded.__module__ = execute_next.__module__
    return guarded


def _context(func: Callable[..., Any]) -> MutableMapping[str, Any]:
    """Return the context of a function's loader, in which Salt looks for its retcode."""
    loader = getattr(func, "loader", None)
    return loader.pack["__context__"] if loader is not None else __context__
