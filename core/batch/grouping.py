"""
Which groups the minions of a new batch are in, by what the master knows of them. Blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saltext.jobs.core.batch.plan import Group, groups_of, labels_of, parse_by
from saltext.jobs.core.batch.spec import budgets_of, sizes_of
from saltext.jobs.core.master.minion_data import nodegroups_of, values_of


def find_groups(opts: Mapping[str, Any], by: Any, minions: Sequence[str]) -> tuple[Group, ...]:
    """
    Return the groups of some minions, in order.

    :param opts: the master's options.
    :param by: as ``plan.parse_by`` takes it.
    :raises ValueError: when ``by`` is malformed, or no minion is known to be in any group: that is a slip, not a plan.
    :raises MinionDataUnreadable: when the cache of minions' grains and pillar fails.
    """
    wanted = parse_by(by)
    if wanted.kind == "nodegroups":
        labels: Mapping[str, Sequence[str]] = nodegroups_of(opts, wanted.order, minions)
    else:
        values = values_of(opts, wanted.kind, wanted.key, minions)
        labels = {minion: labels_of(value) for minion, value in values.items()}
    if not any(labels.values()):
        known = f"{len(labels)} of the {len(minions)} minions are known to the master (minion_data_cache)"
        raise ValueError(f"by is {by!r}, but no minion of the target is in such a group; {known}")
    return groups_of(minions, labels, wanted.order)


def options_for(groups: Sequence[Group], by: str, batch: Any, max_failures: Any) -> dict[str, Any]:
    """
    Return the fields of a Spec that groups decide: the minions in order, the sizes of each group, and their budgets.

    A percentage, of ``batch`` as of ``max_failures``, is one of the minions of each group.

    :raises ValueError: saying what is malformed.
    """
    counts = [len(group.minions) for group in groups]
    return {
        "by": by,
        "groups": tuple((group.name, len(group.minions)) for group in groups),
        "minions": tuple(minion for group in groups for minion in group.minions),
        "sizes": tuple(size for count in counts for size in sizes_of(batch, count)),
        **budgets_of(max_failures, counts),
    }
