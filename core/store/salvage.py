"""
Brings the jobs of a damaged database of the driver sqlite into the one in use.

A job may go on while its records are still to come. Then the file in use has records of it that are made of less.
"""

from __future__ import annotations

import contextlib
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.banks import LOADS, MINIONS, PUBLISHED
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.sqlite import stored
from saltext.jobs.core.sqlite.banks import SqliteBanks
from saltext.jobs.core.sqlite.salvage import Salvage, Unreadable, note
from saltext.jobs.core.store.publication import Publication, ids_in

log = lines.logger(__name__)


class JobSalvage(Salvage):
    """As ``Salvage``, and it joins what both files have of a job."""

    banks: SqliteBanks

    def __init__(self, path: str, banks: SqliteBanks) -> None:
        super().__init__(path, banks)
        #: Loads in place of which there is another one, by jid.
        self._loads: dict[str, dict[str, Any]] = {}

    def meet(self, part: list[tuple[Any, ...]]) -> None:
        for bank in (LOADS, MINIONS):
            self._compare({row[1]: row[-1] for row in part if row[0] == bank}, bank)

    def _compare(self, found: dict[str, bytes], bank: str) -> None:
        """See to what was stored of jobs before their records came from the damaged file: they were running then."""
        for key, data in list(self.banks.pick(bank, found)):
            if data != found[key]:
                earlier = stored.loads(found[key])
                if bank == LOADS:
                    self._loads[key] = earlier
                elif missing := ids_in(earlier) - (now := ids_in(stored.loads(data))):
                    self.banks.store(bank, key, sorted(now | missing))

    def conclude(self) -> None:
        """Put loads back that this master has published: Salt stores a load with a return if it finds none."""
        for jid, load in self._loads.items():
            now = {bank: stored.loads(data) for bank in (LOADS, PUBLISHED) for _, data in self.banks.pick(bank, [jid])}
            with contextlib.suppress(ValueError, StateError):  # not published, or by a later version
                publication = Publication.from_record(now.get(PUBLISHED))
                if not publication.vouches_for(now.get(LOADS, {})) and publication.vouches_for(load):
                    self.banks.store(LOADS, jid, load)
                    self.written += 1


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
