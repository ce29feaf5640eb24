"""
The retry queue on disk, through salt.cache: whatever ``cache:`` names.

=========================  ========  ===========================================================================
bank                       key       value
=========================  ========  ===========================================================================
``job_retry/queue/<id>``   jid       the entry of one minion and one job (core/retry/entry.py)
``job_retry/jobs``         jid       the snapshot: owner, published_at, the load without secrets, the minions that
                                     have, or had, an entry
``job_retry/claims``       jid       ``{minion: Unix time}``: claims that may be newer than what the entries say
``job_retry/notes/<id>``   jid       what one master knows of minions without an entry (core/retry/notes.py)
``job_retry/owners``       owner     Unix time at which that master was last seen alive
``job_retry/corrupt``      name      what could not be used, and what the driver has refused
=========================  ========  ===========================================================================

Where ``cache`` is mmap_cache, localfs is used: that driver reserves 94 MB for each bank, and there is one for each minion.
Where a driver confuses ids (mysql: ``ABC`` and ``abc``), jids and minion ids are encoded as core/store/keys.py says.

A replay to many minions is claimed by one record; their entries are written afterwards, as a rule only once. What reads an
entry counts a claim that is newer than the entry, so that it is never lost.

Some drivers cannot list parent banks, so the snapshots are the index: whoever looks for entries reads those. A snapshot is
written before its first entry and removed after its last.

A job of which a later version of this extension has written anything is left alone, and so is whatever else there is of it.

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

from saltext.jobs.core import formats, lines
from saltext.jobs.core.banks import OWED
from saltext.jobs.core.disk.lease import no_fence
from saltext.jobs.core.disk.local_banks import LocalBanks
from saltext.jobs.core.errors import LaterVersion, StateError
from saltext.jobs.core.ids import is_plain
from saltext.jobs.core.retry.entry import Entry, Key, Kind, State
from saltext.jobs.core.retry.notes import Note
from saltext.jobs.core.retry.refusals import is_damage, is_of_the_record
from saltext.jobs.core.store.keys import Keys

log = lines.logger(__name__)

QUEUE = "job_retry/queue"
JOBS = OWED
CLAIMS = "job_retry/claims"
NOTES = "job_retry/notes"
OWNERS = "job_retry/owners"
#: Key in OWNERS by which it is found out whether anything can be written.
_PROBE = "writable"
#: Where what cannot be used is put, key by key; what the driver refuses is named there, by a digest.
ASIDE = "job_retry/corrupt"
_REFUSED = "refused."

#: Of snapshots, entries and notes: see ``core/formats.py``.
FORMAT = 2

#: Reads of one record in a row that fail, while others do not, after which it is its fault whatever the driver says.
_MOST_READS = 10

_BANKS = {Kind.JOB: JOBS, Kind.CLAIMS: CLAIMS, Kind.ENTRY: QUEUE, Kind.NOTE: NOTES}
#: When each kind is written, and when removed. Wherever that ends, an entry that comes or goes, or the note that stands for
#: it, is there.
_TURNS = {Kind.JOB: (0, 5), Kind.CLAIMS: (1, 1), Kind.ENTRY: (2, 4), Kind.NOTE: (3, 3)}

#: What is to be written; None removes.
Changes = Mapping[Key, Mapping[str, Any] | None]
T = TypeVar("T")


class _NotDone(StateError):
    """The driver has not done what it was told; its cause is what the driver raised."""


class _Damaged(Exception):
    """A record cannot be used, and is set aside as far as possible."""


class RetryStore:
    """
    :param opts: the master's options.
    :param read_only: whether nothing may be written: what cannot be used is then left where it is.
    :param open_banks: opens what it is kept in; by default that is what ``cache`` names.
    :param fence: raises OSError where this process must not write any more, or it is not known whether it may.
    """

    def __init__(
        self,
        opts: Mapping[str, Any],
        read_only: bool = False,
        open_banks: Callable[[], Any] | None = None,
        fence: Callable[[], None] = no_fence,
    ) -> None:
        self._opts, self._open, self._fence = dict(opts), open_banks or self._open_driver, fence
        self._read_only = read_only
        self._opened: Any = None
        named = self._opts.get("cache") or "localfs"
        self._driver = "localfs" if named == "mmap_cache" else named
        self._keys = Keys(self._driver)
        self._failed: collections.Counter[tuple[str, str]] = collections.Counter()  # reads, in a row, by bank and key
        #: ``{jid: why}`` of the jobs that have been met and that a later version has written: nothing of them is touched.
        self.later: dict[str, str] = {}

    def _place(self, key: Key) -> tuple[str, str]:
        """Return the bank of a record, and its key there."""
        bank = _BANKS[key.kind]
        return (f"{bank}/{self._keys.encode(key.of)}" if key.of else bank), key.jid

    def write(self, changes: Changes) -> dict[str, str]:
        """
        Store changes, and return ``{jid: reason}`` of the jobs of which the driver refuses something. Writing them again
        does no harm.

        :raises StateError: when nothing can be written now, or by this process.
        """
        try:
            self._fence()
        except OSError as exc:
            raise StateError(str(exc)) from exc
        refused = {jid: self.later[jid] for jid in self.later.keys() & {key.jid for key in changes}}
        stored, emptied = set(), set()
        for key in sorted(changes, key=lambda key: (_TURNS[key.kind][changes[key] is None], key)):
            record, place = changes[key], self._place(key)
            if key.jid in self.later or (key.kind is Kind.ENTRY and key.jid in refused and record is not None):
                continue
            if record is not None:
                more = (record, *self._durably) if key.kind is Kind.CLAIMS else (_numbered(record),)
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

    @property
    def _durably(self) -> tuple[bool, ...]:
        # A server syncs by its own rules; a file survives a power cut only where that is asked for.
        return (True,) if self._driver in ("localfs", "sqlite") else ()

    def _try(self, refused: dict[str, str], jid: str, name: str, bank: str, *args: Any) -> None:
        try:
            self._do(name, bank, *args)
        except StateError as exc:
            size = _size(args)
            # _do has raised it from what the driver raised.
            if size is not None and not is_of_the_record(self._driver, exc.__cause__ or exc, size):
                raise
            self._do("store", OWNERS, _PROBE, 0.0)  # if that fails too, it is not the record's fault
            reason = refused.setdefault(jid, f"the store refuses it: {exc}")
            # Under a name that any driver takes: the jid itself may be what this one refuses.
            name = f"{_REFUSED}{hashlib.blake2b(jid.encode(), digest_size=8).hexdigest()}"
            with contextlib.suppress(StateError):
                self._do("store", ASIDE, name, {"jid": jid, "reason": reason[:1000]})

    def snapshots(self, owner: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """
        Yield (jid, snapshot), of all owners or of one. One that cannot be used is set aside.

        :raises StateError: when the store cannot be read at all.
        """
        for jid in self._do("list", JOBS) or ():
            try:
                snapshot = self.snapshot(jid)
            except LaterVersion as exc:
                self._leave_alone(jid, exc)
                continue
            if snapshot and owner in (None, snapshot["owner"]):
                yield jid, snapshot

    def find_later(self, owner: str) -> dict[str, str]:
        """Return ``later`` after a look at all of a master's records. :raises StateError: when none can be read."""
        for jid, snapshot in self.snapshots(owner):
            with contextlib.suppress(LaterVersion):
                for _ in self.entries(jid, snapshot):
                    pass
        self.notes(owner)
        return self.later

    def snapshot(self, jid: str) -> dict[str, Any]:
        """
        Return the snapshot of a job, ``{}`` where there is none. One that cannot be used is set aside.

        :raises LaterVersion: when a later version has written it.
        :raises StateError: when the store cannot be read at all.
        """
        try:
            return self._read(Key(Kind.JOB, jid), lambda record: _snapshot(jid, record)) or {}
        except _Damaged as exc:
            log.error("Job %s cannot be replayed: its snapshot is set aside: %s", jid, exc)
            return {}

    def has_all(self, keys: Iterable[Key]) -> bool:
        """Tell whether these records are there. :raises StateError: when the store cannot be read."""
        return all(self._do("contains", *self._place(key)) for key in keys)

    def entries(self, jid: str, snapshot: Mapping[str, Any], minion: str | None = None) -> Iterator[Entry]:
        """
        Yield the entries of a job, of all its minions or of one.

        An entry that cannot be used is set aside, and stands in the queue as held: nobody knows what has become of it.

        :raises LaterVersion: when a later version has written one: the whole job is left alone.
        :raises StateError: when the store cannot be read at all.
        """
        claims = self._claims(jid)
        for name in snapshot["minions"] if minion is None else {minion}.intersection(snapshot["minions"]):
            name = sys.intern(name)  # one name for all jobs of a minion
            key, make = Key(Kind.ENTRY, jid, name), functools.partial(Entry.from_record, name, jid)
            try:
                entry = self._read(key, make)
            except LaterVersion as exc:
                self._leave_alone(jid, exc)
                raise
            except _Damaged as exc:
                log.error("The entry of %s for job %s is set aside; the job is held: %s", name, jid, exc)
                entry = _unknown(name, jid, snapshot)
                if not self._read_only:
                    self._do("store", *self._place(key), _numbered(entry.as_record()))
            if entry is not None:
                count_claim(entry, claims.get(name))
                yield entry

    def notes(self, owner: str) -> dict[str, Note]:
        """Return the notes of a master, by jid; what cannot be used is set aside. :raises StateError: as ``snapshots``."""
        found = {}
        for jid in self._do("list", self._place(Key(Kind.NOTE, "", owner))[0]) or ():
            try:
                note = self._read(Key(Kind.NOTE, jid, owner), Note.from_record)
                if note is not None:
                    found[jid] = note
            except LaterVersion as exc:
                self._leave_alone(jid, exc)
            except _Damaged as exc:
                log.error("The note about job %s is set aside: %s", jid, exc)
        return found

    def set_aside(self) -> list[str]:
        """Return the names of the records that could not be used. :raises StateError: when the store cannot be read."""
        return sorted(name for name in self._do("list", ASIDE) or () if not name.startswith(_REFUSED))

    def refused(self) -> dict[str, str]:
        """Return ``{jid: reason}`` of the jobs of which the driver refused something. Raises as ``set_aside``."""
        names = [name for name in self._do("list", ASIDE) or () if name.startswith(_REFUSED)]
        return {str(found["jid"]): str(found["reason"]) for name in names if (found := self._do("fetch", ASIDE, name))}

    def _leave_alone(self, jid: str, why: LaterVersion) -> None:
        if jid not in self.later:
            log.error("Job %s is left alone in the retry queue: %s", jid, why)
            self.later[jid] = str(why)

    def _claims(self, jid: str) -> dict[str, Any]:
        try:
            found = self._fetch(CLAIMS, jid)
        except StateError as exc:
            if not self._is_unusable(CLAIMS, jid, exc):
                raise
            log.error("The claims of job %s cannot be read", jid)
            return {}
        return found if isinstance(found, dict) else {}

    def beat(self, owner: str, now: float) -> None:
        """Say that a master is alive. :raises StateError: when that cannot be stored."""
        self._do("store", OWNERS, owner, now)

    def last_beat(self, owner: str) -> float:
        """Return when a master was last alive, in Unix time, 0 for never. :raises StateError: when it cannot be read."""
        value = self._do("fetch", OWNERS, owner)
        return float(value) if isinstance(value, (int, float)) else 0.0

    def _read(self, key: Key, make: Callable[[Any], T]) -> T | None:
        """
        Return what is made of a record, None where there is none. One that cannot be used is moved out of the way, and a
        copy kept where that is possible.

        :raises LaterVersion: when a later version has written it.
        :raises _Damaged: when it cannot be used.
        :raises StateError: when the store cannot be read at all.
        """
        bank, name = self._place(key)
        try:
            found = self._fetch(bank, name)
            formats.check(f"{bank} {name}", formats.number_of(found), FORMAT, "the job is not delivered")
            return make(found) if found else None
        except LaterVersion:
            raise
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
        Tell whether it is a record's fault that it could not be used. What may be the store's is read again many times
        first: what is set aside is not delivered.
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
            from saltext.jobs.core.sqlite.banks import banks_of  # Python may have been built without sqlite3

            return banks_of(self._opts)
        return salt.cache.Cache(self._opts, driver=self._driver)

    def _do(self, name: str, bank: str, *args: Any) -> Any:
        keyed = (self._keys.encode(args[0]), *args[1:]) if args else ()
        try:
            if self._opened is None:
                self._opened = self._open()
            found = getattr(self._opened, name)(bank, *keyed)
            return [self._keys.decode(key) for key in found or ()] if name == "list" else found
        except Exception as exc:  # A driver raises whatever its client library raises.
            self._opened = None  # Some go on failing on a broken connection.
            raise _NotDone(f"{name} {bank} {args[:1]}: {type(exc).__name__}: {exc}") from exc


def _numbered(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, formats.FIELD: FORMAT}


def _size(values: Iterable[Any]) -> int | None:
    """Return how many bytes values have; None where one of them can be written nowhere."""
    try:
        return sum(len(salt.payload.dumps(value, use_bin_type=True)) for value in values)
    except Exception:  # msgpack raises many kinds for what it cannot write
        return None


def count_claim(entry: Entry, at: Any) -> None:
    """Bring an entry up to a claim of it, unless it is newer than the claim."""
    if isinstance(at, (int, float)) and math.isfinite(at) and entry.state is State.PENDING and entry.since < at:
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
    entry.move(State.HELD, at, "its record could not be read, so nobody knows whether it was begun")
    return entry
