"""
What operators ask for, and what is no longer owed because a minion's key was deleted.

It must never send anything: what an operator asks for goes through all looks and questions of a replay.
"""

from __future__ import annotations

from collections.abc import Mapping

from saltext.jobs.core import lines
from saltext.jobs.core.display.text import some
from saltext.jobs.core.retry import facts
from saltext.jobs.core.retry.capture import Capture
from saltext.jobs.core.retry.entry import ENDED, PAUSED, TRANSITIONS, UNDER_WAY, Entry, State
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.replay import Replays, Turns
from saltext.jobs.core.users import Identity

log = lines.logger(__name__)

#: What operators can ask for: functions of ``Owing``.
VERBS = ("enqueue", "replay", "retry", "cancel", "purge", "pause", "resume")
#: Seconds for which a key must be missing; and the reasons of what an operator has cancelled, or queued.
_KEYS_AGAIN, _ASKED, _QUEUED = 30.0, "by an operator", "an operator has queued it"
#: Seconds by which the clock of a runner may be ahead.
_AHEAD = 1.0


class Owing:
    """Operators ask for its functions ``VERBS``, which raise ValueError to refuse. The timer ``("keys",)`` is set here."""

    def __init__(self, queue: Queue, turns: Turns, replays: Replays, capture: Capture) -> None:
        self._queue, self._turns, self._replays, self._capture = queue, turns, replays, capture
        self._keyless: Mapping[str, float] = {}  # minions without a key, and when the first look did not find it

    def enqueue(self, asked: facts.Requested) -> int:
        """Queue a job for minions; those named need not match its target. Returns how many are new, or pending again."""
        request, read = asked.request, asked.read
        jid, named = request.get("jid"), request.get("minions")
        if read is None or read.job is None:
            raise ValueError(f"Job {jid} is not in the job cache as one that this master has published")
        job = self._queue.jobs.get(read.jid, read.job)
        if (read.job.load.get("kwargs") or {}).get("nocache"):
            raise ValueError(f"Job {jid} stores no returns, so it could not be known which minions have run it")
        minions = sorted(read.missing) if named is None else list(dict.fromkeys(named))
        if outside := [minion for minion in minions if minion not in read.minions]:
            raise ValueError(f"Job {jid} was not published to {some(outside, 10)}")
        keyless = [minion for minion in minions if minion not in read.missing | read.returned]
        if keyless and not request.get("batch"):
            raise ValueError(f"Not enqueued, since these minions have no accepted key here: {some(keyless, 10)}")
        if read.job.obstacle and named is None:
            raise ValueError(f"Job {jid} cannot be delivered: {read.job.obstacle}; name the minions")
        if keyless:
            log.warning("Batch %s: these minions have no accepted key and are owed nothing: %s", jid, some(keyless, 10))
        asker, wanted_at, count = Identity.from_record(request.get("asker")), self._dated(asked), 0
        reason, ends_at = str(request.get("reason") or _QUEUED), self._queue.now + self._queue.ttl_of(job)
        for minion in filter(read.missing.__contains__, minions):
            entry = self._queue.entry(minion, job.jid)
            if self._was_killed(minion, job.jid, wanted_at):
                entry = None
            elif entry is None:
                entry = self._capture.add(job, minion, reason, ends_at)
            elif entry.state in ENDED:
                self._queue.renew(entry, ends_at, reason)
            else:
                # Kills from before the request may be taken later.
                entry.wanted_at = max(entry.wanted_at, wanted_at)
                self._queue.touch(entry)
                entry = None
            if entry is not None:
                entry.named, entry.asker, entry.wanted_at = named is not None, asker, wanted_at
                count += 1
            if minion in self._queue.backlogs:
                self._turns.ping((minion,))
        return count

    def replay(self, asked: facts.Requested) -> int:
        """Deliver now what a minion is owed; windows do not count for a while. Returns how many entries that is."""
        minion = asked.request["minion"]
        there = [entry for entry in self._queue.of(minion, None) if entry.state in (*UNDER_WAY, State.PENDING)]
        if pending := sum(entry.state is State.PENDING for entry in there):
            for entry in there:  # one that is under way too, since others wait for it
                entry.next_at, entry.urged_at = 0.0, self._queue.now
                self._queue.touch(entry)
            self._queue.backlogs[minion].not_before = 0.0
            self._turns.wake(minion, self._queue.now)
        return pending

    def retry(self, asked: facts.Requested) -> int:
        """Make held and dead entries pending again. Returns how many."""
        asker, wanted_at = Identity.from_record(asked.request.get("asker")), self._dated(asked)
        there = [entry for entry in self._selected(asked) if entry.state in (State.HELD, State.DEAD)]
        there = [entry for entry in there if not self._was_killed(entry.minion, entry.jid, wanted_at)]
        for entry in there:
            ends_at = self._queue.now + self._queue.ttl_of(self._queue.jobs[entry.jid])
            entry.asker, entry.wanted_at = asker or entry.asker, wanted_at
            entry.named |= bool(self._queue.jobs[entry.jid].obstacle and asked.request.get("minion"))  # as in enqueue
            self._queue.renew(entry, ends_at, "an operator wants it tried again")
            self._turns.ping((entry.minion,))
        return len(there)

    def _selected(self, asked: facts.Requested) -> list[Entry]:
        return list(self._queue.of(asked.request.get("minion"), asked.request.get("jid")))

    def _dated(self, asked: facts.Requested) -> float:
        """Return when it was wanted; 0 if the clock was set back since, so that each kill counts as later."""
        wanted_at, now = asked.wanted_at, self._queue.now
        return min(wanted_at, now) if wanted_at <= now + _AHEAD else 0.0

    def _was_killed(self, minion: str, jid: str, wanted_at: float) -> bool:
        """Tell whether a job was killed on a minion after an operator wanted it there; then its entry is cancelled."""
        job, entry = self._capture.jobs.get(jid), self._queue.entry(minion, jid)
        kill = job.killed.get(minion) if job else None
        if kill is None or kill.at < wanted_at:
            return False
        if entry is not None and State.CANCELLED in TRANSITIONS[entry.state]:
            self._replays.end(entry, State.CANCELLED, f"killed by {kill.user}")
        return True

    def cancel(self, asked: facts.Requested) -> int:
        """Cancel entries that have not ended, and those that a job would get once its time is up. Returns how many."""
        there = [entry for entry in self._selected(asked) if entry.state not in ENDED]
        for entry in there:
            late = "; it may have been delivered" if entry.state in UNDER_WAY else ""
            self._replays.end(entry, State.CANCELLED, f"{_ASKED}{late}")
        read, minion = asked.read, asked.request.get("minion")
        if read is not None and read.job is not None and self._capture.wants(read.job):
            job, ends_at = read.job, self._queue.end_of_job(read.job)
            names = read.missing.difference(self._queue.minions_of(job.jid))
            new = sorted(names if minion is None else names & {minion})
            there += filter(None, (self._capture.add(job, name, _ASKED, ends_at, State.CANCELLED) for name in new))
        return len(there)

    def purge(self, asked: facts.Requested) -> int:
        """Forget the entries in some states. Returns how many."""
        there = [entry for entry in self._queue.entries() if entry.state in asked.request["states"]]
        for entry in there:
            self._capture.remove(entry)
        return len(there)

    def pause(self, _asked: facts.Requested) -> bool:
        """Publish no job until ``resume``. Returns False if replays were paused already."""
        is_new, self._turns.paused = not self._turns.paused, True
        self._queue.changed[PAUSED] = None
        return is_new

    def resume(self, _asked: facts.Requested) -> bool:
        """Let replays go on, and ping minions so that they begin. Returns False if replays were not paused."""
        is_new, self._turns.paused = self._turns.paused, False
        self._queue.changed[PAUSED] = None
        self._turns.ping(self._queue.backlogs)
        return is_new

    # -- keys ---------------------------------------------------------------------------------------------------------

    def keys_read(self, accepted: frozenset[str], there: frozenset[str]) -> None:
        """Cancel what is owed to minions that have had no key for half a minute, unless no minion at all has a key."""
        known, now = self._queue.backlogs.keys(), self._queue.now
        gone = known - there
        if not accepted and len(known) > 1 and gone == known:
            log.warning("None of the %d minions with a queue has a key: that is not believed", len(known))
            return
        keyless = {minion: self._keyless.get(minion, now) for minion in gone}
        self._keyless = {minion: since for minion, since in keyless.items() if since + _KEYS_AGAIN > now}
        for minion in sorted(keyless.keys() - self._keyless.keys()):
            for entry in self._queue.of(minion, None):
                if entry.state not in ENDED:
                    self._replays.end(entry, State.CANCELLED, "the minion's key was deleted")
                self._capture.remove(entry)
        if self._keyless:
            self._queue.timers.no_later(("keys",), min(self._keyless.values()) + _KEYS_AGAIN)
