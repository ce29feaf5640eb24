"""
Who gets records, and what they get: a returner the loads and returns that the job cache has, people notices.

It blocks: use each in one Worker of its own. What the job cache has was stored by the master's workers; what a return says
about its job never counts.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import hmac
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.banks import RETURNS
from saltext.jobs.core.functions import retcode_of
from saltext.jobs.core.ids import is_plain, jid_at
from saltext.jobs.core.ledger.log import published_since
from saltext.jobs.core.ledger.outbox import Key, Row
from saltext.jobs.core.lines import Quiet
from saltext.jobs.core.master import secrets
from saltext.jobs.core.options.engines import RecorderSettings
from saltext.jobs.core.recorder.returner import ReturnerModule
from saltext.jobs.core.store import records
from saltext.jobs.core.store.drivers import Undecodable
from saltext.jobs.core.store.store import store_of

log = lines.logger(__name__)

#: The kinds of rows in the outbox.
LOAD, RETURN, NOTICE = "load", "ret", "notice"
#: Returns that are looked up at once, and bytes after which a round has enough.
_LOOKED_UP, _BYTES = 25, 8 << 20
#: Jobs that are remembered; after a further one none is.
_JOBS = 1000
#: Seconds after which the job cache has what the log has: if one database has both, and else.
_SETTLED, _LATE = 1.0, 30.0
#: Seconds after which a notice that did not arrive is given up.
_KEPT = 86400.0
#: The header that the receiver of a webhook checks: ``sha256=`` and the HMAC of the body in hexadecimal.
SIGNATURE = "X-Salt-Signature"
#: Most seconds for one network operation of a webhook.
_PATIENCE = 10.0
#: Prefixes of the functions of jobs that run in the master itself. Their arguments and returns may contain a pillar:
#: they are recorded only if ``include`` names them.
_OF_THE_MASTER = ("runner.", "wheel.", "_system")

#: Sends a notice, or raises; blocks.
Send: TypeAlias = Callable[[Mapping[str, Any]], None]
#: What is handed over for a record: nothing if it is not wanted, None if it cannot be read any more.
Parcel: TypeAlias = Sequence[Any] | None


class Job(NamedTuple):
    """What a job runs. Jobs of runners, of salt-ssh, and of minions on their own are not published."""

    fun: Any
    arguments: Any
    is_wanted: bool  # it is recorded
    is_published: bool  # by a master: then the log has its publish
    has_load: bool = False  # this returner has its load


class ToReturner:
    """
    A returner as a recipient. It must never take a failure for a success. All methods that read the job cache raise
    SaltCacheError when that cannot be read.
    """

    def __init__(self, returner: ReturnerModule, opts: Mapping[str, Any], settings: RecorderSettings) -> None:
        self.returner, self.store, self._settings = returner, store_of(opts), settings
        self._jobs = dict[str, Job]()
        self._held: dict[str, Mapping[str, Any]] = {}  # the returns that it has, of jobs of this round
        self._quiet = Quiet(log)

    @property
    def at_once(self) -> bool:
        """Whether it takes all parcels of a call or none. A returner that cannot be loaded fails when it gets a record."""
        return self.returner.has("store_many")

    @property
    def knows(self) -> bool:
        """Whether a record that comes twice is stored once."""
        return self.at_once or self.returner.has("get_jid")

    @property
    def late(self) -> float:
        """Seconds after which the job cache has what was written to the log, or could not be."""
        return _SETTLED if self.store.writes_together else _LATE

    def read(self, rows: Sequence[Row]) -> dict[Key, Parcel]:
        """Return the parcels of the first rows, as memory allows, but for records that the job cache may yet get."""
        self._held.clear()
        found, size, begun = dict[Key, Parcel](), 0, time.time()  # this process may be frozen while it reads
        for start in range(0, len(rows), _LOOKED_UP):
            part = rows[start : start + _LOOKED_UP]
            returns = self._returns(row.key for row in part if row.key.kind == RETURN)
            for row in part:
                parcel = self._parcel(row, returns.get(row.key))
                if parcel is not None or abs(begun - row.at) > self.late:
                    found[row.key] = parcel
            size += sum(len(repr(data)) for data in returns.values())
            if size >= _BYTES:
                break
        return found

    def _parcel(self, row: Row, data: Mapping[str, Any] | None) -> Parcel:
        kind, jid, minion = row.key
        job = self._job(jid)
        is_due = not job.has_load and (kind == LOAD or not job.is_published) and self.returner.takes_loads
        if not job.is_wanted or (kind == LOAD and not is_due):
            return ()
        load = self._load(jid) if is_due else {}
        entries = [{"kind": "load", "time": row.at, "jid": jid, "data": load}] if load else []
        if kind == LOAD:
            return entries or None
        if data is None:
            return None
        ret = {
            "cmd": "_return",
            "fun": job.fun,
            "fun_args": job.arguments,
            "retcode": 0,
            **data,
            "id": minion,
            "jid": jid,
        }
        ret.setdefault("success", retcode_of(data) == 0)
        return [*entries, {"kind": "return", "time": row.at, "jid": jid, "minion": minion, "data": ret}]

    def hand_over(self, parcels: Mapping[Key, Sequence[Mapping[str, Any]]], in_doubt: bool) -> Mapping[Key, str]:
        """Hand parcels over; return ``{key: why}`` of refused ones. Raises if it fails. ``in_doubt``: it may have some."""
        refused: dict[Key, str] = {}
        if self.at_once:
            handed = [(key, entry) for key, parcel in parcels.items() for entry in parcel]
            reasons = self.returner.store_many([entry for _, entry in handed])
            refused = {handed[place][0]: reason for place, reason in reasons.items()}
        else:
            for key, parcel in parcels.items():
                if not (in_doubt and self._has(key)):
                    self._store(parcel)
        taken = (entry for key, parcel in parcels.items() if key not in refused for entry in parcel)
        for jid in {entry["jid"] for entry in taken if entry["kind"] == "load"} & self._jobs.keys():
            self._jobs[jid] = self._jobs[jid]._replace(has_load=True)
        return refused

    def _has(self, key: Key) -> bool:
        if key.kind != RETURN or not self.returner.has("get_jid"):
            return False
        if key.jid not in self._held:
            self._held[key.jid] = self.returner.returns(key.jid)
        return key.minion in self._held[key.jid]

    def _store(self, parcel: Sequence[Mapping[str, Any]]) -> None:
        for entry in parcel:
            if entry["kind"] == "load":
                self.returner.store_load(entry["jid"], entry["data"])
            else:
                self.returner.store_return(entry["data"])

    # -- the job cache ------------------------------------------------------------------------------------------------

    def young(self, seconds: float) -> Iterator[tuple[str, list[str]]]:
        """Yield the jobs that are recorded of those published within the last seconds, with the minions that returned."""
        since = jid_at(time.time() - seconds)
        stored = map(self.store.decode, self.store.driver.find(since, "9" * 20))
        # the load of a job may not have reached the job cache, which has its returns
        for jid in sorted({*stored, *published_since(self.store.site, since)}):
            key = self.store.key_of(jid) if is_plain(jid) else None
            if key is not None and self._job(jid).is_wanted:
                names = map(self.store.decode, self.store.keys(f"{RETURNS}/{key}"))
                yield jid, sorted(filter(is_plain, names))

    def _job(self, jid: str) -> Job:
        """Return what is known of a job. A job without a load is recorded."""
        if jid in self._jobs:
            return self._jobs[jid]
        load, key = self._load(jid), self.store.key_of(jid)
        if not load or key is None:
            return Job("", [], True, True)
        wanted = is_wanted(load.get("fun"), self._settings.include, self._settings.exclude)
        arguments = load.get("arg", []) if wanted else []
        if len(self._jobs) >= _JOBS:
            self._jobs.clear()
        self._jobs[jid] = Job(load.get("fun", ""), arguments, wanted, records.is_published(self.store, key))
        return self._jobs[jid]

    def _load(self, jid: str) -> dict[str, Any]:
        """Return the load of a job as it is recorded; empty if there is none."""
        key = self.store.key_of(jid)
        load = {} if key is None else records.load_of(self.store, key)
        load.pop("Minions", None)
        return secrets.load_for_history(load)

    def _returns(self, wanted: Iterable[Key]) -> dict[Key, Mapping[str, Any]]:
        """Return some returns. Those that are not there, or damaged, are left out."""
        by_job: dict[str, list[str]] = {}
        for key in wanted:
            by_job.setdefault(key.jid, []).append(key.minion)
        found: dict[Key, Mapping[str, Any]] = {}
        for jid, minions in by_job.items():
            for minion, data in records.some_returns(self.store, jid, minions):
                try:
                    found[Key(RETURN, jid, minion)] = secrets.return_for_history(data)
                except Exception as exc:  # whatever is no mapping
                    why = data if isinstance(data, Undecodable) else exc
                    self._quiet.error("return", "The return of job %s by %s cannot be recorded: %s", jid, minion, why)
        return found


def is_wanted(fun: Any, include: Iterable[str], exclude: Iterable[str]) -> bool:
    """Tell whether jobs of a function are recorded. Of several functions one is enough."""

    def chosen(name: str) -> bool:
        own = next((start for start in _OF_THE_MASTER if name.startswith(start)), "")
        is_included = any(glob.startswith(own) and fnmatch.fnmatchcase(name, glob) for glob in include)
        return is_included and not any(fnmatch.fnmatchcase(name, glob) for glob in exclude)

    return any(isinstance(name, str) and chosen(name) for name in (fun if isinstance(fun, (list, tuple)) else [fun]))


class ToPeople:
    """A target of notices, called ``name`` in the log. ``send`` sends it one."""

    at_once = knows = False

    def __init__(self, name: str, send: Send) -> None:
        self._name, self._send = name, send
        self._quiet = Quiet(log)

    def read(self, rows: Sequence[Row]) -> dict[Key, Parcel]:
        return {row.key: self._parcel(row) for row in rows}

    def _parcel(self, row: Row) -> Parcel:
        try:
            notice = dict(salt.payload.loads(row.body or b""))
        except Exception as exc:  # msgpack raises many kinds
            self._quiet.error("row", "A notice for %s cannot be read: %s", self._name, exc)
            return None
        if time.time() - row.at <= _KEPT:
            return (notice,)
        log.error("A notice for %s is given up: %s", self._name, notice["text"])
        return None

    def hand_over(self, parcels: Mapping[Key, Sequence[Any]], in_doubt: bool) -> Mapping[Key, str]:
        for (notice,) in parcels.values():
            self._send(notice)
        return {}


Recipient: TypeAlias = ToReturner | ToPeople


class Webhook:
    """
    Sends a notice as a signed POST of JSON. Neither the secret nor the address, which may hold a secret too, may ever be
    logged or be in an error.

    ``url``: of the receiver. ``secret`` signs notices; empty for no signature. ``ca_file``: certificates against which that
    of the receiver is checked; empty for those of the system.
    """

    def __init__(self, url: str, secret: str = "", ca_file: str = "", patience: float = _PATIENCE) -> None:
        self._url, self._secret, self._ca_file, self._patience = urlsplit(url), secret, ca_file, patience

    def __call__(self, notice: Mapping[str, Any]) -> None:
        """Send a notice. :raises OSError: saying why it has not arrived, as far as known."""
        body = json.dumps(notice).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "saltext-jobs", "Connection": "close"}
        if self._secret:
            headers[SIGNATURE] = signature(self._secret.encode(), body)
        path = f"{self._url.path or '/'}{f'?{self._url.query}' if self._url.query else ''}"
        try:
            with contextlib.closing(self._connection(self._url.hostname or "")) as connection:
                connection.request("POST", path, body, headers)
                status = connection.getresponse().status  # a redirect counts as a refusal
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise ConnectionError(_said(exc)) from None  # the cause may name the address
        if not 200 <= status < 300:
            raise ConnectionError(f"the receiver answers {status}")

    def _connection(self, host: str) -> http.client.HTTPConnection:
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, self._url.port, timeout=self._patience)
        trusted = ssl.create_default_context(cafile=self._ca_file or None)
        return http.client.HTTPSConnection(host, self._url.port, timeout=self._patience, context=trusted)


def signature(secret: bytes, body: bytes) -> str:
    """Return the value of the header ``SIGNATURE`` for a body."""
    return f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"


def _said(exc: Exception) -> str:
    """Return what went wrong, without the secrets that an error may name."""
    if isinstance(exc, TimeoutError):
        return "the receiver does not answer in time"
    if isinstance(exc, ssl.SSLError):
        return f"TLS: {exc.reason or type(exc).__name__}"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return str(exc) if type(exc) is ValueError else type(exc).__name__
