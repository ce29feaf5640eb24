"""
The retry queue in what ``cache:`` names, in the banks of salt.cache.

=========================  ========  ===========================================================================
bank                       key       value
=========================  ========  ===========================================================================
``job_retry/queue/<id>``   jid       the entry of one minion and one job (core/retry/entry.py)
``job_retry/jobs``         jid       the snapshot: owner, published_at, the load without secrets, the minions that
                                     have, or had, an entry
``job_retry/claims``       jid       ``{minion: Unix time}``: claims that may be newer than what the entries say
``job_retry/notes/<id>``   jid       what one master knows about minions without an entry (core/retry/notes.py)
``job_retry/corrupt``      name      unusable records, and records that the driver has refused
``job_retry/probe``        writable  is written to find out whether the store accepts writes
=========================  ========  ===========================================================================

If ``cache`` is mmap_cache, localfs is used: mmap_cache reserves 96 MB for each bank, and each minion has a bank. If a driver
confuses ids (mysql: ``ABC`` and ``abc``), jids and minion ids are encoded as core/store/keys.py says.

One record claims a replay to many minions. Their entries are written afterwards, usually only once. Reading an entry applies
a claim that is newer than the entry, so no claim is lost.

Some drivers cannot list parent banks, so the snapshots are the index of all entries. A snapshot is written before its first
entry and removed after its last.

Blocks: use it in one Worker. It must never let one unreadable record keep another from being read.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import salt.cache
import salt.payload

from saltext.jobs.core import lines
from saltext.jobs.core.banks import OWED
from saltext.jobs.core.disk.local_banks import LocalBanks
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.retry.entry import Entry, Key, Kind, State
from saltext.jobs.core.retry.notes import Note
from saltext.jobs.core.retry.refusals import is_damage, is_of_the_record
from saltext.jobs.core.sqlite.banks import banks_of
from saltext.jobs.core.store.keys import Keys

log = lines.logger(__name__)

QUEUE = "job_retry/queue"
JOBS = OWED
CLAIMS = "job_retry/claims"
NOTES = "job_retry/notes"
#: Bank and key of what is written to find out whether the store accepts writes.
_PROBE = "job_retry/probe", "writable"
#: Bank of the unusable records. It also names what the driver refuses, by a digest.
ASIDE = "job_retry/corrupt"
_REFUSED = "refused."

#: If this many reads of one record fail in a row while other reads succeed, the record itself counts as damaged.
_MOST_READS = 10

_BANKS = {Kind.JOB: JOBS, Kind.CLAIMS: CLAIMS, Kind.ENTRY: QUEUE, Kind.NOTE: NOTES}
#: The order of writes and removals, by kind: (write, removal). At whatever point a crash interrupts them, the store has the
#: entry, or the note that replaces it.
_TURNS = {Kind.JOB: (0, 5), Kind.CLAIMS: (1, 1), Kind.ENTRY: (2, 4), Kind.NOTE: (3, 3)}

#: Records to write, by key; None removes the record.
Changes = Mapping[Key, Mapping[str, Any] | None]
T = TypeVar("T")


class _NotDone(StateError):
    """The driver failed. ``__cause__`` is the exception that it raised."""


class _Damaged(Exception):
    """A record cannot be used. It has been set aside, if that was possible."""


class RetryStore:
    """
    :param read_only: write nothing, and leave unusable records where they are.
    :param open_banks: opens the storage; default: the driver that ``cache`` names.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        read_only: bool = False,
        open_banks: Callable[[], Any] | None = None,
    ) -> None:
        self._opts, self._open = dict(opts), open_banks or self._open_driver
        self._read_only = read_only
        self._opened: Any = None
        named = self._opts.get("cache") or "localfs"
        self._driver = "localfs" if named == "mmap_cache" else named
        self._keys = Keys(self._driver)
        # A server has its own rules for syncing. A file survives a power cut only if it is synced on request.
        self._durably = (True,) if self._driver in ("localfs", "sqlite") else ()
        self._failed: collections.Counter[tuple[str, str]] = collections.Counter()  # failed reads in a row

    def _place(self, key: Key) -> tuple[str, str]:
        """Return the bank of a record, and its key there."""
        bank = _BANKS[key.kind]
        return (f"{bank}/{self._keys.encode(key.of)}" if key.of else bank), key.jid

    def write(self, changes: Changes) -> dict[str, str]:
        """
        Store changes, and return ``{jid: reason}`` of the jobs with a record that the driver refuses. The same changes can
        be written again without harm.

        :raises StateError: when nothing can be written now, or this process may not write.
        """
        refused: dict[str, str] = {}
        stored, emptied = set(), set()
        for key in sorted(changes, key=lambda key: (_TURNS[key.kind][changes[key] is None], key)):
            record, place = changes[key], self._place(key)
            if key.kind is Kind.ENTRY and key.jid in refused and record is not None:
                continue
            if record is not None:
                more = (record, *self._durably) if key.kind is Kind.CLAIMS else (record,)
                self._try(refused, key.jid, "store", *place, *more)
                stored.add(place[0])
                continue
            if key.kind is Kind.JOB:
                self._try(refused, key.jid, "flush", CLAIMS, key.jid)
            self._try(refused, key.jid, "flush", *place)
            if key.kind is Kind.ENTRY:
                emptied.add(place[0])
        for bank in emptied - stored if self._driver != "localfs" else ():
            if not self._do("list", bank):
                self._do("flush", bank)
        return refused

    def _try(self, refused: dict[str, str], jid: str, name: str, bank: str, *args: Any) -> None:
        try:
            self._do(name, bank, *args)
        except StateError as exc:
            size = _size(args)
            # _do chains the driver's exception.
            if size is not None and not is_of_the_record(self._driver, exc.__cause__ or exc, size):
                raise
            self._do("store", *_PROBE, 0.0)  # if this fails too, the store is at fault, not the record
            reason = refused.setdefault(jid, f"the store refuses it: {exc}")
            # The digest is a name that any driver accepts; this one may refuse the jid itself.
            name = f"{_REFUSED}{hashlib.blake2b(jid.encode(), digest_size=8).hexdigest()}"
            with contextlib.suppress(StateError):
                self._do("store", ASIDE, name, {"jid": jid, "reason": reason[:1000]})

    def snapshots(self, owner: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (jid, snapshot), of all owners or of one. Unusable ones are set aside. Raises as ``entries``."""
        for jid in self._do("list", JOBS) or ():
            snapshot = self.snapshot(jid)
            if snapshot and owner in (None, snapshot["owner"]):
                yield jid, snapshot

    def snapshot(self, jid: str) -> dict[str, Any]:
        """
        Return the snapshot of a job; ``{}`` if there is none. An unusable one is set aside.

        :raises StateError: when the store cannot be read at all.
        """
        try:
            return self._read(Key(Kind.JOB, jid), lambda record: _snapshot(jid, record)) or {}
        except _Damaged as exc:
            log.error("Job %s cannot be replayed: its snapshot is set aside: %s", jid, exc)
            return {}

    def has_all(self, keys: Iterable[Key]) -> bool:
        """Tell whether the store has all these records. :raises StateError: when the store cannot be read."""
        return all(self._do("contains", *self._place(key)) for key in keys)

    def entries(self, jid: str, snapshot: Mapping[str, Any], minion: str | None = None) -> Iterator[Entry]:
        """
        Yield the entries of a job, of all its minions or of one.

        An unusable entry is set aside, and a held one takes its place: nothing shows how far the job got.

        :raises StateError: when the store cannot be read at all.
        """
        claims = self._claims(jid)
        for name in snapshot["minions"] if minion is None else {minion}.intersection(snapshot["minions"]):
            name = sys.intern(name)  # all jobs of a minion share one string
            key, make = Key(Kind.ENTRY, jid, name), functools.partial(Entry.from_record, name, jid)
            try:
                entry = self._read(key, make)
            except _Damaged as exc:
                log.error("The entry of %s for job %s is set aside; the job is held: %s", name, jid, exc)
                entry = _unknown(name, jid, snapshot)
                if not self._read_only:
                    self._try({}, jid, "store", *self._place(key), entry.as_record())
            if entry is not None:
                count_claim(entry, claims.get(name))
                yield entry

    def notes(self, owner: str) -> dict[str, Note]:
        """Return the notes of a master, by jid. Unusable ones are set aside. :raises StateError: as ``snapshots``."""
        found = {}
        for jid in self._do("list", self._place(Key(Kind.NOTE, "", owner))[0]) or ():
            try:
                note = self._read(Key(Kind.NOTE, jid, owner), Note.from_record)
                if note is not None:
                    found[jid] = note
            except _Damaged as exc:
                log.error("The note about job %s is set aside: %s", jid, exc)
        return found

    def set_aside(self) -> list[str]:
        """Return the names of the unusable records. :raises StateError: when the store cannot be read."""
        return sorted(name for name in self._do("list", ASIDE) or () if not name.startswith(_REFUSED))

    def refused(self) -> dict[str, str]:
        """Return ``{jid: reason}`` of the jobs with a record that the driver refused. Raises as ``set_aside``."""
        names = [name for name in self._do("list", ASIDE) or () if name.startswith(_REFUSED)]
        return {str(found["jid"]): str(found["reason"]) for name in names if (found := self._do("fetch", ASIDE, name))}

    def _claims(self, jid: str) -> dict[str, Any]:
        try:
            found = self._fetch(CLAIMS, jid)
        except StateError as exc:
            if not self._is_unusable(CLAIMS, jid, exc):
                raise
            log.error("The claims of job %s cannot be read", jid)
            return {}
        return found if isinstance(found, dict) else {}

    def _read(self, key: Key, make: Callable[[Any], T]) -> T | None:
        """
        Read a record, and return what ``make`` builds from it; None if there is none. An unusable record is set aside, if
        possible.

        :raises _Damaged: when it cannot be used.
        :raises StateError: when the store cannot be read at all.
        """
        bank, name = self._place(key)
        try:
            found = self._fetch(bank, name)
            return make(found) if found else None
        except (StateError, ValueError) as exc:
            if not self._is_unusable(bank, name, exc):
                raise StateError(f"The retry queue cannot be read: {exc}") from exc
            if not self._read_only:
                self._put_aside(bank, name)
            raise _Damaged(str(exc)) from exc

    def _put_aside(self, bank: str, key: str) -> None:
        try:
            value = self._do("fetch", bank, key)
            self._do("store", ASIDE, f"{bank.replace('/', '.')}.{key}"[:200], value)
            self._do("flush", bank, key)
        except StateError as exc:
            log.debug("What cannot be decoded stays where it is: %s", exc)

    def _fetch(self, bank: str, key: str) -> Any:
        found = self._do("fetch", bank, key)
        self._failed.pop((bank, key), None)
        return found

    def _is_unusable(self, bank: str, key: str, exc: Exception) -> bool:
        """
        Tell whether the record itself is at fault. As long as it may be the store, the record is read again, many times: a
        job that is set aside is not delivered.
        """
        if not isinstance(exc, _NotDone):
            return True
        cause = exc.__cause__ or exc
        if is_damage(cause) or is_of_the_record(self._driver, cause, 0):
            return True
        self._failed[bank, key] += 1
        return self._failed[bank, key] >= _MOST_READS and not self._is_away()

    def _is_away(self) -> bool:
        """Tell whether nothing can be read at all."""
        try:
            self._do("list", JOBS)
        except StateError:
            return True
        return False

    def _open_driver(self) -> Any:
        if self._driver == "localfs":
            return LocalBanks(self._opts["cachedir"])
        if self._driver == "sqlite":
            return banks_of(self._opts)
        return salt.cache.Cache(self._opts, driver=self._driver)

    def _do(self, name: str, bank: str, *args: Any) -> Any:
        keyed = (self._keys.encode(args[0]), *args[1:]) if args else ()
        try:
            if self._opened is None:
                self._opened = self._open()
            found = getattr(self._opened, name)(bank, *keyed)
            return [self._keys.decode(key) for key in found or ()] if name == "list" else found
        except Exception as exc:  # A driver may raise any exception of its client library.
            self._opened = None  # Some drivers never reconnect by themselves.
            raise _NotDone(f"{name} {bank} {args[:1]}: {type(exc).__name__}: {exc}") from exc


def _size(values: Iterable[Any]) -> int | None:
    """Return the serialized size of values in bytes; None if one of them cannot be serialized."""
    try:
        return sum(len(salt.payload.dumps(value, use_bin_type=True)) for value in values)
    except Exception:  # msgpack raises many kinds of exceptions
        return None


def count_claim(entry: Entry, at: Any) -> None:
    """Apply a claim that its entry does not know: the entry was not stored since."""
    if isinstance(at, (int, float)) and math.isfinite(at) and entry.state is State.PENDING and entry.sent_at != at:
        entry.claim(float(at))


def _snapshot(jid: str, snapshot: Any) -> dict[str, Any]:
    try:
        usable = (
            is_plain(jid)
            and isinstance(snapshot["owner"], str)
            and isinstance(snapshot["load"], Mapping)
            and isinstance(snapshot["published_at"], (int, float))
            and math.isfinite(snapshot["published_at"])
            and all(is_plain(minion) for minion in snapshot["minions"])
        )
    except (KeyError, TypeError) as exc:
        raise ValueError(f"{type(exc).__name__}: {exc}") from exc
    if not usable:
        raise ValueError("it is no snapshot of a job")
    return dict(snapshot)


def _unknown(minion: str, jid: str, snapshot: Mapping[str, Any]) -> Entry:
    at = float(snapshot["published_at"])
    entry = Entry(minion, jid, at, at + 10 * 365 * 86400.0, "queued")
    entry.move(State.HELD, at, "its record could not be read, so it is not known whether it was begun")
    return entry
