"""
Who leads, of all masters of a site: a row in PostgreSQL that must be renewed.

Only the server's clock ends a lease. Each transaction of the leader renews it first (``renew``). A process that takes over
waits for that transaction, so nothing of the former leader is written later.

A publish cannot be in a transaction. So for publishes the leader has a deadline of its own (``check``), a third of the
lease before its end. A thread renews the lease and moves the deadline, by a clock that nobody sets and that goes on while
the machine is suspended. If a process freezes just after the check, the master's worker refuses its publish
(``core/master/passes.py``). A lease ends with the timeline of the write-ahead log in which it was taken, so a leader writes
nothing after a failover to a replica.

It must never work alone: a leader that does not reach the server publishes nothing.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable

from saltext.jobs.core import lines
from saltext.jobs.core.boot import since_boot
from saltext.jobs.core.disk.lease import Lease, leader_of, this_process
from saltext.jobs.core.ledger.tables import Tables
from saltext.jobs.core.lines import Quiet

log = lines.logger(__name__)

#: One row per engine: which process leads, in which epoch, and until when. Only the server's clock decides that.
LEASES = "saltext_jobs_leases"
CREATE = f"""CREATE TABLE {LEASES} (
    engine text PRIMARY KEY, session text NOT NULL, epoch bigint NOT NULL, leader bytea NOT NULL,
    until timestamptz NOT NULL, alive timestamptz NOT NULL)"""
#: Seconds for which a lease lasts. It is renewed four times in this time. Nothing is published in its last third.
TTL = 12.0
#: If the clock went back, the next epoch is random, up to this above the highest: a failover may have lost some.
_STEP = 1_000_000
_FOR = "? * interval '1 second'"
_SEAT = f"""INSERT INTO {LEASES} VALUES (?, '', 0, '', '-infinity', '-infinity') ON CONFLICT (engine) DO NOTHING"""
#: A session is the timeline in which a lease was taken, and what no other process has.
_SESSION = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || ?"
_LOOK = f"""SELECT leader, epoch, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    until > clock_timestamp() FROM {LEASES} WHERE engine = ? FOR UPDATE"""
_TAKE = f"""UPDATE {LEASES} SET session = {_SESSION}, epoch = ?, leader = ?, until = clock_timestamp() + {_FOR},
    alive = clock_timestamp() WHERE engine = ?"""
_RENEW = f"""UPDATE {LEASES} SET until = clock_timestamp() + {_FOR}
    WHERE engine = ? AND session = {_SESSION} AND until > clock_timestamp()"""
_BEAT = f"UPDATE {LEASES} SET alive = clock_timestamp() WHERE engine = ? AND session = {_SESSION}"
_RELEASE = f"UPDATE {LEASES} SET until = '-infinity' WHERE engine = ? AND session = {_SESSION}"


class Superseded(OSError):
    """Another process leads now: this one must do nothing any more."""


class TableLease(Lease):
    """
    ``run`` names this run of the master, to tell its processes from those before a restart; empty if not known. ``ttl``:
    seconds for which it lasts. ``clock`` returns seconds, as ``core.boot.since_boot``.
    """

    def __init__(
        self,
        tables: Tables,
        engine: str,
        master: str,
        run: str = "",
        ttl: float = TTL,
        clock: Callable[[], float] = since_boot,
    ) -> None:
        super().__init__()
        self._tables, self._engine, self._master, self._run = tables, engine, master, run
        self._ttl, self._clock = ttl, clock
        self._session = ""
        self._until = 0.0  # until when this process may publish, by its own clock
        self._is_lost = False
        self._is_over = threading.Event()
        self._quiet = Quiet(log)

    @property
    def left(self) -> float:
        """Seconds for which it may publish without a further renewal, by the clock of this process."""
        return max(0.0, self._until - self._clock()) if self._session and not self._is_lost else 0.0

    def take(self) -> bool:
        """Take the lead if no process has it, and tell whether it did. :raises OSError: if that cannot be told."""
        session, began = secrets.token_hex(16), self._clock()

        def work() -> bool:
            self._tables.run(_SEAT, (self._engine,))
            ((line, before, now, is_held),) = self._tables.read(_LOOK, (self._engine,))
            if is_held:
                return False
            epoch = now if now > before else before + 1 + secrets.randbelow(_STEP)
            self.predecessor = leader_of(line)
            self.leader = this_process(epoch, self._master, self._run, key=self._tables.seal.mark((), "leader"))
            self._tables.run(_TAKE, (session, epoch, self.leader.as_line(), self._ttl, self._engine))
            return True

        # if the answer is lost, no process uses the lease that was taken, and it ends by itself
        if not self._tables.together(work):
            return False
        self._session, self._until, self._is_lost = session, began + self._ttl * 2 / 3, False
        threading.Thread(target=self._keep, name=f"{self._engine} lease", daemon=True).start()
        return True

    def renew(self) -> None:
        """Renew the lease, as the first statement of a transaction, whose end a successor awaits. :raises Superseded:"""
        began = self._clock()
        if self._tables.changed(_RENEW, (self._ttl, self._engine, self._session)) < 1:
            if self._session:  # it was not released
                self._is_lost = True
                self.refused += 1
                self._is_over.set()
                self.on_lost()
            raise self._over()
        self._until = max(self._until, began + self._ttl * 2 / 3)

    def _over(self) -> Superseded:
        return Superseded(f"the lease of the {self._engine} engine is over")

    def check(self) -> None:
        """
        Make sure that this process still leads, without asking the server. :raises Superseded: when it does not; then
        ``on_lost`` was called. :raises OSError: when it was not renewed for so long that another process may lead soon.
        """
        if not self.left:
            self.refused += 1
            if self._is_lost:
                raise self._over()
            raise OSError(f"the lease of the {self._engine} engine could not be renewed: is PostgreSQL away?")

    def beat(self) -> None:
        """Write that the leader is alive. :raises OSError: as ``check``, and if that cannot be written."""
        self.check()
        self._tables.run(_BEAT, (self._engine, self._session))

    def release(self) -> None:
        self._is_over.set()  # the thread ends by itself
        session, self._session = self._session, ""
        if session:
            with contextlib.suppress(OSError):  # then it ends by itself
                self._tables.run(_RELEASE, (self._engine, session))

    # -- the thread that keeps it ---------------------------------------------------------------------------------------

    def _keep(self) -> None:
        pause = self._ttl / 4
        while not self._is_over.wait(pause):
            try:
                self.renew()
                pause = self._ttl / 4
            except Superseded:
                return
            except OSError as exc:
                self._quiet.error(
                    "renew", "The lease of the %s engine cannot be renewed, trying again: %s", self._engine, exc
                )
                pause = min(1.0, self._ttl / 10)
