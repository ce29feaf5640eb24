"""A batch in a state that a test needs: it is fed facts. The clock only moves when a test moves it."""

from __future__ import annotations

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.machine import step
from saltext.jobs.core.batch.spec import Spec
from saltext.jobs.core.batch.state import Batch
from saltext.jobs.core.batch.store import change_of

BEGIN = 1_000_000.0


def spec(minions="abcd", batch="2", **more) -> Spec:
    """A batch of test.ping without a presence ping, unless ``more`` says otherwise; ``batch`` is for each group."""
    values = {
        "jid": "20260516101112131415",
        "fun": "test.ping",
        "arg": (),
        "kwargs": {},
        "tgt": "*",
        "tgt_type": "glob",
        "minions": tuple(minions),
        "batch": batch,
        "presence": "none",
        "timeout": 60.0,
        "gather_job_timeout": 10.0,
        "publish_window": 0.0,
    }
    return Spec(**{**values, **more})


class Bench:
    """One batch."""

    def __init__(self, *args, **kwargs):
        self.now = BEGIN
        self.spec = spec(*args, **kwargs)
        self.batch = Batch(self.spec, self.now)
        self.tell(facts.Tick())

    def tell(self, fact) -> None:
        """Tell the batch a fact."""
        step(self.batch, fact, self.now)

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
