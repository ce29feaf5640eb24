"""
The table of the driver postgresql (cache/postgresql.py), read and written by core/postgresql/banks.py without Salt's loader.

A publish stores everything in one statement or transaction, and a job is removed in one. Several masters may share a
table.
"""

from __future__ import annotations

from salt.exceptions import SaltCacheError

from saltext.jobs.core.errors import JobsError
from saltext.jobs.core.postgresql.banks import Banks, banks_of
from saltext.jobs.core.postgresql.trouble import Rejected
from saltext.jobs.core.store.calling import Outage
from saltext.jobs.core.store.tabled import TableDriver


class Postgresql(TableDriver[Banks]):
    """The table of the driver postgresql, safe with a frozen server and with concurrent writers."""

    _banks: Banks | None = None

    def tables(self) -> Banks:
        if self._banks is None:
            self._banks = banks_of(self._opts)
        return self._banks

    def error(self, name: str, bank: str, key: str | None, exc: Exception) -> SaltCacheError:
        if isinstance(exc, JobsError) and not isinstance(exc, Rejected):
            self._banks = None  # they may have been closed: a process keeps those of a few servers
            return Outage(f"Cache driver {self.name} could not {name} bank={bank!r} key={key!r}: {exc}")
        return super().error(name, bank, key, exc)
