"""
The checkpoint on disk: how far the engine has read what the master did, and which jobs were open then. The next engine goes
on from there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core import lines
from saltext.jobs.core.engine.names import JOB_RETRY
from saltext.jobs.core.errors import StateError
from saltext.jobs.core.ledger.log import Position
from saltext.jobs.core.retry.capture import LATEST
from saltext.jobs.core.retry.facts import Kill
from saltext.jobs.core.retry.open_job import OpenJob
from saltext.jobs.core.site import Folder, Site, read_msgpack, write_msgpack

log = lines.logger(__name__)

#: Files in the engine's folder: the checkpoint, and the one that is there as long as replays are paused.
CHECKPOINT, PAUSED = "checkpoint", "paused"
#: Seconds by which a checkpoint lies in the past: more than an engine waits before its second search. Otherwise the
#: next engine would miss what this one has not found yet.
MARGIN = LATEST + 20.0


def read_checkpoint(folder: Folder) -> Mapping[str, Any] | None:
    """
    Return what the checkpoint in an engine's folder says; None if there is none.

    :raises StateError: when it is damaged.
    :raises OSError: when it cannot be read at this moment.
    """
    found = read_msgpack(folder, CHECKPOINT)
    if found is None:
        return None
    try:
        times = {name: float(found[name]) for name in ("at", "search")}
        return {**found, **times, "open": dict(found["open"]), "kills": list(found["kills"])}
    except (KeyError, TypeError, ValueError) as exc:
        raise StateError(f"{folder.where(CHECKPOINT)} is no checkpoint: {type(exc).__name__}: {exc}") from exc


class Checkpoint:
    """
    ``at``: Unix time in seconds; all that was published before is settled, or in ``open_jobs``. ``position``: the same as
    a place in the log. ``search``: Unix time from which the job cache still had to be searched for jobs that
    the log lacks; infinite if no search was under way.
    """

    def __init__(self, site: Site, folder: Folder) -> None:
        self._site, self._folder = site, folder
        self.at, self.search = 0.0, math.inf
        self.position: Position | None = None
        self._found: Mapping[str, Any] = {}

    def load(self) -> Mapping[str, Any] | None:
        """Return what is kept. Raises as ``read_checkpoint``."""
        return read_checkpoint(self._folder)

    def save(self, record: Mapping[str, Any], position: Position | None, durable: bool = False) -> None:
        """
        Keep a record, and the log from ``position`` on.

        :param durable: whether it must survive a power cut when this returns.
        :raises OSError: when it cannot be written.
        """
        write_msgpack(self._folder, CHECKPOINT, record, durable)
        self._site.keep_log(JOB_RETRY, position)

    def read(self, now: float) -> None:
        """Take up what is kept. If there is nothing, the checkpoint is now: nothing is missed from now on."""
        self.at = now
        try:
            found = self.load()
            if found is None:
                # Durable: if a power cut removed the checkpoint, the next start would count as the first.
                self.write(self.at, None, {}, durable=True)
                return
        except OSError as exc:
            log.warning("The checkpoint cannot be written: %s", exc)
            return
        except StateError as exc:
            log.error("The checkpoint is lost, so earlier jobs are not checked: %s", exc)
            return
        self.at, self.search = min(found["at"], now), found["search"]
        self._found = found
        with contextlib.suppress(ValueError):
            self.position = Position.from_record(found.get("position"))

    def open_jobs(self, now: float) -> dict[str, OpenJob]:
        """Return the jobs that were open. Their times after ``now`` count as ``now``."""
        jobs = {}
        for jid, record in self._found.get("open", {}).items():
            with contextlib.suppress(ValueError):
                jobs[jid] = OpenJob.from_record(record, now)
        return jobs

    def kills(self, now: float) -> list[Kill]:
        """Return the kills that were remembered. Times after ``now`` count as ``now``."""
        kills = []
        for record in self._found.get("kills", ()):
            with contextlib.suppress(TypeError, ValueError):
                jid, minions, user, at, signal, spared = record
                names = frozenset(minions), frozenset(spared)
                kills.append(Kill(str(jid), names[0], str(user), min(float(at), now), str(signal), names[1]))
        return kills

    def write(
        self,
        at: float,
        position: Position | None,
        open_jobs: Mapping[str, OpenJob],
        kills: Sequence[Kill] = (),
        search: float = math.inf,
        durable: bool = False,
    ) -> None:
        """
        Write a newer checkpoint, and keep the log from ``position`` on. A failure is logged; then the old checkpoint
        counts.
        """
        record = {
            "at": at,
            "search": search,
            "open": {jid: job.as_record() for jid, job in open_jobs.items()},
            "position": position and position._asdict(),
            "kills": [
                [kill.jid, sorted(kill.minions), kill.user, kill.at, kill.signal, sorted(kill.spared)] for kill in kills
            ],
        }
        try:
            self.save(record, position, durable)
        except OSError as exc:
            log.warning("The checkpoint cannot be written: %s", exc)
        else:
            self.at = at
