"""
What masters have in common if their engines work as one: who leads each engine, and tables.

A *site* is one master with its cachedir, or all masters that share a database. ``core/site.py`` tells which it is.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from saltext.jobs.core.disk.lease import Leader, Lease
from saltext.jobs.core.ledger.log import SIZE, Position, Reader, Writer, writers
from saltext.jobs.core.ledger.tables import Tables


class Lead(NamedTuple):
    """
    A process leads. ``process``: which; None if that is not known. ``silent``: seconds since it last said that it is alive;
    None if that is not known. ``left``: seconds for which it still has its lease; None if it leads until it ends.
    """

    process: Leader | None
    silent: float | None
    left: float | None = None


class Site:
    """:param opts: the master's options."""

    #: Seconds that a runner waits for an engine.
    patience = 10.0
    tables: Tables

    def __init__(self, opts: Mapping[str, Any]) -> None:
        self.opts, self._master = opts, str(opts.get("id") or "")
        self._masters: frozenset[str] = frozenset()

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return self.tables.place

    def path(self, engine: str) -> pathlib.Path | None:
        """Return the directory of an engine's lock on this machine; None if there is none."""
        return None

    def doubts(self) -> list[str]:
        """Return a sentence for each thing about the site that an operator should change. :raises OSError:"""
        return []  # the doctors look at the disk themselves

    def lease(self, engine: str, run: str = "") -> Lease:
        """
        Return the lead of an engine, for this process.

        :param run: an id of this run of the master, which changes with a restart; empty if it is not known.
        """
        raise NotImplementedError

    def leader(self, engine: str) -> Leader | None:
        """Return the process that took the lead last, even if it has lost it; None if that is not known. :raises OSError:"""
        raise NotImplementedError

    def lead(self, engine: str) -> Lead | None:
        """Return which process leads now; None if none does. :raises OSError: when that cannot be told."""
        raise NotImplementedError

    def log(self, position: Position | None = None) -> Reader:
        """Return the log of all masters, read from a position on; without one, from its end."""
        return Reader(self.tables, position)

    def log_writer(self, size: int = SIZE) -> Writer:
        """
        Return the writer with which a process of this master appends to the log.

        :param size: most bytes of the log.
        """
        return Writer(self.tables, self._master, size)

    def shares(self, master: str) -> bool:
        """Tell whether the master with this id has written to the log of the site. :raises OSError:"""
        if master not in self._masters:
            self._masters = writers(self.tables)
        return master in self._masters
