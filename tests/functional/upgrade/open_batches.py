"""What an engine does with open batches of an earlier version when it starts."""

from __future__ import annotations

from saltext.jobs.core.batch import facts


def go_on_with(store, said):
    """Continue each open batch. No minion that may have the job is sent it again, and all state is kept."""
    for jid in store.open_jids():
        batch, opened = store.open(jid)
        effects = batch.step(facts.Recovered(), said["now"] + 200)
        assert not any(isinstance(effect, facts.Publish) for effect in effects)
        looked_for = {minion for effect in effects if isinstance(effect, facts.LookUp) for minion in effect.minions}
        minions = said["batches"][jid]["minions"]
        assert looked_for >= {minion for minion, one in minions.items() if one["state"] == "active"}
        opened.rewrite(batch.snapshot())
        opened.close()
        assert store.read(jid).snapshot() == batch.snapshot()
