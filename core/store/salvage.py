"""
Brings the jobs of a damaged database of the driver sqlite into the one in use.

A job may go on before its records are copied. Then the file in use has newer records of the job, made without those.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterator
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
        #: By jid and bank: records of the damaged file whose places hold different records.
        self._earlier: dict[str, dict[str, Any]] = collections.defaultdict(dict)

    def meet(self, part: list[tuple[Any, ...]]) -> None:
        for bank in _JOINED:
            found = {row[1]: row[-1] for row in part if row[0] == bank}
            for jid, data in list(self.banks.pick(bank, found)):
                if data != found[jid]:
                    self._earlier[jid][bank] = stored.loads(found[jid])

    def conclude(self) -> None:
        """Join the records of jobs that went on before their records were copied from the damaged file."""
        for jid, earlier in self._earlier.items():
            with self.banks.transaction():
                for bank, record in _joined(earlier, dict(self._now(jid))).items():
                    self.banks.store(bank, jid, record)
                    self.written += 1

    def _now(self, jid: str) -> Iterator[tuple[str, Any]]:
        for bank in _JOINED:
            for _, data in self.banks.pick(bank, [jid]):
                with contextlib.suppress(Exception):  # msgpack raises many kinds for a broken value
                    yield bank, stored.loads(data)


def _joined(earlier: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """
    Return the records of a job, by bank, that must replace those in use.

    :param earlier: of the damaged file; only those that differ.
    :param now: those in use.
    """
    found: dict[str, Any] = {}
    minions, before = ids_in(now.get(MINIONS)), ids_in(earlier.get(MINIONS, now.get(MINIONS)))
    if before - minions:
        found[MINIONS] = sorted(minions | before)
    with contextlib.suppress(ValueError, StateError):  # not published, or by a later version
        publication, load = Publication.from_record(now.get(PUBLISHED)), now.get(LOADS) or {}
        published = earlier.get(LOADS, load)
        if PUBLISHED in earlier:  # the job was published again, perhaps to the next part of a batch
            first = Publication.from_record(earlier[PUBLISHED])
            if first.at < publication.at and first.vouches_for(published) and work_of(published) == work_of(load):
                # The next publish took minions of the first one for added ones if they had returned before it.
                added = first.added | (publication.added - before)
                publication = dataclasses.replace(first, last=max(first.last, publication.last), added=added)
                found[PUBLISHED] = publication.as_record()
        # Salt stores a load with a return if it finds none.
        if not publication.vouches_for(load) and publication.vouches_for(published):
            found[LOADS] = published
    return found


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
