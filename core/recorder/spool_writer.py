"""
Moves records from memory to the disk: looks up the loads of jobs, and writes the spool.

It must never be used in two threads at a time, nor in the loop's thread while the loop runs: it waits for the disk and
the job cache.

The published load in the job cache decides whether a job is recorded. What the event of a publish says counts only if
the job cache has no load. What a return says about its job never counts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.master import secrets
from saltext.jobs.core.quiet import Quiet
from saltext.jobs.core.recorder.choice import digest, is_wanted
from saltext.jobs.core.recorder.files import Known, Seen
from saltext.jobs.core.recorder.record import EVENT, LOAD, Record, content_of, packed, taken_at, unpacked
from saltext.jobs.core.recorder.returner import ReturnerModule
from saltext.jobs.core.recorder.spool import Spool
from saltext.jobs.core.settings import RecorderSettings

log = lines.logger(__name__)

#: Seconds for which the job cache is left alone after it failed.
_CACHE_REST = 10.0


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A packed record that is not in the spool yet, with its digests; an event has no jid."""

    jid: str
    digests: tuple[int, ...]
    payload: bytes


@dataclasses.dataclass(frozen=True)
class Due:
    """
    A job that is to be looked up. ``event``: the packed event that announced it, or empty. ``is_new``: its load has not
    been recorded before.
    """

    event: bytes
    is_new: bool


@dataclasses.dataclass
class Verdicts:
    """What the job cache said about jobs: whether each is recorded, and which are settled."""

    wanted: dict[str, bool] = dataclasses.field(default_factory=dict)
    settled: set[str] = dataclasses.field(default_factory=set)


class SpoolWriter:
    """
    :param settings: the recorder's options.
    :param spool: where records go.
    :param seen: remembers what was recorded.
    :param loads: where loads are looked up.
    """

    def __init__(self, settings: RecorderSettings, spool: Spool, seen: Seen, loads: ReturnerModule) -> None:
        self._settings, self._spool, self._seen, self._loads = settings, spool, seen, loads
        self._rest_until = 0.0
        self._failed: set[str] = set()  # jobs whose last look-up failed: the others come first
        self._quiet = Quiet(log)

    def store(self, batch: Sequence[Waiting], due: Mapping[str, Due], now: float) -> Verdicts:
        """Look up jobs, and write loads and then returns. :raises OSError: when they can't be written."""
        loads: list[Record] = []
        verdicts = Verdicts()
        self._failed.intersection_update(due)
        for jid in sorted(due, key=self._failed.__contains__):
            job, found = due[jid], self._look_up(jid, now)
            if found is None:
                continue
            load = found or event_in(job.event)
            # An unknown job is recorded.
            verdicts.wanted[jid] = wanted = not load or self.wants(load.get("fun"))
            verdicts.settled.add(jid)
            if load and wanted and job.is_new:
                body = load if found else {**load, "source": "event"}
                loads.append(Record(LOAD, jid, "", secrets.load_for_history(body)))
        # While the job cache cannot be asked about a job, its returns are recorded.
        self.write(loads, [item for item in batch if verdicts.wanted.get(item.jid, True)], now)
        return verdicts

    def wants(self, fun: Any) -> bool:
        """Tell whether jobs with this function are recorded."""
        return is_wanted(fun, self._settings.include, self._settings.exclude)

    def write(self, loads: Sequence[Record], returns: Sequence[Waiting], now: float) -> None:
        """Write records, and remember them. :raises OSError: when they can't be written."""
        frames, digests = [], []
        for load in loads:
            try:
                frames.append(packed(load, now))
            except (ValueError, RecursionError) as exc:  # it is too deep: Salt itself can pack one level more
                self._quiet.error("unpackable", "The load of job %s cannot be recorded: %s", load.jid, exc)
            digests.append(digest(load.jid))
        frames += [item.payload for item in returns]
        digests += [item for waiting in returns for item in waiting.digests]
        self._spool.append(frames)
        self._spool.drop_oldest()
        self._remember(digests, now)

    def put_back(self, payloads: Sequence[bytes], returner: str) -> None:
        """Write packed records once more, for one returner. :raises OSError: when they can't be written; then none is."""
        self._spool.append(
            [packed(dataclasses.replace(unpacked(item), to=returner), taken_at(item)) for item in payloads]
        )

    def what_was_recorded(self, now: float) -> Known:
        """
        Return what is remembered. Call it before anything is recorded.

        Digests that were not written before a crash are made again from the spool's last segment.

        :raises OSError: when it can't be read.
        """
        known = self._seen.load()
        digests = [item for payload in self._spool.tail_payloads() for item in _digests_of(payload)]
        forgotten = [item for item in digests if item not in known]
        if not forgotten:
            return known
        self._remember(forgotten, now)
        return Known(itertools.chain(known, forgotten))

    def _remember(self, digests: Iterable[int], now: float) -> None:
        try:
            self._seen.add(digests, now)
            self._seen.forget_old(now)
        except OSError as exc:
            # The records are safe. After a restart some may be taken from the job cache once more.
            self._quiet.error("seen", "The digests of recorded returns cannot be written: %s", exc)

    def _look_up(self, jid: str, now: float) -> dict[str, Any] | None:
        """Return the load, ``{}`` if there is none, or None if it must be tried again."""
        if now < self._rest_until:
            return None
        try:
            return self._loads.load(jid) if is_plain(jid) else {}
        except Exception as exc:  # A returner raises whatever its client library raises.
            self._rest_until = now + _CACHE_REST
            self._failed.add(jid)
            self._quiet.error("cache", "Loads cannot be read from the job cache: %s: %s", type(exc).__name__, exc)
            return None


def load_in(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the event of a publish says about the job, without its minions, which are many and not needed."""
    return {name: value for name, value in event.items() if name not in ("minions", "missing")}


def event_in(packed_event: bytes) -> dict[str, Any]:
    """Unpack the event of a publish, as ``load_in`` made it; ``{}`` if there is none."""
    return dict(salt.payload.loads(packed_event, encoding="utf-8")) if packed_event else {}


def _digests_of(payload: bytes) -> tuple[int, ...]:
    try:
        record = unpacked(payload)
        if record.kind == EVENT:
            return ()
        own = digest(record.jid, record.minion)
        return (own, digest(record.jid, record.minion, content_of(record.body))) if record.minion else (own,)
    except Exception as exc:  # Salt and msgpack raise many kinds for what is no record.
        log.error("A record in the spool cannot be read: %s", exc)
        return ()
