"""
Brings the jobs of a damaged database of the driver sqlite into the one in use.

A job may go on before its records are copied. Then the file in use has newer records of the job, made without those.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.banks import LOADS, MINIONS, PUBLISHED
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.sqlite import stored
from saltext.jobs.core.sqlite.banks import SqliteBanks
from saltext.jobs.core.sqlite.salvage import Salvage, Unreadable, note
from saltext.jobs.core.store.publication import Publication, ids_in, work_of

log = lines.logger(__name__)

_JOINED = (LOADS, MINIONS, PUBLISHED)


class JobSalvage(Salvage):
    """As ``Salvage``, and it joins what both files have of a job."""

    banks: SqliteBanks

    def __init__(self, path: str, banks: SqliteBanks) -> None:
        super().__init__(path, banks)
        #: By jid and bank: records of the damaged file, as stored, whose places hold different records.
        self._earlier: dict[str, dict[str, bytes]] = collections.defaultdict(dict)

    def meet(self, part: list[tuple[Any, ...]]) -> None:
        for bank in _JOINED:
            found = {row[1]: row[-1] for row in part if row[0] == bank}
            for jid, data in list(self.banks.pick(bank, found)):
                if data != found[jid]:
                    self._earlier[jid][bank] = found[jid]

    def conclude(self) -> None:
        """Join the records of jobs that went on before their records were copied from the damaged file."""
        for jid, earlier in self._earlier.items():
            with self.banks.transaction():
                now = {bank: data for bank in _JOINED for _, data in self.banks.pick(bank, [jid])}
                for bank, record in _joined(_decoded(earlier), _decoded(now)).items():
                    self.banks.store(bank, jid, record)
                    self.written += 1


def _decoded(records: dict[str, bytes]) -> dict[str, Any]:
    found = {}
    for bank, data in records.items():
        with contextlib.suppress(Exception):  # msgpack raises many kinds for a broken value
            found[bank] = stored.loads(data)
    return found


def _joined(earlier: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """
    Return the records of a job, by bank, that must replace those in use.

    :param earlier: of the damaged file; only those that differ.
    :param now: those in use.
    """
    if not now.get(LOADS) and not now.get(PUBLISHED):
        return {}  # the job was removed meanwhile
    load = now[LOADS] if isinstance(now.get(LOADS), dict) else {}
    published = earlier[LOADS] if isinstance(earlier.get(LOADS), dict) else load
    minions, before = ids_in(now.get(MINIONS)), ids_in(earlier.get(MINIONS))
    found: dict[str, Any] = {MINIONS: sorted(minions | before)} if before - minions else {}
    with contextlib.suppress(ValueError, StateError):  # not published, or by a later version
        last = Publication.from_record(now.get(PUBLISHED))
        first = Publication.from_record(earlier[PUBLISHED]) if PUBLISHED in earlier else None
        if first is None:
            # Only the damaged file has a publish of the job. What came meanwhile was reported.
            joined = dataclasses.replace(last, added=last.added | (minions - before)) if before else last
        elif first.at < last.at and first.vouches_for(published):
            joined = _published_first(first, last, minions, before, published, load)
        else:
            joined = last
        if joined != last:
            found[PUBLISHED] = joined.as_record()
        # Salt stores a load with a return if it finds none.
        if not joined.vouches_for(load) and joined.vouches_for(published):
            found[LOADS] = published
    return found


def _published_first(
    first: Publication, last: Publication, minions: set[str], before: set[str], published: Any, load: Any
) -> Publication:
    """
    Return the record of a job that was published again, perhaps to the next part of a batch, before the first record came.

    :param minions: of the last publish, with those that were reported.
    :param before: of the first one, likewise; empty if that is not known.
    """
    joined = dataclasses.replace(first, last=max(first.last, last.last))
    for other in last.borrowed:
        joined = joined.with_borrowed({"fun": other.fun, "user": other.user}, other.at)
    if work_of(published) != work_of(load):
        joined = joined.with_borrowed(load, last.last)
        added = first.added | (minions - before)
    elif before:
        named = (before - first.added) | (minions - last.added)
        added = frozenset((before | minions) - named)
    else:
        added = first.added | last.added
    return dataclasses.replace(joined, added=frozenset(added))


def end(path: str, banks: SqliteBanks) -> None:
    """
    Copy the jobs of a damaged file that are still to come.

    :raises sqlite3.Error: if the file in use cannot be written; the next call goes on.
    """
    salvage = JobSalvage(path, banks)
    try:
        salvage.run()
    except Unreadable as exc:
        log.error("The jobs of %s cannot be read: %s", path, exc)
        with banks.transaction() as sql:
            note(sql, path, to_come=False)
        return
    except OSError as exc:
        log.error("The jobs of %s cannot be read now, and the next sweep of the job cache tries again: %s", path, exc)
        return
    log.warning(
        "%d records of jobs were brought over from %s, in which %d places cannot be read",
        salvage.written,
        path,
        salvage.gaps,
    )
