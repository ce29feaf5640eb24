"""
Why minions of a batch did not succeed: the result of ``batch.failures``. Pure: it is handed one return at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from saltext.jobs.core.batch.flight import Outcome
from saltext.jobs.core.batch.tables import BAD, MEANINGS
from saltext.jobs.core.reasons import Reasons, text_of

#: Why a minion did not succeed, if no return of it can be read.
_WITHOUT = {
    **{state: MEANINGS[state] for state in BAD if state in MEANINGS},
    Outcome.FAILED.value: "no return of it can be read: it was not there, or the job cache has the return no more",
}
#: The fields of the batch itself in the result.
_ABOUT = (
    *("jid", "fun", "arguments", "tgt", "tgt_type", "user", "state", "success", "halted", "halted_reason", "driver"),
    *("total", "completed", "active", "pending", "failed", "lost", "offline", "killed", "timed_out"),
)

#: Yields (minion, its return or None) for some minions.
Returns = Callable[[Iterable[str]], Iterator[tuple[str, Mapping[str, Any] | None]]]


def failures(found: Mapping[str, Any], minions: Mapping[str, Mapping[str, Any]], returns: Returns) -> dict[str, Any]:
    """
    Return the result of ``batch.failures``.

    :param found: the summary of a batch.
    :param minions: as ``batch.minions`` returns them.
    """
    wanted = {minion: record for minion, record in minions.items() if record["state"] in BAD}
    reasons = Reasons()
    for minion, ret in returns(wanted):
        state, retcode = str(wanted[minion]["state"]), wanted[minion]["retcode"]
        reasons.add(minion, state, retcode, _WITHOUT[state] if ret is None else text_of(ret))
    return {
        **{name: found[name] for name in _ABOUT if name in found},
        "unsuccessful": len(wanted),
        "groups": reasons.groups(),
    }
