"""A batch in a state that a test needs: it is fed facts. The clock only moves when a test moves it."""

from __future__ import annotations

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.plan import sizes_of
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.store import change_of

BEGIN = 1_000_000.0


def spec(minions="abcd", batch="2", **more) -> Spec:
    """A batch of test.ping without a presence ping, unless ``more`` says otherwise; ``batch`` is for each group."""
    names = tuple(minions)
    counts = [count for _, count in more.get("groups", ())] or [len(names)]
    values = {
        "jid": "20260516101112131415",
        "fun": "test.ping",
        "arg": (),
        "kwargs": {},
        "tgt": "*",
        "tgt_type": "glob",
        "minions": names,
        "batch": batch,
        "sizes": tuple(size for count in counts for size in sizes_of(batch, count)),
        "presence": "none",
        "timeout": 60.0,
        "gather_job_timeout": 10.0,
        "publish_window": 0.0,
    }
    return Spec(**{**values, **more})


class Rows:
    """
    The rows of a batch on a disk, and what was written since it was synced.

    :param batch: the batch.
    """

    def __init__(self, batch):
        self.body, self.parts, self.pending, self._written = {}, {}, [], {}
        self.save(batch)
        self.sync()

    def save(self, batch):
        """Write what has changed."""
        parts = {minion: batch.part(minion) for minion in batch.touched}
        batch.touched.clear()
        self.pending.append((batch.row(), parts))
        self._written |= parts
        for minion in batch.spec.minions:
            part = self._written.get(minion)
            assert batch.part(minion) == part or not (part or any(batch.part(minion))), f"the row of {minion} is old"

    def sync(self):
        """All that was written is on the disk."""
        for body, parts in self.pending:
            self.body = body
            self.parts |= parts
        self.pending = []

    def cut(self, chance):
        """Some of what was not synced is lost."""
        del self.pending[chance.randint(0, len(self.pending)) :]
        self.sync()
        self._written = dict(self.parts)

    def read(self, machine, spec):
        """The batch as another engine finds it."""
        self.sync()
        batch = machine.of_rows(spec, self.body, self.parts)
        assert batch.row() == self.body
        assert {minion: batch.part(minion) for minion in self.parts} == self.parts
        return batch


class Bench:
    """One batch."""

    def __init__(self, *args, **kwargs):
        self.now = BEGIN
        self.spec = spec(*args, **kwargs)
        self.batch = Batch(self.spec, self.now)
        self.tell(facts.Tick())

    def tell(self, fact) -> None:
        """Tell the batch a fact."""
        self.batch.step(fact, self.now)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.tell(facts.Tick())

    def sent(self, missed=()) -> None:
        self.tell(facts.Published(tuple(missed)))

    def returns(self, *minions, retcode=0) -> None:
        for minion in minions:
            self.tell(facts.Returned(minion, retcode))

    def keep(self, store, ended=False) -> None:
        """Write it down as an engine does; ``ended``: as one that has ended."""
        self.batch.closed = self.batch.closed or ended
        store.write([change_of(self.batch)])
