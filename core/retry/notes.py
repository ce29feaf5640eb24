"""
What is known of a job besides its entries in the queue: which minions have begun it, on which an operator has killed it,
which lost their entry without a return, and whose return the job cache may have lost. A later look at the job must not send
it to any of these again.

There is one note for each job: if 10,000 minions run a job for an hour, that costs one record. This module must never change
a note without marking it to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from saltext.jobs.core.retry.entry import Key, Kind
from saltext.jobs.core.retry.timers import Timers


@dataclass(slots=True, eq=False)
class Note:
    """
    ``until``: Unix time until which the job can be owed. ``begun``: minions that have begun it. ``settled``: minions that
    are no longer owed it, whatever the job cache says. ``killed``: ``{minion: (user, Unix time)}``: where it was killed, by
    whom and when. ``again``: ``{digest: minions}``: where something was published under its jid since; if that is the same
    job, its kill does not count there any more.
    """

    until: float
    begun: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    killed: dict[str, tuple[str, float]] = field(default_factory=dict)
    again: dict[str, set[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.begun or self.settled or self.killed)

    def as_record(self) -> dict[str, Any]:
        return {
            "until": self.until,
            "begun": sorted(self.begun),
            "settled": sorted(self.settled),
            "killed": {minion: list(kill) for minion, kill in self.killed.items()},
            "again": {work: sorted(minions) for work, minions in self.again.items()},
        }

    def was_killed(self, minion: str, since: float) -> bool:
        """Tell whether it was killed on a minion after a request of that time."""
        is_killed = minion in self.killed and not any(minion in minions for minions in self.again.values())
        return is_killed and since <= self.killed[minion][1]

    @classmethod
    def from_record(cls, record: Any) -> Note:
        """Return the note that a stored record describes. :raises Exception: of many kinds, when it describes none."""
        killed = {minion: (str(user), float(at)) for minion, (user, at) in record["killed"].items()}
        again = {work: set(minions) for work, minions in record["again"].items()}
        return cls(float(record["until"]), set(record["begun"]), set(record["settled"]), killed, again)


class Notes:
    """``changed``: the keys of the records to be written or removed. The timers ``("note", jid)`` are set here."""

    def __init__(self, timers: Timers, changed: dict[Key, None]) -> None:
        self._timers, self._changed = timers, changed
        self.by_jid: dict[str, Note] = {}

    def get(self, jid: str) -> Note:
        """Return the note about a job; an empty one if there is none."""
        return self.by_jid.get(jid) or Note(0.0)

    def restore(self, jid: str, note: Note) -> None:
        """Take up what the store holds."""
        self.by_jid[jid] = note
        self._timers.set(("note", jid), note.until)

    def add(
        self,
        jid: str,
        until: float,
        begun: Iterable[str] = (),
        settled: Iterable[str] = (),
        killed: Mapping[str, tuple[str, float]] | None = None,
    ) -> None:
        """Add minions to the note about a job, for at least as long as it can be owed."""
        note = self.by_jid.get(jid) or Note(0.0)
        known = note.until, len(note.begun), len(note.settled)
        note.until = max(note.until, until)
        note.begun.update(begun)
        note.settled.update(settled)
        if killed:
            note.killed.update(killed)
            note.again = {work: minions - killed.keys() for work, minions in note.again.items()}
        if note and (killed is not None or (note.until, len(note.begun), len(note.settled)) > known):
            self.restore(jid, note)
            self._changed[Key(Kind.NOTE, jid)] = None

    def published(self, jid: str, work: str, minions: Iterable[str], at: float) -> None:
        """Something was published under the jid of a job, perhaps after it was killed there."""
        note = self.get(jid)
        if there := {minion for minion in note.killed.keys() & minions if at > note.killed[minion][1]}:
            note.again.setdefault(work, set()).update(there)
            self._changed[Key(Kind.NOTE, jid)] = None

    def republished(self, jid: str, work: str) -> None:
        """A job with this digest has the jid: forget its kills where it was published again since."""
        self._strike(jid, set(), self.get(jid).again.get(work, set()))

    def strike(self, jid: str, returned: Iterable[str], known: Iterable[str]) -> None:
        """Strike minions off the note about a job: they have returned it, or are known in another way."""
        note, gone = self.get(jid), set(returned)
        self._strike(jid, note.begun & gone.union(known), set())  # a kill counts though its return may be lost later

    def _strike(self, jid: str, begun: set[str], killed: set[str]) -> None:
        if not begun and not killed:
            return
        note = self.by_jid[jid]
        note.begun -= begun
        note.killed = {minion: kill for minion, kill in note.killed.items() if minion not in killed}
        note.again = {work: minions - killed for work, minions in note.again.items() if minions - killed}
        if note:
            self._changed[Key(Kind.NOTE, jid)] = None
        else:
            self.drop(jid)

    def drop(self, jid: str) -> None:
        """Drop the note about a job, if there is one."""
        if self.by_jid.pop(jid, None) is not None:
            self._timers.cancel(("note", jid))
            self._changed[Key(Kind.NOTE, jid)] = None
