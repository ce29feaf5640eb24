"""
How a replay ends: its minion's entry is done, is tried again later, or has come to a state that it does not leave by itself.
Part of the retry machine, and as pure as it. What is concluded where no return comes is in verdict.py.

It must never leave a minion with a replay whose entry has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from saltext.jobs.core.retry import verdict
from saltext.jobs.core.retry.backlog import Backlog
from saltext.jobs.core.retry.entry import Entry, State
from saltext.jobs.core.retry.looks import Hearsay
from saltext.jobs.core.retry.outbox import Outbox
from saltext.jobs.core.retry.queue import Queue
from saltext.jobs.core.retry.steps import UNCLAIMED, Replay
from saltext.jobs.core.retry.timers import Timers
from saltext.jobs.core.retry.turns import Turns

if TYPE_CHECKING:
    from saltext.jobs.core.settings import RetrySettings

#: Longest wait after signs of life of a minion that then did not answer, in seconds.
LONGEST_COOLDOWN = 300.0


class Ends:
    """
    :param settings: the options under ``job_retry``.
    :param queue: what is owed.
    :param outbox: what waits for its turn to be published.
    :param timers: the machine's; the keys ``("minion", id)`` and ``("replay", id)`` are cancelled here.
    :param turns: when the next replay begins.
    :param heard: returns that the bus has told of.
    """

    def __init__(
        self, settings: RetrySettings, queue: Queue, outbox: Outbox, timers: Timers, turns: Turns, heard: Hearsay
    ) -> None:
        self._settings, self._queue, self._outbox, self._timers = settings, queue, outbox, timers
        self._turns, self._heard = turns, heard

    def carry_out(self, entry: Entry, replay: Replay, decision: verdict.Decision) -> None:
        """Do what was concluded where no return came."""
        entry.tries, entry.lost = decision.tries, decision.lost
        if decision.state is not State.PENDING:
            self.end(entry, decision.state, decision.reason)
            return
        if decision.received:
            entry.acknowledged = False
        else:
            entry.attempts -= 1
        entry.next_at = self._queue.now + decision.wait
        if entry.state is not State.PENDING:
            self._queue.move(entry, State.PENDING, decision.reason)
        self.back(entry, replay, decision.alive)

    def back(self, entry: Entry, replay: Replay, alive: bool, wait: float = 0.0) -> None:
        """
        End a replay without a return: the entry waits for the next sign of life, and for ``cooldown`` or ``wait``, whichever
        is longer.
        """
        backlog = self._queue.backlogs[entry.minion]
        backlog.not_before = self._queue.now + max(wait, self._settings.cooldown)
        self._drop(backlog, entry.minion)
        if self.restarted(entry, replay):
            entry.next_at = 0.0
        if backlog.urged > replay.began:
            entry.next_at = backlog.not_before = 0.0
            alive = True
        else:
            backlog.at_any_time.discard(entry.jid)  # what an operator asks for is one try
        if alive or backlog.seen > replay.began:
            self._turns.wake(entry.minion, self._queue.now + self._settings.settle)
        elif len(backlog.entries) > 1:
            # Nothing says that the minion is there. Its next sign of life sets the timer anew, for whatever it is owed then.
            self._timers.cancel(("minion", entry.minion))

    def _drop(self, backlog: Backlog, minion: str) -> None:
        backlog.replay = None
        self._timers.cancel(("replay", minion))

    def land(self, entry: Entry) -> None:
        """End the replay of an entry, if it has one; the next one may begin."""
        backlog = self._queue.backlogs[entry.minion]
        if backlog.replay is not None and backlog.replay.jid == entry.jid:
            self._drop(backlog, entry.minion)
            self._outbox.withdraw(entry.jid, entry.minion)
            self._turns.wake(entry.minion, self._queue.now)

    def end(self, entry: Entry, state: State, reason: str) -> None:
        """End an entry: bring it to a state that it does not leave by itself."""
        self._queue.move(entry, state, reason)
        self._queue.backlogs[entry.minion].at_any_time.discard(entry.jid)
        self.land(entry)
        self._queue.tell(entry, state.value)
        if state is State.DONE:
            self.remove(entry)

    def remove(self, entry: Entry) -> None:
        """Forget an entry."""
        self.land(entry)
        self._heard.forget(entry.minion, entry.jid)
        self._queue.remove(entry)
        if entry.minion not in self._queue.backlogs:
            self._timers.cancel(("minion", entry.minion))
            self._outbox.withdraw_ping(entry.minion)

    def pause(self) -> None:
        """Begin no replay, and end those that have not claimed their job: nothing more is published."""
        self._turns.paused = True
        for backlog in self._queue.backlogs.values():
            if backlog.replay is not None and backlog.replay.step in UNCLAIMED:
                self.land(backlog.entries[backlog.replay.jid])

    def shut(self, jid: str) -> None:
        """End the replays of a job that have not claimed it: its window is shut."""
        for entry, _ in list(self._queue.replays(jid, self._queue.minions_of(jid), *UNCLAIMED)):
            if not self._turns.may_be_sent(entry):
                self.land(entry)

    def restarted(self, entry: Entry, replay: Replay) -> bool:
        """Tell whether the minion has started since its job was published."""
        return self._queue.backlogs[entry.minion].started > max(replay.began, entry.sent_at or 0.0)

    def false_sign(self, entry: Entry, replay: Replay) -> None:
        """End the replay to a minion that seemed to be there and was not: signs of life can be forged."""
        backlog = self._queue.backlogs[entry.minion]
        backlog.false_signs += 1  # so that each counts less than the one before
        wait = self._settings.cooldown * 2 ** min(backlog.false_signs - 1, 20)
        self.back(entry, replay, alive=False, wait=min(wait, LONGEST_COOLDOWN))
        backlog.at_any_time.clear()  # an operator's request was for now

    def not_received(self, entry: Entry, replay: Replay, reason: str, alive: bool) -> None:
        """End a replay of which nothing says that the minion got the job."""
        terms = self._queue.terms_of(entry)
        self.carry_out(entry, replay, verdict.not_received(entry, reason, terms, begun=False, alive=alive))
