"""
The truth in a simulated world, and what a batch must therefore not do. It is judged after each fact that the batch takes.

Of the batch's own state it reads only the stage, the phase of life, and what the batch wants done.
"""

from __future__ import annotations

from saltext.jobs.core.batch import facts


class Truth:
    """
    :param world: the world, with its spec and its minions.
    """

    def __init__(self, world):
        self.world, self.spec = world, world.spec
        self.stage = 0
        self.checked = set()  # stages whose check was passed, or that were approved
        self.asked = set()  # stages whose check has begun
        self.failed = set()  # minions of whose failure the batch was told
        self.refused = False  # a check was not passed
        group = iter([name for name, count in self.spec.groups for _ in range(count)])
        self.group_of = {name: next(group, "") for name in self.spec.minions}

    # -- what is told -------------------------------------------------------------------------------------------------

    def told(self, fact, before):
        """The batch has taken a fact; ``before``: the stage under check until then."""
        found = fact.found if isinstance(fact, facts.LookedUp) else ()
        if isinstance(fact, facts.Returned):
            found = ((fact.minion, fact.retcode),)
        self.failed.update(name for name, retcode in found if retcode and name in self.world.minions)
        if isinstance(fact, facts.Probed):
            for name in fact.idle:
                self.world.minions[name].idle_said += 1
            for name in (*fact.idle, *fact.running):
                self.world.minions[name].ignored = 0
            for name in fact.silent:
                self.world.minions[name].ignored += 1
        if isinstance(fact, facts.Checked) and fact.stage == before:
            self._answered(fact)
        if isinstance(fact, facts.Approved):
            self.checked.add(fact.stage)

    def _answered(self, fact):
        if fact.passed:
            self.checked.add(fact.stage)
        else:
            assert self.world.batch.halted or self.world.batch.finished, "it goes on after a check that was not passed"
            self.refused = True

    def begins_anew(self):
        """An engine has read the journal. It does not know what the journal lacks, and is not bound by it."""
        batch, cut = self.world.batch, self.world.back_at > self.world.down_until
        if cut:
            self.failed = {name for name, (*_, retcode) in batch.outcomes.items() if retcode}
            self.refused, self.stage = bool(batch.halted), batch.pace.stage
            for name, minion in self.world.minions.items():
                seen = name in batch.flights and batch.flights[name].seen
                minion.known_to_have_begun = seen or name in batch.outcomes
        self.failed |= {name for name, (retcode, _) in self.world.cache.items() if retcode}

    # -- what is wanted -----------------------------------------------------------------------------------------------

    def wants(self, effects, recovered):
        """The batch wants something done, at this moment. ``recovered``: because an engine has started."""
        if self.world.batch.pace.stage != self.stage:
            self._moves_on()  # first: what it knew of minions counts, and a new publish makes that old
        for effect in effects:
            if isinstance(effect, (facts.Publish, facts.Ping)):
                self._is_open(effect)
            if isinstance(effect, facts.Check):
                self._checks(effect, recovered)
            if isinstance(effect, facts.Publish):
                self._publishes(effect)
            if isinstance(effect, facts.Kill):
                self._kills(effect)
            if isinstance(effect, facts.Queue):
                batch = self.world.batch
                assert not (batch.halted or batch.paused), "it does not go on, and minions are handed over"
                assert len(batch.outcomes) == len(self.spec.minions), "others are first, and minions are handed over"

    def _is_open(self, effect):
        if self.spec.window:
            assert self.world.is_open(), f"its window is shut: {effect}"

    def _checks(self, effect, recovered):
        if not (recovered and effect.stage in self.asked):  # one that had begun is asked again at once
            self._is_open(effect)
        self.asked.add(effect.stage)
        for name in effect.minions:
            assert self.world.minions[name].returned == 0, f"{name} is asked in a check, and has not completed"

    def _kills(self, effect):
        for name in effect.minions:
            minion = self.world.minions[name]
            if not self.world.batch.killing:
                limit = self.spec.max_runtime
                assert limit is not None, f"{name} is killed, and nobody wanted that"
                is_time = self.world.now - minion.intended >= limit or self.world.was_set
                assert is_time, f"{name} is killed before its time"
                assert effect.gently or minion.signals, f"{name} is killed before it was told to terminate"
            minion.signals += 1

    def _publishes(self, effect):
        assert not self.refused, "it sends on although a check was not passed"
        if self.spec.failures_allowed is not None:
            assert len(self.failed) <= self.spec.failures_allowed, f"{self.failed} failed, and it sends on"
        for name in effect.minions:
            minion = self.world.minions[name]
            minion.intended, minion.idle_said = self.world.now, 0
        places = [name for name, _ in self.spec.groups]
        turn = max((places.index(self.group_of[name]) for name in effect.minions), default=0) if places else 0
        for group, allowed in zip(places[:turn], self.spec.group_failures_allowed, strict=False):
            failed = {name for name in self.failed if self.group_of[name] == group}
            assert len(failed) <= allowed, f"{failed} of group {group} failed, and the next one begins"

    def _moves_on(self):
        """Another stage has begun: all of the one before has ended, and was checked."""
        if self.spec.check:
            assert self.stage in self.checked, f"stage {self.stage} was not checked"
        self.stage = self.world.batch.pace.stage
        for minion in self.world.minions.values():
            assert not minion.running or minion.excused, f"{minion.name} still runs, and the next stage begins"

    def counts(self):
        """The budgets are used as the outcomes say."""
        record = self.world.batch.record
        bad = ("failed", "lost", "timed_out")
        used = [
            name
            for name, (outcome, _, retcode) in record.ended.items()
            if outcome.value in bad and (retcode is not None or outcome.value != "failed")
        ]
        assert record.budget_used == len(used), f"{record.budget_used} of the budget is used, by {used}"
        groups = [name for name, _ in self.spec.groups] or [""]
        by_group = [sum(self.group_of[name] == group for name in used) for group in groups]
        assert record.group_used == by_group, f"{record.group_used} of the budgets is used, by {used}"

    # -- in the end ---------------------------------------------------------------------------------------------------

    def verdict(self, states):
        """``states``: how each minion has ended, according to the batch."""
        world = self.world
        for name, state in states.items():
            minion = world.minions[name]
            if state == "completed":
                assert minion.returned is not None, f"{name} has completed nothing"
            if state in ("timed_out", "killed"):
                assert minion.signals, f"{name} was never killed"
        for name, (retcode, _) in world.cache.items():
            expected = ("failed", "timed_out") if retcode else ("completed",)
            assert states.get(name) in expected, (name, states.get(name))
            if states[name] == "timed_out":
                assert world.minions[name].signals, f"{name} failed by itself"
        if world.batch.halted is None:
            assert not world.batch.count_pending()
            for minion in world.minions.values():
                assert minion.runs or minion.life != "well" or not world.calm, f"{minion.name} is forgotten"
