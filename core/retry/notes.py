"""
The notes about jobs, by jid: how they come, are kept, and go. Part of the retry machine, and as pure as it.

It must never change a note without returning that it is to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable

from saltext.jobs.core.retry.facts import SaveNote, Warn
from saltext.jobs.core.retry.note import Note
from saltext.jobs.core.retry.timers import Timers


class Notes:
    """
    :param timers: the machine's; the keys ``("note", jid)`` are used here.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.by_jid: dict[str, Note] = {}

    def get(self, jid: str) -> Note:
        """Return the note about a job; an empty one where there is none."""
        return self.by_jid.get(jid) or Note(0.0)

    def restore(self, jid: str, note: Note) -> None:
        """Take up what the store holds."""
        self.by_jid[jid] = note
        self._timers.set(("note", jid), note.until)

    def add(self, jid: str, until: float, begun: Iterable[str] = (), settled: Iterable[str] = ()) -> list[SaveNote]:
        """
        Note minions that have begun a job, and those that are not owed it any more although no return will come.

        :param until: Unix time until which it can be owed.
        """
        note = self.by_jid.get(jid) or Note(until)
        note.until = max(note.until, until)
        known = len(note.begun) + len(note.settled)
        note.begun.update(begun)
        note.settled.update(settled)
        if len(note.begun) + len(note.settled) == known:
            return []
        self.restore(jid, note)
        return [SaveNote(jid)]

    def kill(self, jid: str, until: float, minions: Iterable[str], user: str) -> list[SaveNote]:
        """Note for which minions an operator has killed a job; ``until`` as above."""
        note = self.by_jid.get(jid) or Note(until)
        note.until = max(note.until, until)
        note.killed.update(dict.fromkeys(sorted(minions), user))
        self.restore(jid, note)
        return [SaveNote(jid)]

    def spare(self, jid: str, minions: Iterable[str]) -> list[SaveNote]:
        """Forget that a job was killed for these minions: it was published to them again since."""
        note = self.by_jid.get(jid)
        spared = note.killed.keys() & set(minions) if note else set()
        if note is None or not spared:
            return []
        note.killed = {minion: user for minion, user in note.killed.items() if minion not in spared}
        return [SaveNote(jid)] if note else self.drop(jid)

    def strike(self, jid: str, minions: Iterable[str]) -> list[SaveNote]:
        """Strike minions off the note about a job: they have returned it, or have an entry."""
        note = self.by_jid.get(jid)
        gone = (note.begun | note.killed.keys()).intersection(minions) if note else set()
        if note is None or not gone:
            return []
        note.begun -= gone
        note.killed = {minion: user for minion, user in note.killed.items() if minion not in gone}
        return [SaveNote(jid)] if note else self.drop(jid)

    def drop(self, jid: str) -> list[SaveNote]:
        """Drop the note about a job, if there is one."""
        if self.by_jid.pop(jid, None) is None:
            return []
        self._timers.cancel(("note", jid))
        return [SaveNote(jid)]

    def due(self, jid: str) -> list[SaveNote | Warn]:
        """Drop a note about a job that nobody can be owed any more."""
        begun = sorted(self.get(jid).begun)
        effects: list[SaveNote | Warn] = [*self.drop(jid)]
        if begun:
            some = ", ".join(begun[:5])
            message = f"{len(begun)} minions have begun job {jid} and not returned it in its time to live: {some}"
            effects.append(Warn(message))
        return effects
