"""A batch on a bench: feed it facts, see its effects. The clock only moves when a test moves it."""

from __future__ import annotations

from saltext.jobs.core.batch import facts
from saltext.jobs.core.batch.facts import fact_of, record_of
from saltext.jobs.core.batch.machine import Batch
from saltext.jobs.core.batch.plan import sizes_of
from saltext.jobs.core.batch.spec import Spec

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


class Bench:
    """One batch, what it wanted done, and the journal of what it was told."""

    def __init__(self, *args, **kwargs):
        self.now = BEGIN
        self.spec = spec(*args, **kwargs)
        self.batch = Batch(self.spec, self.now)
        self.first = self.batch.snapshot()
        self.journal: list = []
        self.effects: list = []
        self.tell(facts.Tick())

    def tell(self, fact, after: float = 0.0) -> list:
        """Let time pass, then tell the batch a fact; returns the effects of this one."""
        self.now += after
        self.journal.append(record_of(fact, self.now))
        effects = self.batch.step(fact, self.now)
        self.effects += effects
        return effects

    def wait(self, seconds: float) -> list:
        """Let time pass, with a tick whenever one is due; returns the effects."""
        end, effects = self.now + seconds, []
        for _ in range(1000):
            due = self.batch.next_due
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            effects += self.tell(facts.Tick())
        else:
            raise AssertionError(f"the machine asks for ticks without end: {due}, {self.batch.snapshot()}")
        self.now = end
        return effects

    def sent(self, missed=()) -> list:
        return self.tell(facts.Published(tuple(missed)))

    def returns(self, *minions, retcode=0) -> list:
        return [effect for minion in minions for effect in self.tell(facts.Returned(minion, retcode))]

    def looked(self, effects, **found) -> list:
        """Answer the look-up among some effects."""
        (look,) = (effect for effect in effects if isinstance(effect, facts.LookUp))
        return self.tell(facts.LookedUp(look.minions, tuple(found.items())))

    def probed(self, running="", idle="", silent="", unasked="") -> list:
        """Answer a question; those that are then asked for their records have none. Returns the effects of the former."""
        effects = self.tell(facts.Probed(tuple(running), tuple(idle), tuple(silent), tuple(unasked)))
        for asked in [effect for effect in effects if isinstance(effect, facts.AskRecords)]:
            self.tell(facts.Recorded(asked.minions))
        return effects

    def present(self, answered="") -> list:
        """End the ping under way, which some answered, and the later ones, which none answers; returns the effects."""
        effects = new = self.tell(facts.Pinged(tuple(answered)))
        while any(isinstance(effect, facts.Ping) for effect in new):
            new = self.tell(facts.Pinged())
            effects = effects + new
        return effects

    def gone(self, minions: str, seconds: float = 62) -> list:
        """Wait until minions are asked; they do not run the job, and have not returned. Returns the effects of the end."""
        self.until_probe(seconds)
        self.probed(idle=minions)
        self.until_probe(12)
        self.probed(idle=minions)
        return self.looked(self.wait(12))

    def until_probe(self, seconds: float) -> list:
        """Wait until overdue minions are looked for, find none of them in the job cache, and return the effects."""
        return self.looked(self.wait(seconds))

    def twice_idle(self, minion: str) -> list:
        """Have a minion that is overdue say twice that it does not run the job, and return what follows the second time."""
        self.until_probe(62)
        self.probed(idle=minion)
        self.until_probe(12)
        return self.probed(idle=minion)

    def replayed(self) -> Batch:
        """The batch as a new engine would find it."""
        batch = Batch.restore(self.first)
        for record in self.journal:
            batch.step(*fact_of(record))
        return batch

    def state_of(self, minion: str) -> str:
        if minion in self.batch.flights:
            return "active"
        if minion in self.batch.outcomes:
            return self.batch.outcomes[minion][0].value
        return "pending"

    def states(self) -> dict:
        return {minion: self.state_of(minion) for minion in self.spec.minions}


def published(effects) -> list:
    """The minions of each publish among some effects."""
    return ["".join(effect.minions) for effect in effects if isinstance(effect, facts.Publish)]


def kinds(effects) -> list:
    """What some effects are, an announcement by its kind."""
    return [effect.kind if isinstance(effect, facts.Announce) else type(effect).__name__ for effect in effects]
